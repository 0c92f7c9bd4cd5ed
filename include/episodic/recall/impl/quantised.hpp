// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/detail/quantised.hpp; how they become functions: base/inline.hpp.
#include "episodic/recall/detail/quantised.hpp"

#if defined(EPISODIC_COMPILED) && defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/recall/detail/vector_slabs.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace quantised_detail {

inline constexpr std::int64_t kBlock = 128;  // channels that share a scale
inline constexpr float kLargest = std::numeric_limits<float>::max();

inline std::int64_t blocks_of(std::int64_t width) { return (width + kBlock - 1) / kBlock; }

inline float dot_codes(const float* query, const std::int8_t* codes, std::int64_t n) {
  float sum = 0.0f;
  for (std::int64_t c = 0; c < n; ++c) sum += static_cast<float>(codes[c]) * query[c];
  return sum;
}

/// out[i] = offset + sum over the blocks of row i of scale * (query . codes).
inline void scan_portable(const float* query, const std::int8_t* codes, const float* scales,
                          std::int64_t stride, std::int64_t n_rows, std::int64_t width,
                          float offset, float* out) {
  const std::int64_t n_blocks = blocks_of(width);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    out[r] = offset;
    for (std::int64_t b = 0; b < n_blocks; ++b)
      out[r] +=
          scales[r * stride + b] * dot_codes(query + b * kBlock, codes + r * width + b * kBlock,
                                             std::min(kBlock, width - b * kBlock));
  }
}

#if defined(EPISODIC_COMPILED) && defined(__x86_64__)
// By hand: compilers do not widen bytes to floats in vectors of a good width.
[[gnu::target("avx2,fma")]] inline void scan_avx2(const float* query, const std::int8_t* codes,
                                                  const float* scales, std::int64_t stride,
                                                  std::int64_t n_rows, std::int64_t width,
                                                  float offset, float* out) {
  const std::int64_t full = width / kBlock, rest = width - full * kBlock;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int8_t* row = codes + r * width;
    const float* scale = scales + r * stride;
    __m256 total = _mm256_setzero_ps();
    for (std::int64_t b = 0; b < full; ++b) {
      __m256 part = _mm256_setzero_ps();
      for (std::int64_t c = b * kBlock; c < (b + 1) * kBlock; c += 8) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + c));
        part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                               _mm256_loadu_ps(query + c), part);
      }
      total = _mm256_fmadd_ps(part, _mm256_set1_ps(scale[b]), total);
    }
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, total);
    float sum =
        rest ? scale[full] * dot_codes(query + full * kBlock, row + full * kBlock, rest) : 0.0f;
    for (const float lane : lanes) sum += lane;
    out[r] = offset + sum;
  }
}
#endif

using ScanRows = void (*)(const float*, const std::int8_t*, const float*, std::int64_t,
                          std::int64_t, std::int64_t, float, float*);

inline ScanRows scan_rows() {
#if defined(EPISODIC_COMPILED) && defined(__x86_64__)
  if (cpu::kernels().set != cpu::InstructionSet::portable) return scan_avx2;
#endif
  return scan_portable;
}

/// Codes of x - m, at most 127 in size. Returns their scale; 0, with codes of 0, where there is
/// none.
inline float encode(const float* x, const float* m, std::int64_t n, std::int8_t* codes) {
  float largest = 0.0f;
  bool finite = true;
  for (std::int64_t c = 0; c < n; ++c) {
    const float size = std::abs(x[c] - m[c]);
    largest = size > largest ? size : largest;
    finite = finite && size <= std::numeric_limits<float>::max();
  }
  const float scale = largest / 127.0f;
  if (!finite || !std::isnormal(scale)) return 0.0f;
  const float inverse = 127.0f / largest;
  for (std::int64_t c = 0; c < n; ++c) {
    const float y = (x[c] - m[c]) * inverse;
    codes[c] = static_cast<std::int8_t>(static_cast<std::int32_t>(y + (y < 0.0f ? -0.5f : 0.5f)));
  }
  return scale;
}

}  // namespace quantised_detail

EPISODIC_INLINE QuantisedSlabs::QuantisedSlabs(std::int64_t width, std::int64_t rows_per_slab)
    : width_(width),
      rows_(rows_per_slab),
      stride_(quantised_detail::blocks_of(width) + 1),
      codes_(rows_per_slab * width),
      bounds_(4 * (rows_per_slab * stride_ + width)) {}

EPISODIC_INLINE void QuantisedSlabs::append() {
  const std::int64_t n = slabs();
  bounds_.resize(n + 1);
  try {
    codes_.resize(n + 1);
  } catch (...) {
    bounds_.resize(n);
    throw;
  }
}

EPISODIC_INLINE void QuantisedSlabs::add(const float* vectors) {
  using namespace quantised_detail;
  const std::int64_t n_blocks = blocks_of(width_), slab = slabs();
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  std::vector<double> sum(size(width_));
  for (std::int64_t r = 0; r < rows_; ++r) {
    const float* v = vectors + r * width_;
    for (std::int64_t c = 0; c < width_; ++c)  // one bad row must not cost the others their codes
      sum[size(c)] += std::abs(v[c]) <= kLargest ? static_cast<double>(v[c]) : 0.0;
  }
  append();
  float* mean = mean_of(slab);
  double mean_square = 0.0;
  for (std::int64_t c = 0; c < width_; ++c) {
    const float m = static_cast<float>(sum[size(c)] / static_cast<double>(rows_));
    mean[c] = m;
    mean_square += static_cast<double>(m) * static_cast<double>(m);
  }
  for (std::int64_t r = 0; r < rows_; ++r) {
    const float* v = vectors + r * width_;
    float* bounds = bounds_of(slab, r);
    double square = 0.0, rest_square = 0.0;
    for (std::int64_t b = 0; b < n_blocks; ++b) {
      const std::int64_t n = std::min(kBlock, width_ - b * kBlock);
      const float* x = v + b * kBlock;
      const float* m = mean + b * kBlock;
      std::int8_t* codes = codes_of(slab, r) + b * kBlock;
      const float scale = encode(x, m, n, codes);
      bounds[b] = scale;
#ifdef _OPENMP
#pragma omp simd reduction(+ : square, rest_square)
#endif
      for (std::int64_t c = 0; c < n; ++c) {
        const double value = x[c];
        const double rest =
            value - static_cast<double>(m[c]) - static_cast<double>(scale) * codes[c];
        square += value * value;
        rest_square += rest * rest;
      }
    }
    const double rest = std::sqrt(rest_square);
    const double norms = 2.0 * (std::sqrt(square) + std::sqrt(mean_square)) + rest;
    const double reach = (rest + 2.0 * rounding(width_) * norms) * (1.0 + 1e-6);
    // Rows with infinities or NaN are bounded by nothing, and so always looked at.
    bounds[n_blocks] =
        reach < 1e30 ? static_cast<float>(reach) : std::numeric_limits<float>::infinity();
  }
  finish_slabs();
}

EPISODIC_INLINE void QuantisedSlabs::finish_slabs() {
  codes_.finish(slabs());
  bounds_.finish(slabs());
}

EPISODIC_INLINE void QuantisedSlabs::truncate(std::int64_t n_slabs) {
  if (n_slabs >= slabs()) return;
  codes_.resize(n_slabs);
  bounds_.resize(n_slabs);
}

EPISODIC_INLINE void QuantisedSlabs::replace(std::int64_t first,
                                             const QuantisedSlabs& from) noexcept {
  for (std::int64_t s = 0; s < from.slabs(); ++s) {
    std::copy_n(from.codes_of(s, 0), rows_ * width_, codes_of(first + s, 0));
    std::copy_n(from.bounds_of(s, 0), rows_ * stride_ + width_, bounds_of(first + s, 0));
  }
  truncate(first + from.slabs());
}

EPISODIC_INLINE void QuantisedSlabs::erase(std::int64_t slab, std::int64_t row) {
  std::fill_n(codes_of(slab, row), width_, std::int8_t{0});
  std::fill_n(bounds_of(slab, row), stride_, 0.0f);
}

EPISODIC_INLINE void QuantisedSlabs::save(std::int64_t slab, ByteWriter& to) const {
  const std::int64_t n_blocks = stride_ - 1;
  std::vector<float> scales, reach;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const float* bounds = bounds_of(slab, r);
    scales.insert(scales.end(), bounds, bounds + n_blocks);
    reach.push_back(bounds[n_blocks]);
  }
  const std::int8_t* codes = codes_of(slab, 0);
  const float* mean = mean_of(slab);
  to.put_vector(std::vector<std::int8_t>(codes, codes + rows_ * width_));
  to.put_vector(scales);
  to.put_vector(reach);
  to.put_vector(std::vector<float>(mean, mean + width_));
}

EPISODIC_INLINE void QuantisedSlabs::load(ByteReader& from) {
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const std::int64_t n_blocks = stride_ - 1;
  const auto codes = from.get_vector<std::int8_t>(size(rows_ * width_), "the codes of a slab");
  const auto scales = from.get_vector<float>(size(rows_ * n_blocks), "the scales of a slab");
  const auto reach = from.get_vector<float>(size(rows_), "the error bounds of a slab");
  const auto mean = from.get_vector<float>(size(width_), "the mean of a slab");
  const std::int64_t slab = slabs();
  append();
  std::copy(codes.begin(), codes.end(), codes_of(slab, 0));
  for (std::int64_t r = 0; r < rows_; ++r) {
    float* bounds = bounds_of(slab, r);
    std::copy_n(scales.begin() + r * n_blocks, n_blocks, bounds);
    bounds[n_blocks] = reach[size(r)];
  }
  std::copy(mean.begin(), mean.end(), mean_of(slab));
  finish_slabs();
}

EPISODIC_INLINE float QuantisedSlabs::offset(const float* query, std::int64_t slab) const {
  return dot(query, mean_of(slab), width_);
}

EPISODIC_INLINE void QuantisedSlabs::bounds(const float* query, float query_norm, float offset,
                                            std::int64_t slab, std::int64_t row, std::int64_t n,
                                            float* value, float* error) const {
  quantised_detail::scan_rows()(query, codes_of(slab, row), bounds_of(slab, row), stride_, n,
                                width_, offset, value);
  for (std::int64_t i = 0; i < n; ++i) {
    error[i] = query_norm * reach(slab, row + i);
    if (!std::isfinite(error[i]) || !std::isfinite(value[i])) {
      value[i] = 0.0f;
      error[i] = std::numeric_limits<float>::infinity();
    }
  }
}

EPISODIC_INLINE void QuantisedSlabs::decode(std::int64_t slab, std::int64_t row, float* out) const {
  const std::int8_t* codes = codes_of(slab, row);
  const float* scales = bounds_of(slab, row);
  for (std::int64_t c = 0; c < width_; ++c)
    out[c] = scales[c / quantised_detail::kBlock] * static_cast<float>(codes[c]);
}

}  // namespace EPISODIC_NAMESPACE::detail
