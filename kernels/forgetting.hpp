// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Forgetting events on the GPU: their marks, and what was recalled last without them.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "recall.hpp"

namespace episodic::kernels {

/// What recall left in a lane (RecallParams).
struct LaneLists {
  DeviceEventId *similarity = nullptr, *contiguity = nullptr, *recalled = nullptr;
  std::int32_t* sizes = nullptr;  ///< [3] of them
};

/// All pointers are to device memory.
struct ForgetParams {
  const DeviceEventId* events = nullptr;  ///< [n_events] to be forgotten, each once, sorted
  std::int64_t n_events = 0;
  std::uint8_t* marks = nullptr;     ///< by event: set to 1 of these, else left alone
  const LaneLists* lanes = nullptr;  ///< [n_lanes], all over the table that the marks are of
  std::int64_t n_lanes = 0;
};

/// Marks events as forgotten and takes them out of the lanes' lists, whose order stays. One block a
/// lane. n_events == 0 or n_lanes == 0 does nothing.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launch said
cudaError_t forget_events(const ForgetParams& params, cudaStream_t stream);
/// The field of them that forget_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ForgetParams& params);

/// Of several sequences (batch.hpp), which need share nothing.
cudaError_t forget_events_batch(const ForgetParams* params, std::int64_t n_sequences,
                                cudaStream_t stream);
const char* invalid_field(const ForgetParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
