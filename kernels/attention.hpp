// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Segmented attention on the GPU: the CUDA twin of episodic/attention/attend.hpp (EM 3.1).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "batch.hpp"
#include "column_stats.hpp"
#include "episodic/base/dtype.hpp"
#include "ring_pages.hpp"

namespace episodic::kernels {

/// One far key and its value where they lie, for all kv heads of its list: those of the list's head
/// j begin at key + j * head_stride and value + j * head_stride, in elements; of values of e
/// channels where keys have d, at value + j * (head_stride / d) * e. Rows are aligned to 16 bytes,
/// rows of codes to 8. Segments of any length become rows once a step (kernels/rows.hpp); attention
/// then reads them as if they were one matrix, and nothing is gathered.
struct alignas(16) KvRow {
  const void* key = nullptr;     ///< [d] before rotary embedding
  const void* value = nullptr;   ///< [e]
  std::int64_t token = 0;        ///< seen by queries at positions p with p - token >= n_local
  std::int32_t head_stride = 0;  ///< elements
  float value_weight = 1.0f;     ///< factor of the value after the softmax (EpMAN 3.2)
};

/// Counters that a kv head's splits are counted by when they are done.
inline constexpr std::int64_t kAttentionCounters = 33;

/// All pointers are to device memory; arrays of queries, keys, values, outputs, cosines and sines
/// are aligned to 16 bytes. Elements are of `dtype`: float32, float16 or bfloat16. Products of
/// 16-bit elements are summed in float32; rotated queries and, where they meet values,
/// probabilities are rounded to `dtype`. Keys and values must be finite: one that is not may make
/// NaN of outputs of queries that do not see it. Queries need not be: they spoil their own outputs
/// alone. n_queries + n_local, n_queries * H / G, max_rows and ring_capacity are at most 2^30.
struct AttentionParams {
  DType dtype = DType::bfloat16;
  std::int64_t n_queries = 0;   ///< n >= 1
  std::int64_t n_heads = 0;     ///< H, a multiple of n_kv_heads
  std::int64_t n_kv_heads = 0;  ///< G; query head h reads kv head h / (H / G)
  std::int64_t head_dim = 0;    ///< d, a multiple of 8 up to 256
  std::int64_t value_dim = 0;   ///< e, of values and outputs, likewise; 0: d
  std::int64_t n_local = 0;     ///< window: a local key is seen iff 0 <= p - token < n_local
  float scale = 0.0f;           ///< of the dot products; 0 = 1 / sqrt(d)
  float soft_cap = 0.0f;  ///< cap > 0: scaled scores s become cap * tanh(s / cap); 0: as they are

  /// [H] a natural-log score of each head that takes part in the softmax beside its keys and gives
  /// no value: the twin of AttendInput::sink_logits. Finite, or -inf for none. Or null.
  const float* maybe_sink_logits = nullptr;

  const void* q = nullptr;        ///< [n, H, d] before rotary embedding
  std::int64_t q_row_stride = 0;  ///< elements between queries, a multiple of 8; >= H * d
  /// Position of query 0, read on the device so that one captured graph serves every step.
  const std::int64_t* first_position = nullptr;

  /// Rotary embedding: channels c and c + rotary_dim / 2 rotate together, or 2 c and 2 c + 1 where
  /// pairs are interleaved; those from rotary_dim on are left alone. cos and sin have
  /// attention_factor in them, the fixed ones its square: far keys are not rotated and bring none.
  std::int64_t rotary_dim = 0;  ///< even, <= d; a multiple of 16, or 0
  bool interleaved = false;
  const float* query_cos = nullptr;  ///< [n, rotary_dim / 2] of the queries' own positions
  const float* query_sin = nullptr;
  const float* fixed_cos = nullptr;  ///< [rotary_dim / 2] of angle index n_local - 1
  const float* fixed_sin = nullptr;

  /// Far keys (sinks, pending, events): one list, or several, each of as many kv heads side by side
  /// (heads that recall by themselves).
  const KvRow* rows = nullptr;           ///< [n_lists, max_rows]
  const std::int32_t* n_rows = nullptr;  ///< [n_lists], <= max_rows
  std::int64_t max_rows = 0;             ///< may be 0: no far keys
  std::int64_t n_lists = 1;              ///< a divisor of n_kv_heads
  /// Rows of codes (events that are kept so): the last ones of a list, at most so many. An element
  /// is its code times a scale, rounded to `dtype`, of float16 to a finite one. 0: all rows are of
  /// `dtype`.
  std::int64_t max_code_rows = 0;
  DType code_dtype = DType::int8;  ///< int8 or fp8, all of them
  /// [n_lists, max_rows] where a row's scales are: one for the keys of each kv head of its list,
  /// then one for the values of each; null: the row is of `dtype`. Not looked at without such rows.
  const float* const* row_scales = nullptr;

  /// The local window, rings over tokens: element (g, t, c) of token t at
  /// [g * ring_head_stride + (t % ring_capacity) * d + c]. Holds tokens
  /// max(0, first_position + 1 - n_local) .. first_position + n - 1, the step's own among them.
  const void* local_key = nullptr;  ///< rotated by their own positions
  const void* local_value = nullptr;
  std::int64_t ring_capacity = 0;     ///< >= n_local + n - 1
  std::int64_t ring_head_stride = 0;  ///< elements, a multiple of 8
  /// The same of local_value, whose element (g, t, c) is at [g * it + (t % ring_capacity) * e + c];
  /// 0: ring_head_stride.
  std::int64_t value_head_stride = 0;
  RingPages ring_pages;                 ///< where the ring lies in pages
  std::uint32_t value_page_stride = 0;  ///< of local_value's pool; 0: ring_pages.page_stride

  void* out = nullptr;         ///< [n, H, e] of `dtype`, written; zeros where no key is seen
  float* maybe_lse = nullptr;  ///< [n, H], written: natural log-sum-exp, -inf if none; or null
  /// [n_local + n - 1, H], written: row j for local token max(0, first_position + 1 - n_local) + j,
  /// the probability it received from the n queries, before value weights; rows beyond
  /// first_position + n are left alone. Or null.
  float* maybe_column_sums = nullptr;
  /// [H], written: maybe_column_sums then gets the scores instead, which become sums where they are
  /// read (commit_relevance). Only where defers_column_sums() says so; or null.
  ColumnStats* maybe_column_stats = nullptr;

  /// [kAttentionCounters * G] 0 before the first call, and left so: splits that are done. Calls
  /// that share it run one after the other. With it the last blocks of few rows merge the splits;
  /// null: a launch more.
  std::uint32_t* maybe_arrived = nullptr;

  void* workspace = nullptr;  ///< attention_workspace_bytes(), aligned to 256
  std::size_t workspace_bytes = 0;
};

/// Bytes of workspace that any call with these sizes needs, whatever the device holds. 0 for sizes
/// that segmented_attention refuses.
std::size_t attention_workspace_bytes(const AttentionParams& params);

/// The most that attention_workspace_bytes gives for 1 to params.n_queries queries, each with
/// params.max_rows far rows or with none: enough for every step of at most n_queries tokens. More
/// than the largest step's own: fewer queries may be split over more blocks. 0 for sizes that
/// segmented_attention refuses. Takes microseconds, a millisecond at most.
std::size_t largest_attention_workspace_bytes(const AttentionParams& params);

/// Whether a call with these sizes can leave scores and statistics in the place of column sums: one
/// query of 16-bit elements, of groups of at most 16 heads. Reads no pointer.
bool defers_column_sums(const AttentionParams& params);

/// out[i,h] = sum_j softmax_j(scale * q[i,h] . k[j]) * weight_j * v[j] over all keys j that query i
/// sees, in one softmax; far keys meet the query rotated by angle index n_local - 1, local ones the
/// query rotated by its own position.
///
/// Tiles of (query, head of the group) rows run over tiles of keys on the tensor cores, float32
/// without them. Where row tiles alone would leave the device idle (decode), the keys are split
/// over blocks and the splits' (output, max, sum) merged: of few rows in two levels by the last
/// blocks to be done (maybe_arrived), else in a launch of its own. Column sums take a second pass
/// over the local keys; where a group has at most 16 rows, over the scores that the first one
/// wrote, in a launch of its own or in commit_relevance (maybe_column_stats). The same bits on
/// every run with the same pointers given.
///
/// Values of another width than keys have the tiles of the wider of the two, what is missing zeros,
/// and on 9.0 the kernel of other devices.
///
/// With k keys that a query sees, w of them local: 2 (d + e) n H k floating-point operations, and
/// 2 d n H w for column sums. Decode reads (d + e) G elements for each key, once: its limit is the
/// memory's bandwidth. So it does of codes, and of float32 every step; steps of more rows in 16
/// bits read them once, in a launch before, and then what that has widened into the workspace.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue for sizes, strides,
/// dtypes or a workspace that do not fit, cudaErrorMisalignedAddress, or what the launches said
cudaError_t segmented_attention(const AttentionParams& params, cudaStream_t stream);
/// The field of them that segmented_attention refuses, by its name; null: none. Reads no array.
const char* invalid_field(const AttentionParams& params);

/// Of several sequences (batch.hpp), which share dtype, n_heads, n_kv_heads <= 8191, head_dim
/// and value_dim.
/// One launch takes those that have at most 16 rows of a kv head, or are float32, and whose splits
/// are merged alike: all of a decoded batch of one size. Each of more rows in 16 bits, which fills
/// the device by itself, has launches of its own.
cudaError_t segmented_attention_batch(const AttentionParams* params, std::int64_t n_sequences,
                                      cudaStream_t stream);
const char* invalid_field(const AttentionParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
