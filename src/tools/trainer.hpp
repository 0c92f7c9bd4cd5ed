// SPDX-License-Identifier: Apache-2.0
#pragma once
// `episodic train-lora`: training needs libtorch, which `episodic` is built without. So it is a
// program of its own, beside this one and under its name with "-train-lora" behind it, which is run
// instead.

#include "flags.hpp"

namespace episodic::tools {

/// The subcommand, for the help.
void add_trainer(Command& app);

/// Where the command line asks for train-lora: runs its program in place of this one, and does not
/// return. \throws NotBuiltError where that is not there
void hand_to_trainer(int argc, char** argv);

}  // namespace episodic::tools
