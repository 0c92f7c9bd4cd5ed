// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is wrong with a command line.

#include <string>
#include <vector>

#include "flags.hpp"

namespace episodic::tools {

/// The name that a mistyped word was probably meant to be; empty if none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

/// What a flag of another program is called here, or does here; empty for what nobody knows.
/// \param flags those that there are: what is named is one of them, or says what to do instead
std::string known_elsewhere(const std::string& word, const std::vector<std::string>& flags);

/// One line about a command line that `app` refused with `error`: names the word, and the flag or
/// command that was probably meant. \param words without the program's name
std::string usage_problem(const Command& app, const std::string& program,
                          const std::vector<std::string>& words, const UsageError& error);

}  // namespace episodic::tools
