// SPDX-License-Identifier: Apache-2.0
#pragma once
// What CUDA calls one of torch's streams, with any libtorch.

#include <fmt/format.h>

#include "episodic/base/error.hpp"

struct CUstream_st;

namespace episodic::device_torch {

/// \tparam Stream c10::Stream, with the method or, before libtorch 2.11, without
/// \throws NotBuiltError where only the caller can know
template <class Stream>
CUstream_st* native_stream(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return static_cast<CUstream_st*>(stream.native_handle());
  } else {
    // The id of a device's default stream, which to CUDA is the null stream.
    if (stream.id() == 0) return nullptr;
    throw NotBuiltError(
        fmt::format("TorchDeviceMemory: the current stream of cuda:{} is not the default one, and "
                    "libtorch before 2.11 cannot say what CUDA calls it; give `native_stream`",
                    static_cast<int>(stream.device_index())));
  }
}

}  // namespace episodic::device_torch
