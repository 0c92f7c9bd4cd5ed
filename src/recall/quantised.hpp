// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An 8-bit shadow of the vectors of an index: a quarter of the bytes to read, and a bound on what
/// it gets wrong, so that a search through it still finds the exact list.

#include <cstdint>
#include <vector>

#include "episodic/base/bytes.hpp"

namespace episodic::detail {

/// Bound on the rounding of a float32 dot product of n channels, in any of the orders used in this
/// room, relative to the product of the norms: no chain of additions is longer than n / 8 + 256.
inline double rounding(std::int64_t n) { return static_cast<double>(n / 8 + 256) * 0x1p-24; }

/// Full slabs of vectors as 8-bit codes. Row v is m + s c + e: m the mean of its slab (keys have a
/// large common part), s a scale per 128 channels, c the codes and e the rest, whose norm is kept.
class QuantisedSlabs {
 public:
  QuantisedSlabs(std::int64_t width, std::int64_t rows_per_slab)
      : width_(width), rows_(rows_per_slab) {}

  /// Appends a slab. \param vectors [rows_per_slab, width]
  void add(const float* vectors);
  void truncate(std::int64_t n_slabs);
  /// Makes a row indistinguishable from a vector that equals the slab's mean.
  void erase(std::int64_t slab, std::int64_t row);

  std::int64_t slabs() const { return static_cast<std::int64_t>(slabs_.size()); }
  std::int64_t width() const { return width_; }
  std::int64_t rows_per_slab() const { return rows_; }
  std::int64_t bytes() const { return slabs() * slab_bytes(); }
  std::int64_t slab_bytes() const;

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
    return slabs_[static_cast<std::size_t>(slab)].reach[static_cast<std::size_t>(row)];
  }
  /// Asks the caches for a row's codes.
  void fetch(std::int64_t slab, std::int64_t row) const {
    const std::int8_t* codes = slabs_[static_cast<std::size_t>(slab)].codes.data() + row * width_;
    for (std::int64_t c = 0; c < width_; c += 64) __builtin_prefetch(codes + c);
  }

 private:
  struct Slab {
    std::vector<std::int8_t> codes;  // [rows, width]
    std::vector<float> scales;       // [rows, blocks]
    std::vector<float> reach;        // [rows] error per unit of the query's norm
    std::vector<float> mean;         // [width]
  };

  std::int64_t width_, rows_;
  std::vector<Slab> slabs_;
};

}  // namespace episodic::detail
