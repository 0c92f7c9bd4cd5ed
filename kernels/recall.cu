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
         p.min_block >= 1 && p.contiguity >= 0 && p.contiguity <= 1 && p.neighbours >= 0 &&
         p.codes_from >= 0;
}

std::int64_t round_up(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

/// Where the parts of the workspace lie, in bytes; each is aligned to 16.
struct RecallWorkspace {
  std::int64_t marks, queue, candidates, n_candidates, bytes;
};
RecallWorkspace workspace_of(const RecallParams& p, std::int64_t room) {
  RecallWorkspace w;
  const std::int64_t of_events = round_up(4 * p.max_events);
  w.marks = of_events;
  w.queue = w.marks + of_events;
  w.candidates = w.queue + round_up(4 * room);
  w.n_candidates = w.candidates + (p.codes_from > 0 ? of_events : 0);
  w.bytes = w.n_candidates + (p.codes_from > 0 ? 16 : 0);
  return w;
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
  return static_cast<std::size_t>(workspace_of(p, room).bytes);
}

namespace {

cudaError_t check(const RecallParams& p) {
  if (recall_room(p) == 0 || p.width < 8 || p.width % 8 != 0 || p.width > kMostRecallWidth)
    return cudaErrorInvalidValue;
  if (!p.n_events || !p.events || !p.tokens || !p.representatives || !p.query || !p.queue ||
      !p.queue_size || !p.similarity || !p.contiguity_list || !p.recalled || !p.sizes ||
      !p.arrived || !p.workspace || p.workspace_bytes < recall_workspace_bytes(p) ||
      (p.codes_from > 0 && (!p.codes || !p.code_bounds)))
    return cudaErrorInvalidValue;
  if (!all_aligned(16, p.representatives, p.workspace, p.codes) || !aligned(p.code_bounds, 4))
    return cudaErrorMisalignedAddress;
  return cudaSuccess;
}

/// Of parameters that were checked. \param maybe_rows to write behind the selection
cudaError_t launch_recall(const RecallParams& p, const RowsParams* maybe_rows,
                          cudaStream_t stream) {
  const std::int64_t room = recall_room(p);
  auto* at = static_cast<unsigned char*>(p.workspace);
  RecallArgs a;
  a.p = p;
  if (maybe_rows) {
    a.with_rows = true;
    a.rows = *maybe_rows;
    a.row_element = static_cast<int>(size_of(maybe_rows->dtype));
  }
  const RecallWorkspace w = workspace_of(p, room);
  a.scores = reinterpret_cast<float*>(at);
  a.marks = reinterpret_cast<std::int32_t*>(at + w.marks);
  a.old_queue = reinterpret_cast<DeviceEventId*>(at + w.queue);
  a.room = static_cast<int>(room);
  constexpr std::int64_t kRowsPerBlock = kSelectThreads / kWarpSize * kScoreRows;
  const std::int64_t wanted = (p.max_events + kRowsPerBlock - 1) / kRowsPerBlock;
  const auto blocks =
      static_cast<unsigned>(wanted < kMostRecallBlocks ? wanted : kMostRecallBlocks);
  if (p.codes_from > 0) {
    a.candidates = reinterpret_cast<std::int32_t*>(at + w.candidates);
    a.n_candidates = reinterpret_cast<std::int32_t*>(at + w.n_candidates);
    const cudaError_t error =
        launch(BoundEventsKernel, blocks, kSelectThreads, bound_shared_bytes(p.width), stream, a);
    if (error != cudaSuccess) return error;
  }
  return for_element(p.dtype, [&](auto element) {
    return launch(RecallKernel<typename decltype(element)::type>, blocks, kSelectThreads,
                  recall_shared_bytes(p.width, room), stream, a);
  });
}

}  // namespace

cudaError_t recall_events(const RecallParams& p, cudaStream_t stream) {
  const cudaError_t error = check(p);
  return error == cudaSuccess ? launch_recall(p, nullptr, stream) : error;
}

cudaError_t recall_rows(const RecallParams& p, const RowsParams& rows, cudaStream_t stream) {
  if (const cudaError_t error = check(p); error != cudaSuccess) return error;
  if (const cudaError_t error = check_rows(rows); error != cudaSuccess) return error;
  if (rows.recalled != p.recalled || rows.n_recalled != p.sizes + 2) return cudaErrorInvalidValue;
  return launch_recall(p, &rows, stream);
}

}  // namespace episodic::kernels
