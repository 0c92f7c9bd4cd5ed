// SPDX-License-Identifier: Apache-2.0
// The program `episodic-train-lora`, which `episodic train-lora` runs.

#include "commands.hpp"
#include "common.hpp"
#include "run_program.hpp"

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  return episodic::tools::run_program(argc, argv, episodic::tools::add_train_lora);
}
