// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which loops run. Bodies of cpu/kernels.hpp; how they become functions: base/inline.hpp. The
// header-only core has the portable loops alone.
#include "episodic/cpu/kernels.hpp"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"
#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/cpu/impl/kernels_portable.hpp"
#endif

#if EPISODIC_CPU_X86
#include <cpuid.h>
#endif

namespace EPISODIC_NAMESPACE::cpu {

#ifdef EPISODIC_DECLARE_ONLY
extern const Kernels kernels_portable;
#endif
#if EPISODIC_CPU_X86
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

namespace kernels_detail {

inline std::atomic<const Kernels*> chosen{nullptr};

#if EPISODIC_CPU_X86
/// Conversions of 16-bit numbers, asked of the processor itself: clang below 16 has no such name.
inline bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/// Where a machine, or a build of headers alone, has not the loops that are wished for, its best
/// ones are below them.
inline const Kernels* pick_default() {
  const char* const set = std::getenv("EPISODIC_CPU");
  const std::string_view wish = set != nullptr ? set : "";
  for (int i = 0; const Kernels* table = available_kernels(i); ++i) {
    if (wish == table->name) return table;
  }
  if (!wish.empty() && wish != "avx512" && wish != "avx2" && wish != "portable")
    throw ConfigError(concat("EPISODIC_CPU: '", wish, "': must be avx512, avx2 or portable"));
  return available_kernels(0);
}

}  // namespace kernels_detail

EPISODIC_INLINE const Kernels* available_kernels(int i) {
#if EPISODIC_CPU_X86
  // the compiler's checks include the operating system's support of the wide registers
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    if (i-- == 0) return &kernels_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      kernels_detail::has_f16c()) {
    if (i-- == 0) return &kernels_avx2;
  }
#endif
  return i == 0 ? &kernels_portable : nullptr;
}

EPISODIC_INLINE const Kernels& kernels() {
  const Kernels* table = kernels_detail::chosen.load(std::memory_order_relaxed);
  if (table == nullptr) {
    table = kernels_detail::pick_default();
    kernels_detail::chosen.store(table, std::memory_order_relaxed);
  }
  return *table;
}

EPISODIC_INLINE void use_kernels(const Kernels* table) {
  kernels_detail::chosen.store(table, std::memory_order_relaxed);
}

}  // namespace EPISODIC_NAMESPACE::cpu
