// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

std::shared_ptr<Group>& kept() {
  static std::shared_ptr<Group> group;
  return group;
}

int stderr_before = -1;  // of a rank that was silenced

/// By the launcher's variables; 0 without one.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"})
    if (const char* const value = std::getenv(name)) return std::atoi(value);
  return 0;
}

}  // namespace

void silence_other_ranks(int argc, char** argv) {
  const bool asked = std::any_of(argv, argv + argc, [](const char* word) {
    const std::string_view flag(word);
    return flag == "--parallel" || flag.starts_with("--parallel=");
  });
  if (!asked || launched_rank() == 0) return;
  stderr_before = ::dup(STDERR_FILENO);
  if (const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nothing >= 0) {
    ::dup2(nothing, STDOUT_FILENO);
    ::dup2(nothing, STDERR_FILENO);
    ::close(nothing);
  }
}

void keep_ranks(std::shared_ptr<Group> group) { kept() = std::move(group); }

void ranks_failed(const std::string& why) {
  Group* const group = kept().get();
  if (!group) return;
  if (group->lost_rank() == 0 && group->rank() == 1 && stderr_before >= 0)
    ::dup2(stderr_before, STDERR_FILENO);
  group->leave(why);
}

void ranks_ended() { kept().reset(); }

bool same_on_ranks(Group* group, bool mine, const std::string& what) {
  if (!group) return mine;
  const std::int64_t here = mine;
  std::vector<std::int64_t> all(static_cast<std::size_t>(group->size()));
  group->gather(std::as_bytes(std::span(&here, 1)), std::as_writable_bytes(std::span(all)));
  for (int r = 1; r < group->size(); ++r)
    if (all[static_cast<std::size_t>(r)] != all[0])
      throw ConfigError(fmt::format("{}: {} on rank 0, and {} on rank {}", what,
                                    all[0] ? "it is" : "it is not", all[0] ? "not" : "it is", r));
  return mine;
}

void require_same_on_ranks(Group* group, const std::string& mine, const std::string& what) {
  if (!group) return;
  const std::uint64_t here = checksum(std::as_bytes(std::span(mine.data(), mine.size())));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group->size()));
  group->gather(std::as_bytes(std::span(&here, 1)), std::as_writable_bytes(std::span(all)));
  for (int r = 1; r < group->size(); ++r)
    if (all[static_cast<std::size_t>(r)] != all[0])
      throw ConfigError(
          fmt::format("{}: other on rank {} than on rank 0; give all ranks the same", what, r));
}

}  // namespace episodic::tools
