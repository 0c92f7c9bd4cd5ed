// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A projection of the 8-bit copy: 32 bytes of a vector that bound its score from above. Mean
/// queries lie close to a subspace of few dimensions; what a vector has in that subspace is kept,
/// of the rest only its norm. The subspace is learned from the queries that come, and changes no
/// result.
///
/// Its directions are in order of the queries' energy, so that each of two levels is a projection
/// by itself, of the first directions and the norm of what these leave:
/// - the first half of a row's bytes, read as a stream;
/// - both halves, of the groups of rows that the first did not rule out.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/recall/detail/quantised.hpp"

namespace EPISODIC_NAMESPACE::detail {

class Projection {
 public:
  static constexpr std::int64_t kGroup = 16;  ///< rows that are bounded together
  enum Level : std::size_t { kHalf, kWhole, kLevels };
  /// Directions of the subspace that a level knows.
  static constexpr std::array<std::int64_t, kLevels> kDirections = {15, 30};
  /// Bytes of a row in its projection. The last is the norm that is left.
  static constexpr std::array<std::int64_t, kLevels> kLength = {16, 32};
  static constexpr std::int64_t kBytes = kLength[kWhole], kDims = kDirections[kWhole];

  /// \param sample queries that the subspace is learned from, at least 1
  Projection(std::int64_t width, std::int64_t rows_per_slab, std::int64_t sample);

  /// Counts a query in; learns a subspace from a sample of those since the last time, each time the
  /// number of queries has doubled.
  void sample(const float* query);
  /// Projects at most `most` slabs that have none, or one in an older subspace.
  void project(const QuantisedSlabs& quantised, std::int64_t most);
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

  /// The subspace and the count of queries, and back; the slabs are projected anew.
  void save(ByteWriter& to) const;
  void load(ByteReader& from);

  struct Row {
    std::int64_t event = 0;  ///< counted from the first slab's first row
    float upper = 0.0f;      ///< of its score
  };

  /// A query in the terms of the subspaces; the caller's, so that several may be bounded at once.
  class Opened;
  void open(const float* query, double query_norm, Opened& out) const;
  /// upper[g] >= dot(query, row) for every row of group g of a slab that `has` one, by the first
  /// halves. From several threads at once, like all that follows.
  /// \param offset dot(query, mean of the slab) \return the largest
  float bound_groups(const Opened& query, std::int64_t slab, float offset, float* upper) const;
  /// Asks the caches for what bound_groups reads first of a slab, or for what rows_above reads of a
  /// group.
  void fetch_first(std::int64_t slab) const;
  void fetch_rows(std::int64_t slab, std::int64_t group) const;
  /// Appends the rows of a slab whose score may reach `least`, by both halves.
  /// \param upper of the slab's groups: those below `least` are not looked at
  void rows_above(const Opened& query, std::int64_t slab, float offset, const float* upper,
                  float least, std::vector<Row>& out) const;
  /// Appends all rows of one group.
  void rows_of(const Opened& query, std::int64_t slab, float offset, std::int64_t group,
               std::vector<Row>& out) const;

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
    // Norm of what each level leaves: rest + rest_step * its last byte.
    std::array<float, kLevels> rest = {}, rest_step = {};
    float reach = 0.0f;                   // most of the quantised copy's errors
    std::vector<std::int32_t> unbounded;  // rows of which nothing is known
  };
  struct Query {  // in the terms of one basis
    const Basis* basis = nullptr;
    std::array<double, kDims> along = {};
    std::array<double, kLevels> rest = {};  // norm of what the directions of each level leave
  };
  /// score <= constant + unit * (weight . codes), in float32 arithmetic.
  struct Weights {
    alignas(64) std::array<std::int16_t, kBytes> weight = {};
    float constant = 0.0f, unit = 0.0f;

    float bound(std::int32_t sum) const { return constant + unit * static_cast<float>(sum); }
  };

  void learn();
  void set_basis(std::shared_ptr<Basis> basis);
  void project_slab(const QuantisedSlabs& quantised, std::int64_t slab);
  Weights weights(const Opened& query, const Slab& slab, float offset, Level level) const;
  /// Codes of one of the halves of a group.
  std::int8_t* codes_of(std::int64_t slab, std::int64_t half, std::int64_t group) const;
  void append_rows(std::int64_t slab, const Weights& w, std::int64_t group, float least,
                   std::vector<Row>& out) const;

  std::int64_t width_, rows_;
  std::int64_t n_queries_ = 0, sampled_ = 0, stride_ = 1, sample_size_;
  std::vector<float> sample_;  // [sample_size, width]
  std::shared_ptr<const Basis> basis_, before_;
  std::int64_t stale_ = 0;  // slabs below are in basis_
  std::vector<Slab> slabs_;
  /// Each: two halves, each [groups, pairs, kGroup, 2].
  HugePieces codes_;
};

class Projection::Opened {
  friend class Projection;
  const Query& in(const Basis* basis) const {
    return queries_[0].basis == basis ? queries_[0] : queries_[1];
  }

  std::array<Query, 2> queries_;  // in the present subspace and in the one before
  double norm_ = 0.0;
  std::vector<double> left_;  // [width], scratch
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/projection.hpp"
#endif
