// SPDX-License-Identifier: Apache-2.0
// The program of a suite, which is named as its row in suite_table.cpp.

#include "make/cmd_make.hpp"

#include "suite_program.hpp"
#include "suite_table.hpp"

int main(int argc, char** argv) {
  using namespace episodic::suites;
  const SuiteRow& row = *suite_named(EPISODIC_SUITE);
  episodic::tools::CommandLine app{row.title, row.name};
  app.require_subcommand();
  if (row.make != nullptr) add_make(app, row.suite);
  add_run(app, row.suite);
  add_score(app, row.suite);
  add_average(app, row.suite);
  add_merge(app, row.suite);
  return run_suite_program(app, argc, argv);
}
