// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of attention/state.hpp; how they become functions: base/inline.hpp.
#include "episodic/attention/state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace state_detail {

inline constexpr float kNoKey = -std::numeric_limits<float>::infinity();

[[noreturn]] inline void fail(const std::string& what) { throw DataError("merge_states: " + what); }

inline void check(const AttentionState& into, const AttentionState& part) {
  const auto same = [](const char* name, std::int64_t a, std::int64_t b) {
    if (a != b || a < 0) {
      fail(concat(name, " is ", a, " and ", b, ": both must be the same, and not negative"));
    }
  };
  same("n_rows", into.n_rows, part.n_rows);
  same("value_dim", into.value_dim, part.value_dim);
  if (into.n_rows == 0) return;
  if (into.lse == nullptr || part.lse == nullptr) fail("lse is null");
  if (into.value_dim > 0 && (into.out == nullptr || part.out == nullptr)) fail("out is null");
  if ((into.weighted_mass == nullptr) != (part.weighted_mass == nullptr)) {
    fail("weighted_mass is null in one of the two only");
  }
}

template <class T>
void rescale(std::int64_t n, std::int64_t n_heads, const float* part_lse, const float* whole_lse,
             T* sums) {
  if (n < 0 || n_heads < 0) {
    throw DataError(
        concat("rescale_sums: ", n, " rows of ", n_heads, " heads: must not be negative"));
  }
  if (n == 0 || n_heads == 0) return;
  if (part_lse == nullptr || whole_lse == nullptr || sums == nullptr) {
    throw DataError("rescale_sums: an array is null");
  }
  for (std::int64_t h = 0; h < n_heads; ++h) {
    // without a key in the part its sums are zero already; -inf less -inf would make them NaN
    const double share =
        part_lse[h] == kNoKey ? 0.0 : std::exp(static_cast<double>(part_lse[h]) - whole_lse[h]);
    for (std::int64_t i = 0; i < n; ++i) {
      T& sum = sums[i * n_heads + h];
      sum = static_cast<T>(static_cast<double>(sum) * share);
    }
  }
}

}  // namespace state_detail

EPISODIC_INLINE void merge_states(const AttentionState& into, const AttentionState& part) {
  using state_detail::kNoKey;
  state_detail::check(into, part);
  const std::int64_t width = into.value_dim;
  for (std::int64_t row = 0; row < into.n_rows; ++row) {
    const float b = part.lse[row];
    if (b == kNoKey) continue;
    const float a = into.lse[row];
    float* out = into.out + row * width;
    const float* other = part.out + row * width;
    if (a == kNoKey) {
      std::copy(other, other + width, out);
      into.lse[row] = b;
      if (into.weighted_mass != nullptr) into.weighted_mass[row] = part.weighted_mass[row];
      continue;
    }
    const double highest = std::max(a, b);
    const double of_a = std::exp(a - highest), of_b = std::exp(b - highest);
    const double total = of_a + of_b;
    const auto share_a = static_cast<float>(of_a / total);
    const auto share_b = static_cast<float>(of_b / total);
    for (std::int64_t c = 0; c < width; ++c) out[c] = share_a * out[c] + share_b * other[c];
    into.lse[row] = static_cast<float>(highest + std::log(total));
    if (into.weighted_mass != nullptr) {
      into.weighted_mass[row] =
          share_a * into.weighted_mass[row] + share_b * part.weighted_mass[row];
    }
  }
}

EPISODIC_INLINE void rescale_sums(std::int64_t n, std::int64_t n_heads, const float* part_lse,
                                  const float* whole_lse, float* sums) {
  state_detail::rescale(n, n_heads, part_lse, whole_lse, sums);
}

EPISODIC_INLINE void rescale_sums(std::int64_t n, std::int64_t n_heads, const float* part_lse,
                                  const float* whole_lse, double* sums) {
  state_detail::rescale(n, n_heads, part_lse, whole_lse, sums);
}

}  // namespace EPISODIC_NAMESPACE
