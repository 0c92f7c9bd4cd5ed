// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An 8-bit copy of the vectors of an index: a quarter of the bytes to read, and a bound on what
/// it gets wrong, so that a search through it still finds the exact list.

#include <cstdint>

#include "episodic/base/bytes.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/recall/detail/huge_pieces.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// Bound on the rounding of a float32 dot product of n channels, in any of the orders used in this
/// room, relative to the product of the norms: no chain of additions is longer than n / 8 + 256.
inline double rounding(std::int64_t n) { return static_cast<double>(n / 8 + 256) * 0x1p-24; }

/// Full slabs of vectors as 8-bit codes. Row v is m + s c + e: m the mean of its slab (keys have a
/// large common part), s a scale per 128 channels, c the codes and e the rest, whose norm is kept.
class QuantisedSlabs {
 public:
  QuantisedSlabs(std::int64_t width, std::int64_t rows_per_slab);

  /// Appends a slab. \param vectors [rows_per_slab, width]
  void add(const float* vectors);
  void truncate(std::int64_t n_slabs);
  /// The slabs from `first` on become those of another, of which there are no more.
  void replace(std::int64_t first, const QuantisedSlabs& from) noexcept;
  /// Makes a row indistinguishable from a vector that equals the slab's mean.
  void erase(std::int64_t slab, std::int64_t row);

  std::int64_t slabs() const { return codes_.size(); }
  std::int64_t width() const { return width_; }
  std::int64_t rows_per_slab() const { return rows_; }
  std::int64_t bytes() const { return slabs() * slab_bytes(); }
  std::int64_t slab_bytes() const { return codes_.piece_bytes() + bounds_.piece_bytes(); }

  /// One slab to bytes. `load` appends a slab from them. \throws FileError
  void save(std::int64_t slab, ByteWriter& to) const;
  void load(ByteReader& from);

  /// The part that all rows of a slab share: dot(query, m).
  float offset(const float* query, std::int64_t slab) const;

  /// For n rows of a slab from `row` on: |dot(query, row i) - value[i]| <= error[i], where dot is
  /// the float32 function of that name with all its rounding; an error of infinity where nothing is
  /// known. \param query_norm at least the query's norm \param offset of query and slab
  void bounds(const float* query, float query_norm, float offset, std::int64_t slab,
              std::int64_t row, std::int64_t n, float* value, float* error) const;

  /// s c of a row: [width].
  void decode(std::int64_t slab, std::int64_t row, float* out) const;
  /// Error of a row per unit of the query's norm; infinite for a row of which nothing is known.
  float reach(std::int64_t slab, std::int64_t row) const {
    return bounds_of(slab, row)[stride_ - 1];
  }
  /// Asks the caches for what `offset` reads.
  void fetch_mean(std::int64_t slab) const {
    const float* mean = mean_of(slab);
    for (std::int64_t c = 0; c < width_; c += 16) __builtin_prefetch(mean + c);
  }
  /// Asks the caches for a row's codes.
  void fetch(std::int64_t slab, std::int64_t row) const {
    const std::int8_t* codes = codes_of(slab, row);
    for (std::int64_t c = 0; c < width_; c += 64) __builtin_prefetch(codes + c);
    __builtin_prefetch(bounds_of(slab, row));
  }

 private:
  std::int8_t* codes_of(std::int64_t slab, std::int64_t row) const {
    return reinterpret_cast<std::int8_t*>(codes_.piece(slab)) + row * width_;
  }
  float* bounds_of(std::int64_t slab, std::int64_t row) const {
    return reinterpret_cast<float*>(bounds_.piece(slab)) + row * stride_;
  }
  float* mean_of(std::int64_t slab) const { return bounds_of(slab, rows_); }
  /// One more slab, of zeros.
  void append();
  void finish_slabs();

  std::int64_t width_, rows_;
  std::int64_t stride_;  // of a row's scales and its error per unit of the query's norm
  HugePieces codes_;     // [rows, width] each
  HugePieces bounds_;    // [rows, stride], and the slab's mean [width]
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/quantised.hpp"
#endif
