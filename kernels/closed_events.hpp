// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The events that a step has closed, as the device knows them.

#include <cstdint>

namespace episodic::kernels {

/// Events closed in this step, in order of time; all pointers are to device memory. How many there
/// are is read on the device; the launch is made for max_count, which a step cannot exceed.
struct ClosedEvents {
  const std::int64_t* start = nullptr;     ///< [max_count] first token
  const std::int64_t* end = nullptr;       ///< [max_count] token behind the last one, > start
  const std::int32_t* count = nullptr;     ///< <= max_count; what is beyond that is ignored
  const std::int64_t* first_id = nullptr;  ///< number of event 0 of these; the others follow it
  std::int64_t max_count = 0;
};

}  // namespace episodic::kernels
