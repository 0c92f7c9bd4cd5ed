// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An 8-bit shadow of the vectors of an index: a quarter of the bytes to read, and a bound on what
/// it gets wrong, so that a search through it still finds the exact list.

#include <cstdint>
#include <memory>
#include <vector>

#include "vector_slabs.hpp"

namespace episodic::detail {

/// Full slabs of a VectorSlabs as 8-bit codes. Row v is m + s c + e: m the mean of its slab (keys
/// have a large common part), s a scale per 128 channels, c the codes and e the rest, whose norm is
/// kept.
class QuantisedSlabs {
 public:
  explicit QuantisedSlabs(std::int64_t width) : width_(width) {}

  /// Quantises the full slabs that are not yet.
  void follow(const VectorSlabs& vectors);
  void truncate(std::int64_t n_slabs);

  std::int64_t slabs() const { return static_cast<std::int64_t>(slabs_.size()); }
  std::int64_t bytes() const;

  /// For every row i of a slab: |dot(query, row i) - value[i]| <= error[i], where dot is the
  /// float32 function of that name with all its rounding. \param query_norm at least the query's
  /// norm
  void bounds(const float* query, float query_norm, std::int64_t slab, float* value,
              float* error) const;

 private:
  struct Slab {
    std::vector<std::int8_t> codes;  // [rows, width]
    std::vector<float> scales;       // [rows, blocks]
    std::vector<float> reach;        // [rows] error per unit of the query's norm
    std::vector<float> mean;         // [width]
  };
  Slab quantise(const VectorSlabs& vectors, std::int64_t slab) const;

  std::int64_t width_;
  std::vector<Slab> slabs_;
};

}  // namespace episodic::detail
