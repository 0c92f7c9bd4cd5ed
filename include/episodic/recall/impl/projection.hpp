// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/detail/projection.hpp; how they become functions: base/inline.hpp.
#include "episodic/recall/detail/projection.hpp"

#if defined(EPISODIC_COMPILED) && defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace projection_detail {

inline constexpr std::int64_t kGroup = Projection::kGroup;
inline constexpr auto kHalf = Projection::kHalf;
inline constexpr auto kWhole = Projection::kWhole;
inline constexpr auto kLevels = Projection::kLevels;
inline constexpr auto kDirections = Projection::kDirections;
inline constexpr auto kLength = Projection::kLength;
inline constexpr std::int64_t kHalfLength = kLength[kHalf], kPairs = kHalfLength / 2;
inline constexpr std::int64_t kHalfBytes = kGroup * kHalfLength;  // of a group
// First halves are read as a stream, but no slab is long enough for the hardware to see it coming.
inline constexpr std::int64_t kAheadGroups = 8;
static_assert(kLength[kWhole] == 2 * kHalfLength && kDirections[kHalf] == kHalfLength - 1);
inline constexpr std::int64_t kMostSaved = 31;  // directions of a subspace that was saved, ever
inline constexpr int kIterations = 6;  // of the subspace; the queries' energy falls off steeply

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Place of a row's byte in the codes of its group, counted in a half.
inline std::int64_t place(std::int64_t row, std::int64_t byte) {
  return (byte / 2 * kGroup + row) * 2 + byte % 2;
}

/// sums[i] += weights . n_pairs * 2 bytes of row i of a group, in integers: the same on every
/// machine.
inline void sums_portable(const std::int8_t* codes, const std::int16_t* weight,
                          std::int64_t n_pairs, std::int32_t* sums) {
  for (std::int64_t p = 0; p < n_pairs; ++p, codes += 2 * kGroup)
    for (std::int64_t i = 0; i < kGroup; ++i)
      sums[i] += codes[2 * i] * weight[2 * p] + codes[2 * i + 1] * weight[2 * p + 1];
}

/// most[g] = the largest sum of group g over a half.
inline void largest_portable(const std::int8_t* codes, const std::int16_t* weight,
                             std::int64_t n_groups, std::int32_t* most) {
  for (std::int64_t g = 0; g < n_groups; ++g) {
    std::array<std::int32_t, kGroup> sums = {};
    sums_portable(codes + g * kHalfBytes, weight, kPairs, sums.data());
    most[g] = *std::max_element(sums.begin(), sums.end());
  }
}

#if defined(EPISODIC_COMPILED) && defined(__x86_64__)
inline std::int32_t pair_at(const std::int16_t* weight, std::int64_t p) {
  return static_cast<std::int32_t>(
      static_cast<std::uint16_t>(weight[2 * p]) |
      static_cast<std::uint32_t>(static_cast<std::uint16_t>(weight[2 * p + 1])) << 16);
}

/// Asks the caches for the group that is read some groups after group g.
inline void fetch_ahead(const std::int8_t* codes, std::int64_t g, std::int64_t n_groups) {
  if (g + kAheadGroups >= n_groups) return;
  for (std::int64_t c = 0; c < kHalfBytes; c += 64)
    __builtin_prefetch(codes + kAheadGroups * kHalfBytes + c);
}

[[gnu::target("avx2")]] inline void sums_avx2(const std::int8_t* codes, const std::int16_t* weight,
                                              std::int64_t n_pairs, std::int32_t* sums) {
  auto* to = reinterpret_cast<__m256i*>(sums);
  __m256i low = _mm256_loadu_si256(to), high = _mm256_loadu_si256(to + 1);
  for (std::int64_t p = 0; p < n_pairs; ++p, codes += 2 * kGroup) {
    const auto* from = reinterpret_cast<const __m128i*>(codes);
    const __m256i w = _mm256_set1_epi32(pair_at(weight, p));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), w));
    high = _mm256_add_epi32(high,
                            _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1)), w));
  }
  _mm256_storeu_si256(to, low);
  _mm256_storeu_si256(to + 1, high);
}

[[gnu::target("avx2")]] inline void largest_avx2(const std::int8_t* codes,
                                                 const std::int16_t* weight, std::int64_t n_groups,
                                                 std::int32_t* most) {
  __m256i w[kPairs];
  for (std::int64_t p = 0; p < kPairs; ++p) w[p] = _mm256_set1_epi32(pair_at(weight, p));
  for (std::int64_t g = 0; g < n_groups; ++g) {
    fetch_ahead(codes, g, n_groups);
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    for (std::int64_t p = 0; p < kPairs; ++p, codes += 2 * kGroup) {
      const auto* from = reinterpret_cast<const __m128i*>(codes);
      low = _mm256_add_epi32(low,
                             _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), w[p]));
      high = _mm256_add_epi32(
          high, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1)), w[p]));
    }
    low = _mm256_max_epi32(low, high);
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    most[g] = _mm_cvtsi128_si32(m);
  }
}

[[gnu::target("avx512f,avx512bw")]] inline void largest_avx512(const std::int8_t* codes,
                                                               const std::int16_t* weight,
                                                               std::int64_t n_groups,
                                                               std::int32_t* most) {
  __m512i w[kPairs];
  for (std::int64_t p = 0; p < kPairs; ++p) w[p] = _mm512_set1_epi32(pair_at(weight, p));
  for (std::int64_t g = 0; g < n_groups; ++g) {
    fetch_ahead(codes, g, n_groups);
    __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
    for (std::int64_t p = 0; p < kPairs; p += 2, codes += 4 * kGroup) {
      const auto* from = reinterpret_cast<const __m256i*>(codes);
      even = _mm512_add_epi32(
          even, _mm512_madd_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256(from)), w[p]));
      odd = _mm512_add_epi32(
          odd, _mm512_madd_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256(from + 1)), w[p + 1]));
    }
    // Through memory: the intrinsics that halve a register draw warnings from GCC 12.
    alignas(64) std::int32_t sums[kGroup];
    _mm512_store_si512(sums, _mm512_add_epi32(even, odd));
    const auto* half = reinterpret_cast<const __m256i*>(sums);
    const __m256i both = _mm256_max_epi32(_mm256_load_si256(half), _mm256_load_si256(half + 1));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    most[g] = _mm_cvtsi128_si32(m);
  }
}
#endif

struct Loops {
  void (*sums)(const std::int8_t*, const std::int16_t*, std::int64_t, std::int32_t*);
  void (*largest)(const std::int8_t*, const std::int16_t*, std::int64_t, std::int32_t*);
};

inline Loops loops() {
#if defined(EPISODIC_COMPILED) && defined(__x86_64__)
  switch (cpu::kernels().set) {
    case cpu::InstructionSet::avx512:
      return {sums_avx2, largest_avx512};
    case cpu::InstructionSet::avx2:
      return {sums_avx2, largest_avx2};
    case cpu::InstructionSet::portable:
      break;
  }
#endif
  return {sums_portable, largest_portable};
}

/// Byte of a direction's code among those of a row.
inline std::int64_t byte_of(std::int64_t direction) {
  return direction < kDirections[kHalf] ? direction : direction + 1;
}

inline double dot_double(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
#ifdef _OPENMP
#pragma omp simd reduction(+ : sum)
#endif
  for (std::int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

/// Takes the directions of `rows` [0, n) out of v, twice for the sake of rounding.
inline void remove_span(const std::vector<double>& rows, std::int64_t n, std::int64_t width,
                        double* v) {
  for (int pass = 0; pass < 2; ++pass)
    for (std::int64_t j = 0; j < n; ++j) {
      const double* row = rows.data() + j * width;
      const double along = dot_double(row, v, width);
#ifdef _OPENMP
#pragma omp simd
#endif
      for (std::int64_t c = 0; c < width; ++c) v[c] -= along * row[c];
    }
}

/// Orthonormal rows of the same span, in order; those that add nothing are left out.
inline std::int64_t orthonormalise(std::vector<double>& rows, std::int64_t n, std::int64_t width) {
  std::int64_t kept = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    double* v = rows.data() + kept * width;
    if (kept != j) std::copy_n(rows.data() + j * width, width, v);
    const double before = std::sqrt(dot_double(v, v, width));
    remove_span(rows, kept, width, v);
    const double norm = std::sqrt(dot_double(v, v, width));
    if (!(norm > 1e-6 * before)) continue;
    for (std::int64_t c = 0; c < width; ++c) v[c] /= norm;
    ++kept;
  }
  return kept;
}

}  // namespace projection_detail

EPISODIC_INLINE Projection::Projection(std::int64_t width, std::int64_t rows_per_slab,
                                       std::int64_t sample)
    : width_(width),
      rows_(rows_per_slab),
      sample_size_(sample),
      codes_(groups_per_slab() * projection_detail::kGroup * kBytes) {}

EPISODIC_INLINE void Projection::sample(const float* query) {
  if (width_ < 2 * kBytes) return;  // the projection would be no shorter than the quantised copy
  if (n_queries_++ % stride_ != 0) return;
  sample_.resize(projection_detail::at(sample_size_ * width_));
  std::copy_n(query, width_, sample_.data() + sampled_ * width_);
  if (++sampled_ < sample_size_) return;
  sampled_ = 0;
  stride_ = std::max<std::int64_t>(1, n_queries_ / sample_size_);
  if (stale_ >= static_cast<std::int64_t>(slabs_.size())) learn();
}

EPISODIC_INLINE void Projection::learn() {
  using namespace projection_detail;
  // The strongest directions of the sample: greedily chosen queries, then subspace iteration.
  const std::int64_t n = sample_size_, dims = std::min(kDims, n);
  std::vector<double> queries(sample_.begin(), sample_.end()), left = queries;
  std::vector<double> rows(at(dims * width_));
  std::int64_t kept = 0;
  double first = 0.0;
  for (; kept < dims; ++kept) {
    std::int64_t best = 0;
    double most = -1.0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double* q = left.data() + i * width_;
      if (const double square = dot_double(q, q, width_); square > most) most = square, best = i;
    }
    if (kept == 0) first = most;
    if (!(most > 1e-12 * first) || !(first < 1e60)) break;
    double* row = rows.data() + kept * width_;
    std::copy_n(left.data() + best * width_, width_, row);
    remove_span(rows, kept, width_, row);
    const double norm = std::sqrt(dot_double(row, row, width_));
    if (!(norm > 0.0)) break;
    for (std::int64_t c = 0; c < width_; ++c) row[c] /= norm;
    for (std::int64_t i = 0; i < n; ++i) {
      double* q = left.data() + i * width_;
      const double along = dot_double(row, q, width_);
      for (std::int64_t c = 0; c < width_; ++c) q[c] -= along * row[c];
    }
  }
  std::vector<double> rotated(rows.size());
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    std::fill(rotated.begin(), rotated.end(), 0.0);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < kept; ++j) {
        const double* q = queries.data() + i * width_;
        const double along = dot_double(q, rows.data() + j * width_, width_);
        double* to = rotated.data() + j * width_;
#ifdef _OPENMP
#pragma omp simd
#endif
        for (std::int64_t c = 0; c < width_; ++c) to[c] += along * q[c];
      }
    kept = orthonormalise(rotated, kept, width_);
    std::swap(rows, rotated);
  }
  if (kept == 0) return;
  auto basis = std::make_shared<Basis>();
  basis->dims = kept;
  basis->rows.assign(rows.begin(), rows.begin() + kept * width_);
  set_basis(std::move(basis));
}

EPISODIC_INLINE void Projection::set_basis(std::shared_ptr<Basis> basis) {
  // Rounded to float32 the rows are not quite orthonormal: how far off is part of every bound.
  const std::vector<double> rows(basis->rows.begin(), basis->rows.end());
  for (std::int64_t i = 0; i < basis->dims; ++i)
    for (std::int64_t j = 0; j <= i; ++j) {
      const double dot =
          projection_detail::dot_double(rows.data() + i * width_, rows.data() + j * width_, width_);
      basis->skew = std::max(basis->skew, std::abs(dot - (i == j ? 1.0 : 0.0)) + 1e-12);
    }
  before_ = std::exchange(basis_, std::move(basis));
  stale_ = 0;
}

EPISODIC_INLINE void Projection::project(const QuantisedSlabs& quantised, std::int64_t most) {
  if (!basis_) return;
  slabs_.resize(projection_detail::at(quantised.slabs()));
  codes_.resize(quantised.slabs());
  const std::int64_t n = std::min(most, quantised.slabs() - stale_);
  parallel_for(n, [&](std::int64_t i) { project_slab(quantised, stale_ + i); });
  stale_ += n;
  codes_.finish(stale_);
}

EPISODIC_INLINE void Projection::project_slab(const QuantisedSlabs& quantised, std::int64_t slab) {
  using namespace projection_detail;
  const Basis& basis = *basis_;
  const std::int64_t dims = basis.dims;
  Slab out;
  out.basis = basis_;
  std::vector<float> x(at(width_)), along(at(rows_ * dims));
  std::vector<double> square(at(rows_));
  std::array<std::vector<double>, kLevels> rest;
  for (auto& r : rest) r.resize(at(rows_));
  std::array<float, kDims> most = {};
  for (std::int64_t r = 0; r < rows_; ++r) {
    float* b = along.data() + r * dims;
    const float reach = quantised.reach(slab, r);
    quantised.decode(slab, r, x.data());
    cpu::kernels().dots(x.data(), basis.rows.data(), dims, width_, width_, b);
    for (const float c : x) square[at(r)] += static_cast<double>(c) * static_cast<double>(c);
    if (!std::isfinite(reach) || !(square[at(r)] < 1e60)) {
      out.unbounded.push_back(static_cast<std::int32_t>(r));
      std::fill_n(b, dims, 0.0f);
      square[at(r)] = 0.0;
      continue;
    }
    out.reach = std::max(out.reach, reach);
    for (std::int64_t j = 0; j < dims; ++j) most[at(j)] = std::max(most[at(j)], std::abs(b[j]));
  }
  for (std::int64_t j = 0; j < dims; ++j) {
    const float step = most[at(j)] / 127.0f;
    out.step[at(j)] = std::isnormal(step) ? step : 0.0f;
  }
  // With x the decoded row, p the directions, y the coordinates as coded and z = x - sum y p:
  // q . x = sum y (q . p) + sum a (p . z) + (q - sum a p) . z for any a. |p . z| and |z| are
  // bounded from above by the float32 products b = p . x, whose rounding is at most gamma. The same
  // holds for the first directions alone.
  const auto code_of = [&](std::int64_t row, std::int64_t byte) -> std::int8_t& {
    return codes_of(slab, byte / kHalfLength,
                    row / kGroup)[place(row % kGroup, byte % kHalfLength)];
  };
  double spread = 0.0;  // largest sum |y|
  for (std::int64_t r = 0; r < rows_; ++r) {
    const float* b = along.data() + r * dims;
    const double gamma = 2.0 * rounding(width_) * std::sqrt(square[at(r)]) + 1e-30;
    double size = 0.0, norm = square[at(r)];
    std::size_t level = 0;
    for (std::int64_t j = 0; j < kDims; ++j) {
      code_of(r, byte_of(j)) = 0;
      if (j < dims) {
        const float step = out.step[at(j)];
        const float code =
            step > 0.0f ? std::clamp(std::nearbyint(b[j] / step), -127.0f, 127.0f) : 0;
        code_of(r, byte_of(j)) = static_cast<std::int8_t>(code);
        const double y = static_cast<double>(code) * static_cast<double>(step);
        const double exact = static_cast<double>(b[j]);
        size += std::abs(y);
        norm += y * (y - 2.0 * exact);
        out.miss[at(j)] = std::max(out.miss[at(j)], std::abs(exact - y) + gamma);
      }
      if (j + 1 != kDirections[level]) continue;
      const double left =
          norm + 2.0 * gamma * size + basis.skew * size * size + 1e-9 * square[at(r)];
      rest[level++][at(r)] = std::sqrt(std::max(left, 0.0)) * (1.0 + 1e-6);
    }
    spread = std::max(spread, size);
  }
  for (double& miss : out.miss) miss += basis.skew * spread;
  for (std::size_t level = 0; level < kLevels; ++level) {
    const auto [least, largest] = std::minmax_element(rest[level].begin(), rest[level].end());
    out.rest[level] = static_cast<float>(*least * (1.0 - 1e-6));
    out.rest_step[level] = static_cast<float>(
        (*largest - static_cast<double>(out.rest[level])) / 127.0 * (1.0 + 1e-6) + 1e-37);
    const double step = static_cast<double>(out.rest_step[level]);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const double above = rest[level][at(r)] - static_cast<double>(out.rest[level]);
      code_of(r, kLength[level] - 1) =
          static_cast<std::int8_t>(std::clamp(std::ceil(above / step), 0.0, 127.0));
    }
  }
  slabs_[at(slab)] = std::move(out);
}

EPISODIC_INLINE void Projection::truncate(std::int64_t n_slabs) {
  if (n_slabs < static_cast<std::int64_t>(slabs_.size()))
    slabs_.erase(slabs_.begin() + n_slabs, slabs_.end());
  codes_.resize(std::min(codes_.size(), n_slabs));
  stale_ = std::min(stale_, n_slabs);
}

EPISODIC_INLINE void Projection::erase(std::int64_t slab, std::int64_t row) {
  using namespace projection_detail;
  if (!has(slab)) return;
  for (std::int64_t byte = 0; byte < kBytes; ++byte)
    codes_of(slab, byte / kHalfLength, row / kGroup)[place(row % kGroup, byte % kHalfLength)] = 0;
}

EPISODIC_INLINE std::int64_t Projection::bytes() const {
  std::int64_t total = codes_.bytes() + static_cast<std::int64_t>(sample_.size() * sizeof(float));
  for (const Slab& s : slabs_)
    total += static_cast<std::int64_t>(sizeof(Slab) + s.unbounded.size() * sizeof(std::int32_t));
  for (const Basis* basis : {basis_.get(), before_.get()})
    if (basis) total += static_cast<std::int64_t>(basis->rows.size() * sizeof(float));
  return total;
}

EPISODIC_INLINE void Projection::save(ByteWriter& to) const {
  to.put(n_queries_);
  to.put(stride_);
  to.put_vector(basis_ ? basis_->rows : std::vector<float>());
}

EPISODIC_INLINE void Projection::load(ByteReader& from) {
  n_queries_ = from.get<std::int64_t>();
  stride_ = from.get<std::int64_t>();
  auto basis = std::make_shared<Basis>();
  basis->rows = from.get_vector<float>();
  auto n = static_cast<std::int64_t>(basis->rows.size());
  bool good = n_queries_ >= 0 && stride_ >= 1 && stride_ <= std::max<std::int64_t>(1, n_queries_) &&
              n % width_ == 0 && n / width_ <= projection_detail::kMostSaved;
  for (const float x : basis->rows) good = good && std::abs(x) <= 1.001f;
  if (!good)
    throw FileError(from.where() +
                    ": the subspace of a representative index is impossible; the file is damaged");
  if (n == 0) return;
  n = std::min(n, kDims * width_);
  basis->rows.resize(projection_detail::at(n));
  basis->dims = n / width_;
  set_basis(std::move(basis));
}

EPISODIC_INLINE void Projection::open(const float* query, double query_norm, Opened& out) const {
  using namespace projection_detail;
  out.norm_ = query_norm;
  for (std::size_t i = 0; i < 2; ++i) {
    Query& q = out.queries_[i];
    q.basis = (i == 0 ? basis_ : before_).get();
    if (!q.basis) continue;
    out.left_.assign(query, query + width_);
    double* left = out.left_.data();
    const auto norm_left = [&] {
      return std::sqrt(dot_double(left, left, width_)) + 1e-9 * query_norm;
    };
    // In turn rather than at once: any coefficients serve, these leave the shorter rest.
    for (std::int64_t j = 0; j < q.basis->dims; ++j) {
      const float* row = q.basis->rows.data() + j * width_;
      double along = 0.0;
#ifdef _OPENMP
#pragma omp simd reduction(+ : along)
#endif
      for (std::int64_t c = 0; c < width_; ++c)
        along += static_cast<double>(query[c]) * static_cast<double>(row[c]);
      q.along[at(j)] = along;
#ifdef _OPENMP
#pragma omp simd
#endif
      for (std::int64_t c = 0; c < width_; ++c) left[c] -= along * static_cast<double>(row[c]);
      if (const auto end = std::find(kDirections.begin(), kDirections.end(), j + 1);
          end != kDirections.end())
        q.rest[at(end - kDirections.begin())] = norm_left();
    }
    for (std::size_t level = 0; level < kLevels; ++level)
      if (q.basis->dims < kDirections[level]) q.rest[level] = norm_left();
  }
}

EPISODIC_INLINE std::int8_t* Projection::codes_of(std::int64_t slab, std::int64_t half,
                                                  std::int64_t group) const {
  return reinterpret_cast<std::int8_t*>(codes_.piece(slab)) +
         (half * groups_per_slab() + group) * projection_detail::kHalfBytes;
}

EPISODIC_INLINE void Projection::fetch_first(std::int64_t slab) const {
  using namespace projection_detail;
  if (!has(slab)) return;
  for (std::size_t c = 0; c < sizeof(Slab); c += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(&slabs_[at(slab)]) + c);
  for (std::int64_t c = 0; c < kAheadGroups * kHalfBytes; c += 64)
    __builtin_prefetch(codes_of(slab, 0, 0) + c);
}

EPISODIC_INLINE void Projection::fetch_rows(std::int64_t slab, std::int64_t group) const {
  for (std::int64_t half = 0; half < 2; ++half)
    for (std::int64_t c = 0; c < projection_detail::kHalfBytes; c += 64)
      __builtin_prefetch(codes_of(slab, half, group) + c);
}

EPISODIC_INLINE Projection::Weights Projection::weights(const Opened& opened, const Slab& slab,
                                                        float offset, Level level) const {
  using namespace projection_detail;
  const Query& query = opened.in(slab.basis.get());
  const std::int64_t dims = std::min(slab.basis->dims, kDirections[level]);
  std::array<double, kBytes> exact = {};
  const std::span used(exact.data(), at(kLength[level]));
  double constant = static_cast<double>(offset) + opened.norm_ * static_cast<double>(slab.reach) +
                    query.rest[level] * static_cast<double>(slab.rest[level]);
  for (std::int64_t j = 0; j < dims; ++j) {
    exact[at(byte_of(j))] = query.along[at(j)] * static_cast<double>(slab.step[at(j)]);
    constant += std::abs(query.along[at(j)]) * slab.miss[at(j)];
  }
  used.back() = query.rest[level] * static_cast<double>(slab.rest_step[level]);
  double most = 0.0, sum = 0.0;
  for (const double w : used) most = std::max(most, std::abs(w)), sum += std::abs(w);
  Weights out;
  const double size = std::abs(constant) + 254.0 * sum;
  if (!(size < 1e37)) {  // out of float32's range: bounded by nothing
    out.constant = std::numeric_limits<float>::infinity();
    return out;
  }
  const double unit = most / 32767.0;
  if (unit > 1e-200) {
    double off = 0.0;
    for (std::size_t j = 0; j < used.size(); ++j) {
      const double w = exact[j] / unit;
      out.weight[j] =
          static_cast<std::int16_t>(static_cast<std::int32_t>(w + (w < 0.0 ? -0.5 : 0.5)));
      off += std::abs(exact[j] - static_cast<double>(out.weight[j]) * unit);
    }
    constant += 127.0 * off;
    out.unit = static_cast<float>(unit);
  }
  // The last terms are for float32: five roundings, and what is too small for it.
  out.constant = static_cast<float>(constant + 0x1p-20 * size + 1e-36);
  return out;
}

EPISODIC_INLINE float Projection::bound_groups(const Opened& query, std::int64_t slab, float offset,
                                               float* upper) const {
  using namespace projection_detail;
  constexpr std::int64_t kRun = 64;
  const Slab& s = slabs_[at(slab)];
  const Weights w = weights(query, s, offset, kHalf);
  const std::int64_t n = groups_per_slab();
  for (std::int64_t g = 0; g < n; g += kRun) {
    const std::int64_t run = std::min(kRun, n - g);
    std::array<std::int32_t, kRun> sums;
    loops().largest(codes_of(slab, 0, g), w.weight.data(), run, sums.data());
    for (std::int64_t i = 0; i < run; ++i) upper[g + i] = w.bound(sums[at(i)]);
  }
  float most = *std::max_element(upper, upper + n);
  for (const std::int32_t row : s.unbounded)
    upper[row / kGroup] = most = std::numeric_limits<float>::infinity();
  return most;
}

EPISODIC_INLINE void Projection::append_rows(std::int64_t slab, const Weights& w,
                                             std::int64_t group, float least,
                                             std::vector<Row>& out) const {
  using namespace projection_detail;
  const Slab& s = slabs_[at(slab)];
  std::array<std::int32_t, kGroup> sums = {};
  for (std::int64_t half = 0; half < 2; ++half)
    loops().sums(codes_of(slab, half, group), w.weight.data() + half * kHalfLength, kPairs,
                 sums.data());
  std::array<float, kGroup> upper;  // apart, so that the compiler takes them together
  for (std::size_t i = 0; i < upper.size(); ++i) upper[i] = w.bound(sums[i]);
  const std::int64_t end = std::min(kGroup, rows_ - group * kGroup);
  if (!s.unbounded.empty())
    for (std::int64_t i = 0; i < end; ++i)
      if (std::binary_search(s.unbounded.begin(), s.unbounded.end(), group * kGroup + i))
        upper[at(i)] = std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < end; ++i)
    if (upper[at(i)] >= least) out.push_back({slab * rows_ + group * kGroup + i, upper[at(i)]});
}

EPISODIC_INLINE void Projection::rows_above(const Opened& query, std::int64_t slab, float offset,
                                            const float* upper, float least,
                                            std::vector<Row>& out) const {
  const Weights w =
      weights(query, slabs_[projection_detail::at(slab)], offset, projection_detail::kWhole);
  for (std::int64_t g = 0; g < groups_per_slab(); ++g)
    if (upper[g] >= least) append_rows(slab, w, g, least, out);
}

EPISODIC_INLINE void Projection::rows_of(const Opened& query, std::int64_t slab, float offset,
                                         std::int64_t group, std::vector<Row>& out) const {
  append_rows(
      slab, weights(query, slabs_[projection_detail::at(slab)], offset, projection_detail::kWhole),
      group, -std::numeric_limits<float>::infinity(), out);
}

}  // namespace EPISODIC_NAMESPACE::detail
