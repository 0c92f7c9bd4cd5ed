// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>

namespace program {

/// A copy of a model with weights in float32: a device then computes in the host's dtype.
/// \param from a model with bfloat16 weights in one file \param to made
std::filesystem::path float32_copy(const std::filesystem::path& from,
                                   const std::filesystem::path& to);

}  // namespace program
