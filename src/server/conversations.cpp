// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/conversations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/strict_json.hpp"
#include "conversation_store.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/kept_folder.hpp"

namespace episodic::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr const char* kMemory = "memory";

/// Another model's memory is what the request named wrongly.
template <class F>
auto of_this_model(const char* field, F&& f) {
  try {
    return f();
  } catch (const ConfigError& e) {
    throw RequestError(e.what(), field);
  }
}

RequestError no_response(const std::string& id) {
  return {fmt::format("there is no response '{}'", printable(id)), "response_id", 404,
          "response_not_found"};
}

RequestError no_conversation(const std::string& id) {
  return {fmt::format("there is no conversation '{}'", printable(id)), "conversation", 404,
          "conversation_not_found"};
}

const char* field_of(const TurnStart& start) {
  return !start.conversation.empty() ? "conversation"
         : !start.previous.empty()   ? "previous_response_id"
                                     : "memory";
}

}  // namespace

bool is_id(std::string_view id, std::string_view kind) {
  return id.size() > kind.size() + 1 && id.size() <= 64 && id.starts_with(kind) &&
         id[kind.size()] == '_' &&
         std::all_of(id.begin() + static_cast<std::ptrdiff_t>(kind.size()) + 1, id.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

struct Conversations::Kept {
  std::string memory, head, record;
  std::vector<ChatMessage> history;

  static Kept parse(const std::string& text, const std::string& where);
  std::string text() const;
};

Conversations::Kept Conversations::Kept::parse(const std::string& text, const std::string& where) {
  JsonLimits limits;
  limits.depth = 64;  // a request's own, and what is around it
  limits.bytes = text.size();
  limits.remedy = "remove it";
  try {
    const ordered_json json = parse_ordered(text, where, limits);
    if (json.at("format") != kFormat)
      throw FileError(fmt::format("{}: is of format {}, not {}; another version wrote it", where,
                                  printable_value(json.at("format")), kFormat));
    Kept kept{json.at("memory"), json.at("head"), json.at("record").dump(), {}};
    for (const ordered_json& m : json.at("history"))
      kept.history.push_back({m.at("role"), m.at("content"), m.at("fields")});
    return kept;
  } catch (const ordered_json::exception& e) {
    throw FileError(fmt::format("{}: is damaged ({}); remove it", where, printable(e.what())));
  }
}

std::string Conversations::Kept::text() const {
  ordered_json messages = ordered_json::array();
  for (const ChatMessage& m : history)
    messages.push_back({{"role", m.role}, {"content", m.content}, {"fields", m.fields}});
  ordered_json json{
      {"format", kFormat}, {"memory", memory}, {"head", head}, {"history", std::move(messages)}};
  std::string out = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  out.pop_back();
  return out += ",\"record\":" + record + "}\n";  // JSON already
}

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
  if (!finished_) give_up();
  const std::lock_guard lock(all_.mutex_);
  if (const auto at = all_.in_use_.find(previous_); at != all_.in_use_.end())
    all_.in_use_.erase(at);
}

/// Removes what was made of it.
void Turn::give_up() {
  ConversationStore& store = *all_.store_;
  if (response_) store.abandon(id_, kMemory);
  if (new_head_.empty()) return;
  try {
    // The conversation may name it all the same, where the answer to a write was lost.
    if (tried_ && all_.find(conversation_).value_or(Conversations::Kept{}).head == new_head_)
      return;
  } catch (const std::exception&) {  // remove_unfinished looks later
    return;
  }
  store.remove_memory(conversation_, new_head_);
}

void Turn::finish(std::vector<ChatMessage> history, const std::string& record,
                  const std::string& conversation_record) {
  if (!sequence_) {
    finished_ = true;
    return;
  }
  sequence_->commit();
  detach();
  ConversationStore& store = *all_.store_;
  Conversations::Kept kept{memory_, "", record, std::move(history)};
  if (store_) {
    if (!conversation_.empty()) {
      response_ = store.begin(id_);
      fork_memory(store.memory(conversation_, new_head_), store.memory(id_, kMemory), all_.calls_);
    }
    store.put_text(id_, kept.text(), response_);
  }
  if (!conversation_.empty()) {
    kept.head = new_head_;
    kept.record = conversation_record;
    tried_ = true;
    store.put_text(conversation_, kept.text(), lock_);
    if (!head_.empty()) store.remove_memory(conversation_, head_);
  }
  finished_ = true;
  response_ = lock_ = nullptr;  // the next turn may come before this client has read
}

// -- where they are kept --------------------------------------------------------------------------

Conversations::Conversations(Service& service, ConversationsOptions options)
    : service_(service),
      options_(std::move(options)),
      calls_(options_.calls ? *options_.calls : io::system_calls()) {
  if (!service.memories())
    throw ConfigError("Conversations: the service has no memories by name to keep them beside");
  const Memories& memories = *service.memories();
  store_ = memories.tier() ? make_conversation_tier(*memories.tier(), calls_)
                           : make_conversation_folders(memories.dir(), calls_);
  remove_unfinished(true);
  expire();
  hourly_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!stop_.wait_for(lock, std::chrono::hours(1), [&] { return stopped_; })) {
      lock.unlock();
      try {
        expire();
        remove_unfinished(false);
      } catch (const std::exception&) {  // a tier that is away; the next hour tries again
      }
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

std::optional<Conversations::Kept> Conversations::find(const std::string& id) const {
  if (!is_id(id, "resp") && !is_id(id, "conv")) return std::nullopt;
  const std::optional<std::string> text = store_->text(id);
  return text ? std::optional(Kept::parse(*text, store_->where(id))) : std::nullopt;
}

Conversations::Kept Conversations::response_kept(const std::string& id) const {
  if (is_id(id, "resp"))
    if (auto kept = find(id)) return std::move(*kept);
  throw no_response(id);
}

Conversations::Kept Conversations::conversation_kept(const std::string& id) const {
  if (is_id(id, "conv"))
    if (auto kept = find(id)) return std::move(*kept);
  throw no_conversation(id);
}

ConversationStore::Claim Conversations::lock(const std::string& id) const {
  if (!is_id(id, "conv") || !store_->has(id)) throw no_conversation(id);
  ConversationStore::Claim claim = store_->lock(id);
  if (!claim)
    throw RequestError(
        fmt::format("conversation '{}' has a response on its way; ask again when it has ended", id),
        "conversation", 409, "conversation_locked");
  return claim;
}

void Conversations::remove_unfinished(bool at_start) const {
  store_->remove_unfinished([](const std::string& text,
                               const std::string& where) { return Kept::parse(text, where).head; },
                            at_start);
}

std::int64_t Conversations::expire() {
  if (options_.keep.count() <= 0) return 0;
  std::int64_t removed = 0;
  for (const std::string& id : store_->older_than(options_.keep)) {
    const std::lock_guard lock(mutex_);
    if (in_use_.contains(id)) continue;
    try {
      store_->remove(id, kMemory);
      ++removed;
    } catch (const FileError&) {  // the next hour tries again
    }
  }
  return removed;
}

// -- responses ------------------------------------------------------------------------------------

std::string Conversations::response(const std::string& id) const {
  return response_kept(id).record;
}

void Conversations::remove_response(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (!is_id(id, "resp") || !store_->has(id)) throw no_response(id);
  store_->remove(id, kMemory);
  opened_.erase(id);
}

/// Where the memory lies that a turn begins behind; empty: nowhere.
fs::path Conversations::begun_at(Turn& turn, const TurnStart& start) {
  const auto take = [&](Kept kept) {
    turn.history_ = std::move(kept.history);
    turn.memory_ = std::move(kept.memory);
    turn.head_ = std::move(kept.head);
  };
  fs::path from;
  if (!start.conversation.empty()) {
    turn.lock_ = lock(start.conversation);
    Kept kept = conversation_kept(start.conversation);  // it may have been removed meanwhile
    turn.conversation_ = start.conversation;
    turn.conversation_record_ = std::move(kept.record);
    take(std::move(kept));
    if (!turn.head_.empty()) from = store_->memory(start.conversation, turn.head_);
  } else if (!start.previous.empty()) {
    try {
      Kept kept = response_kept(start.previous);
      turn.previous_record_ = std::move(kept.record);
      take(std::move(kept));
      from = store_->memory(start.previous, kMemory);
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
    turn.response_ = store_->begin(turn.id_);
    memory = store_->memory(turn.id_, kMemory);
  } else {
    turn.new_head_ = new_id(kMemory);
    memory = store_->memory(turn.conversation_, turn.new_head_);
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
      service_.model(), {.dir = store_->memory(response, kMemory), .mode = OpenMode::read}));
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
  const ConversationStore::Claim claim = store_->begin(id);
  try {
    store_->put_text(id, Kept{memory, "", record(id), {}}.text(), claim);
  } catch (...) {
    store_->abandon(id, "");
    throw;
  }
  return id;
}

std::string Conversations::conversation(const std::string& id) const {
  return conversation_kept(id).record;
}

void Conversations::change_conversation(
    const std::string& id, const std::function<std::string(const std::string&)>& change) {
  const ConversationStore::Claim claim = lock(id);
  Kept kept = conversation_kept(id);
  kept.record = change(kept.record);
  store_->put_text(id, kept.text(), claim);
}

void Conversations::remove_conversation(const std::string& id) {
  const ConversationStore::Claim claim = lock(id);
  std::string head;
  try {
    head = conversation_kept(id).head;
  } catch (const FileError&) {  // damaged: it can be removed all the same
  }
  store_->remove(id, head);
}

}  // namespace episodic::server
