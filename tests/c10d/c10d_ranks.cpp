// SPDX-License-Identifier: Apache-2.0
// torch.ops.episodic_ranks.run(name of a process group, "sums" | "fails" | "ends", seconds): what a
// rank finds, as a text. c10d_test.py starts the ranks.
#include <c10/util/intrusive_ptr.h>
#include <torch/library.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "episodic/c10d/c10d_group.hpp"
#include "support/rank_checks.hpp"

namespace {

using namespace episodic;

std::string run(const std::string& processes, const std::string& mode, double seconds) {
  std::shared_ptr<Group> group;
  try {
    GroupOptions options;
    options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
    group = make_c10d_group(c10d::resolve_process_group(processes), options);
    if (mode == "sums")
      rank_checks::sums(*group);
    else if (mode == "fails")
      rank_checks::fails(*group);
    else
      rank_checks::ends(*group);
    return "done";
  } catch (const std::exception& e) {
    if (group) group->leave(e.what());
    return e.what();
  }
}

std::string of_null() {
  try {
    make_c10d_group(nullptr);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "taken";
}

}  // namespace

TORCH_LIBRARY(episodic_ranks, library) {
  library.def("run", &run);
  library.def("of_null", &of_null);
}
