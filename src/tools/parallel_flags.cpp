// SPDX-License-Identifier: Apache-2.0
#include "parallel_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "episodic/base/error.hpp"
#include "ranks.hpp"
#if EPISODIC_MPI
#include "episodic/mpi/mpi_group.hpp"
#endif

namespace episodic::tools {
namespace {

std::shared_ptr<Group> started_ranks([[maybe_unused]] const GroupOptions& options) {
#if EPISODIC_MPI
  return make_mpi_group(options);
#else
  throw NotBuiltError(
      "--parallel: this build has no MPI; install libopenmpi-dev and openmpi-bin, and build again");
#endif
}

}  // namespace

void ParallelFlags::add_to(Command& app) {
  const Option parallel =
      app.option("--parallel", kind,
                 "The processes that mpirun started compute one model: `tensor` divides heads and "
                 "feed-forward channels among them (docs/parallel.md)");
  parallel.one_of({"tensor"});
  app.option("--group-timeout", timeout,
             "Seconds that a process waits for a message of another before it ends")
      .positive()
      .shows_default()
      .needs(parallel);
}

void ParallelFlags::join(CommonFlags& common, ModelFlags& model, JsonFlag* json) const {
  if (kind.empty()) return;
  if (common.device == "cuda")
    throw ConfigError("--parallel tensor: its ranks compute on the host; give --device cpu");
  common.device = "cpu";
  model.group = started_ranks({std::chrono::milliseconds(
      std::max<std::int64_t>(1, static_cast<std::int64_t>(timeout * 1000)))});
  keep_ranks(model.group);
  if (is_first(model.group.get())) return;
  common.quiet = true;
  if (json && json->wanted()) json->path = "-";  // where nobody listens
}

void refuse_with_ranks(const ModelFlags& model, bool given, const char* flag, const char* why) {
  if (given && model.group)
    throw ConfigError(
        fmt::format("{}: not with --parallel, {}; leave one of the two out", flag, why));
}

}  // namespace episodic::tools
