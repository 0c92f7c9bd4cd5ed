// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rotary position embedding, in either layout of the channel pairs. Angles are computed in
/// float64, so that positions near 10^7 keep their meaning.

#include <cstdint>
#include <vector>

#include "episodic/attention/attend.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_view.hpp"

namespace EPISODIC_NAMESPACE {

/// Which two channels are the c-th pair, c < rotary_dim / 2.
enum class RotaryPairs : std::uint8_t {
  halves,       ///< (c, c + rotary_dim / 2): rotate-half, as Hugging Face stores most models
  interleaved,  ///< (2 c, 2 c + 1): as the RoPE paper and GGUF's "normal" type have it
};

/// The rotation of a model as data: channel pair c rotates by position * inverse_frequency[c];
/// channels from rotary_dim on are left alone (partial rotary).
struct RotaryTable {
  std::vector<double> inverse_frequency;  ///< [rotary_dim / 2]
  /// f, by which cos and sin are multiplied (yarn, longrope). A query and a key that are both
  /// rotated score f^2 on their rotary channels; see `RotaryAngles::compute_fixed` for far keys.
  double attention_factor = 1.0;
  RotaryPairs pairs = RotaryPairs::halves;

  std::int64_t rotary_dim() const {
    return 2 * static_cast<std::int64_t>(inverse_frequency.size());
  }
  bool operator==(const RotaryTable&) const = default;
};

/// inverse_frequency[c] = theta^(-2c / rotary_dim), no scaling.
RotaryTable plain_rotary(std::int64_t rotary_dim, double theta);

/// Cos and sin of consecutive positions where they lie: each [n, rotary_dim / 2].
struct AngleRows {
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t n = 0;
  std::int64_t half = 0;  ///< rotary_dim / 2
};

/// cos and sin of positions first .. first + n - 1, each [n, rotary_dim / 2] float32 (rounded from
/// float64), attention_factor included.
struct RotaryAngles {
  std::vector<float> cos, sin;
  std::int64_t n = 0;
  std::int64_t half = 0;  ///< rotary_dim / 2 of the table

  /// Refills in place; allocates only when n grows.
  void compute(const RotaryTable& table, std::int64_t first, std::int64_t n);

  /// One row for the queries that meet far keys (EM 3.1): angle index n_local - 1, times f^2. Far
  /// keys are kept unrotated and so carry no factor, where a key rotated by position 0 would carry
  /// f: the query must carry both, or far scores would be f times too small against local ones.
  /// The same query, so scaled, is what recall compares with representatives, which are unrotated.
  void compute_fixed(const RotaryTable& table, std::int64_t n_local);

  /// The angles that turn back what `compute` turns: of -position, divided by the attention factor.
  /// rotate(table, back, rotate(table, angles, x)) is x but for the rounding of both.
  /// \throws DataError also for an attention factor that nothing turns back: 0, or not finite
  void compute_back(const RotaryTable& table, std::int64_t first, std::int64_t n);

  AngleRows rows() const { return {cos.data(), sin.data(), n, half}; }
  /// Rows [begin, begin + count): of a part of the positions.
  AngleRows rows(std::int64_t begin, std::int64_t count) const {
    return {cos.data() + begin * half, sin.data() + begin * half, count, half};
  }

 private:
  void fill(const RotaryTable& table, std::int64_t first, std::int64_t count, double factor);
  void fill_checked(const char* name, const RotaryTable& table, std::int64_t first,
                    std::int64_t count, double factor);
};

/// y[i, h, :] = x[i, h, :] rotated by the angles of row i (row 0 for all i if there is one row), in
/// the dtype of y: queries out of a fused projection, or keys into the memory's window. x and y do
/// not overlap, or are the same rows of float32. Both have the same sizes; what they say of rotary
/// embedding is not read. Allocates nothing for head_dim up to 1024.
/// \throws DataError for angles of another table or number of rows, other sizes of y, null data,
///         codes, memory that is not the host's, strides that no memory has, or rows of y that
///         overlap: nothing is written then
void rotate(const RotaryTable& table, const AngleRows& angles, const TensorView& x,
            const MutableTensorView& y);

/// The same for float32 with element strides between tokens and between heads.
void rotate(const RotaryTable& table, const RotaryAngles& angles, std::int64_t n,
            std::int64_t heads, std::int64_t head_dim, const float* x, std::int64_t x_row,
            std::int64_t x_head, float* y, std::int64_t y_row, std::int64_t y_head);

/// What attention and recall need of a step's queries.
struct RotatedQueries {
  float* relative = nullptr;  ///< [n, heads, head_dim], query i rotated by row i of the positions;
                              ///< as they are if they come rotated
  float* fixed = nullptr;     ///< [n, heads, head_dim], all rotated by the one fixed row; or null
  float* mean = nullptr;      ///< [heads * head_dim], mean over the n rows of `fixed` (EM 3.4); or
                              ///< null. Needs `fixed`
};

/// All three in one pass over q. The mean is summed in double in order of the queries, so it does
/// not depend on the number of threads.
/// \param position n rows of angles; fixed: one row (`compute_fixed`), read if out.fixed is given
/// \param q [n, heads, head_dim] before or after rotary embedding, as it says
/// \param workspace scratch for the sums
/// \param back n rows of angles (`compute_back`), read if q comes rotated and out.fixed is given
/// \return whether all of q is finite, and turned back too. If not, what is not has spread over its
///         pair and its mean
/// \throws DataError as `rotate`, and for a mean without `fixed`
bool rotate_queries(const RotaryTable& table, const AngleRows& position, const AngleRows& fixed,
                    const TensorView& q, const RotatedQueries& out, AttendWorkspace& workspace,
                    const AngleRows& back = {});

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/attention/impl/rotary.hpp"
#endif
