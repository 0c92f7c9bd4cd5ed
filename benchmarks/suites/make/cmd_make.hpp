// SPDX-License-Identifier: Apache-2.0
#pragma once
// `make`: rows of a suite's generated tasks.

#include "data/suite.hpp"
#include "flags.hpp"

namespace episodic::suites {

void add_make(tools::Command& app, Suite suite);

}  // namespace episodic::suites
