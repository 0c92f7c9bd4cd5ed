// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/representatives.hpp; how they become functions: base/inline.hpp.
#include "episodic/base/inline.hpp"
#include "episodic/recall/representatives.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "episodic/cpu/as_floats.hpp"

namespace EPISODIC_NAMESPACE {

EPISODIC_INLINE std::int64_t select_representatives(const KeyView& keys, const float* relevance,
                                                    std::int64_t n, std::int64_t n_heads,
                                                    std::int64_t n_kv_heads, std::int64_t head_dim,
                                                    std::int64_t n_repr, float* mean, float* each) {
  const std::int64_t count = std::min(n_repr, n);
  if (count <= 0) return 0;
  const std::int64_t width = n_heads * head_dim;
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(count));
  std::vector<double> sum(static_cast<std::size_t>(head_dim));
  std::vector<float> row(static_cast<std::size_t>(keys.dtype == DType::float32 ? 0 : head_dim));
  const cpu::Kernels& k = cpu::kernels();
  for (std::int64_t h = 0; h < n_heads; ++h) {
    const auto r = [&](std::int64_t i) { return relevance[i * n_heads + h]; };
    // Insertion into a short list, best first. Tokens come in order of time and a later one must be
    // strictly larger to pass an earlier one.
    std::int64_t held = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      if (held == count && !(r(i) > r(chosen[static_cast<std::size_t>(count - 1)]))) continue;
      std::int64_t at = held < count ? held++ : count - 1;
      for (; at > 0 && r(i) > r(chosen[static_cast<std::size_t>(at - 1)]); --at)
        chosen[static_cast<std::size_t>(at)] = chosen[static_cast<std::size_t>(at - 1)];
      chosen[static_cast<std::size_t>(at)] = i;
    }
    std::sort(chosen.begin(), chosen.end());
    std::fill(sum.begin(), sum.end(), 0.0);
    const std::int64_t head = h / (n_heads / n_kv_heads) * keys.head_stride;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t at = head + chosen[static_cast<std::size_t>(j)] * keys.row_stride;
      const float* key =
          cpu::as_floats(k, static_cast<const char*>(keys.data) + at * size_of(keys.dtype),
                         keys.dtype, head_dim, row.data());
      for (std::int64_t c = 0; c < head_dim; ++c)
        sum[static_cast<std::size_t>(c)] += static_cast<double>(key[c]);
      if (each) std::copy(key, key + head_dim, each + j * width + h * head_dim);
    }
    for (std::int64_t c = 0; c < head_dim; ++c)
      mean[h * head_dim + c] =
          static_cast<float>(sum[static_cast<std::size_t>(c)] / static_cast<double>(count));
  }
  return count;
}

EPISODIC_INLINE void scale_to_unit(std::span<float> vector) {
  double square = 0;
  for (const float x : vector) square += static_cast<double>(x) * x;
  if (!(square > 0)) return;
  const double factor = 1 / std::sqrt(square);
  for (float& x : vector) x = static_cast<float>(x * factor);
}

}  // namespace EPISODIC_NAMESPACE
