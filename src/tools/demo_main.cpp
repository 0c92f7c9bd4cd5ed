// SPDX-License-Identifier: Apache-2.0
// `episodic demo` and no other command: what scripts/demo runs before the whole program is there.

#include "commands.hpp"
#include "run_program.hpp"
#include "spinning.hpp"

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  return episodic::tools::run_program(argc, argv, episodic::tools::add_demo);
}
