// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the main functions of `episodic` and `episodic-train-lora` share.

#include <functional>

#include "flags.hpp"

namespace episodic::tools {

/// Parses the command line with the subcommands that `add` adds, and runs the one that was asked
/// for. What it throws becomes one line. \return the exit code
int run_program(int argc, char** argv, const std::function<void(CommandLine&)>& add);

}  // namespace episodic::tools
