// SPDX-License-Identifier: Apache-2.0
#include "copies.hpp"

#include "copies.cuh"
#include "elements.cuh"

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
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  blocks = static_cast<unsigned>(multiprocessors * per_multiprocessor);
  return said(error);
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

}  // namespace

cudaError_t copy_runs(const CopyRunsParams& p, cudaStream_t stream) {
  if (p.max_runs < 0 || p.max_runs > kMaxElements || p.max_blocks < 0 || p.max_blocks > kMaxBlocks)
    return cudaErrorInvalidValue;
  if (p.max_runs == 0) return cudaSuccess;
  if (!p.runs || !p.count) return cudaErrorInvalidValue;
  if (!aligned(p.runs, alignof(CopyRun)) || !aligned(p.count, 4)) return cudaErrorMisalignedAddress;
  unsigned blocks = 0;
  if (const cudaError_t error = choose_blocks(p.max_blocks, kRunsBlocks, blocks)) return error;
  return launch(CopyRunsKernel, blocks, kCopyThreads, 0, stream, p);
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

cudaError_t event_to_block(const EventBlockParams& p, cudaStream_t stream) {
  if (!is_float(p.dtype) || p.events.max_count < 0 || p.events.max_count > kMaxElements ||
      p.n_kv_heads < 1 || p.head_dim < 1 || p.head_dim > kMaxHeadDim || p.ring_capacity < 1 ||
      p.max_blocks < 0 || p.max_blocks > kMaxBlocks ||
      !product_within(kMaxElements, p.n_layers, p.events.max_count) ||
      !product_within(p.ring_head_stride, p.ring_capacity, p.head_dim) ||
      !product_within(kMaxElements, p.ring_head_stride, p.n_kv_heads))
    return cudaErrorInvalidValue;
  if (p.events.max_count == 0 || p.n_layers == 0) return cudaSuccess;
  if (!p.events.start || !p.events.end || !p.events.count || !p.layers || !p.block)
    return cudaErrorInvalidValue;
  if (!all_aligned(8, p.events.start, p.events.end, p.layers, p.block) ||
      !aligned(p.events.count, 4))
    return cudaErrorMisalignedAddress;
  unsigned blocks = 0;
  if (const cudaError_t error = choose_blocks(p.max_blocks, kEventBlocks, blocks)) return error;
  return launch(EventToBlockKernel, blocks, kCopyThreads, 0, stream, p, size_of(p.dtype));
}

}  // namespace episodic::kernels
