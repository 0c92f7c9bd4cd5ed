// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Tokens of a GGUF file that llama.cpp knows by their names.

#include <cstdint>
#include <string_view>
#include <vector>

namespace episodic::text {

/// The types of the vocabulary as llama.cpp corrects them: tokens that end an answer, and those
/// that frame text to be filled in, are control tokens, whatever the file says.
std::vector<std::int64_t> corrected_types(const std::vector<std::string_view>& tokens,
                                          std::vector<std::int64_t> types);

}  // namespace episodic::text
