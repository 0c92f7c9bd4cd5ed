// SPDX-License-Identifier: Apache-2.0
#include "kept.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>

#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/store/block_tier.hpp"

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

void read_and_commit(Session& session, std::span<const std::int64_t> ids, CommitPace pace,
                     const ProgressCallback& progress, const std::function<void()>& commit,
                     Group* group) {
  using Clock = std::chrono::steady_clock;
  // Whole steps between commits: the steps are then the same wherever a reading was cut off.
  const std::int64_t chunk = session.model().chunk();
  const std::int64_t piece = std::max<std::int64_t>(1, pace.tokens / chunk) * chunk;
  const auto total = static_cast<std::int64_t>(ids.size());
  std::int64_t done = 0, committed = 0;
  Clock::time_point last = Clock::now();
  while (done < total) {
    const std::int64_t n = std::min(chunk, total - done);
    session.prefill(ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)));
    done += n;
    if (progress) progress(done, total);
    const double seconds = std::chrono::duration<double>(Clock::now() - last).count();
    bool late = pace.seconds > 0 && seconds >= pace.seconds;
    if (group && pace.seconds > 0) group->broadcast(std::as_writable_bytes(std::span(&late, 1)));
    if (done - committed < piece && done < total && !late) continue;
    commit();
    committed = done;
    last = Clock::now();
  }
}

void ReadingNote::leave(const std::filesystem::path& dir) const {
  if (TierPlace::parse(dir)) return;  // a tier has memories alone
  replace_text(dir / kName, Json{{"text", text}, {"tokens", tokens}}.dump(
                                -1, ' ', false, Json::error_handler_t::replace) +
                                "\n");
}

void ReadingNote::remove(const std::filesystem::path& dir) {
  std::error_code ignored;
  std::filesystem::remove(dir / kName, ignored);
}

std::optional<ReadingNote> ReadingNote::of(const std::filesystem::path& dir) {
  std::error_code error;
  const std::filesystem::path file = dir / kName;
  constexpr std::uintmax_t kLongest = 65536;
  if (!std::filesystem::is_regular_file(file, error) ||
      std::filesystem::file_size(file, error) > kLongest || error)
    return std::nullopt;
  try {
    const Json json = read_json(file);
    if (!json.is_object() || !json.contains("text") || !json["text"].is_string() ||
        !json.contains("tokens") || !json["tokens"].is_number_unsigned())
      return std::nullopt;
    return ReadingNote{json["text"], json["tokens"]};
  } catch (const FileError&) {
    return std::nullopt;
  }
}

namespace {

/// "major:minor" of the file system of a mount, in decimals; empty where the system does not say.
std::string device_of_mount(std::uint64_t mount) {
  const std::string begins = fmt::format("{} ", mount);
  std::ifstream mounts("/proc/self/mountinfo");  // "36 35 98:0 /root /mnt rw - ext3 /dev/sda1 rw"
  for (std::string line; std::getline(mounts, line);) {
    if (!line.starts_with(begins)) continue;
    const std::size_t from = line.find(' ', begins.size());
    if (from == std::string::npos) break;
    return line.substr(from + 1, line.find(' ', from + 1) - from - 1);
  }
  return {};
}

/// What /proc/locks may call a file: " fe:01:393230 ". The device there is that of the mounted file
/// system. On some (btrfs, overlays) stat says another one, which no other file system has.
std::vector<std::string> names_in_locks(const std::filesystem::path& path) {
  struct statx info {};
  unsigned wanted = STATX_INO;
#ifdef STATX_MNT_ID
  wanted |= STATX_MNT_ID;
#endif
  if (::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, wanted, &info) != 0) return {};
  const auto name = [&](unsigned major, unsigned minor) {
    return fmt::format(" {:02x}:{:02x}:{} ", major, minor, info.stx_ino);
  };
  std::vector<std::string> names{name(info.stx_dev_major, info.stx_dev_minor)};
#ifdef STATX_MNT_ID
  if (info.stx_mask & STATX_MNT_ID) {
    unsigned major = 0, minor = 0;
    const std::string device = device_of_mount(info.stx_mnt_id);
    if (std::sscanf(device.c_str(), "%u:%u", &major, &minor) == 2)
      names.push_back(name(major, minor));
  }
#endif
  return names;
}

}  // namespace

bool is_being_written(const std::filesystem::path& dir) {
  // Asked of the system rather than tried: to take the lock, be it for a moment, would refuse a
  // writer that begins just then.
  std::vector<std::string> names = names_in_locks(dir / "lock");
  for (std::string& name : names_in_locks(dir)) names.push_back(std::move(name));
  std::ifstream locks("/proc/locks");  // "1: FLOCK  ADVISORY  WRITE 4711 fe:01:393230 0 EOF"
  for (std::string line; std::getline(locks, line);)
    if (line.find(" FLOCK ") != std::string::npos && line.find(" WRITE ") != std::string::npos)
      for (const std::string& name : names)
        if (line.find(name) != std::string::npos) return true;
  return false;
}

std::string unfinished_text(const std::filesystem::path& dir, std::int64_t tokens, bool ours) {
  const bool written = !ours && is_being_written(dir);
  const std::optional<ReadingNote> note = ReadingNote::of(dir);
  if (!written && !note) return {};
  const std::string holds = fmt::format("{} holds {} tokens", dir.string(), count_text(tokens));
  if (!note) return holds + "; another program is writing to it";
  const std::string of =
      note->tokens > tokens ? fmt::format(" of {}", count_text(note->tokens)) : std::string();
  return holds + of +
         (written ? fmt::format("; ingest is still reading {}", on_one_line(note->text))
                  : fmt::format("; the ingest of {} was interrupted: `ingest --resume` (or "
                                "`--append`, if it was that) goes on with it",
                                on_one_line(note->text)));
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
  if (TierPlace::parse(dir)) return;  // what is wrong with a place is told when it is opened
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
