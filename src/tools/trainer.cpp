// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "episodic/base/error.hpp"

namespace episodic::tools {

void add_trainer(Command& app) {
  app.subcommand("train-lora",
                 "Train an adapter (LoRA) for a model under its memory (needs libtorch)");
}

void hand_to_trainer(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "train-lora") != 0) return;
  std::error_code none;
  std::string program = std::filesystem::read_symlink("/proc/self/exe", none).string();
  program += "-train-lora";
  execv(program.c_str(), argv);
  const int problem = errno;
  if (problem == ENOENT)
    throw NotBuiltError(fmt::format(
        "train-lora: {} is not there: training needs libtorch; run scripts/setup --torch, then "
        "scripts/build episodic_train_lora",
        program));
  throw FileError(fmt::format("train-lora: {} cannot be run: {}", program, std::strerror(problem)));
}

}  // namespace episodic::tools
