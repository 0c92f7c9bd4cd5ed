// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of a grid, one after another; what their threads call is in emulated_device.hpp.

#include <cstddef>
#include <functional>

#include "cuda_runtime_api.h"

namespace emulator {

/// Runs `thread` for every thread of the grid, in the order that was set.
/// \return the most static shared memory that a block declared, in bytes
/// \throws std::logic_error for what no device would carry out
std::size_t run_grid(dim3 grid, dim3 block, std::size_t shared_bytes,
                     const std::function<void()>& thread);

}  // namespace emulator
