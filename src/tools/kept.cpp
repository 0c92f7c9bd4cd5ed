// SPDX-License-Identifier: Apache-2.0
#include "kept.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "episodic/base/error.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/patch.hpp"

namespace episodic::tools {

EpisodicMemory open_kept(const ModelFlags& flags, const std::filesystem::path& dir, OpenMode mode,
                         std::int64_t at_token) {
  KeepOptions keep;
  keep.dir = dir;
  keep.identity = identity_of(flags.model);
  const MemoryShape shape = memory_shape(load_model_config(flags.model));
  std::optional<MemoryConfig> budgets;
  if (!flags.memory.empty()) budgets = flags.memory_config();
  return EpisodicMemory::open(keep, mode, &shape, budgets ? &*budgets : nullptr, at_token);
}

EpisodicMemory open_kept(const std::filesystem::path& dir, OpenMode mode) {
  KeepOptions keep;
  keep.dir = dir;
  return EpisodicMemory::open(keep, mode);
}

void read_and_commit(Session& session, std::span<const std::int64_t> ids, std::int64_t commit_every,
                     const ProgressCallback& progress, const std::function<void()>& commit) {
  // Whole steps between commits: the steps are then the same wherever a reading was cut off.
  const std::int64_t chunk = session.model().chunk();
  const auto piece =
      static_cast<std::size_t>(std::max<std::int64_t>(1, commit_every / chunk) * chunk);
  const auto total = static_cast<std::int64_t>(ids.size());
  std::int64_t done = 0;
  while (!ids.empty()) {
    const auto now = ids.first(std::min(piece, ids.size()));
    session.prefill(
        now, [&](std::int64_t n, std::int64_t) { return !progress || progress(done + n, total); });
    done += static_cast<std::int64_t>(now.size());
    ids = ids.subspan(now.size());
    commit();
  }
}

Json memory_json(const EpisodicMemory& memory) {
  const MemoryCounters c = memory.counters();
  Json json{{"tokens", memory.tokens()},
            {"events", c.events},
            {"kv_dtype", name_of(memory.config().kv_dtype)},
            {"recalled_events", c.recalled_events},
            {"store_bytes", c.store.bytes_used},
            {"host_bytes", c.store.bytes_reserved},
            {"disk_bytes", c.store.disk_bytes},
            {"index_bytes", c.index_bytes},
            {"window_bytes", c.window_bytes}};
  if (c.index_quality.checked > 0) json["index_recall"] = c.index_quality.recall();
  return json;
}

TokenRange parse_range(const std::string& text, const char* flag) {
  const std::size_t colon = text.find(':');
  const auto number = [&](std::string_view s) {
    std::int64_t x = -1;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x);
    if (error != std::errc() || end != s.data() + s.size() || x < 0)
      throw ConfigError(fmt::format("{} {}: expected A or A:B with numbers >= 0", flag, text));
    return x;
  };
  const std::string_view all(text);
  const std::int64_t start = number(all.substr(0, colon));
  const std::int64_t end = colon == std::string::npos ? start + 1 : number(all.substr(colon + 1));
  if (end <= start)
    throw ConfigError(fmt::format("{} {}: the end must be past the start", flag, text));
  return {start, end};
}

}  // namespace episodic::tools
