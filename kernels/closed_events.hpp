// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The events that a step has closed, as the device knows them.

#include <cstdint>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::kernels {

/// Events closed in this step, in order of time; all pointers are to device memory. How many there
/// are is read on the device; the launch is made for max_count, which a step cannot exceed. They
/// are of one table of events, that of all layers, or of several: each layer's (lane's) own.
struct ClosedEvents {
  const std::int64_t* start = nullptr;  ///< [tables, max_count] first token
  const std::int64_t* end = nullptr;    ///< [tables, max_count] token behind the last one, > start
  const std::int32_t* count = nullptr;  ///< [tables] <= max_count; what is beyond is ignored
  const std::int64_t* first_id =
      nullptr;  ///< [tables] number of event 0 of these; others follow it
  std::int64_t max_count = 0;
  bool of_each = false;  ///< a table for each layer, its number; else there is one

  /// Those of a layer. \param layer among those that the launch is given
  EPISODIC_HOST_DEVICE ClosedEvents of(std::int64_t layer) const {
    ClosedEvents own = *this;
    if (!of_each) return own;
    own.start += layer * max_count;
    own.end += layer * max_count;
    own.count += layer;
    own.first_id += layer;
    return own;
  }
};

}  // namespace episodic::kernels
