// SPDX-License-Identifier: Apache-2.0
// The folders of a memory that the ranks of a group keep.
#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <system_error>

#include "episodic/base/error.hpp"
#include "episodic/store/block_tier.hpp"
#include "memory_directory.hpp"

namespace episodic {

namespace fs = std::filesystem;

namespace {

/// The number of ranks that a folder's name says; 0: it is no rank's.
int ranks_of_name(const fs::path& folder) {
  int rank = 0, ranks = 0, length = 0;
  const std::string name = folder.filename().string();
  const bool named = std::sscanf(name.c_str(), "rank-%5d-of-%5d%n", &rank, &ranks, &length) == 2 &&
                     length == static_cast<int>(name.size()) && rank >= 0 && rank < ranks;
  return named ? ranks : 0;
}

}  // namespace

int detail::ranks_in(const fs::path& dir) {
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    if (const int ranks = ranks_of_name(it->path())) return ranks;
  return 0;
}

bool detail::is_of_rank(const fs::path& dir) { return ranks_of_name(dir) > 0; }

fs::path folder_of_rank(const fs::path& dir, int rank, int ranks) {
  if (const std::optional<TierPlace> place = TierPlace::parse(dir))
    throw ConfigError(
        fmt::format("{}: several ranks keep their memory in folders; name a folder, or start one "
                    "process",
                    place->text()));
  if (holds_memory(dir))
    throw ConfigError(fmt::format(
        "{}: is the memory of one process, not of {} ranks; open it without a group, or ingest the "
        "text anew into another folder",
        dir.string(), ranks));
  if (const int there = detail::ranks_in(dir); there > 0 && there != ranks)
    throw ConfigError(fmt::format(
        "{}: is a memory of {} ranks, not of {}; start {} ranks, or ingest the text anew into "
        "another folder",
        dir.string(), there, ranks, there));
  return dir / fmt::format("rank-{}-of-{}", rank, ranks);
}

}  // namespace episodic
