// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How often each event was recalled (docs/programs.md, `inspect`): the CUDA twin of what the
/// host's memory and its store count.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "forgetting.hpp"

namespace episodic::kernels {

/// Of an event.
struct RecallCount {
  std::uint32_t recalls = 0;  ///< by lanes and steps
  std::uint32_t last = 0;     ///< number of the step that recalled it last, plus 1; 0: none did
};

/// All pointers are to device memory.
struct RecallCountsParams {
  const LaneLists* lanes = nullptr;  ///< [n_lanes] what each lane attends in this step
  std::int64_t n_lanes = 0;
  /// [n_lanes] whose events each lane's are: those of counts + maybe_timeline[lane] * max_events;
  /// null: all of the first table.
  const std::int32_t* maybe_timeline = nullptr;
  std::int64_t max_events = 0;           ///< room of each table, < 2^31
  const std::uint32_t* steps = nullptr;  ///< before this one
  RecallCount* counts = nullptr;         ///< [tables, max_events], added to
  unsigned long long* total = nullptr;   ///< of all events, lanes and steps, added to
  /// [n_lanes] or null: where each lane's lists go for the next step, arrays of their own.
  const LaneLists* maybe_kept = nullptr;
};

/// Counts each event in the lanes' lists once a list, and keeps the lists. One block a lane: reads
/// its list, 4 bytes an event, and adds to 8 bytes each; keeping is 8 bytes an event of all three.
/// n_lanes == 0 does nothing.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launch said
cudaError_t count_recalls(const RecallCountsParams& params, cudaStream_t stream);
/// The field of them that count_recalls refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RecallCountsParams& params);

/// Of several sequences (batch.hpp), which share n_lanes.
cudaError_t count_recalls_batch(const RecallCountsParams* params, std::int64_t n_sequences,
                                cudaStream_t stream);
const char* invalid_field(const RecallCountsParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
