// SPDX-License-Identifier: Apache-2.0
#include "memory_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/strict_json.hpp"
#include "base/unique_id.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/detail/layer_state.hpp"
#include "memory_files.hpp"
#include "tiered_folder.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kManifest = detail::kManifestFile;
constexpr const char* kLock = "lock";
constexpr const char* kFormat = "episodic memory";
constexpr std::string_view kChecksumLine = "checksum: ";
constexpr std::int64_t kMostManifest = std::int64_t{1} << 28;
constexpr std::uint32_t kStateMagic = 0x53544945;  // "EITS"
// Read as well: 3, whose windows are in float32, 4, whose windows are as the memory has them, and
// 5, whose windows are whole even where no token has reached them yet.
constexpr std::uint32_t kStateVersion = detail::kReachedRows, kStateVersionFloat = 3;
constexpr std::int64_t kStateHeader = 24;  // magic, version, payload bytes, checksum

std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

std::uint64_t from_hex(const Json& j) {
  const std::string s = j.get<std::string>();
  if (s.size() != 16 || s.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw std::invalid_argument("a number of 16 hexadecimal digits expected, found " +
                                printable(s));
  return std::stoull(s, nullptr, 16);
}

std::string to_json(const MemoryManifest::State& s) {
  return fmt::format(R"({{"file": {}, "bytes": {}, "checksum": "{}", "tokens": {}, "events": {}}})",
                     json_string(s.file), s.bytes, hex(s.checksum), s.tokens, s.events);
}

std::int64_t count_of(const Json& j) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  if (!j.is_number_unsigned() || j.get<std::uint64_t>() > kMost)
    throw std::invalid_argument("a count from 0 to 2^62 expected");
  return j.get<std::int64_t>();
}

/// A file that the manifest may name. Others it may not: what it names is opened, and removed one
/// day.
MemoryManifest::FileEntry file_of(const Json& j, const char* key, bool state) {
  const std::string name = j.at(key).get<std::string>();
  const auto kind = detail::kind_of_file(name);
  if (!kind || *kind == io::Kind::manifest || *kind == io::Kind::cache ||
      (*kind == io::Kind::state) != state)
    throw std::invalid_argument(fmt::format("'{}' is no name of a {} file", printable(name),
                                            state ? "state" : "segment, vector or token"));
  return {name, count_of(j.at("bytes"))};
}

MemoryManifest::State state_of(const Json& j) {
  const MemoryManifest::FileEntry file = file_of(j, "file", true);
  return {file.name, file.bytes, from_hex(j.at("checksum")), count_of(j.at("tokens")),
          count_of(j.at("events"))};
}

/// Written out rather than made a tree of: when memory runs out on the way, nothing is lost.
std::string text_of(const MemoryManifest& m) {
  const auto join = [](const auto& items, auto&& text_of_item) {
    std::string out;
    for (const auto& item : items) out += (out.empty() ? "\n  " : ",\n  ") + text_of_item(item);
    return out.empty() ? "[]" : "[" + out + "\n ]";
  };
  const auto file = [](const MemoryManifest::FileEntry& f) {
    return fmt::format(R"({{"name": {}, "bytes": {}}})", json_string(f.name), f.bytes);
  };
  const std::string text = fmt::format(
      R"({{
 "format": {},
 "version": {},
 "id": "{}",
 "parent": {},
 "generation": {},
 "model": {},
 "weights": {},
 "tokenizer": {},
 "config": {},
 "state": {},
 "checkpoints": {},
 "files": {}
}}
)",
      json_string(kFormat), MemoryManifest::kVersion, hex(m.id),
      m.parent ? json_string(hex(m.parent)) : "null", m.generation, json_string(m.identity.model),
      json_string(m.identity.weights), json_string(m.identity.tokenizer), to_json(m.config),
      to_json(m.state), join(m.checkpoints, [](const auto& s) { return to_json(s); }),
      join(m.files, file));
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
  const bool whole =
      line != std::string_view::npos &&
      text.substr(line) == std::string(kChecksumLine) +
                               hex(checksum_of(std::span<const char>(body.data(), body.size()))) +
                               "\n";
  Json j;
  const JsonGuard guard(j);
  try {
    j = parse_strict(body, where, {.depth = 8});
  } catch (const FileError&) {
    throw damaged(whole ? "it is no manifest" : "its checksum is wrong: it is damaged");
  }
  // Said first, because a newer format may have another checksum.
  if (j.is_object() && j.value("format", Json()) == Json(kFormat) && j.contains("version") &&
      j["version"].is_number_integer() && j["version"] > Json(MemoryManifest::kVersion))
    throw FileError(fmt::format(
        "{}: written in format {} by a newer version of episodic; this one reads formats up to {}: "
        "use the newer version",
        where, printable_value(j["version"]), MemoryManifest::kVersion));
  if (j.is_object() && j.value("format", Json()) == Json(kFormat) && j.contains("version") &&
      j["version"].is_number_integer() && j["version"] < Json(MemoryManifest::kVersion))
    throw FileError(
        fmt::format("{}: written in format {} by an older version of episodic; this one reads "
                    "format {}: use that version, or ingest the text anew into another folder",
                    where, printable_value(j["version"]), MemoryManifest::kVersion));
  if (!whole) throw damaged("its checksum is wrong: it is damaged");
  try {
    if (j.at("format") != Json(kFormat) || j.at("version") != Json(MemoryManifest::kVersion))
      throw std::invalid_argument("not a manifest of this format");
    MemoryManifest m;
    m.id = from_hex(j.at("id"));
    m.parent = j.at("parent").is_null() ? 0 : from_hex(j.at("parent"));
    m.generation = count_of(j.at("generation"));
    m.identity = {j.at("model").get<std::string>(), j.at("weights").get<std::string>(),
                  j.at("tokenizer").get<std::string>()};
    m.config = parse_memory_config(j.at("config").dump());
    m.config.disk_dir.clear();  // a memory lies in its folder, and says of no other
    m.state = state_of(j.at("state"));
    for (const Json& s : j.at("checkpoints")) m.checkpoints.push_back(state_of(s));
    for (const Json& f : j.at("files")) m.files.push_back(file_of(f, "name", false));
    if (m.generation < 1) throw std::invalid_argument("generation below 1");
    return m;
  } catch (const std::bad_alloc&) {
    throw;  // says nothing about the file
  } catch (const std::exception& e) {
    throw damaged(fmt::format("its content is impossible ({})", printable(e.what())));
  }
}

std::set<std::string> names_in(const MemoryManifest& m) {
  std::set<std::string> names{m.state.file};
  for (const auto& s : m.checkpoints) names.insert(s.file);
  for (const auto& f : m.files) names.insert(f.name);
  return names;
}

/// \throws FileError unless all files that count are there, as long as they must be
void check_files(const io::Directory& folder, const MemoryManifest& m) {
  for (const MemoryManifest::FileEntry& f : m.files) {
    const auto found = folder.look(f.name);
    const auto missing = [&](const std::string& what) {
      return FileError(fmt::format(
          "{}: {}; the memory is not whole: take the folder from a copy or a fork of it",
          (folder.path() / f.name).string(), what));
    };
    if (!found) throw missing("is missing");
    if (!found->regular) throw missing("is no regular file");
    if (found->bytes < f.bytes)
      throw missing(fmt::format("{} bytes long, {} were committed", found->bytes, f.bytes));
  }
}

void remove(const io::Directory& folder, const std::string& name) {
  if (const auto kind = detail::kind_of_file(name)) folder.remove(*kind, name);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

fs::path parent_of(const fs::path& dir) {
  return dir.has_parent_path() ? dir.parent_path() : fs::path(".");
}

/// \param text gets the checksum of the file
MemoryManifest read_manifest(const io::Directory& folder, std::uint64_t* text = nullptr) {
  const std::vector<std::byte> bytes = folder.read(io::Kind::manifest, kManifest, kMostManifest);
  if (text) *text = checksum(bytes);
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
               (folder.path() / kManifest).string());
}

/// Refuses a folder that is to become a memory, but holds other things.
void check_ours(const io::Directory& folder) {
  for (const std::string& name : folder.names())
    if (name != kLock && name != kManifest && !detail::kind_of_file(name) && !is_cache_file(name))
      throw FileError(
          fmt::format("{}: holds '{}', which is no part of a memory; name an empty or a new folder",
                      folder.path().string(), printable(name)));
}

/// What file systems answer that have no locks for folders (NFS locks only what is open to be
/// written), or none at all.
bool has_no_locks(int result) {
  for (const int error : {EBADF, EINVAL, EISDIR, ENOLCK, ENOSYS, EOPNOTSUPP})
    if (result == -error) return true;
  return false;
}

/// Takes the lock of the folder itself, where there is one to be had. It has no name that somebody
/// could remove. \throws LockedError if another writer has it
void lock_folder(const io::Directory& folder, const std::string& busy) {
  const int r = folder.calls().lock(io::Kind::directory, folder.fd(), true);
  if (r == -EWOULDBLOCK) throw LockedError(busy);
  if (r < 0 && !has_no_locks(r)) io::fail(-r, folder.path(), "take the lock of the folder");
}

}  // namespace

MemoryManifest MemoryManifest::read(const fs::path& dir, io::Syscalls& calls) {
  if (const std::optional<TierPlace> place = TierPlace::parse(dir))
    if (const std::optional<std::string> text = detail::manifest_on_tier(*place, calls))
      return parse(*text, place->text() + ": its manifest");
  if (const int ranks = holds_memory(dir) ? 0 : detail::ranks_in(dir); ranks > 0)
    throw FileError(fmt::format(
        "{}: is a memory of {} ranks, each with a folder in it; start as many (mpirun -n {})",
        dir.string(), ranks, ranks));
  if (!holds_memory(dir))
    throw FileError(
        fmt::format("{}: holds no memory (there is no {}); make one with EpisodicMemory::create "
                    "or `episodic ingest`",
                    dir.string(), kManifest));
  return read_manifest(io::Directory(calls, dir));
}

bool holds_memory(const fs::path& dir) {
  if (const std::optional<TierPlace> place = TierPlace::parse(dir))
    return detail::manifest_on_tier(*place, io::system_calls()).has_value();
  std::error_code ignored;
  return fs::exists(fs::symlink_status(dir / kManifest, ignored));
}

namespace {

/// Refuses a place within the folder that is forked: whoever removes or copies the memory would
/// take the fork along.
void check_outside(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::path above = fs::weakly_canonical(fs::absolute(to, error), error);
  while (!error && above.has_relative_path()) {
    above = above.parent_path();
    std::error_code ignored;
    if (fs::equivalent(above, from, ignored))
      throw FileError(fmt::format(
          "{}: lies within the memory that is to be forked, {}; name a folder beside it",
          to.string(), from.string()));
  }
}

void fork_of(MemoryManifest m, const fs::path& from, const fs::path& to, io::Syscalls& calls) {
  const io::Directory source(calls, from);
  std::error_code error;
  const auto refuse = [&] {
    throw FileError(
        fmt::format("{}: exists and is not an empty folder; name another one", to.string()));
  };
  const bool existed = fs::exists(fs::symlink_status(to, error));
  if (existed && !fs::is_directory(to, error)) refuse();
  if (!existed)
    if (const int r = calls.make_directory(to.c_str()); r < 0)
      io::fail(-r, to, "make the folder", "its parent must exist and be writable");
  io::Directory fork;
  std::vector<std::string> made;
  try {
    fork = io::Directory(calls, to);
    lock_folder(fork, fmt::format("{}: this process or another process is making a memory in this "
                                  "folder; name another one",
                                  to.string()));
    if (!fork.names().empty()) refuse();
    for (const std::string& name : names_in(m)) {
      made.push_back(name);  // the folder was empty, and is locked: what has the name is from here
      detail::share_file(source, fork, name);
    }
    check_files(fork, m);
    detail::share_caches(source, fork, made);
    m.parent = m.id;
    m.id = detail::unique_id();
    made.push_back(kManifest);
    fork.replace(io::Kind::manifest, kManifest, bytes_of(text_of(m)));
    io::Directory(calls, parent_of(to)).sync();
  } catch (...) {
    for (auto it = made.rbegin(); it != made.rend(); ++it)
      fork.remove(is_cache_file(*it) ? io::Kind::cache
                                     : detail::kind_of_file(*it).value_or(io::Kind::manifest),
                  *it);
    if (!existed) fs::remove(to, error);  // unless somebody else has put something there
    throw;
  }
}

}  // namespace

void fork_memory(const fs::path& from, const fs::path& to, io::Syscalls& calls) {
  // A writer may commit, and remove what it has replaced, between the look at its manifest and at
  // the files.
  if (TierPlace::parse(from) || TierPlace::parse(to))
    return detail::fork_over_tier(from, to, calls);
  constexpr int kAttempts = 20;
  check_outside(from, to);
  for (int attempt = 0;; ++attempt) {
    const MemoryManifest m = MemoryManifest::read(from, calls);
    try {
      return fork_of(m, from, to, calls);
    } catch (const FileError&) {
      if (attempt == kAttempts || MemoryManifest::read(from, calls).generation == m.generation)
        throw;
    }
  }
}

namespace detail {

MemoryDirectory MemoryDirectory::create(const fs::path& dir, io::Syscalls& calls) {
  MemoryDirectory d;
  std::error_code error;
  const auto make = [&](const fs::path& folder) {
    if (fs::exists(folder, error)) return;
    if (const int r = calls.make_directory(folder.c_str()); r < 0 && r != -EEXIST)
      io::fail(-r, folder, "make the folder", "its parent must exist and be writable");
    io::Directory(calls, parent_of(folder)).sync();
  };
  if (is_of_rank(dir)) make(parent_of(dir));  // the folder of all ranks: the first one makes it
  make(dir);
  d.folder_ = io::Directory(calls, dir);
  check_ours(d.folder_);  // first: nothing is put into a folder that holds other things
  d.take_locks();
  if (d.folder_.look(kManifest))
    throw FileError(
        fmt::format("{}: holds a memory already; open it to go on with it, or name another folder",
                    dir.string()));
  d.remove_unnamed();
  d.remove_caches();
  return d;
}

MemoryDirectory MemoryDirectory::open(const fs::path& dir, OpenMode mode, io::Syscalls& calls) {
  MemoryDirectory d;
  d.manifest_ = MemoryManifest::read(dir, calls);  // says what is wrong where there is no memory
  d.folder_ = io::Directory(calls, dir);
  if (mode == OpenMode::write) d.take_locks();
  // A writer may replace files between a reader's look at the manifest and at them.
  constexpr int kAttempts = 20;
  for (int attempt = 0;; ++attempt) {
    std::uint64_t text = 0;
    d.manifest_ = read_manifest(d.folder_, &text);
    d.texts_ = {text};
    d.attempts_ = d.manifest_.generation;
    try {
      check_files(d.folder_, d.manifest_);
      return d;
    } catch (const FileError&) {
      if (d.lock_ || attempt == kAttempts ||
          read_manifest(d.folder_).generation == d.manifest_.generation)
        throw;
    }
  }
}

void MemoryDirectory::take_locks() {
  const std::string busy = fmt::format(
      "{}: this process or another process is writing to this memory; wait until it "
      "ends, or fork the memory and write to the fork",
      dir().string());
  lock_folder(folder_, busy);
  // And the file `lock`, for versions that know no other, and file systems that have no other.
  // Held, but never written to: it may be a link to a file of someone else's.
  io::File lock = folder_.open(io::Kind::lock, kLock, O_RDWR | O_CREAT);
  const int r = calls().lock(io::Kind::lock, lock.fd(), true);
  if (r == -EWOULDBLOCK) throw LockedError(busy);
  if (r < 0)
    io::fail(-r, lock.path(), "take the lock of the memory",
             has_no_locks(r) ? "its file system has no locks, and a memory has one writer only: "
                               "mount it with locks, or keep the memory elsewhere"
                             : "");
  lock_ = std::move(lock);
  check_lock();
}

void MemoryDirectory::check_lock() const {
  const auto found = folder_.look(kLock);
  if (found && found->same_file(lock_.look())) return;
  throw FileError(
      fmt::format("{}: was {} while this memory was open to be written, so that another program "
                  "may have written to it too; nothing was committed, and the last commit stands: "
                  "open the memory anew and go on from there",
                  (dir() / kLock).string(), found ? "replaced" : "removed"));
}

void MemoryDirectory::check_undisturbed() const {
  if (!folder_.at_its_path())
    throw FileError(
        fmt::format("{}: is not the folder any more in which this memory was opened; it was moved, "
                    "removed or replaced. Nothing was committed: put the folder back and commit "
                    "again, or open the memory where it lies now and go on from its last commit",
                    dir().string()));
  check_lock();
  const auto refuse = [&](const char* what) {
    throw FileError(
        fmt::format("{}: {} while this memory was open to be written; nothing was committed: put "
                    "back the one that was there and commit again, or open the memory anew and go "
                    "on from there",
                    (dir() / kManifest).string(), what));
  };
  if (!folder_.look(kManifest)) {
    if (has_manifest()) refuse("was removed");
    return;
  }
  const std::uint64_t text = checksum(folder_.read(io::Kind::manifest, kManifest, kMostManifest));
  if (std::find(texts_.begin(), texts_.end(), text) == texts_.end())
    refuse("was replaced by another program");
}

void MemoryDirectory::remove_unnamed() {
  const std::set<std::string> named = names_in(manifest_);
  for (const std::string& name : folder_.names())
    if (detail::kind_of_file(name) && !named.count(name)) remove(folder_, name);  // or else later
}

void MemoryDirectory::remove_caches() {
  // asked in the folder: a list of all would grow with what failed commits have left there
  for (const std::string& name : folder_.names(is_cache_file)) {
    const int r = folder_.remove(io::Kind::cache, name);
    if (r == 0 || r == -ENOENT) continue;
    const auto left = folder_.look(name);
    if (left && left->regular)  // a folder of that name holds no vectors of ours
      io::fail(-r, dir() / name, "remove it", "remove it by hand");
  }
}

io::File MemoryDirectory::create_state(MemoryManifest& next) {
  const std::set<std::string> named = names_in(manifest_);
  // A name of its own for each attempt: after one that failed late, nobody knows which counts. And
  // none that counts, or that cannot be freed, whatever lies in the folder.
  constexpr int kAttempts = 100;
  for (int attempt = 0;; ++attempt) {
    next.generation = std::max(attempts_, manifest_.generation) + 1;
    attempts_ = next.generation;
    next.state.file = fmt::format("state-{:016x}.bin", next.generation);
    if (named.count(next.state.file) && attempt < kAttempts) continue;
    if (folder_.look(next.state.file))
      if (folder_.remove(io::Kind::state, next.state.file) < 0 && attempt < kAttempts) continue;
    return folder_.create(io::Kind::state, next.state.file);
  }
}

void MemoryDirectory::commit(MemoryManifest next, std::span<const std::byte> state,
                             std::int64_t tokens, std::int64_t events, bool without_caches,
                             bool of_rank) {
  // What was removed behind our back is noticed now, not when the memory is opened again: files
  // that are open still take what is written.
  check_undisturbed();
  check_files(folder_, next);
  if (without_caches) remove_caches();  // before: no crash leaves one beside the new manifest
  io::File file = create_state(next);
  next.id = manifest_.id ? manifest_.id : unique_id();
  next.parent = manifest_.parent;
  next.state.bytes = kStateHeader + static_cast<std::int64_t>(state.size());
  next.state.checksum = checksum(state, static_cast<std::uint64_t>(next.generation));
  next.state.tokens = tokens;
  next.state.events = events;
  bool named = false;
  try {
    ByteWriter head;
    head.put(kStateMagic);
    head.put(of_rank ? kSharesOfRanks : kStateVersion);
    head.put(static_cast<std::uint64_t>(state.size()));
    head.put(next.state.checksum);
    file.write(head.bytes(), 0);
    file.write(state, kStateHeader);
    file.sync();
    file.close();
    folder_.sync();
    const std::string text = text_of(next);
    texts_.reserve(texts_.size() + 1);
    check_undisturbed();  // a state may be long: as late as can be
    named = true;         // from here on the manifest on the medium may be the new one
    texts_.push_back(checksum(bytes_of(text)));
    folder_.replace(io::Kind::manifest, kManifest, bytes_of(text));
    texts_ = {texts_.back()};
  } catch (...) {
    if (named)
      doubtful_.push_back(next.state.file);
    else
      remove(folder_, next.state.file);
    throw;
  }
  if (without_caches) {  // after: a reader that saw the old manifest may have put one there
    try {
      remove_caches();
    } catch (const std::exception&) {  // the commit is done, and memory may be short
    }
  }
  std::set<std::string> old = names_in(manifest_);
  const std::set<std::string> now = names_in(next);
  old.insert(doubtful_.begin(), doubtful_.end());
  doubtful_.clear();
  manifest_ = std::move(next);
  for (const std::string& name : old)
    if (!now.count(name)) remove(folder_, name);
}

StateFile read_state(const fs::path& dir, const MemoryManifest::State& state,
                     const MemoryConfig& config, io::Syscalls& calls) {
  const fs::path path = dir / state.file;
  const io::Directory folder(calls, dir);
  if (!folder.look(state.file))
    throw FileError(fmt::format(
        "{}: is missing; the memory cannot be opened: take the folder from a copy or a fork of it",
        path.string()));
  std::vector<std::byte> all = folder.read(io::Kind::state, state.file);
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
  const auto version = r.get<std::uint32_t>();
  if (version < kStateVersionFloat || version > kSharesOfRanks)
    throw FileError(path.string() + ": written by another version of episodic; use that version");
  const auto bytes = r.get<std::uint64_t>(), sum = r.get<std::uint64_t>();
  // The generation, which seeds the checksum, is in the name.
  const std::uint64_t generation = std::stoull(state.file.substr(6, 16), nullptr, 16);
  all.erase(all.begin(), all.begin() + kStateHeader);
  if (bytes != all.size() || sum != state.checksum || checksum(all, generation) != sum)
    throw damaged("its checksum is wrong: it is damaged");
  return {version == kStateVersionFloat ? DType::float32 : window_dtype(config.kv_dtype), version,
          std::move(all)};
}

void thin_checkpoints(std::vector<MemoryManifest::State>& states, std::int64_t tokens, int most,
                      std::int64_t apart) {
  // First what spares no one much: a state that is near to an earlier one, from which its tokens
  // are soon read again.
  for (std::size_t i = 1; i < states.size();)
    if (states[i].tokens - states[i - 1].tokens < apart)
      states.erase(states.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
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
