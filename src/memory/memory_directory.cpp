// SPDX-License-Identifier: Apache-2.0
#include "memory_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "unique_id.hpp"

namespace episodic {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kLock = "lock";
constexpr const char* kFormat = "episodic memory";
constexpr std::string_view kChecksumLine = "checksum: ";
constexpr std::int64_t kMostManifest = std::int64_t{1} << 28;
constexpr std::uint32_t kStateMagic = 0x53544945;  // "EITS"
constexpr std::uint32_t kStateVersion = 2;
constexpr std::int64_t kStateHeader = 24;  // magic, version, payload bytes, checksum

std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

std::uint64_t from_hex(const Json& j) {
  const std::string s = j.get<std::string>();
  if (s.size() != 16 || s.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw std::invalid_argument("a number of 16 hexadecimal digits expected, found " + s);
  return std::stoull(s, nullptr, 16);
}

Json to_json(const MemoryManifest::State& s) {
  return {{"file", s.file},
          {"bytes", s.bytes},
          {"checksum", hex(s.checksum)},
          {"tokens", s.tokens},
          {"events", s.events}};
}

/// A name that stays in its folder.
std::string plain_name(const Json& j) {
  const std::string name = j.get<std::string>();
  if (name.empty() || name[0] == '.' ||
      name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
    throw std::invalid_argument("'" + name + "' is no plain file name");
  return name;
}

MemoryManifest::State state_of(const Json& j) {
  const std::string file = plain_name(j.at("file"));
  if (file.size() != 26 || !file.starts_with("state-") || !file.ends_with(".bin") ||
      file.substr(6, 16).find_first_not_of("0123456789abcdef") != std::string::npos)
    throw std::invalid_argument("'" + file + "' is no name of a state file");
  return {file, j.at("bytes").get<std::int64_t>(), from_hex(j.at("checksum")),
          j.at("tokens").get<std::int64_t>(), j.at("events").get<std::int64_t>()};
}

std::string text_of(const MemoryManifest& m) {
  Json j;
  j["format"] = kFormat;
  j["version"] = MemoryManifest::kVersion;
  j["id"] = hex(m.id);
  j["parent"] = m.parent ? Json(hex(m.parent)) : Json(nullptr);
  j["generation"] = m.generation;
  j["model"] = m.identity.model;
  j["weights"] = m.identity.weights;
  j["tokenizer"] = m.identity.tokenizer;
  j["config"] = Json::parse(to_json(m.config));
  j["state"] = to_json(m.state);
  j["checkpoints"] = Json::array();
  for (const auto& s : m.checkpoints) j["checkpoints"].push_back(to_json(s));
  j["files"] = Json::array();
  for (const auto& f : m.files) j["files"].push_back({{"name", f.name}, {"bytes", f.bytes}});
  std::string text = j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  return text + std::string(kChecksumLine) +
         hex(checksum_of(std::span<const char>(text.data(), text.size()))) + "\n";
}

MemoryManifest parse(std::string_view text, const std::string& where) {
  const auto damaged = [&](const std::string& what) {
    return FileError(fmt::format(
        "{}: {}; the memory cannot be opened: take the folder from a copy or a fork of it", where,
        what));
  };
  const std::size_t line = text.rfind(kChecksumLine);
  const std::string_view body = text.substr(0, line == std::string_view::npos ? 0 : line);
  const Json j = Json::parse(body, nullptr, false);
  // Said first, because a newer format may have another checksum.
  if (j.is_object() && j.value("format", Json()) == Json(kFormat) && j.contains("version") &&
      j["version"].is_number_integer() && j["version"] > Json(MemoryManifest::kVersion))
    throw FileError(fmt::format(
        "{}: written in format {} by a newer version of episodic; this one reads formats up to {}: "
        "use the newer version",
        where, j["version"].dump(), MemoryManifest::kVersion));
  if (j.is_object() && j.value("format", Json()) == Json(kFormat) && j.contains("version") &&
      j["version"].is_number_integer() && j["version"] < Json(MemoryManifest::kVersion))
    throw FileError(
        fmt::format("{}: written in format {} by an older version of episodic; this one reads "
                    "format {}: use that "
                    "version, or ingest the text anew into another folder",
                    where, j["version"].dump(), MemoryManifest::kVersion));
  if (line == std::string_view::npos ||
      text.substr(line) != std::string(kChecksumLine) +
                               hex(checksum_of(std::span<const char>(body.data(), body.size()))) +
                               "\n")
    throw damaged("its checksum is wrong: it is damaged");
  try {
    if (j.at("format") != Json(kFormat) || j.at("version") != Json(MemoryManifest::kVersion))
      throw std::invalid_argument("not a manifest of this format");
    MemoryManifest m;
    m.id = from_hex(j.at("id"));
    m.parent = j.at("parent").is_null() ? 0 : from_hex(j.at("parent"));
    m.generation = j.at("generation").get<std::int64_t>();
    m.identity = {j.at("model").get<std::string>(), j.at("weights").get<std::string>(),
                  j.at("tokenizer").get<std::string>()};
    m.config = parse_memory_config(j.at("config").dump());
    m.state = state_of(j.at("state"));
    for (const Json& s : j.at("checkpoints")) m.checkpoints.push_back(state_of(s));
    for (const Json& f : j.at("files"))
      m.files.push_back({plain_name(f.at("name")), f.at("bytes").get<std::int64_t>()});
    if (m.generation < 1) throw std::invalid_argument("generation below 1");
    return m;
  } catch (const std::exception& e) {
    throw damaged(fmt::format("its content is impossible ({})", e.what()));
  }
}

/// Files that a memory makes; nothing else is ever removed.
bool is_ours(const std::string& name) {
  const auto has = [&](std::string_view prefix, std::string_view suffix) {
    return name.size() == prefix.size() + 16 + suffix.size() && name.starts_with(prefix) &&
           name.ends_with(suffix);
  };
  return has("state-", ".bin") || has("kv-", ".seg") || has("vectors-", ".vec") ||
         has("tokens-", ".ids") || name == std::string(kManifest) + ".new";
}

io::Kind kind_of(const std::string& name) {
  if (name.starts_with("state-")) return io::Kind::state;
  if (name.starts_with("kv-")) return io::Kind::segment;
  if (name.starts_with("vectors-")) return io::Kind::vectors;
  if (name.starts_with("tokens-")) return io::Kind::tokens;
  return io::Kind::manifest;
}

std::set<std::string> names_in(const MemoryManifest& m) {
  std::set<std::string> names{m.state.file};
  for (const auto& s : m.checkpoints) names.insert(s.file);
  for (const auto& f : m.files) names.insert(f.name);
  return names;
}

std::vector<std::string> list(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error)
    throw FileError(fmt::format("{}: could not be listed: {}", dir.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

io::File take_lock(const fs::path& dir, io::Syscalls& calls) {
  io::File lock(calls, io::Kind::lock, dir / kLock, O_RDWR | O_CREAT);
  if (const int r = calls.lock(lock.fd(), true); r == -EWOULDBLOCK)
    throw FileError(fmt::format(
        "{}: another process is writing to this memory; wait until it ends, or fork the memory and "
        "write to the fork",
        dir.string()));
  else if (r < 0)
    io::fail(-r, dir / kLock, "take the lock of the memory");
  return lock;
}

}  // namespace

MemoryManifest MemoryManifest::read(const fs::path& dir, io::Syscalls& calls) {
  const fs::path path = dir / kManifest;
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    throw FileError(
        fmt::format("{}: holds no memory (there is no {}); make one with `episodic ingest`",
                    dir.string(), kManifest));
  const std::vector<std::byte> bytes =
      io::read_file(calls, io::Kind::manifest, path, kMostManifest);
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

bool holds_memory(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(dir / kManifest, ignored);
}

void fork_memory(const fs::path& from, const fs::path& to, io::Syscalls& calls) {
  MemoryManifest m = MemoryManifest::read(from, calls);
  std::error_code error;
  const bool existed = fs::exists(to, error);
  if (existed && (!fs::is_directory(to, error) || !list(to).empty()))
    throw FileError(
        fmt::format("{}: exists and is not an empty folder; name another one", to.string()));
  if (!existed)
    if (const int r = calls.make_directory(to.c_str()); r < 0)
      io::fail(-r, to, "make the folder", "its parent must exist and be writable");
  std::vector<fs::path> made;
  try {
    for (const std::string& name : names_in(m)) {
      const io::Kind kind = kind_of(name);
      made.push_back(to / name);
      const int r = calls.link(kind, (from / name).c_str(), made.back().c_str());
      if (r == -EXDEV || r == -EPERM || r == -EMLINK || r == -EOPNOTSUPP) {
        const io::File source(calls, kind, from / name, O_RDONLY);
        io::File copy(calls, kind, made.back(), O_WRONLY | O_CREAT | O_EXCL);
        std::vector<std::byte> buffer(std::size_t{1} << 20);
        const std::int64_t size = source.size();
        for (std::int64_t at = 0; at < size;) {
          const auto n =
              std::min<std::int64_t>(size - at, static_cast<std::int64_t>(buffer.size()));
          const std::span part(buffer.data(), static_cast<std::size_t>(n));
          source.read(part, at);
          copy.write(part, at);
          at += n;
        }
        copy.sync();
      } else if (r < 0) {
        io::fail(-r, from / name, fmt::format("share it with {}", to.string()));
      }
    }
    m.parent = m.id;
    m.id = detail::unique_id();
    const std::string text = text_of(m);
    made.push_back(to / kManifest);
    io::replace_file(calls, io::Kind::manifest, to / kManifest,
                     std::as_bytes(std::span(text.data(), text.size())));
    io::sync_directory(calls, to.has_parent_path() ? to.parent_path() : ".");
  } catch (...) {
    for (auto it = made.rbegin(); it != made.rend(); ++it)
      calls.unlink(kind_of(it->filename().string()), it->c_str());
    if (!existed) fs::remove(to, error);
    throw;
  }
}

namespace detail {

MemoryDirectory::MemoryDirectory(fs::path dir, io::Syscalls& calls)
    : dir_(std::move(dir)), calls_(&calls) {}

MemoryDirectory MemoryDirectory::create(const fs::path& dir, io::Syscalls& calls) {
  MemoryDirectory d(dir, calls);
  std::error_code error;
  if (!fs::exists(dir, error)) {
    if (const int r = calls.make_directory(dir.c_str()); r < 0 && r != -EEXIST)
      io::fail(-r, dir, "make the folder", "its parent must exist and be writable");
    io::sync_directory(calls, dir.has_parent_path() ? dir.parent_path() : ".");
  }
  d.lock_ = take_lock(dir, calls);
  for (const std::string& name : list(dir)) {
    if (name == kManifest)
      throw FileError(fmt::format(
          "{}: holds a memory already; go on with it (--resume), or name another folder",
          dir.string()));
    if (name != kLock && !is_ours(name))
      throw FileError(
          fmt::format("{}: holds '{}', which is no part of a memory; name an empty or a new folder",
                      dir.string(), name));
  }
  d.remove_unnamed();
  return d;
}

MemoryDirectory MemoryDirectory::open(const fs::path& dir, OpenMode mode, io::Syscalls& calls) {
  MemoryDirectory d(dir, calls);
  if (mode == OpenMode::write && holds_memory(dir)) d.lock_ = take_lock(dir, calls);
  d.manifest_ = MemoryManifest::read(dir, calls);
  d.attempts_ = d.manifest_.generation;
  return d;
}

void MemoryDirectory::remove_unnamed() {
  const std::set<std::string> named = names_in(manifest_);
  for (const std::string& name : list(dir_))
    if (is_ours(name) && !named.count(name))
      calls_->unlink(kind_of(name), (dir_ / name).c_str());  // what cannot go now goes later
}

void MemoryDirectory::commit(MemoryManifest next, std::span<const std::byte> state,
                             std::int64_t tokens, std::int64_t events) {
  // A name of its own for each attempt: after one that failed late, nobody knows which counts.
  next.generation = std::max(attempts_, manifest_.generation) + 1;
  attempts_ = next.generation;
  next.id = manifest_.id ? manifest_.id : unique_id();
  next.parent = manifest_.parent;
  next.state.file = fmt::format("state-{:016x}.bin", next.generation);
  next.state.bytes = kStateHeader + static_cast<std::int64_t>(state.size());
  next.state.checksum = checksum(state, static_cast<std::uint64_t>(next.generation));
  next.state.tokens = tokens;
  next.state.events = events;
  ByteWriter head;
  head.put(kStateMagic);
  head.put(kStateVersion);
  head.put(static_cast<std::uint64_t>(state.size()));
  head.put(next.state.checksum);
  const fs::path path = dir_ / next.state.file;
  bool named = false;
  try {
    io::File file(*calls_, io::Kind::state, path, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(head.bytes(), 0);
    file.write(state, kStateHeader);
    file.sync();
    file.close();
    io::sync_directory(*calls_, dir_);
    const std::string text = text_of(next);
    named = true;  // from here on the manifest on the medium may be the new one
    io::replace_file(*calls_, io::Kind::manifest, dir_ / kManifest,
                     std::as_bytes(std::span(text.data(), text.size())));
  } catch (...) {
    if (named)
      doubtful_.push_back(next.state.file);
    else
      calls_->unlink(io::Kind::state, path.c_str());
    throw;
  }
  std::set<std::string> old = names_in(manifest_);
  const std::set<std::string> now = names_in(next);
  old.insert(doubtful_.begin(), doubtful_.end());
  doubtful_.clear();
  manifest_ = std::move(next);
  for (const std::string& name : old)
    if (!name.empty() && !now.count(name)) calls_->unlink(kind_of(name), (dir_ / name).c_str());
}

std::vector<std::byte> read_state(const fs::path& dir, const MemoryManifest::State& state,
                                  io::Syscalls& calls) {
  const fs::path path = dir / state.file;
  std::vector<std::byte> all = io::read_file(calls, io::Kind::state, path);
  const auto damaged = [&](const char* what) {
    return FileError(fmt::format(
        "{}: {}; the memory cannot be opened: take the folder from a copy or a fork of it",
        path.string(), what));
  };
  if (static_cast<std::int64_t>(all.size()) != state.bytes)
    throw damaged(
        fmt::format("{} bytes long instead of {}: it is damaged", all.size(), state.bytes).c_str());
  ByteReader r(all, path.string());
  if (r.get<std::uint32_t>() != kStateMagic) throw damaged("is no state file");
  if (r.get<std::uint32_t>() != kStateVersion)
    throw FileError(path.string() + ": written by another version of episodic; use that version");
  const auto bytes = r.get<std::uint64_t>(), sum = r.get<std::uint64_t>();
  // The generation, which seeds the checksum, is in the name.
  const std::uint64_t generation = std::stoull(state.file.substr(6, 16), nullptr, 16);
  all.erase(all.begin(), all.begin() + kStateHeader);
  if (bytes != all.size() || sum != state.checksum || checksum(all, generation) != sum)
    throw damaged("its checksum is wrong: it is damaged");
  return all;
}

void thin_checkpoints(std::vector<MemoryManifest::State>& states, std::int64_t tokens, int most) {
  while (static_cast<int>(states.size()) > std::max(0, most)) {
    // The one whose absence leaves the smallest gap for its age.
    std::size_t victim = 0;
    double least = 0;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const std::int64_t before = i == 0 ? 0 : states[i - 1].tokens;
      const std::int64_t after = i + 1 < states.size() ? states[i + 1].tokens : tokens;
      const double gap =
          static_cast<double>(after - before) / static_cast<double>(tokens - states[i].tokens + 1);
      if (i == 0 || gap < least) victim = i, least = gap;
    }
    states.erase(states.begin() + static_cast<std::ptrdiff_t>(victim));
  }
}

}  // namespace detail
}  // namespace episodic
