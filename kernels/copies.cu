// SPDX-License-Identifier: Apache-2.0
#include "copies.hpp"

#include <algorithm>

#include "copies.cuh"
#include "elements.cuh"
#include "fields.hpp"
#include "limits.hpp"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMaxBlocks = INT32_MAX;
constexpr std::int64_t kMaxHeadDim = 1 << 24;  // bytes of a row, and of a tile, are counted in int

/// What was said is handed on, and not found again by the next call.
cudaError_t said(cudaError_t error) {
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

cudaError_t choose_blocks(std::int64_t max_blocks, int per_multiprocessor, unsigned& blocks) {
  if (max_blocks > 0) {
    blocks = static_cast<unsigned>(max_blocks);
    return cudaSuccess;
  }
  int multiprocessors = 0;
  const cudaError_t error = count_multiprocessors(multiprocessors);
  blocks = static_cast<unsigned>(multiprocessors * per_multiprocessor);
  return error;
}

bool may_batch(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy) return false;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  return said(cudaStreamIsCapturing(stream, &capture)) == cudaSuccess &&
         capture == cudaStreamCaptureStatusNone;
}

#if CUDART_VERSION >= 12080
cudaError_t batch(void* const* to, const void* const* from, const std::size_t* bytes,
                  std::size_t count, cudaStream_t stream) {
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first_of_all = 0;
#if CUDART_VERSION >= 13000
  return said(cudaMemcpyBatchAsync(to, from, bytes, count, &attributes, &first_of_all, 1, stream));
#else
  std::size_t failed = 0;
  return said(cudaMemcpyBatchAsync(const_cast<void**>(to), const_cast<void**>(from),
                                   const_cast<std::size_t*>(bytes), count, &attributes,
                                   &first_of_all, 1, &failed, stream));
#endif
}
#endif

FieldError check(const CopyRunsParams& p) {
  EPISODIC_FIELD(p, max_runs, p.max_runs >= 0 && p.max_runs <= kMaxElements);
  EPISODIC_FIELD(p, max_blocks, p.max_blocks >= 0 && p.max_blocks <= kMaxBlocks);
  if (p.max_runs == 0) return {};
  EPISODIC_FIELD_GIVEN(p, runs);
  EPISODIC_FIELD_GIVEN(p, count);
  EPISODIC_FIELD_ALIGNED(p, runs, alignof(CopyRun));
  EPISODIC_FIELD_ALIGNED(p, count, 4);
  return {};
}

FieldError check(const CopyRunsParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const CopyRunsParams& p) { return check(p); },
      [](const CopyRunsParams& p, const CopyRunsParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, max_blocks);
        return {};
      });
}

FieldError check(const EventBlockParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, block_dtype, p.block_dtype == p.dtype || is_code(p.block_dtype));
  EPISODIC_FIELD(p, events.max_count,
                 p.events.max_count >= 0 && p.events.max_count <= kMaxElements);
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1);
  EPISODIC_FIELD(p, head_dim, p.head_dim >= 1 && p.head_dim <= kMaxHeadDim);
  EPISODIC_FIELD(p, value_dim, p.value_dim >= 0 && p.value_dim <= kMaxHeadDim);
  EPISODIC_FIELD(p, ring_capacity, p.ring_capacity >= 1);
  EPISODIC_FIELD(p, max_blocks, p.max_blocks >= 0 && p.max_blocks <= kMaxBlocks);
  EPISODIC_FIELD(p, n_layers, product_within(kMaxElements, p.n_layers, p.events.max_count));
  EPISODIC_FIELD(p, ring_pages, valid(p.ring_pages));
  EPISODIC_FIELD(p, ring_head_stride,
                 product_within(p.ring_head_stride, slots_in_a_piece(p.ring_pages, p.ring_capacity),
                                p.head_dim) &&
                     product_within(kMaxElements, p.ring_head_stride, p.n_kv_heads));
  if (const FieldError wrong = check_value_ring(p)) return wrong;
  if (p.events.max_count == 0 || p.n_layers == 0) return {};
  EPISODIC_FIELD_GIVEN(p, events.start);
  EPISODIC_FIELD_GIVEN(p, events.end);
  EPISODIC_FIELD_GIVEN(p, events.count);
  EPISODIC_FIELD_GIVEN(p, layers);
  EPISODIC_FIELD_GIVEN(p, block);
  const bool coded = is_code(p.block_dtype);
  EPISODIC_FIELD(p, events.first_id, !coded || p.events.first_id);
  EPISODIC_FIELD(p, not_finite, !coded || p.not_finite);
  EPISODIC_FIELD_ALIGNED(p, events.start, 8);
  EPISODIC_FIELD_ALIGNED(p, events.end, 8);
  EPISODIC_FIELD_ALIGNED(p, layers, 8);
  EPISODIC_FIELD_ALIGNED(p, block, 8);
  EPISODIC_FIELD_ALIGNED(p, events.first_id, 8);
  EPISODIC_FIELD_ALIGNED(p, events.count, 4);
  EPISODIC_FIELD_ALIGNED(p, not_finite, 4);
  return {};
}

}  // namespace

const char* invalid_field(const CopyRunsParams& params) { return check(params).field; }
const char* invalid_field(const EventBlockParams& params) { return check(params).field; }

const char* invalid_field(const CopyRunsParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t copy_runs_batch(const CopyRunsParams* params, std::int64_t n_sequences,
                            cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<CopyRunsParams>(
      n_sequences,
      [&](std::int64_t i, CopyRunsParams& args) {
        args = params[i];
        return args.max_runs > 0;
      },
      [&](const auto& batch) {
        unsigned blocks = 0;
        const std::int64_t max_blocks = batch.of[0].max_blocks;
        if (const cudaError_t error = choose_blocks(max_blocks, kRunsBlocks, blocks)) return error;
        const auto n = static_cast<unsigned>(batch.n);
        const dim3 grid(std::max(1u, blocks / n), n);
        return launch(CopyRunsKernel<kRoomOf<decltype(batch)>>, grid, kCopyThreads, 0, stream,
                      batch);
      });
}

cudaError_t copy_runs(const CopyRunsParams& p, cudaStream_t stream) {
  return copy_runs_batch(&p, 1, stream);
}

cudaError_t copy_batch(void* const* to, const void* const* from, const std::size_t* bytes,
                       std::size_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (!to || !from || !bytes) return cudaErrorInvalidValue;
  for (std::size_t i = 0; i < count; ++i)
    if (!to[i] || !from[i] || bytes[i] == 0) return cudaErrorInvalidValue;
#if CUDART_VERSION >= 12080
  if (may_batch(stream)) {
    const cudaError_t error = batch(to, from, bytes, count, stream);
    if (error != cudaErrorCallRequiresNewerDriver && error != cudaErrorNotSupported) return error;
  }
#endif
  for (std::size_t i = 0; i < count; ++i) {
    const cudaError_t error =
        said(cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

namespace {

FieldError check(const EventBlockParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const EventBlockParams& p) { return check(p); },
      [](const EventBlockParams& p, const EventBlockParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, block_dtype);
        EPISODIC_FIELD_SHARED(p, first, n_kv_heads);
        EPISODIC_FIELD_SHARED(p, first, head_dim);
        EPISODIC_FIELD(p, value_dim, value_dim(p) == value_dim(first));
        EPISODIC_FIELD_SHARED(p, first, n_layers);
        EPISODIC_FIELD_SHARED(p, first, max_blocks);
        return {};
      });
}

template <std::int64_t kMost>
cudaError_t launch_blocks(const Batch<EventBlockParams, kMost>& batch, cudaStream_t stream) {
  const EventBlockParams& p = batch.of[0];
  unsigned blocks = 0;
  if (const cudaError_t error = choose_blocks(p.max_blocks, kEventBlocks, blocks)) return error;
  // A row for each layer, but never more blocks than asked for.
  const auto rows = static_cast<unsigned>(
      std::min<std::int64_t>(p.n_layers, std::min<std::int64_t>(blocks, kMostGridRows)));
  const dim3 grid(blocks / rows, rows, static_cast<unsigned>(batch.n));
  if (is_code(p.block_dtype))
    return for_element(p.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const bool wide_rows = !any_of(batch, [](const EventBlockParams& of) {
        return of.head_dim % 8 != 0 || of.ring_head_stride % 8 != 0 || of.value_dim % 8 != 0 ||
               of.value_head_stride % 8 != 0;
      });
      return launch(EventToCodesKernel<T, kRoomOf<decltype(batch)>>, grid, kCopyThreads, 0, stream,
                    batch, wide_rows);
    });
  return launch(EventToBlockKernel<kRoomOf<decltype(batch)>>, grid, kCopyThreads, 0, stream, batch,
                size_of(p.dtype));
}

}  // namespace

const char* invalid_field(const EventBlockParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t event_to_block_batch(const EventBlockParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<EventBlockParams>(
      n_sequences,
      [&](std::int64_t i, EventBlockParams& args) {
        args = with_value_width(params[i]);
        return args.events.max_count > 0 && args.n_layers > 0;
      },
      [&](const auto& batch) { return launch_blocks(batch, stream); });
}

cudaError_t event_to_block(const EventBlockParams& p, cudaStream_t stream) {
  return event_to_block_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
