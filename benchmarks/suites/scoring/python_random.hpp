// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The draw that the EM-LLM authors' scorer makes where nothing in a prediction parses.

#include <cstdint>
#include <string_view>

namespace episodic::suites {

/// Index of `random.seed(text); random.choice(<n things>)` of CPython 3: the seed is the text and
/// its SHA-512 as one number. \param n >= 1
std::uint32_t python_choice(std::string_view text, std::uint32_t n);

}  // namespace episodic::suites
