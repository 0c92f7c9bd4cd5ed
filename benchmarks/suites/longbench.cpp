// SPDX-License-Identifier: Apache-2.0
// `longbench`: THUDM/LongBench's tasks, run and scored.

#include "suite_program.hpp"

int main(int argc, char** argv) {
  using namespace episodic::suites;
  episodic::tools::CommandLine app{"LongBench: tasks of THUDM/LongBench, run and scored as there",
                                   "longbench"};
  app.require_subcommand();
  add_run(app, Suite::longbench);
  add_score(app, Suite::longbench);
  add_average(app, Suite::longbench);
  add_merge(app, Suite::longbench);
  return run_suite_program(app, argc, argv);
}
