// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/memories.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <system_error>
#include <utility>

#include "conversation_store.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/kept_folder.hpp"
#include "episodic/session/recall_notes.hpp"

namespace episodic::server {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestName = 64;
constexpr std::size_t kMostOpen = 8;  // memories that nobody asks hold their windows and index
constexpr const char* kRemoved = ".removed-";
constexpr const char* kNew = ".new-";

bool is_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kLongestName && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), fits);
}

RequestError not_there(const std::string& name) {
  return RequestError(fmt::format("there is no memory '{}'", name), "memory", 404,
                      "memory_not_found");
}

RequestError locked(const std::string& name) {
  return RequestError(
      fmt::format("memory '{}' is being written by another request; ask again when it has ended",
                  name),
      "memory", 409, "memory_locked");
}

/// Memories of conversations are none by name.
bool is_conversations(std::string_view name) {
  const std::string_view id = name.substr(0, name.find('.'));
  return is_id(id, "resp") || is_id(id, "conv");
}

/// Another server may be writing to a memory on a tier.
template <class F>
auto unless_locked(const std::string& name, F&& f) {
  try {
    return f();
  } catch (const LockedError&) {
    throw locked(name);
  }
}

MemoryInfo info_of(const std::string& name, const MemoryManifest& manifest) {
  MemoryInfo info;
  info.name = name;
  info.tokens = manifest.state.tokens;
  info.events = manifest.state.events;
  info.generation = manifest.generation;
  info.bytes = manifest.state.bytes;
  for (const MemoryManifest::FileEntry& file : manifest.files) info.bytes += file.bytes;
  return info;
}

}  // namespace

// -- a writer -------------------------------------------------------------------------------------

MemoryWriter::~MemoryWriter() {
  if (sequence_) {
    // gives the folder back before the next writer may come, whoever still holds the sequence
    try {
      sequence_->attach_full_attention();
    } catch (const std::exception&) {  // then it goes with its last holder
    }
    sequence_ = nullptr;
  }
  const std::lock_guard lock(memories_.mutex_);
  std::erase(memories_.writers_, name_);
}

void MemoryWriter::commit() {
  sequence_->commit();
  memories_.written(name_);
}

std::shared_ptr<MemoryWriter> Memories::claim(const std::string& name) {
  if (!holds_memory(folder(name))) throw not_there(name);
  const std::lock_guard lock(mutex_);
  if (std::find(writers_.begin(), writers_.end(), name) != writers_.end()) throw locked(name);
  writers_.push_back(name);
  return std::shared_ptr<MemoryWriter>(new MemoryWriter(*this, name));
}

std::shared_ptr<MemoryWriter> Memories::write(const std::string& name) {
  std::shared_ptr<MemoryWriter> writer = claim(name);
  auto memory = unless_locked(name, [&] {
    return std::make_shared<EpisodicMemory>(
        open_memory(*model_, {.dir = folder(name), .mode = OpenMode::write}));
  });
  writer->sequence_ = std::make_shared<Sequence>(model_);
  const std::int64_t tokens = memory->tokens();
  writer->sequence_->attach(std::move(memory), tokens + max_tokens_);
  return writer;
}

void Memories::written(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto at = opened_.find(name);
  if (at == opened_.end()) return;
  stale_.push_back(std::move(at->second.start));
  opened_.erase(at);
}

// -- the folder -----------------------------------------------------------------------------------

Memories::Memories(std::shared_ptr<const Model> model, fs::path dir, MemoryConfig settings,
                   std::int64_t max_tokens)
    : model_(std::move(model)),
      dir_(std::move(dir)),
      place_(TierPlace::parse_tier(dir_)),
      tier_(place_ ? open_tier(*place_, io::system_calls()) : nullptr),
      settings_(std::move(settings)),
      max_tokens_(max_tokens) {
  if (!model_) throw ConfigError("Memories: the model is null");
  if (tier_) {
    tier_->head("memory");  // one that is away is told of at the start
    return;
  }
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error || !fs::is_directory(dir_, error))
    throw FileError(
        fmt::format("{}: cannot be made a folder for memories ({}); name a folder that "
                    "can be written",
                    dir_.string(), error ? error.message() : "it is a file"));
  for (const auto& entry : fs::directory_iterator(dir_, error)) {  // what a kill left
    const std::string left = entry.path().filename().string();
    std::error_code ignored;
    if (left.starts_with(kRemoved) || left.starts_with(kNew)) fs::remove_all(entry.path(), ignored);
  }
}

fs::path Memories::folder(std::string_view name) const {
  if (!is_name(name) || (tier_ && is_conversations(name)))
    throw RequestError(
        fmt::format("a memory's name has letters, digits, '.', '_' and '-', up to {}, and begins "
                    "with a letter or a digit",
                    kLongestName),
        "name");
  return place_ ? place_->with_name(std::string(name)).path() : dir_ / name;
}

MemoryManifest Memories::manifest(const std::string& name) const {
  const fs::path at = folder(name);
  if (!holds_memory(at)) throw not_there(name);
  return MemoryManifest::read(at);
}

std::vector<std::string> Memories::names() const {
  std::vector<std::string> all;
  if (tier_) {
    for (std::string& name : tier_->names())
      if (is_name(name) && !is_conversations(name)) all.push_back(std::move(name));
    return all;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir_, error)) {
    std::string name = entry.path().filename().string();
    if (is_name(name) && holds_memory(entry.path())) all.push_back(std::move(name));
  }
  if (error)
    throw FileError(fmt::format("{}: cannot be read ({})", dir_.string(), error.message()));
  return all;
}

std::vector<MemoryInfo> Memories::list() const {
  std::vector<MemoryInfo> all;
  for (const std::string& name : names()) {
    try {
      all.push_back(info(name));
    } catch (const std::exception&) {  // damaged, or removed meanwhile
    }
  }
  std::sort(all.begin(), all.end(),
            [](const MemoryInfo& a, const MemoryInfo& b) { return a.name < b.name; });
  return all;
}

MemoryInfo Memories::info(const std::string& name) const {
  MemoryInfo info = info_of(name, manifest(name));
  const std::lock_guard lock(mutex_);
  info.written = std::find(writers_.begin(), writers_.end(), name) != writers_.end();
  return info;
}

/// Makes a memory beside its place and puts it there whole: a kill leaves nothing that has its
/// name. \param make makes it where it is told to
void Memories::put_in_place(const std::string& name,
                            const std::function<void(const fs::path&)>& make) {
  const fs::path at = folder(name);
  const auto taken = [&] {
    return RequestError(fmt::format("there is a memory '{}' already", name), "name", 409,
                        "memory_exists");
  };
  std::error_code error, ignored;
  if (tier_) {  // where a memory is there with its first commit, and then whole
    if (holds_memory(at)) throw taken();
    try {
      return make(at);
    } catch (const FileError&) {
      if (holds_memory(at)) throw taken();  // another server was quicker
      throw;
    }
  }
  if (fs::exists(at, error)) throw taken();
  const fs::path made = at.parent_path() / fmt::format("{}{}-{:08x}", kNew, at.filename().string(),
                                                       std::random_device()());
  try {
    make(made);
    fs::rename(made, at, error);
    if (error && fs::exists(at, ignored)) throw taken();  // another request was quicker
    if (error)
      throw FileError(fmt::format("{}: cannot be made ({})", at.string(), error.message()));
    io::Directory(io::system_calls(), at.parent_path()).sync();
  } catch (...) {
    fs::remove_all(made, ignored);
    throw;
  }
}

MemoryInfo Memories::create(const std::string& name, std::string_view changes) {
  folder(name);  // says what is wrong with it before what is wrong with the settings
  MemoryConfig config = settings_;
  try {
    if (!changes.empty()) config = change_memory_config(settings_, changes, "settings");
    if (!config.disk_dir.empty() && config.disk_dir != settings_.disk_dir)
      throw ConfigError("settings: disk_dir is the server's to say");
    config.validate();
  } catch (const ConfigError& e) {
    throw RequestError(e.what(), "settings");
  }
  put_in_place(name, [&](const fs::path& made) { create_memory(*model_, {.dir = made}, config); });
  return info(name);
}

MemoryInfo Memories::fork(const std::string& name, const std::string& to) {
  manifest(name);
  put_in_place(to, [&](const fs::path& made) { fork_memory(folder(name), made); });
  return info(to);
}

void Memories::remove(const std::string& name) {
  const std::shared_ptr<MemoryWriter> claimed = claim(name);
  if (tier_) {
    unless_locked(name, [&] { return remove_from_tier(folder(name)); });
    return written(name);
  }
  const fs::path gone = dir_ / (kRemoved + name);
  std::error_code error, ignored;
  fs::remove_all(gone, ignored);
  fs::rename(folder(name), gone, error);  // at once, so that nothing half deleted is ever a memory
  if (error)
    throw FileError(
        fmt::format("{}: cannot be removed ({})", folder(name).string(), error.message()));
  written(name);
  fs::remove_all(gone, ignored);
}

// -- answers --------------------------------------------------------------------------------------

std::shared_ptr<StartingPoint> Memories::start(const std::string& name) {
  const MemoryManifest now = manifest(name);
  {
    const std::lock_guard lock(mutex_);
    const auto at = opened_.find(name);
    if (at != opened_.end() && at->second.id == now.id && at->second.generation == now.generation) {
      at->second.used = ++uses_;
      return at->second.start;
    }
  }
  auto memory = std::make_shared<EpisodicMemory>(
      open_memory(*model_, {.dir = folder(name), .mode = OpenMode::read}));
  Opened opened{memory->manifest().id, memory->manifest().generation, nullptr, 0};
  auto root = std::make_shared<Sequence>(model_);
  const std::int64_t most = memory->tokens() + max_tokens_;
  root->attach(std::move(memory), most);
  opened.start = std::make_shared<StartingPoint>(std::move(root), most);
  const std::lock_guard lock(mutex_);
  Opened& known = opened_[name];
  if (known.id == opened.id && known.generation >= opened.generation)
    return known.start;  // another thread was quicker
  if (known.start) stale_.push_back(std::move(known.start));
  known = opened;
  known.used = ++uses_;
  close_idle();
  return opened.start;
}

/// Closes the memories that were asked for longest ago, once there are many. An answer that is on
/// its way behind one holds it until its end.
void Memories::close_idle() {
  while (opened_.size() > kMostOpen) {
    const auto oldest = std::min_element(
        opened_.begin(), opened_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    stale_.push_back(std::move(oldest->second.start));
    opened_.erase(oldest);
  }
}

std::vector<std::shared_ptr<StartingPoint>> Memories::open() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<StartingPoint>> all;
  for (const auto& [name, opened] : opened_) all.push_back(opened.start);
  return all;
}

std::vector<std::shared_ptr<StartingPoint>> Memories::take_stale() {
  const std::lock_guard lock(mutex_);
  return std::exchange(stale_, {});
}

// -- edits ----------------------------------------------------------------------------------------

std::shared_ptr<EpisodicMemory> Memories::open_to_edit(const std::string& name) const {
  KeepOptions keep;
  keep.dir = folder(name);
  return unless_locked(name, [&] {
    return std::make_shared<EpisodicMemory>(EpisodicMemory::open(keep, OpenMode::write));
  });
}

std::vector<EventId> Memories::forget(const std::string& name, TokenRange tokens) {
  const std::shared_ptr<MemoryWriter> claimed = claim(name);
  const auto memory = open_to_edit(name);
  std::vector<EventId> events = memory->forget(tokens);
  memory->commit();
  written(name);
  return events;
}

void Memories::forget(const std::string& name, EventId event) {
  const std::shared_ptr<MemoryWriter> claimed = claim(name);
  const auto memory = open_to_edit(name);
  memory->forget(event);
  memory->commit();
  written(name);
}

void Memories::pin(const std::string& name, EventId event, bool pinned) {
  const std::shared_ptr<MemoryWriter> claimed = claim(name);
  const auto memory = open_to_edit(name);
  memory->pin(event, pinned);
  memory->commit();
  written(name);
}

void Memories::rewind(const std::string& name, std::int64_t tokens) {
  const std::shared_ptr<MemoryWriter> writer = write(name);
  writer->sequence().rewind(tokens);
  writer->commit();
}

VerifyReport Memories::verify(const std::string& name) const {
  const fs::path at = folder(name);
  std::error_code error;
  if (tier_ ? !holds_memory(at) : !fs::is_directory(at, error)) throw not_there(name);
  return verify_memory(at);
}

std::vector<EventInfo> Memories::events(const std::string& name, std::int64_t first,
                                        std::int64_t most) {
  manifest(name);
  KeepOptions keep;
  keep.dir = folder(name);
  const EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::read);
  const EventTable& table = memory.events();
  const std::vector<EventId> forgotten = memory.forgotten();
  const std::vector<EventRecalls> recalls = memory.recall_counts();
  const std::int64_t end = std::min(table.size(), first + most);
  std::vector<EventInfo> all;
  for (EventId e = first; e < end; ++e) {
    EventInfo one;
    one.event = e;
    one.tokens = table[e];
    one.forgotten = std::find(forgotten.begin(), forgotten.end(), e) != forgotten.end();
    one.pinned = !one.forgotten && memory.pinned(e);
    if (static_cast<std::size_t>(e) < recalls.size())
      one.recalls = recalls[static_cast<std::size_t>(e)].recalls;
    const std::int64_t before = std::max<std::int64_t>(0, one.tokens.start - 1);
    if (model_->has_tokenizer())
      one.text = event_text(model_->tokenizer(), memory.token_ids(before, one.tokens.end - before),
                            before, one.tokens);
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace episodic::server
