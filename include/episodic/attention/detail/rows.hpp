// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of any dtype as float32 and back.

#include <bit>
#include <cstdint>
#include <cstring>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// to[c] = from[c] as float32; to == from is allowed for float32.
inline void load_row(const cpu::Kernels& k, const void* from, DType dtype, std::int64_t d,
                     float* to) {
  if (dtype != DType::float32) {
    k.to_float(from, dtype, d, to);
  } else if (from != to) {
    std::memcpy(to, from, static_cast<std::size_t>(d) * sizeof(float));
  }
}

/// to[c] = from[c] in the dtype of `to`; to == from is allowed for float32.
inline void store_row(const cpu::Kernels& k, const float* from, std::int64_t d, void* to,
                      DType dtype) {
  if (dtype == DType::bfloat16) {
    k.narrow(from, d, static_cast<std::uint16_t*>(to));
  } else if (dtype == DType::float16) {
    k.narrow_half(from, d, static_cast<std::uint16_t*>(to));
  } else if (from != to) {
    std::memcpy(to, from, static_cast<std::size_t>(d) * sizeof(float));
  }
}

/// Magnitudes from which on a dtype has no finite number to round to, as bits of a float32: a
/// number is below iff its own bits, without the sign, are.
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
constexpr std::uint32_t overflow_bits(DType dtype) {
  return dtype == DType::float16    ? 0x477ff000u  // 65520
         : dtype == DType::bfloat16 ? 0x7f7f8000u
                                    : kInfinityBits;
}

/// Whether all |x[c]| are below the number of these bits; NaN is not. In integers, so that
/// compilers do it in vectors.
inline bool all_below(const float* x, std::int64_t n, std::uint32_t bits) {
  const std::uint32_t to_sign = 0x80000000u - bits;
  std::uint32_t any = 0;
  for (std::int64_t c = 0; c < n; ++c)
    any |= (std::bit_cast<std::uint32_t>(x[c]) & 0x7fffffffu) + to_sign;
  return (any >> 31) == 0;
}

/// Asks for bytes that are soon read, or written: rows whose heads are apart look like no stream to
/// the hardware.
inline void fetch(const void* from, std::int64_t bytes) {
  for (std::int64_t b = 0; b < bytes; b += 64)
    __builtin_prefetch(static_cast<const char*>(from) + b, 0);
}
inline void fetch_to_write(const void* to, std::int64_t bytes) {
  for (std::int64_t b = 0; b < bytes; b += 64)
    __builtin_prefetch(static_cast<const char*>(to) + b, 1);
}

/// Loops over fewer elements than this stay on the calling thread (about 20 us).
inline constexpr std::int64_t kSerialElements = 1 << 17;

}  // namespace EPISODIC_NAMESPACE::detail
