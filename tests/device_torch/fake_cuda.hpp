// SPDX-License-Identifier: Apache-2.0
#pragma once
// A CUDA for a libtorch that has none: CUDA tensors in the memory of the emulated device, torch's
// current device and streams those of the emulator. As much of it as tests of CUDA tensors need:
// empty, views, copies to and from the host.

namespace fake_cuda {

/// Registers it with this process's libtorch, once.
void install();

}  // namespace fake_cuda
