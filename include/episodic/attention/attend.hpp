// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Segmented attention: one softmax over a list of segments in place (EM 3.1), with the attention
/// that each local key (relevance, EM 3.1) and each segment (Memoria 3.3) received.

#include <cstdint>
#include <span>
#include <vector>

#include "episodic/attention/segment.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_view.hpp"

namespace EPISODIC_NAMESPACE {

struct AttendShape {
  std::int64_t n_queries = 0;       ///< n >= 1
  std::int64_t n_heads = 0;         ///< H, a multiple of n_kv_heads
  std::int64_t n_kv_heads = 0;      ///< G; query head h reads kv head h / (H / G)
  std::int64_t head_dim = 0;        ///< d, any positive number
  std::int64_t first_position = 0;  ///< position of query 0; query i stands at first_position + i
  std::int64_t n_local = 0;         ///< window of the visibility rule; may be any large number
  float scale = 0.0f;               ///< of the dot products; 0 = 1 / sqrt(d)
  float softcap = 0.0f;  ///< cap > 0: scores are cap * tanh(scale * q . k / cap); 0: as they are
  std::int64_t value_dim = 0;  ///< e, channels of values and outputs, any positive number; 0: d

  TensorSizes of_queries() const { return {n_queries, n_heads, head_dim}; }
  TensorSizes of_outputs() const {
    return {n_queries, n_heads, value_dim == 0 ? head_dim : value_dim};
  }
};

struct AttendInput {
  TensorView q_relative;  ///< [n, H, d] rotated by each query's position; null without local keys
  TensorView q_fixed;     ///< [n, H, d] rotated by angle index n_local - 1; null without far keys
  /// L lists, L a divisor of G: list l is what the l-th group of G / L consecutive kv heads reads.
  /// One list serves all heads; G lists are recall per head (HEM 2.4). A segment's `first_head`
  /// says which heads it holds; a segment of all heads may stand in every list.
  std::span<const std::span<const KvSegment>> segments;
  /// Null, or [n, H]: natural log-sum-exp of scores that take part in the softmax and are attended
  /// elsewhere, -inf where there are none. They add no value here, but take their share: out, sums
  /// and masses are then this call's part of the whole (they add up over the calls), and `lse` is
  /// that of the whole.
  const float* other_lse = nullptr;
  /// Null, or [H]: a score of each query head that every query meets beside its keys (gpt-oss; not
  /// the first tokens, which are called sinks too). It takes its share of the softmax and gives no
  /// value, so what keys receive adds up to less than 1. It is neither scaled nor capped, and never
  /// part of a sum or a mass. Where the keys are divided among calls whose states are merged, one
  /// call has them: given to several, they would count several times. -inf: none for that head.
  const float* sink_logits = nullptr;
};

struct AttendOutput {
  MutableTensorView out;  ///< [n, H, e], written; zeros where a query sees no key
  float* lse = nullptr;   ///< [n, H] natural log-sum-exp of the scaled scores and of what stands
                          ///< beside them (other_lse, sink_logits), or null; -inf if there is none
  /// For each *relative* segment of each list, list by list in their order: a [length, H / L] array
  /// to which the probabilities that its keys received from the list's query heads, summed over the
  /// n queries, are **added**; or empty. Probabilities are those of the joint softmax, before value
  /// weights. If the relative segments of all lists have the same lengths (one window for all
  /// heads), one set of [length, H] arrays, one for each relative segment of a list, will do.
  std::span<float* const> column_sums;
  /// Null, or [S, H / L], S the segments of all lists, list by list in their order: the probability
  /// that each segment, fixed ones too, received from each query head of its list, summed over the
  /// n queries and before value weights, is **added**. Costs one more pass over the probabilities.
  double* segment_mass = nullptr;
  /// Null, or [n, H], written: the sum over the keys seen of probability * value_weight
  /// (EpMAN 3.2); 0 where a query sees no key.
  float* weighted_mass = nullptr;
};

/// Scratch memory of `attend`, grown on first use and then kept: hold one per memory or thread.
class AttendWorkspace {
 public:
  /// At least n floats, 64-byte aligned, contents undefined. Valid until the next call.
  float* floats(std::int64_t n);
  std::int64_t bytes() const { return capacity_ * 4; }

  AttendWorkspace();
  ~AttendWorkspace();
  AttendWorkspace(AttendWorkspace&&) noexcept;
  AttendWorkspace& operator=(AttendWorkspace&&) noexcept;

 private:
  float* data_ = nullptr;
  std::int64_t capacity_ = 0;
};

/// out[i,h] = sum_j softmax_j(scale * q[i,h] . k[j]) * weight_j * v[j] over all keys j that query i
/// sees, in one softmax. Queries are read and outputs written where they lie, in float32, bfloat16
/// or float16; the arithmetic between is float32.
///
/// It needs no memory behind it: relative segments alone are causal attention over a sliding window
/// of n_local tokens, and with an n_local beyond the sequence full causal attention. Rows of a ring
/// that no segment covers are never read; nor are keys outside the windows of all queries.
///
/// Two kernels behind it: few queries (decoding) read every key and value once and are bound by
/// memory bandwidth; many queries (prefill) run as blocked matrix products over packed tiles. The
/// instruction set is chosen at run time (AVX-512, AVX2, portable). Results do not depend on the
/// number of threads, and are equal to the bit from run to run on one machine.
///
/// \throws DataError naming the parameter for a wrong shape, stride, memory or unsupported dtype:
///         nothing is written then.
void attend(const AttendShape& shape, const AttendInput& input, const AttendOutput& output,
            AttendWorkspace& workspace);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/attention/impl/attend.hpp"
#include "episodic/attention/impl/attend_few.hpp"
#include "episodic/attention/impl/attend_many.hpp"
#endif
