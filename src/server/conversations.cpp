// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/conversations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/kept_folder.hpp"

namespace episodic::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr const char* kResponse = "response.json";
constexpr const char* kConversation = "conversation.json";
constexpr const char* kMemory = "memory";
constexpr const char* kLock = "lock";
constexpr std::string_view kRemovedTurn = ".removed-";

bool is_id(std::string_view id, std::string_view kind) {
  return id.size() > kind.size() + 1 && id.size() <= 64 && id.starts_with(kind) &&
         id[kind.size()] == '_' &&
         std::all_of(id.begin() + static_cast<std::ptrdiff_t>(kind.size()) + 1, id.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// A folder below one that is there; it is there already: fine.
void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("{}: cannot be made ({}); it must lie in a folder that can be "
                    "written",
                    folder.string(), error.message()));
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) all.push_back(entry.path());
  return all;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Another model's memory is what the request named wrongly.
template <class F>
auto of_this_model(const char* field, F&& f) {
  try {
    return f();
  } catch (const ConfigError& e) {
    throw RequestError(e.what(), field);
  }
}

const char* field_of(const TurnStart& start) {
  return !start.conversation.empty() ? "conversation"
         : !start.previous.empty()   ? "previous_response_id"
                                     : "memory";
}

}  // namespace

struct Conversations::Kept {
  std::string memory, head, record;
  std::vector<ChatMessage> history;
};

// -- a turn ---------------------------------------------------------------------------------------

/// Gives the folder back, though others may still hold the sequence for a moment.
void Turn::detach() {
  if (!sequence_) return;
  try {
    sequence_->attach_full_attention();
  } catch (const std::exception&) {  // then it goes with its last holder
  }
  sequence_ = nullptr;
}

Turn::~Turn() {
  while (in_flight_ && !in_flight_->wait(std::chrono::seconds(1)).ended) {
  }
  detach();
  if (start_ && !previous_.empty()) all_.service_.scheduler().release(start_);
  start_ = nullptr;
  if (!finished_) {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
    if (store_ && is_id(id_, "resp")) fs::remove_all(all_.responses_ / id_, ignored);
  }
  const std::lock_guard lock(all_.mutex_);
  if (const auto at = all_.in_use_.find(previous_); at != all_.in_use_.end())
    all_.in_use_.erase(at);
}

void Turn::finish(std::vector<ChatMessage> history, const std::string& record,
                  const std::string& conversation_record) {
  if (!sequence_) {
    finished_ = true;
    return;
  }
  sequence_->commit();
  detach();
  Conversations::Kept kept{memory_, "", record, std::move(history)};
  if (store_) {
    const fs::path folder = all_.responses_ / id_;
    if (!conversation_.empty()) {
      make_folder(folder);
      fork_memory(folder_, folder / kMemory, all_.calls_);
    }
    all_.write(folder, kResponse, kept);
    io::Directory(all_.calls_, all_.responses_).sync();
  }
  if (!conversation_.empty()) {
    kept.head = new_head_;
    kept.record = conversation_record;
    const fs::path folder = all_.conversations_ / conversation_;
    all_.write(folder, kConversation, kept);
    std::error_code ignored;
    if (!head_.empty()) fs::remove_all(folder / head_, ignored);
  }
  finished_ = true;
  lock_ = {};  // the next turn may come before this client has read
}

// -- the folders ----------------------------------------------------------------------------------

Conversations::Conversations(Service& service, ConversationsOptions options)
    : service_(service),
      options_(std::move(options)),
      calls_(options_.calls ? *options_.calls : io::system_calls()) {
  if (!service.memories())
    throw ConfigError("Conversations: the service has no memories by name to keep them beside");
  responses_ = service.memories()->dir() / ".responses";
  conversations_ = service.memories()->dir() / ".conversations";
  make_folder(responses_);
  make_folder(conversations_);
  const io::Directory folder(calls_, responses_);
  owner_ = folder.look(kLock) ? folder.open(io::Kind::lock, kLock, O_RDWR)
                              : folder.create(io::Kind::lock, kLock);
  // what another process is making looks as what a kill left does
  if (calls_.lock(io::Kind::lock, owner_.fd(), true) == 0) remove_unfinished();
  calls_.lock(io::Kind::lock, owner_.fd(), false);
  expire();
  hourly_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!stop_.wait_for(lock, std::chrono::hours(1), [&] { return stopped_; })) {
      lock.unlock();
      expire();
      lock.lock();
    }
  });
}

Conversations::~Conversations() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    stop_.notify_all();
  }
  hourly_.join();
}

std::string Conversations::new_id(const char* kind) {
  std::random_device device;
  return fmt::format("{}_{:08x}{:08x}{:08x}{:08x}", kind, device(), device(), device(), device());
}

fs::path Conversations::response_folder(const std::string& id) const {
  std::error_code error;
  if (is_id(id, "resp") && fs::exists(responses_ / id / kResponse, error)) return responses_ / id;
  throw RequestError(fmt::format("there is no response '{}'", printable(id)), "response_id", 404,
                     "response_not_found");
}

fs::path Conversations::conversation_folder(const std::string& id) const {
  std::error_code error;
  if (is_id(id, "conv") && fs::exists(conversations_ / id / kConversation, error))
    return conversations_ / id;
  throw RequestError(fmt::format("there is no conversation '{}'", printable(id)), "conversation",
                     404, "conversation_not_found");
}

io::File Conversations::lock(const std::string& id) const {
  const io::Directory folder(calls_, conversation_folder(id));
  io::File file = folder.open(io::Kind::lock, kLock, O_RDWR);
  const int result = calls_.lock(io::Kind::lock, file.fd(), true);
  if (result == -EWOULDBLOCK)
    throw RequestError(
        fmt::format("conversation '{}' has a response on its way; ask again when it has ended", id),
        "conversation", 409, "conversation_locked");
  if (result < 0) io::fail(-result, file.path(), "lock it");
  conversation_folder(id);  // it may have been removed meanwhile
  return file;
}

Conversations::Kept Conversations::read(const fs::path& folder, const char* file) const {
  const std::vector<std::byte> bytes = io::Directory(calls_, folder).read(io::Kind::manifest, file);
  JsonLimits limits;
  limits.depth = 64;  // a request's own, and what is around it
  limits.bytes = bytes.size();
  limits.remedy = "remove the folder it lies in";
  const std::string label = (folder / file).string();
  try {
    const ordered_json json =
        parse_ordered({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, label, limits);
    if (json.at("format") != kFormat)
      throw FileError(fmt::format("{}: is of format {}, not {}; another version wrote it", label,
                                  printable_value(json.at("format")), kFormat));
    Kept kept{json.at("memory"), json.at("head"), json.at("record").dump(), {}};
    for (const ordered_json& m : json.at("history"))
      kept.history.push_back({m.at("role"), m.at("content"), m.at("fields")});
    return kept;
  } catch (const ordered_json::exception& e) {
    throw FileError(fmt::format("{}: is damaged ({}); remove the folder it lies in", label,
                                printable(e.what())));
  }
}

void Conversations::write(const fs::path& folder, const char* file, const Kept& kept) const {
  ordered_json history = ordered_json::array();
  for (const ChatMessage& m : kept.history)
    history.push_back({{"role", m.role}, {"content", m.content}, {"fields", m.fields}});
  ordered_json json{{"format", kFormat},
                    {"memory", kept.memory},
                    {"head", kept.head},
                    {"history", std::move(history)}};
  std::string text = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  text.pop_back();
  text += ",\"record\":" + kept.record + "}\n";  // JSON already
  io::Directory(calls_, folder).replace(io::Kind::manifest, file, bytes_of(text));
}

/// At once, so that nothing half deleted ever counts.
void Conversations::remove_folder(const fs::path& folder) const {
  const fs::path gone =
      folder.parent_path() / (std::string(kRemovedTurn) + folder.filename().string());
  std::error_code error, ignored;
  fs::remove_all(gone, ignored);
  fs::rename(folder, gone, error);
  if (error)
    throw FileError(fmt::format("{}: cannot be removed ({})", folder.string(), error.message()));
  fs::remove_all(gone, ignored);
}

void Conversations::remove_unfinished() const {
  std::error_code ignored;
  const auto sweep = [&](const fs::path& in, const char* kind, const char* file) {
    for (const fs::path& entry : entries_of(in)) {
      const std::string name = entry.filename().string();
      const bool unfinished = is_id(name, kind) && !fs::exists(entry / file, ignored);
      if (unfinished || name.starts_with(kRemovedTurn)) fs::remove_all(entry, ignored);
    }
  };
  sweep(responses_, "resp", kResponse);
  sweep(conversations_, "conv", kConversation);
  for (const fs::path& entry : entries_of(conversations_)) {
    if (!is_id(entry.filename().string(), "conv")) continue;
    try {
      const std::string head = read(entry, kConversation).head;
      for (const fs::path& memory : entries_of(entry)) {
        const std::string name = memory.filename().string();
        if (name.starts_with(kMemory) && name != head) fs::remove_all(memory, ignored);
      }
    } catch (const std::exception&) {  // says so when it is asked for
    }
  }
}

std::int64_t Conversations::expire() {
  if (options_.keep.count() <= 0) return 0;
  const auto before = fs::file_time_type::clock::now() - options_.keep;
  std::int64_t removed = 0;
  for (const fs::path& entry : entries_of(responses_)) {
    std::error_code error;
    const auto written = fs::last_write_time(entry / kResponse, error);
    if (error || written >= before) continue;
    const std::lock_guard lock(mutex_);
    if (in_use_.contains(entry.filename().string())) continue;
    try {
      remove_folder(entry);
      ++removed;
    } catch (const FileError&) {  // the next hour tries again
    }
  }
  return removed;
}

// -- responses ------------------------------------------------------------------------------------

std::string Conversations::response(const std::string& id) const {
  return read(response_folder(id), kResponse).record;
}

void Conversations::remove_response(const std::string& id) {
  const std::lock_guard lock(mutex_);
  remove_folder(response_folder(id));
  opened_.erase(id);
}

/// The folder of the memory that a turn begins behind; empty: of none.
fs::path Conversations::begun_at(Turn& turn, const TurnStart& start) {
  const auto take = [&](Kept kept) {
    turn.history_ = std::move(kept.history);
    turn.memory_ = std::move(kept.memory);
    turn.head_ = std::move(kept.head);
  };
  fs::path from;
  if (!start.conversation.empty()) {
    turn.lock_ = lock(start.conversation);
    const fs::path folder = conversation_folder(start.conversation);
    Kept kept = read(folder, kConversation);
    turn.conversation_ = start.conversation;
    turn.conversation_record_ = std::move(kept.record);
    take(std::move(kept));
    if (!turn.head_.empty()) from = folder / turn.head_;
  } else if (!start.previous.empty()) {
    try {
      const fs::path folder = response_folder(start.previous);
      Kept kept = read(folder, kResponse);
      turn.previous_record_ = std::move(kept.record);
      take(std::move(kept));
      from = folder / kMemory;
    } catch (const RequestError& e) {
      throw RequestError(e.what(), "previous_response_id", 404, "previous_response_not_found");
    }
  }
  const bool begun = !from.empty();
  if (!start.memory.empty() && start.memory != turn.memory_) {
    if (begun || !turn.memory_.empty())
      throw RequestError(
          turn.memory_.empty()
              ? fmt::format("the conversation began behind no memory, and '{}' cannot be put "
                            "before it; begin a new one",
                            printable(start.memory))
              : fmt::format("the conversation began behind memory '{}'; leave 'memory' out, or "
                            "begin a new one",
                            turn.memory_),
          "memory");
    turn.memory_ = start.memory;
  }
  if (!begun && turn.memory_.empty()) turn.memory_ = start.default_memory;
  if (!begun && !turn.memory_.empty()) {
    service_.memories()->info(turn.memory_);  // says what is wrong with the name
    from = service_.memories()->folder(turn.memory_);
  }
  return begun || !from.empty() ? from : options_.base;
}

/// The turn's own memory: a fork, opened to be read into.
void Conversations::open_to_write(Turn& turn, const fs::path& from) {
  const Memories& memories = *service_.memories();
  fs::path memory;
  if (turn.conversation_.empty()) {
    turn.folder_ = responses_ / turn.id_;
    make_folder(turn.folder_);
    memory = turn.folder_ / kMemory;
  } else {
    turn.new_head_ = new_id(kMemory);
    memory = turn.folder_ = conversations_ / turn.conversation_ / turn.new_head_;
  }
  const Model& model = service_.model();
  if (from.empty()) {
    create_memory(model, {.dir = memory, .checkpoints = 0}, memories.settings());
  } else {
    const std::lock_guard lock(mutex_);  // nobody removes it meanwhile
    fork_memory(from, memory, calls_);
  }
  auto opened = std::make_shared<EpisodicMemory>(
      open_memory(model, {.dir = memory, .mode = OpenMode::write, .checkpoints = 0}));
  const std::int64_t tokens = opened->tokens();
  turn.sequence_ = std::make_shared<Sequence>(service_.shared_model());
  turn.sequence_->attach(std::move(opened), tokens + memories.max_tokens());
}

/// Many turns that are not kept begin behind one response, and share what it holds.
std::shared_ptr<StartingPoint> Conversations::open_to_read(const std::string& response) {
  {
    const std::lock_guard lock(mutex_);
    if (auto start = opened_[response].lock()) return start;
  }
  const std::int64_t max_tokens = service_.memories()->max_tokens();
  auto memory = std::make_shared<EpisodicMemory>(open_memory(
      service_.model(), {.dir = response_folder(response) / kMemory, .mode = OpenMode::read}));
  auto root = std::make_shared<Sequence>(service_.shared_model());
  const std::int64_t most = memory->tokens() + max_tokens;
  root->attach(std::move(memory), most);
  auto start = std::make_shared<StartingPoint>(std::move(root), most);
  const std::lock_guard lock(mutex_);
  std::erase_if(opened_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<StartingPoint>& known = opened_[response];
  if (auto quicker = known.lock()) return quicker;
  known = start;
  return start;
}

std::shared_ptr<Turn> Conversations::begin(const TurnStart& start) {
  if (!start.previous.empty() && !start.conversation.empty())
    throw RequestError(
        "a response goes on from a previous one or in a conversation; leave one of the two out",
        "previous_response_id");
  std::shared_ptr<Turn> turn(new Turn(*this));
  turn->id_ = new_id("resp");
  turn->store_ = start.store;
  if (!start.previous.empty()) {
    const std::lock_guard lock(mutex_);
    turn->previous_ = start.previous;
    in_use_.insert(start.previous);
  }
  const fs::path from = begun_at(*turn, start);
  of_this_model(field_of(start), [&] {
    if (start.store || !start.conversation.empty())
      open_to_write(*turn, from);
    else if (!start.previous.empty())
      turn->start_ = open_to_read(start.previous);
    else
      turn->start_ = service_.start(turn->memory_);
  });
  return turn;
}

// -- conversations --------------------------------------------------------------------------------

std::string Conversations::create_conversation(
    const std::string& memory, const std::function<std::string(const std::string&)>& record) {
  if (!memory.empty()) service_.memories()->info(memory);
  const std::string id = new_id("conv");
  const fs::path folder = conversations_ / id;
  make_folder(folder);
  try {
    const io::Directory directory(calls_, folder);
    directory.create(io::Kind::lock, kLock);
    write(folder, kConversation, {memory, "", record(id), {}});
    io::Directory(calls_, conversations_).sync();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    throw;
  }
  return id;
}

std::string Conversations::conversation(const std::string& id) const {
  return read(conversation_folder(id), kConversation).record;
}

void Conversations::change_conversation(
    const std::string& id, const std::function<std::string(const std::string&)>& change) {
  const io::File locked = lock(id);
  const fs::path folder = conversation_folder(id);
  Kept kept = read(folder, kConversation);
  kept.record = change(kept.record);
  write(folder, kConversation, kept);
}

void Conversations::remove_conversation(const std::string& id) {
  const io::File locked = lock(id);
  remove_folder(conversation_folder(id));
}

}  // namespace episodic::server
