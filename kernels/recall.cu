// SPDX-License-Identifier: Apache-2.0
#include "recall.hpp"

#include <cstdint>
#include <limits>

#include "recall.cuh"

namespace episodic::kernels {
namespace {

bool sensible(const RecallParams& p) {
  return p.max_events >= 1 && p.max_events <= std::numeric_limits<std::int32_t>::max() &&
         p.n >= 1 && p.n_init >= 0 && p.n_local >= 1 && p.n_mem >= 0 && p.chunk >= 1 &&
         p.min_block >= 1 && p.contiguity >= 0 && p.contiguity <= 1 && p.neighbours >= 0;
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

template <class T>
cudaError_t launch_scores(const RecallParams& p, float* scores, cudaStream_t stream) {
  constexpr std::int64_t kRowsPerBlock = kScoreThreads / kWarpSize * kScoreRows;
  const std::int64_t blocks = (p.max_events + kRowsPerBlock - 1) / kRowsPerBlock;
  return launch(ScoreKernel<T>, blocks_for(blocks), kScoreThreads,
                static_cast<std::size_t>(p.width) * sizeof(float), stream, p, scores);
}

}  // namespace

std::int64_t recall_room(const RecallParams& p) {
  if (!sensible(p)) return 0;
  // Less than capacity + 1 tokens are taken before the last event of either buffer.
  const std::int64_t room = (p.n_init + p.chunk + p.n_mem) / p.min_block + 3;
  if (room > kMostRecallRoom) return 0;
  // Places of neighbours are counted in 32 bits.
  const std::int64_t reach = p.neighbours < p.max_events ? p.neighbours : p.max_events;
  return room * 2 * reach + room < std::numeric_limits<std::int32_t>::max() ? room : 0;
}

std::size_t recall_workspace_bytes(const RecallParams& p) {
  const std::int64_t room = recall_room(p);
  if (room == 0) return 0;
  return static_cast<std::size_t>(2 * aligned(4 * p.max_events) + aligned(4 * room));
}

cudaError_t recall_events(const RecallParams& p, cudaStream_t stream) {
  const std::int64_t room = recall_room(p);
  if (room == 0 || p.width < 8 || p.width % 8 != 0 || p.width > kMostRecallWidth)
    return cudaErrorInvalidValue;
  if (!p.n_events || !p.events || !p.tokens || !p.representatives || !p.query || !p.queue ||
      !p.queue_size || !p.similarity || !p.contiguity_list || !p.recalled || !p.sizes ||
      !p.workspace || p.workspace_bytes < recall_workspace_bytes(p))
    return cudaErrorInvalidValue;
  if (reinterpret_cast<std::uintptr_t>(p.representatives) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(p.workspace) % 16 != 0)
    return cudaErrorMisalignedAddress;
  auto* at = static_cast<unsigned char*>(p.workspace);
  auto* scores = reinterpret_cast<float*>(at);
  auto* marks = reinterpret_cast<std::int32_t*>(at + aligned(4 * p.max_events));
  auto* old_queue = reinterpret_cast<DeviceEventId*>(at + 2 * aligned(4 * p.max_events));
  cudaError_t error = cudaErrorInvalidValue;
  switch (p.dtype) {
    case DType::float32:
      error = launch_scores<float>(p, scores, stream);
      break;
    case DType::float16:
      error = launch_scores<__half>(p, scores, stream);
      break;
    case DType::bfloat16:
      error = launch_scores<__nv_bfloat16>(p, scores, stream);
      break;
    case DType::int8:
      break;  // representatives are floats
  }
  if (error != cudaSuccess) return error;
  return launch(SelectKernel, 1, kSelectThreads,
                static_cast<std::size_t>(room) * sizeof(std::uint64_t), stream, p, scores, marks,
                old_queue, static_cast<int>(room));
}

}  // namespace episodic::kernels
