// SPDX-License-Identifier: Apache-2.0
// `infinitebench`: OpenBMB/InfiniteBench's tasks, made, run and scored.

#include "make/cmd_make.hpp"

#include "suite_program.hpp"

int main(int argc, char** argv) {
  using namespace episodic::suites;
  episodic::tools::CommandLine app{
      "infinity-Bench: tasks of OpenBMB/InfiniteBench, made, run and scored as there",
      "infinitebench"};
  app.require_subcommand();
  add_make(app);
  add_run(app, Suite::infinitebench);
  add_score(app, Suite::infinitebench);
  add_average(app, Suite::infinitebench);
  add_merge(app, Suite::infinitebench);
  return run_suite_program(app, argc, argv);
}
