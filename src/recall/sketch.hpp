// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A sketch of the 8-bit shadow: 32 bytes of a vector that bound its score from above. Mean queries
/// lie close to a subspace of few dimensions; what a vector has in that subspace is kept, of the
/// rest only its norm. The subspace is learned from the queries that come, and changes no result.
///
/// Its directions are in order of the queries' energy. The first half of the bytes is a coarser
/// sketch by itself, the first directions and the norm of what these leave, and lies apart: a
/// search streams through that half alone and reads the other where the coarse bound does not rule
/// a group out.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "quantised.hpp"

namespace episodic::detail {

class Sketch {
 public:
  static constexpr std::int64_t kGroup = 16;  ///< rows that are bounded together
  static constexpr std::int64_t kBytes = 32;  ///< of a row
  static constexpr std::int64_t kHalf = kBytes / 2;
  /// Of the subspace; each half of a row's bytes ends with the norm of what its directions and
  /// those before leave.
  static constexpr std::int64_t kDims = kBytes - 2;
  static constexpr std::int64_t kCoarse = kHalf - 1;  ///< directions of the first half

  /// \param sample queries that the subspace is learned from, at least 1
  Sketch(std::int64_t width, std::int64_t rows_per_slab, std::int64_t sample);

  /// Counts a query in; learns a subspace from a sample of those since the last time, each time the
  /// number of queries has doubled.
  void note(const float* query);
  /// Sketches at most `most` slabs that have none, or one in an older subspace.
  void follow(const QuantisedSlabs& shadow, std::int64_t most);
  void truncate(std::int64_t n_slabs);
  void erase(std::int64_t slab, std::int64_t row);

  bool has(std::int64_t slab) const {
    return slab < static_cast<std::int64_t>(slabs_.size()) &&
           slabs_[static_cast<std::size_t>(slab)].basis != nullptr;
  }
  std::int64_t groups_per_slab() const { return (rows_ + kGroup - 1) / kGroup; }
  std::int64_t slab_bytes() const { return codes_.piece_bytes(); }
  std::int64_t bytes() const;
  /// Of the sample and the subspaces, once there are such.
  std::int64_t fixed_bytes() const { return 4 * width_ * (sample_size_ + 2 * kDims); }

  /// The subspace and the count of queries, and back; the slabs are sketched anew.
  void save(ByteWriter& to) const;
  void load(ByteReader& from);

  struct Row {
    std::int64_t event = 0;  ///< counted from the first slab's first row
    float upper = 0.0f;      ///< of its score
  };

  /// Prepares the bounds of one query.
  void open(const float* query, double query_norm);
  /// upper[g] >= dot(query, row) for every row of group g of a slab that `has` one, by the first
  /// halves. From several threads at once.
  /// \param offset dot(query, mean of the slab) \return the largest
  float bound_groups(std::int64_t slab, float offset, float* upper) const;
  /// Appends the rows of a slab whose score may reach `least`, by both halves.
  /// \param upper of the slab's groups: those below `least` are not looked at
  void rows_above(std::int64_t slab, float offset, const float* upper, float least,
                  std::vector<Row>& out) const;
  /// Appends all rows of one group.
  void rows_of(std::int64_t slab, float offset, std::int64_t group, std::vector<Row>& out) const;

 private:
  struct Basis {
    std::int64_t dims = 0;
    std::vector<float> rows;  // [dims, width], nearly orthonormal
    double skew = 0.0;        // largest |rows rows^T - 1|
  };
  struct Slab {
    std::shared_ptr<const Basis> basis;
    std::array<float, kDims> step = {};   // of a coordinate's codes
    std::array<double, kDims> miss = {};  // most of |direction . what the codes leave|
    // Norm of what is left after each half: rest + rest_step * the half's last byte.
    std::array<float, 2> rest = {}, rest_step = {};
    float reach = 0.0f;                   // most of the shadow's errors
    std::vector<std::int32_t> unbounded;  // rows of which nothing is known
  };
  struct Query {  // in the terms of one basis
    const Basis* basis = nullptr;
    std::array<double, kDims> along = {};
    std::array<double, 2> rest = {};  // norm of what is left after the directions of each half
  };
  /// score <= constant + unit * (weight . codes), in float32 arithmetic.
  struct Weights {
    alignas(64) std::array<std::int16_t, kBytes> weight = {};
    float constant = 0.0f, unit = 0.0f;
  };

  void learn();
  void set_basis(std::shared_ptr<Basis> basis);
  void sketch(const QuantisedSlabs& shadow, std::int64_t slab);
  const Query& query_in(const Basis* basis) const {
    return queries_[0].basis == basis ? queries_[0] : queries_[1];
  }
  /// Of the bound by the first half (0), or by both (1).
  Weights weights(const Slab& slab, float offset, std::size_t half) const;
  /// Codes of a group in one of the halves.
  std::int8_t* codes_of(std::int64_t slab, std::size_t half, std::int64_t group) const;
  void append_rows(std::int64_t slab, const Weights& w, std::int64_t group, float least,
                   std::vector<Row>& out) const;

  std::int64_t width_, rows_;
  std::int64_t noted_ = 0, sampled_ = 0, stride_ = 1, sample_size_;
  std::vector<float> sample_;  // [sample_size, width]
  std::shared_ptr<const Basis> basis_, before_;
  std::int64_t stale_ = 0;  // slabs below are in basis_
  std::vector<Slab> slabs_;
  HugePieces codes_;              // [2 halves, groups, kHalf / 2 pairs, kGroup, 2] each
  std::array<Query, 2> queries_;  // in basis_ and in before_
  double query_norm_ = 0.0;
  std::vector<double> scratch_;  // [width]
};

}  // namespace episodic::detail
