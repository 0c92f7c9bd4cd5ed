// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/session.hpp"
#include "http/routes.hpp"
#include "protocol/fields.hpp"

namespace episodic::server {
namespace {

using json = nlohmann::json;
using std::chrono::milliseconds;

Memories& memories_of(RouteContext& context) {
  if (Memories* memories = context.service.memories()) return *memories;
  throw RequestError(
      "this server has no memories by name; it was started without a folder for them", "memory",
      404, "memory_not_found");
}

Json memory_json(const MemoryInfo& info) {
  return {{"object", "memory"},     {"name", info.name},   {"tokens", info.tokens},
          {"events", info.events},  {"bytes", info.bytes}, {"generation", info.generation},
          {"written", info.written}};
}

/// Errors of the library that a request is to blame for.
template <class F>
void blamed(const char* field, F&& f) {
  try {
    f();
  } catch (const DataError& e) {
    throw RequestError(e.what(), field);
  } catch (const ConfigError& e) {
    throw RequestError(e.what(), field);
  }
}

// -- reading --------------------------------------------------------------------------------------

/// A text on its way into a memory: piece by piece, each committed. Of one thread.
class Reading {
 public:
  Reading(RouteContext& context, std::string name, Scheduler::Place place)
      : context_(context), name_(std::move(name)), place_(std::move(place)) {}
  ~Reading() { withdraw(GivenUp::client_left); }

  /// \param text or ids, of which one is given \param resume the text begins with what the memory
  ///   has read \throws RequestError
  void begin(const std::optional<std::string>& text, std::vector<std::int64_t> ids, bool resume) {
    writer_ = memories_of(context_).write(name_);
    Sequence& sequence = writer_->sequence();
    const Tokenizer* tokenizer = text ? &context_.service.model().tokenizer() : nullptr;
    const bool anew = resume || sequence.tokens() == 0;
    if (text)
      blamed("text", [&] {
        ids = anew ? tokenizer->encode(*text) : encode_continuation(*tokenizer, *text);
      });
    ids_ = std::move(ids);
    const char* field = text ? "text" : "ids";
    blamed(field, [&] { check_token_ids(ids_, context_.service.model().config().vocab_size); });
    if (resume) at_ = resumed(sequence, field);
    first_ = at_;
    if (ids_.empty()) throw RequestError("there is nothing to read", field);
    const std::int64_t most = context_.service.scheduler().options().max_tokens;
    if (std::string_view(context_.service.model().device()) != "cpu" && most > 0 &&
        static_cast<std::int64_t>(ids_.size() - at_) > most)
      throw RequestError(
          fmt::format("on a device at most {} tokens are read at once (max_tokens of the server)",
                      most),
          field);
    if (at_ < ids_.size()) submit();
  }

  bool ended() const { return at_ == ids_.size(); }
  std::int64_t total() const { return static_cast<std::int64_t>(ids_.size() - first_); }
  /// Tokens read so far, of which not all may be committed.
  std::int64_t read() const { return static_cast<std::int64_t>(at_ - first_) + of_piece_; }
  bool wanted() const { return !piece_ || piece_->wanted(); }

  /// Waits a little for news; commits and goes on where a piece is read.
  /// \throws what kept it from being read
  void wait(milliseconds most) {
    if (ended()) return;
    const InFlight::News news = piece_->wait(most);
    of_piece_ = news.read;
    if (!news.ended) return;
    const Served& served = piece_->served();
    if (piece_->given_up() != GivenUp::no || served.result.finish == FinishReason::cancelled)
      throw RequestError(given_up_message(piece_->given_up()), "", 503);
    writer_->commit();
    at_ += piece_tokens_;
    of_piece_ = 0;
    piece_ = nullptr;
    if (!ended()) submit();
  }
  void withdraw(GivenUp why) {
    if (piece_ && !piece_->ended()) context_.service.scheduler().withdraw(*piece_, why);
    while (piece_ && !piece_->wait(milliseconds(1000)).ended) {
    }  // the writer's sequence is being stepped until then
  }
  /// The memory afterwards. The next writer may come.
  Json result() {
    writer_ = nullptr;
    place_ = nullptr;
    Json result = memory_json(memories_of(context_).info(name_));
    result["read_tokens"] = total();
    return result;
  }

 private:
  /// Tokens of the text that the memory has read already.
  std::size_t resumed(Sequence& sequence, const char* field) const {
    const std::vector<std::int64_t> known = sequence.known_ids();
    if (known.size() > ids_.size())
      throw RequestError(
          fmt::format("has {} tokens, but the memory has read {}: it is not the text "
                      "that it was made from; leave 'resume' out to read it in "
                      "addition",
                      ids_.size(), known.size()),
          field, 409);
    for (std::size_t i = 0; i < known.size(); ++i)
      if (known[i] >= 0 && known[i] != ids_[i])
        throw RequestError(fmt::format("differs at token {} from what the memory has read; leave "
                                       "'resume' out to read it in addition",
                                       i),
                           field, 409);
    return known.size();
  }
  /// Whole steps between commits: the steps are then the same wherever a reading was cut off.
  void submit() {
    const std::int64_t chunk = writer_->sequence().chunk();
    const std::int64_t most =
        std::max<std::int64_t>(1, context_.options.commit_tokens / chunk) * chunk;
    piece_tokens_ = std::min(ids_.size() - at_, static_cast<std::size_t>(most));
    Work work;
    const auto from = ids_.begin() + static_cast<std::ptrdiff_t>(at_);
    work.prompt.text = {from, from + static_cast<std::ptrdiff_t>(piece_tokens_)};
    work.reads_only = true;
    work.sequence = writer_->shared_sequence();
    piece_ = context_.service.scheduler().submit(place_, std::move(work));
  }

  RouteContext& context_;
  const std::string name_;
  Scheduler::Place place_;
  std::shared_ptr<MemoryWriter> writer_;
  std::vector<std::int64_t> ids_;
  std::size_t first_ = 0, at_ = 0, piece_tokens_ = 0;
  std::int64_t of_piece_ = 0;
  std::shared_ptr<InFlight> piece_;
};

void read(RouteContext& context, Exchange& exchange, const Target& target,
          httplib::Response& response) {
  const std::string& name = target.parts[0];
  Scheduler::Place place = context.service.scheduler().take_place();
  std::optional<std::string> text;
  std::vector<std::int64_t> ids;
  bool resume = target.value("resume") == "true", streams = target.value("stream") == "true";
  const std::string* type = exchange.head.find("content-type");
  if (type && (type->starts_with("text/plain") || type->starts_with("application/octet-stream"))) {
    text = std::move(exchange.body);
  } else {
    const Body body(exchange.body);
    Fields fields(*body);
    if (const json* given = fields.find("text")) {
      if (!given->is_string()) Fields::wrong("text", "must be a text");
      text = given->get<std::string>();
    }
    if (const json* given = fields.find("ids")) {
      const bool fits =
          given->is_array() && std::all_of(given->begin(), given->end(),
                                           [](const json& id) { return id.is_number_integer(); });
      if (!fits) Fields::wrong("ids", "must be a list of token ids");
      ids = given->get<std::vector<std::int64_t>>();
    }
    if (text.has_value() == !ids.empty())
      throw RequestError("either 'text' or 'ids' is to be read", "text");
    resume = fields.flag("resume", resume);
    streams = fields.flag("stream", streams);
    fields.require_known();
  }
  exchange.body = {};
  exchange.connection.release_body();
  const auto reading = std::make_shared<Reading>(context, name, std::move(place));
  reading->begin(text, std::move(ids), resume);
  const std::string path = exchange.head.path;
  const auto log = [&context, path, reading] {
    context.answering.log(path,
                          fmt::format("{} of {} tokens read", reading->read(), reading->total()));
  };
  if (!streams) {
    while (!reading->ended()) {
      reading->wait(milliseconds(100));
      if (exchange.connection.client() != Connection::Client::gone && reading->wanted()) continue;
      reading->withdraw(GivenUp::client_left);
      break;
    }
    log();
    return answer_json(response, reading->result());
  }
  const auto told = std::make_shared<std::int64_t>(-1);
  context.answering.stream(exchange, response, [reading, told, log](std::string& event) {
    try {
      if (*told >= 0) reading->wait(milliseconds(100));
      if (reading->read() != *told || reading->ended()) {
        *told = reading->read();
        event = event_of({{"read_tokens", reading->read()}, {"total_tokens", reading->total()}});
      }
      if (!reading->ended()) return true;
      log();
      Json last = reading->result();
      last["done"] = true;
      event += event_of(last) + "data: [DONE]\n\n";
    } catch (const RequestError& e) {
      event = "data: " + error_body(e.status(), e.what(), e.parameter(), e.code()) + "\n\n";
    } catch (const std::exception& e) {
      event = "data: " + error_body(500, printable(e.what(), 2000)) + "\n\n";
    }
    return false;
  });
}

// -- edits ----------------------------------------------------------------------------------------

TokenRange range_of(const json& value) {
  const auto whole = [](const json& n) {
    return n.is_number_integer() && n.get<std::int64_t>() >= 0;
  };
  if (!value.is_array() || value.size() != 2 || !whole(value[0]) || !whole(value[1]) ||
      value[0].get<std::int64_t>() >= value[1].get<std::int64_t>())
    Fields::wrong("tokens", "must be [first, end) with first < end");
  return {value[0].get<std::int64_t>(), value[1].get<std::int64_t>()};
}

std::int64_t event_in(Fields& fields) {
  if (!fields.find("event")) Fields::wrong("event", "is missing");
  return fields.count("event", 0, 0);
}

Json verify_json(const VerifyReport& report) {
  Json damages = Json::array();
  for (const VerifyReport::Damage& damage : report.damages)
    damages.push_back({{"file", damage.file.filename().string()}, {"what", damage.what}});
  return {{"ok", report.damages.empty()},
          {"files", report.files},
          {"bytes", report.bytes},
          {"damages", damages},
          {"unnamed", report.unnamed}};
}

}  // namespace

void add_memory_routes(Router& router, RouteContext& context) {
  const auto add = [&](const char* method, const char* path, auto handler) {
    router.add(method, path,
               [&context, handler](Exchange& exchange, const Target& target, auto& response) {
                 handler(context, memories_of(context), exchange, target, response);
               });
  };
  using Ask = RouteContext;
  add("GET", "/memories", [](Ask&, Memories& all, Exchange&, const Target&, auto& response) {
    Json list = Json::array();
    for (const MemoryInfo& info : all.list()) list.push_back(memory_json(info));
    answer_json(response, {{"object", "list"}, {"data", list}});
  });
  add("POST", "/memories",
      [](Ask&, Memories& all, Exchange& exchange, const Target&, auto& response) {
        const Body body(exchange.body);
        Fields fields(*body);
        const std::string name = fields.text("name");
        const json* settings = fields.find("settings");
        if (settings && !settings->is_object()) Fields::wrong("settings", "must be an object");
        fields.require_known();
        answer_json(response, memory_json(all.create(name, settings ? settings->dump() : "")), 201);
      });
  add("GET", "/memories/{}",
      [](Ask&, Memories& all, Exchange&, const Target& target, auto& response) {
        answer_json(response, memory_json(all.info(target.parts[0])));
      });
  add("DELETE", "/memories/{}",
      [](Ask&, Memories& all, Exchange&, const Target& target, auto& response) {
        all.remove(target.parts[0]);
        answer_json(response, {{"name", target.parts[0]}, {"object", "memory"}, {"deleted", true}});
      });
  add("POST", "/memories/{}/read",
      [](Ask& ask, Memories&, Exchange& exchange, const Target& target, auto& response) {
        read(ask, exchange, target, response);
      });
  add("POST", "/memories/{}/fork",
      [](Ask&, Memories& all, Exchange& exchange, const Target& target, auto& response) {
        const Body body(exchange.body);
        Fields fields(*body);
        const std::string to = fields.text("name");
        fields.require_known();
        answer_json(response, memory_json(all.fork(target.parts[0], to)), 201);
      });
  add("POST", "/memories/{}/forget",
      [](Ask&, Memories& all, Exchange& exchange, const Target& target, auto& response) {
        const Body body(exchange.body);
        Fields fields(*body);
        const json* tokens = fields.find("tokens");
        std::vector<EventId> forgotten;
        if (tokens) {
          const TokenRange range = range_of(*tokens);
          fields.require_known();
          blamed("tokens", [&] { forgotten = all.forget(target.parts[0], range); });
        } else {
          const EventId event = event_in(fields);
          fields.require_known();
          blamed("event", [&] { all.forget(target.parts[0], event); });
          forgotten = {event};
        }
        Json edited = memory_json(all.info(target.parts[0]));
        edited["forgotten"] = forgotten;
        answer_json(response, edited);
      });
  add("POST", "/memories/{}/pin",
      [](Ask&, Memories& all, Exchange& exchange, const Target& target, auto& response) {
        const Body body(exchange.body);
        Fields fields(*body);
        const EventId event = event_in(fields);
        const bool pinned = fields.flag("pinned", true);
        fields.require_known();
        blamed("event", [&] { all.pin(target.parts[0], event, pinned); });
        answer_json(response, memory_json(all.info(target.parts[0])));
      });
  add("POST", "/memories/{}/rewind",
      [](Ask&, Memories& all, Exchange& exchange, const Target& target, auto& response) {
        const Body body(exchange.body);
        Fields fields(*body);
        if (!fields.find("tokens")) Fields::wrong("tokens", "is missing");
        const std::int64_t tokens = fields.count("tokens", 0, 0);
        fields.require_known();
        blamed("tokens", [&] { all.rewind(target.parts[0], tokens); });
        answer_json(response, memory_json(all.info(target.parts[0])));
      });
  add("POST", "/memories/{}/verify",
      [](Ask&, Memories& all, Exchange&, const Target& target, auto& response) {
        answer_json(response, verify_json(all.verify(target.parts[0])));
      });
  add("GET", "/memories/{}/events",
      [](Ask&, Memories& all, Exchange&, const Target& target, auto& response) {
        constexpr std::int64_t kMost = 1000;
        const std::int64_t first = target.count("first", 0);
        const std::int64_t most = std::min(kMost, target.count("limit", 100));
        Json list = Json::array();
        for (const EventInfo& e : all.events(target.parts[0], first, most))
          list.push_back({{"event", e.event},
                          {"start", e.tokens.start},
                          {"end", e.tokens.end},
                          {"text", e.text},
                          {"recalls", e.recalls},
                          {"pinned", e.pinned},
                          {"forgotten", e.forgotten}});
        answer_json(
            response,
            {{"object", "list"}, {"data", list}, {"events", all.info(target.parts[0]).events}});
      });
}

}  // namespace episodic::server
