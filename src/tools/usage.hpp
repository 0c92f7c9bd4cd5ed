// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is wrong with a command line.

#include <string>
#include <vector>

#include "flags.hpp"

namespace episodic::tools {

/// The name that a mistyped word was probably meant to be; empty if none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

/// One line about a command line that `app` refused with `error`: names the word, and the flag or
/// command that was probably meant.
std::string usage_problem(const Command& app, int argc, const char* const* argv,
                          const UsageError& error);

}  // namespace episodic::tools
