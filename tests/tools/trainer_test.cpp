// SPDX-License-Identifier: Apache-2.0
// train-lora where its program is not beside `episodic`: a build without torch.
#include "support/test.hpp"

#include "program.hpp"

using namespace program;

TEST_CASE("train-lora without its program says what to build, in one line") {
  const Scratch scratch;
  fs::copy_file(fs::path(EPISODIC_BINARY_DIR) / "bin" / "episodic", scratch / "episodic");
  const std::string program = quoted((scratch / "episodic").string());
  const auto run = [&](const std::string& arguments) {
    return std::system((program + " " + arguments + " > " + quoted((scratch / "out").string()) +
                        " 2> " + quoted((scratch / "err").string()))
                           .c_str());
  };
  const int status = run("train-lora --model m --objective epman --data d --out o");
  CHECK(WEXITSTATUS(status) == 1);
  const std::string said = contents(scratch / "err");
  CHECK(one_line(said));
  CHECK(said.find("episodic-train-lora is not there") != std::string::npos);
  CHECK(said.find("scripts/build episodic_train_lora") != std::string::npos);
  CHECK(run("--help") == 0);
  CHECK(contents(scratch / "out").find("train-lora") != std::string::npos);
}
