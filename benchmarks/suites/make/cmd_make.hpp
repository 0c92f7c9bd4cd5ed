// SPDX-License-Identifier: Apache-2.0
#pragma once
// `infinitebench make`: rows of the generated tasks.

#include "flags.hpp"

namespace episodic::suites {

void add_make(tools::Command& app);

}  // namespace episodic::suites
