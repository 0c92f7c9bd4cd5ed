// SPDX-License-Identifier: Apache-2.0
#include "kept.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "episodic/base/error.hpp"

namespace episodic::tools {

EpisodicMemory open_kept(const ModelFlags& flags, const std::filesystem::path& dir, OpenMode mode) {
  require_memory_dir(dir);
  KeptFolder folder;
  folder.dir = dir;
  folder.mode = mode;
  if (!flags.memory.empty()) folder.budgets = flags.changed(MemoryManifest::read(dir).config);
  return open_memory(flags.model, folder, flags.options());
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

Json memory_json(const Engine& engine) {
  if (!engine.has_memory()) return {};
  const MemoryUsage u = engine.usage();
  Json json{{"tokens", u.tokens},
            {"events", u.events},
            {"kv_dtype", name_of(u.kv_dtype)},
            {"recalled_events", u.recalled_events}};
  if (u.device_bytes >= 0) json["device_bytes"] = u.device_bytes;
  json["store_bytes"] = u.store_bytes;
  json["host_bytes"] = u.host_bytes;
  json["disk_bytes"] = u.disk_bytes;
  json["index_bytes"] = u.index_bytes;
  json["window_bytes"] = u.window_bytes;
  if (u.step_bytes >= 0) json["step_bytes"] = u.step_bytes;
  if (u.weight_bytes >= 0) json["weight_bytes"] = u.weight_bytes;
  if (u.index_recall) json["index_recall"] = *u.index_recall;
  return json;
}

void require_memory_dir(const std::filesystem::path& dir) {
  std::error_code error;
  if (std::filesystem::is_directory(dir, error)) return;
  if (std::filesystem::exists(dir, error))
    throw FileError(
        fmt::format("{}: is a file; name the folder of the memory{}", dir.string(),
                    dir.filename() == "manifest.json"
                        ? fmt::format(": {}", dir.has_parent_path() ? dir.parent_path().string()
                                                                    : std::string("."))
                        : std::string()));
  throw FileError(fmt::format("{}: there is no such folder; check the path", dir.string()));
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
