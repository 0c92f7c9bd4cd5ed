// SPDX-License-Identifier: Apache-2.0
#pragma once
// The subcommands that both suites' programs have.

#include "data/suite.hpp"
#include "flags.hpp"

namespace episodic::suites {

void add_run(tools::Command& app, Suite suite);
void add_score(tools::Command& app, Suite suite);
void add_average(tools::Command& app, Suite suite);
void add_merge(tools::Command& app, Suite suite);

/// Parses and runs, and turns exceptions into exit codes: 0 done, 1 failed (one line on stderr), 2
/// wrong usage.
int run_suite_program(tools::CommandLine& app, int argc, char** argv);

}  // namespace episodic::suites
