// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over the keys of both sides of a split, for boundary refinement.

#include <cstdint>
#include <cstring>

#include "episodic/base/inline.hpp"
#include "episodic/base/rules/refinement.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::refine_detail {

inline constexpr std::int64_t kLanes = 8, kHalf = kLanes / 2;
typedef float Floats __attribute__((vector_size(4 * kHalf)));
typedef double Doubles __attribute__((vector_size(8 * kHalf)));

/// The body of advance(), for functions with instructions of their own: none of them fuses a
/// multiplication and an addition, so all have the same bits.
inline __attribute__((always_inline)) rules::SplitSums advance_lanes(const float* key,
                                                                     const double* total, double* s,
                                                                     std::int64_t d) {
  Doubles ss[2] = {}, rr[2] = {}, sr[2] = {};
  std::int64_t c = 0;
  for (; c + kLanes <= d; c += kLanes)
#pragma GCC unroll 2
    for (std::int64_t h = 0; h < 2; ++h) {
      Floats k;
      Doubles x, y;
      std::memcpy(&k, key + c + h * kHalf, sizeof k);
      std::memcpy(&x, s + c + h * kHalf, sizeof x);
      std::memcpy(&y, total + c + h * kHalf, sizeof y);
      x += __builtin_convertvector(k, Doubles);
      y -= x;
      std::memcpy(s + c + h * kHalf, &x, sizeof x);
      ss[h] += x * x;
      rr[h] += y * y;
      sr[h] += x * y;
    }
  for (std::int64_t j = 0; c + j < d; ++j) {
    const double x = s[c + j] + static_cast<double>(key[c + j]);
    const double y = total[c + j] - x;
    s[c + j] = x;
    ss[j / kHalf][j % kHalf] += x * x;
    rr[j / kHalf][j % kHalf] += y * y;
    sr[j / kHalf][j % kHalf] += x * y;
  }
  rules::SplitSums out;
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t j = 0; j < kHalf; ++j)
      out.ss += ss[h][j], out.rr += rr[h][j], out.sr += sr[h][j];
  return out;
}

inline __attribute__((always_inline)) void accumulate_lanes(const float* key, double* sum,
                                                            std::int64_t d) {
  for (std::int64_t c = 0; c < d; ++c) sum[c] += static_cast<double>(key[c]);
}

/// One key/value head of one layer. Adds `key` to `s`, takes r = total - s and returns the three
/// products |s|^2, |r|^2 and s.r. r is formed element by element: |total|^2 - 2 s.total + |s|^2
/// would cancel when one side is small.
inline rules::SplitSums advance(const float* key, const double* total, double* s, std::int64_t d) {
  return advance_lanes(key, total, s, d);
}

inline void accumulate(const float* key, double* sum, std::int64_t d) {
  accumulate_lanes(key, sum, d);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline rules::SplitSums advance_avx2(const float* key,
                                                                     const double* total, double* s,
                                                                     std::int64_t d) {
  return advance_lanes(key, total, s, d);
}

__attribute__((target("avx2"))) inline void accumulate_avx2(const float* key, double* sum,
                                                            std::int64_t d) {
  accumulate_lanes(key, sum, d);
}
#endif

/// advance() and accumulate() with the widest instructions of the machine.
struct SplitLoops {
  rules::SplitSums (*advance)(const float*, const double*, double*,
                              std::int64_t) = refine_detail::advance;
  void (*accumulate)(const float*, double*, std::int64_t) = refine_detail::accumulate;

  explicit SplitLoops([[maybe_unused]] const cpu::Kernels& kernels) {
#if defined(__x86_64__)
    if (kernels.set == cpu::InstructionSet::portable) return;
    advance = advance_avx2;
    accumulate = accumulate_avx2;
#endif
  }
};

}  // namespace EPISODIC_NAMESPACE::refine_detail
