// SPDX-License-Identifier: Apache-2.0
// `episodic fork`: a second memory that shares what is common.

#include "commands.hpp"

#include "kept.hpp"

namespace episodic::tools {
namespace {

struct ForkFlags {
  CommonFlags common;
  std::filesystem::path from, to;
};

}  // namespace

void add_fork(Command& app) {
  auto flags = std::make_shared<ForkFlags>();
  Command sub = app.subcommand("fork", "Make a second memory that shares what is common");
  sub.footer(
      "Takes the last commit, also while another process writes. On one file system the files are\n"
      "shared, so a fork takes a moment and almost no room; neither memory ever changes the "
      "other's.\n\n"
      "Example:\n  episodic fork book.mem draft.mem");
  sub.option("from", flags->from, "Folder of the memory").required();
  sub.option("to", flags->to, "Folder of the new memory; made if it is not there").required();
  flags->common.add_to(sub, false);
  sub.action([flags] {
    require_memory_dir(flags->from);
    fork_memory(flags->from, flags->to);
  });
}

}  // namespace episodic::tools
