// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The memory's attention as a function that autograd can differentiate: what training needs of it
/// (EpMAN 3.5).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "episodic/attention/rotary.hpp"
#include "episodic/attention/segment.hpp"

namespace episodic {

/// Tokens first, first + 1, ... that a step attends to, at one kind of position.
struct AttendedRun {
  std::int64_t first = 0, length = 0;
  Position position = Position::fixed;
};

/// What a step's attention is made of besides its tensors.
struct MemoryAttention {
  std::vector<AttendedRun> runs;    ///< which tokens a query sees of them: KvSegment
  std::int64_t first_position = 0;  ///< position of query 0
  std::int64_t n_local = 0;         ///< window; far keys stand at the distance n_local - 1
  float softcap = 0;                ///< as AttendShape
  RotaryTable rotary;               ///< empty: nothing is turned (NoPE)
};

/// out[i,h] = sum_j softmax_j(q[i,h] . k[j] / sqrt(d)) * weight_j * v[j], over the keys of all runs
/// that query i sees, in one softmax: `attend` (attention/attend.hpp), which computes it, behind
/// the rotary embedding.
///
/// Its derivative with respect to every tensor is written out: the forward pass keeps its output
/// and the log-sum-exp of each row, from which the backward pass makes the probabilities again, a
/// block of keys at a time. Memory beyond the tensors: [H, n, 512].
///
/// \param q [n, H, d] before rotary embedding, the queries at first_position and on
/// \param k, v [m, G, d] before rotary embedding: row j is token j of the sequence; H is a multiple
///        of G
/// \param weights [runs], factors of the values of each run (EpMAN 3.2)
///
/// All float32, on the CPU. \return [n, H * d]; zeros where a query sees no key
/// \throws DataError for a shape that does not fit, or a run outside of k
at::Tensor memory_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& weights, MemoryAttention how);

}  // namespace episodic
