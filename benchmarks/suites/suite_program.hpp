// SPDX-License-Identifier: Apache-2.0
#pragma once
// The subcommands that both suites' programs have.

#include <functional>

#include "data/suite.hpp"

namespace CLI {
class App;
}  // namespace CLI

namespace episodic::suites {

void add_run(CLI::App& app, Suite suite);
void add_score(CLI::App& app, Suite suite);
void add_average(CLI::App& app, Suite suite);
void add_merge(CLI::App& app, Suite suite);

/// Parses and runs, and turns exceptions into exit codes: 0 done, 1 failed (one line on stderr), 2
/// wrong usage.
int run_suite_program(CLI::App& app, int argc, char** argv);

}  // namespace episodic::suites
