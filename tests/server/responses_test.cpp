// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API: turns that are kept, branch, survive restarts and kills.
#include "support/sampled.hpp"
#include "support/test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/server/conversations.hpp"
#include "house.hpp"
#include "protocol/responses_request.hpp"

using namespace serving;

namespace {

struct Event {
  std::string name;
  json data;
};

std::vector<Event> events_of(const std::string& stream) {
  std::vector<Event> events;
  std::istringstream lines(stream);
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("event: ")) name = line.substr(7);
    if (line.starts_with("data: ")) events.push_back({name, json::parse(line.substr(6))});
  }
  return events;
}

std::vector<Event> stream(const House& house, json body) {
  body["stream"] = true;
  const auto response =
      house.running().client().Post("/v1/responses", body.dump(), "application/json");
  REQUIRE(response);
  REQUIRE(response->status == 200);
  return events_of(response->body);
}

std::size_t folders_in(const fs::path& dir) {
  return static_cast<std::size_t>(
      std::count_if(fs::directory_iterator(dir), fs::directory_iterator(),
                    [](const auto& entry) { return entry.is_directory(); }));
}

bool holds_open(const fs::path& below) {  // this process, any file there
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const fs::path file = fs::read_symlink(entry.path(), error);
    if (!error && file.string().starts_with(below.string() + "/resp_")) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("responses: a long chain has few files, and is gone on from at any of its turns") {
  const TempDir dir;
  make_chat_model(dir / "model");
  House house(dir / "model", dir / "memories");
  const auto say = [](int turn) {
    return fmt::format("{} And turn {}?", program::some_book(8), turn);
  };
  NeverClosed open(house);
  const auto files_of = [&](const json& response) {
    std::map<std::string, int> files;  // by kind
    const fs::path memory = house.responses() / response["id"].get<std::string>() / "memory";
    for (const auto& entry : fs::directory_iterator(memory)) {
      const std::string name = entry.path().filename().string();
      ++files[name.substr(0, name.find('-'))];
    }
    return files;
  };
  constexpr int kTurns = 70;
  std::vector<json> chain;
  std::vector<std::string> said;
  std::map<std::string, int> most, last;
  for (int turn = 0; turn < kTurns; ++turn) {
    chain.push_back(
        house.respond(turn == 0 ? json{{"input", say(turn)}} : after(chain.back(), say(turn))));
    said.push_back(open.say(say(turn)));
    REQUIRE(text_of_response(chain.back()) == said.back());
    last = files_of(chain.back());
    for (const auto& [kind, n] : last) most[kind] = std::max(most[kind], n);
  }
  // each turn brings a file of token ids, and most one of keys and values
  REQUIRE(most["tokens"] == 32);
  REQUIRE(last["tokens"] < 32);
  REQUIRE(most["kv"] > 25);
  REQUIRE(most["kv"] <= 32);
  REQUIRE(most["state"] == 1);
  const std::string next = open.say(say(kTurns));
  // what became one in a later turn is as it was in the earlier ones
  house.restart();
  for (const int turn : {3, 31, 33, 66})
    REQUIRE(text_of_response(
                house.respond(after(chain[static_cast<std::size_t>(turn)], say(turn + 1)))) ==
            said[static_cast<std::size_t>(turn) + 1]);
  REQUIRE(text_of_response(house.respond(after(chain.back(), say(kTurns)))) == next);
  for (const json& response : episodic_test::sampled(chain, 12))
    REQUIRE(verify_memory(house.responses() / response["id"].get<std::string>() / "memory")
                .damages.empty());
}

TEST_CASE("responses: a chain over restarts says what a conversation that was never closed says") {
  const TempDir dir;
  make_chat_model(dir / "model");
  House house(dir / "model", dir / "memories");
  const std::vector<std::string> says = {program::some_book(60) + "Who spoke?", "And then?",
                                         "Who closed the door?", program::some_book(30)};
  NeverClosed open(house);
  std::vector<std::string> wanted;
  for (const std::string& say : says) wanted.push_back(open.say(say));

  json last = house.respond({{"input", says[0]}, {"metadata", {{"who", "me"}}}});
  REQUIRE(last["object"] == "response");
  REQUIRE(last["store"] == true);
  REQUIRE(last["status"] == "incomplete");
  REQUIRE(last["incomplete_details"]["reason"] == "max_output_tokens");
  REQUIRE(last["metadata"] == json{{"who", "me"}});
  REQUIRE(last["usage"]["output_tokens"] == 6);
  REQUIRE(text_of_response(last) == wanted[0]);
  const json first = last;
  for (std::size_t i = 1; i < says.size(); ++i) {
    house.restart();
    last = house.respond(after(last, says[i]));
    INFO(i);
    REQUIRE(text_of_response(last) == wanted[i]);
    // the new turn alone is read
    REQUIRE(last["usage"]["input_tokens"].get<int>() < 40 + 6 * static_cast<int>(says[i].size()));
  }
  // idle ones hold nothing of the process
  REQUIRE(!holds_open(house.responses()));
  // what is kept is what was said
  REQUIRE(house.get("/v1/responses/" + first["id"].get<std::string>()) == first);
  const json items = house.get("/v1/responses/" + first["id"].get<std::string>() + "/input_items");
  REQUIRE(items["data"].size() == 1);
  REQUIRE(items["data"][0]["content"][0] == json{{"type", "input_text"}, {"text", says[0]}});
  REQUIRE(items["has_more"] == false);

  // branches: two turns behind one response, neither knows of the other
  const json left = house.respond(after(first, says[1]));
  const json right = house.respond(after(first, "Where was it?"));
  REQUIRE(text_of_response(left) == wanted[1]);
  REQUIRE(text_of_response(house.respond(after(left, says[2]))) == wanted[2]);
  NeverClosed other(house);
  other.say(says[0]);
  REQUIRE(text_of_response(right) == other.say("Where was it?"));

  // one that is deleted takes none that came from it
  const std::string id = left["id"];
  REQUIRE(house.ask("DELETE", "/v1/responses/" + id).second ==
          json{{"id", id}, {"object", "response"}, {"deleted", true}});
  REQUIRE(house.ask("GET", "/v1/responses/" + id).first == 404);
  REQUIRE(house.ask("DELETE", "/v1/responses/" + id).first == 404);
  const auto [status, error] = house.ask("POST", "/v1/responses", after(left, "And?"));
  REQUIRE(status == 404);
  REQUIRE(error["error"]["param"] == "previous_response_id");
  REQUIRE(error["error"]["code"] == "previous_response_not_found");
  REQUIRE(text_of_response(house.respond(after(first, says[1]))) == wanted[1]);
  for (const auto& entry : fs::directory_iterator(house.responses()))
    if (entry.is_directory()) REQUIRE(verify_memory(entry.path() / "memory").damages.empty());
}

TEST_CASE("responses: what is not stored reads behind what is, and leaves nothing") {
  const TempDir dir;
  make_chat_model(dir / "model");
  House house(dir / "model", dir / "memories");
  const json first = house.respond({{"input", program::some_book(60) + "Who spoke?"}});
  const std::string kept = text_of_response(house.respond(after(first, "And then?")));
  const std::size_t folders = folders_in(house.responses());
  json body = after(first, "And then?");
  body["store"] = false;
  for (int i = 0; i < 2; ++i) {
    const json tail = house.respond(body);
    REQUIRE(tail["store"] == false);
    REQUIRE(text_of_response(tail) == kept);
    REQUIRE(house.ask("GET", "/v1/responses/" + tail["id"].get<std::string>()).first == 404);
  }
  const json alone = house.respond({{"input", "The king said"}, {"store", false}});
  REQUIRE(text_of_response(alone) == text_of_response(house.respond({{"input", "The king said"}})));
  REQUIRE(folders_in(house.responses()) == folders + 1);
  REQUIRE(comes([&] { return !holds_open(house.responses()); }));
}

TEST_CASE("responses: the first turn begins behind a named memory, which stays as it is") {
  const TempDir dir;
  make_chat_model(dir / "model");
  House house(dir / "model", dir / "memories");
  house.post("/v1/memories", {{"name", "book"}});
  house.post("/v1/memories/book/read",
             {{"text", program::some_book(150) + "The pass key is 60453. Remember it.\n" +
                           program::some_book(150)}});
  const json before = house.get("/v1/memories/book");
  const char* const ask = "\n\n\nWhat is the pass key?\n\nThe pass key is";
  json first = house.respond(
      {{"input", ask}, {"memory", "book"}, {"include", {"recall"}}, {"max_output_tokens", 14}});
  REQUIRE(text_of_response(first).find("60453") != std::string::npos);
  REQUIRE(!first["recalled"].empty());
  REQUIRE(first["recalled"][0].contains("text"));
  REQUIRE(house.get("/v1/memories/book") == before);
  const json second = house.respond(after(first, ask));
  // the header says the same for clients that cannot name it in the body; later turns pass over it
  httplib::Client client = house.running().client();
  const auto headed = [&](const json& body) {
    const auto r = client.Post("/v1/responses", {{"X-Episodic-Memory", "book"}}, body.dump(),
                               "application/json");
    REQUIRE(r);
    INFO(r->body);
    REQUIRE(r->status == 200);
    return text_of_response(json::parse(r->body));
  };
  REQUIRE(headed({{"input", ask}, {"max_output_tokens", 14}}) == text_of_response(first));
  json next = after(first, ask);
  next["max_output_tokens"] = 6;
  REQUIRE(headed(next) == text_of_response(second));
  next["memory"] = "book";
  REQUIRE(text_of_response(house.respond(next)) == text_of_response(second));
  next["memory"] = "other";
  REQUIRE(house.ask("POST", "/v1/responses", next).second["error"]["param"] == "memory");
  REQUIRE(house.ask("POST", "/v1/responses", {{"input", "a"}, {"memory", "other"}}).first == 404);
  // without it another answer comes: the memory was read
  REQUIRE(
      text_of_response(house.respond({{"input", ask}, {"max_output_tokens", 14}})).find("60453") ==
      std::string::npos);
}

TEST_CASE("responses: an answer in a form, and the turn behind it") {
  const TempDir dir;
  make_chat_model(dir / "model");
  House house(dir / "model", dir / "memories");
  const json format{{"type", "json_schema"},
                    {"name", "key"},
                    {"schema",
                     {{"type", "object"},
                      {"properties", {{"found", {{"type", "boolean"}}}}},
                      {"required", {"found"}},
                      {"additionalProperties", false}}}};
  const json first = house.respond(
      {{"input", "Is there a key?"}, {"max_output_tokens", 60}, {"text", {{"format", format}}}});
  REQUIRE(first["text"]["format"] == format);
  REQUIRE(first["status"] == "completed");
  REQUIRE(json::parse(text_of_response(first))["found"].is_boolean());
  REQUIRE(!text_of_response(house.respond(after(first, "And then?"))).empty());
  const json wrong{{"type", "json_schema"}, {"schema", {{"type", "colour"}}}};
  const auto [status, error] =
      house.ask("POST", "/v1/responses", {{"input", "a"}, {"text", {{"format", wrong}}}});
  REQUIRE(status == 400);
  REQUIRE(error["error"]["param"] == "text.format");
}

TEST_CASE("responses: events come in order, numbered, and end with what is stored") {
  const TempDir dir;
  make_chat_model(dir / "model");
  House house(dir / "model", dir / "memories");
  const json body{{"input", "The king said"}, {"max_output_tokens", 6}};
  const std::vector<Event> events = stream(house, body);
  std::vector<std::string> names;
  std::string text;
  for (std::size_t i = 0; i < events.size(); ++i) {
    REQUIRE(events[i].data["type"] == events[i].name);
    REQUIRE(events[i].data["sequence_number"] == i);
    if (events[i].name == "response.output_text.delta")
      text += events[i].data["delta"].get<std::string>();
    if (names.empty() || names.back() != events[i].name) names.push_back(events[i].name);
  }
  REQUIRE(names == std::vector<std::string>{
                       "response.created", "response.in_progress", "response.output_item.added",
                       "response.content_part.added", "response.output_text.delta",
                       "response.output_text.done", "response.content_part.done",
                       "response.output_item.done", "response.incomplete"});
  const json last = events.back().data["response"];
  REQUIRE(events.front().data["response"]["id"] == last["id"]);
  REQUIRE(events.front().data["response"]["status"] == "in_progress");
  REQUIRE(text == text_of_response(last));
  REQUIRE(house.get("/v1/responses/" + last["id"].get<std::string>()) == last);
  REQUIRE(text == text_of_response(house.respond(body)));
  // the next turn may come as soon as the last event has
  const std::vector<Event> next = stream(house, after(last, "And then?"));
  REQUIRE(next.back().data["response"]["previous_response_id"] == last["id"]);
  // an answer that its client leaves is not kept
  const std::size_t folders = folders_in(house.responses());
  Raw raw(house.running());
  raw.send(post_text({{"input", "The"},
                      {"max_output_tokens", 2'000'000'000},
                      {"ignore_eos", true},
                      {"stream", true}},
                     "", "/v1/responses"));
  REQUIRE(raw.receive("output_text.delta").find("response.created") != std::string::npos);
  REQUIRE(folders_in(house.responses()) == folders + 1);
  raw.leave();
  REQUIRE(comes([&] { return folders_in(house.responses()) == folders; }));
}

TEST_CASE("responses: a conversation grows, one turn at a time, over restarts") {
  const TempDir dir;
  make_chat_model(dir / "model");
  SchedulerOptions limits;
  limits.parallel = 2;
  House house(dir / "model", dir / "memories", {}, limits);
  const std::string book = program::some_book(60);
  NeverClosed open(house);
  const std::vector<std::string> says = {book + "Who spoke?", "And then?", "Who was it?"};
  std::vector<std::string> wanted;
  for (const std::string& say : says) wanted.push_back(open.say(say));

  const json conversation = house.post(
      "/v1/conversations",
      {{"metadata", {{"topic", "kings"}}}, {"items", {{{"role", "user"}, {"content", says[0]}}}}});
  const std::string id = conversation["id"], path = "/v1/conversations/" + id;
  REQUIRE(conversation["object"] == "conversation");
  REQUIRE(house.get(path) == conversation);
  // what waits in it is read with the first turn
  const json first = house.respond({{"conversation", id}});
  REQUIRE(first["conversation"]["id"] == id);
  REQUIRE(text_of_response(first) == wanted[0]);
  house.restart();
  const json second = house.respond({{"conversation", {{"id", id}}}, {"input", says[1]}});
  REQUIRE(text_of_response(second) == wanted[1]);
  house.restart();
  REQUIRE(text_of_response(house.respond(
              {{"conversation", id}, {"input", says[2]}, {"store", false}})) == wanted[2]);
  // a stored response of it is a place to branch from
  REQUIRE(text_of_response(house.respond(after(second, says[2]))) == wanted[2]);
  const json items = house.get(path + "/items?order=asc&limit=100");
  REQUIRE(items["data"].size() == 6);
  REQUIRE(items["data"][0]["content"][0]["text"] == says[0]);
  REQUIRE(items["data"][5]["role"] == "assistant");
  REQUIRE(items["data"][5]["content"][0]["text"] == wanted[2]);
  const json page = house.get(path + "/items?limit=4");
  REQUIRE(page["has_more"] == true);
  REQUIRE(page["data"][0] == items["data"][5]);
  const json rest = house.get(path + "/items?limit=4&after=" + page["last_id"].get<std::string>());
  REQUIRE(rest["data"].size() == 2);
  REQUIRE(rest["data"][1] == items["data"][0]);
  // one memory of it is left
  std::size_t memories = 0;
  for (const auto& entry : fs::directory_iterator(dir / "memories/.conversations" / id))
    memories += entry.is_directory() ? 1 : 0;
  REQUIRE(memories == 1);

  // while a turn is on its way, no other comes, and nothing is changed or deleted
  Raw busy(house.running());
  busy.send(post_text(endless_turn(id), "", "/v1/responses"));
  REQUIRE(busy.receive("output_text.delta").find("200 OK") != std::string::npos);
  for (const auto& [status, error] :
       {house.ask("POST", "/v1/responses", {{"conversation", id}, {"input", "a"}}),
        house.ask("POST", path, {{"metadata", json::object()}}), house.ask("DELETE", path)}) {
    REQUIRE(status == 409);
    REQUIRE(error["error"]["code"] == "conversation_locked");
  }
  // others go on, and it is as it was once that turn is given up
  REQUIRE(text_of_response(house.respond(after(second, says[2]))) == wanted[2]);
  busy.leave();
  REQUIRE(comes([&] {
    return house.ask("POST", path, {{"metadata", {{"topic", "queens"}}}}).first == 200;
  }));
  REQUIRE(house.get(path)["metadata"]["topic"] == "queens");
  REQUIRE(house.get(path + "/items?order=asc&limit=100") == items);
  REQUIRE(house.ask("DELETE", path).second["deleted"] == true);
  REQUIRE(house.ask("GET", path).first == 404);
  REQUIRE(house.ask("POST", "/v1/responses", {{"conversation", id}, {"input", "a"}}).first == 404);
  REQUIRE(house.get("/v1/responses/" + second["id"].get<std::string>()) == second);
}

namespace {

/// Keeps a copy of a folder as it is before each call that changes names or makes data durable:
/// what a kill at that moment leaves.
class Snapshots final : public io::Syscalls {
 public:
  Snapshots(fs::path from, fs::path to) : from_(std::move(from)), to_(std::move(to)) {}

  int rename(io::Kind kind, int dir, const char* from, const char* to) override {
    take();
    return io::Syscalls::rename(kind, dir, from, to);
  }
  int link(io::Kind kind, int from_dir, const char* from, int to_dir, const char* to) override {
    take();
    return io::Syscalls::link(kind, from_dir, from, to_dir, to);
  }
  int sync(io::Kind kind, int fd) override {
    take();
    return io::Syscalls::sync(kind, fd);
  }
  int taken() const { return taken_; }
  fs::path at(int i) const { return to_ / std::to_string(i); }
  std::atomic<bool> on = false;

 private:
  void take() {
    if (on) fs::copy(from_, at(taken_++), fs::copy_options::recursive);
  }
  fs::path from_, to_;
  int taken_ = 0;
};

}  // namespace

TEST_CASE("responses: a kill at any moment leaves whole turns alone") {
  const TempDir dir;
  make_chat_model(dir / "model");
  fs::create_directories(dir / "killed");
  Snapshots snapshots(dir / "memories", dir / "killed");
  ConversationsOptions options;
  options.calls = &snapshots;
  House house(dir / "model", dir / "memories", options);
  const json first = house.respond({{"input", program::some_book(20) + "Who spoke?"}});
  const std::string id = house.post("/v1/conversations", json::object())["id"];
  const std::string path = "/v1/conversations/" + id;
  house.respond({{"conversation", id}, {"input", "The king said"}});
  const json before = house.get(path + "/items");
  const std::size_t folders = folders_in(house.responses());
  snapshots.on = true;
  const std::string second = text_of_response(house.respond(after(first, "And then?")));
  const std::string third =
      text_of_response(house.respond({{"conversation", id}, {"input", "And the queen"}}));
  snapshots.on = false;
  const json now = house.get(path + "/items");
  house.stop();
  REQUIRE(snapshots.taken() > 10);
  bool old_seen = false, new_seen = false;
  for (int i = 0; i < snapshots.taken(); ++i) {
    INFO(i);
    House risen(dir / "model", snapshots.at(i));
    std::size_t responses = 0;
    for (const auto& entry : fs::directory_iterator(risen.responses())) {
      if (!entry.is_directory()) continue;
      ++responses;
      const std::string name = entry.path().filename();
      REQUIRE(risen.get("/v1/responses/" + name)["id"] == name);
      REQUIRE(verify_memory(entry.path() / "memory").damages.empty());
    }
    REQUIRE(responses >= folders);
    REQUIRE(responses <= folders + 2);
    const json items = risen.get(path + "/items");
    REQUIRE((items == before || items == now));
    old_seen = old_seen || items == before;
    new_seen = new_seen || items == now;
    std::size_t memories = 0;
    for (const auto& entry : fs::directory_iterator(snapshots.at(i) / ".conversations" / id))
      memories += entry.is_directory() ? 1 : 0;
    REQUIRE(memories == 1);
    if (i % 5 != 0) continue;
    REQUIRE(text_of_response(risen.respond(after(first, "And then?"))) == second);
    if (items == before)
      REQUIRE(text_of_response(risen.respond({{"conversation", id}, {"input", "And the queen"}})) ==
              third);
  }
  REQUIRE(old_seen);
  // the last call of all comes before the names are durable, behind the rename
  REQUIRE(new_seen);
}

TEST_CASE("responses: old ones go, those in use stay") {
  const TempDir dir;
  make_chat_model(dir / "model");
  ConversationsOptions options;
  options.keep = std::chrono::hours(24);
  House house(dir / "model", dir / "memories", options);
  const json old = house.respond({{"input", "The king said"}});
  const json used = house.respond({{"input", "The queen said"}});
  const json fresh = house.respond({{"input", "The door was"}});
  const auto age = [&](const json& response) {
    fs::last_write_time(house.responses() / response["id"].get<std::string>() / "response.json",
                        fs::file_time_type::clock::now() - std::chrono::hours(25));
  };
  age(old);
  age(used);
  {
    Conversations beside(house.service(), {.keep = std::chrono::seconds(0)});
    REQUIRE(beside.expire() == 0);  // 0: for ever
  }
  house.stop();
  house.start();
  REQUIRE(house.ask("GET", "/v1/responses/" + old["id"].get<std::string>()).first == 404);
  REQUIRE(house.ask("GET", "/v1/responses/" + fresh["id"].get<std::string>()).first == 200);

  const json again = house.respond({{"input", "The queen said"}});
  Conversations kept(house.service(), options);
  const auto turn = kept.begin({.previous = again["id"], .store = false});
  age(again);
  REQUIRE(kept.expire() == 0);
  REQUIRE(turn->history().size() == 2);
}

TEST_CASE("responses: what is wrong is named, and a server without memories says what it lacks") {
  const TempDir dir;
  make_chat_model(dir / "model");
  const auto refused = [](const json& body) {
    try {
      parse_responses_request(body.dump(), few_tokens());
    } catch (const RequestError& e) {
      REQUIRE(e.status() == 400);
      REQUIRE(std::string(e.what()).find('\n') == std::string::npos);
      return e.parameter();
    }
    return std::string("taken");
  };
  const auto with = [&](const char* name, json value) {
    return refused({{"input", "a"}, {name, std::move(value)}});
  };
  REQUIRE(with("include", {"recall", "reasoning.encrypted_content"}) == "taken");
  REQUIRE(with("truncation", "auto") == "taken");
  REQUIRE(with("text", {{"format", {{"type", "text"}}}}) == "taken");
  REQUIRE(with("tools", json::array()) == "taken");
  REQUIRE(with("tool_choice", "auto") == "taken");
  REQUIRE(with("reasoning", {{"effort", nullptr}}) == "taken");
  REQUIRE(with("parallel_tool_calls", true) == "taken");
  REQUIRE(with("max_output_tokens", 0) == "max_output_tokens");
  REQUIRE(with("temperature", 200) == "temperature");
  REQUIRE(with("tools", {{{"type", "function"}}}) == "tools");
  REQUIRE(with("tools", {{{"type", "web_search"}}}) == "tools");
  REQUIRE(with("tools", {{{"type", "function"}, {"name", "f"}}}) == "taken");
  REQUIRE(with("tool_choice", "required") == "tool_choice");
  REQUIRE(with("tool_choice", {{"type", "function"}, {"name", "f"}}) == "tool_choice");
  REQUIRE(with("parallel_tool_calls", 5) == "parallel_tool_calls");
  REQUIRE(with("top_logprobs", 21) == "top_logprobs");
  REQUIRE(with("top_logprobs", 2) == "top_logprobs");  // which are not asked for
  REQUIRE(with("include", {"message.output_text.logprobs"}) == "taken");
  REQUIRE(with("text", {{"format", {{"type", "json_schema"}}}}) == "text.format");
  REQUIRE(with("text", {{"format", {{"type", "xml"}}}}) == "text.format");
  REQUIRE(with("text", {{"verbosity", "high"}}) == "text.verbosity");
  REQUIRE(with("include", {"message.output_text.thoughts"}) == "include");
  REQUIRE(with("background", true) == "background");
  REQUIRE(with("conversation", 5) == "conversation");
  REQUIRE(with("truncation", "sometimes") == "truncation");
  REQUIRE(with("metadata", {{"a", 1}}) == "metadata");
  REQUIRE(with("messages", json::array()) == "messages");
  REQUIRE(with("reasoning", {{"effort", "high"}, {"summary", "auto"}}) == "taken");
  REQUIRE(with("reasoning", {{"effort", "utmost"}}) == "effort");
  REQUIRE(with("reasoning", {{"summary", "detailed"}}) == "summary");
  const auto item = [&](json one) { return refused({{"input", json::array({std::move(one)})}}); };
  REQUIRE(item({{"role", "user"}, {"content", "a"}}) == "taken");
  REQUIRE(item({{"type", "message"},
                {"role", "assistant"},
                {"id", "msg_1"},
                {"status", "completed"},
                {"content",
                 {{{"type", "output_text"}, {"text", "a"}, {"annotations", json::array()}}}}}) ==
          "taken");
  REQUIRE(item({{"role", "king"}, {"content", "a"}}) == "input[0].role");
  REQUIRE(item({{"role", "user"}}) == "input[0].content");
  REQUIRE(item({{"role", "user"}, {"content", {{{"type", "input_image"}}}}}) == "input[0].content");
  REQUIRE(item({{"type", "item_reference"}, {"id", "msg_1"}}) == "input[0].type");
  REQUIRE(item({{"role", "user"}, {"content", "a"}, {"colour", 1}}) == "input[0].colour");
  REQUIRE(item(5) == "input[0]");

  // items of calls are what a template reads of them
  std::vector<ChatMessage> messages =
      messages_of_items(items_of(json::parse(R"([{"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "x"},
        {"type": "function_call_output", "call_id": "c2", "output": "7"}])"),
                                 "input"));
  REQUIRE(messages.size() == 4);
  REQUIRE(messages[0].role == "system");
  REQUIRE(messages[1].content == "ab");
  REQUIRE(json::parse(messages[2].fields)["tool_calls"][0]["function"]["arguments"]["x"] == 1);
  REQUIRE(json::parse(messages[2].fields)["tool_calls"][1]["function"]["arguments"] == "x");
  REQUIRE(messages[3].role == "tool");
  name_results(messages, {});
  REQUIRE(json::parse(messages[3].fields) == json{{"tool_call_id", "c2"}, {"name", "g"}});
  // those of earlier turns have names too, and what nobody called put out nothing
  std::vector<ChatMessage> later{messages[3]};
  later[0].fields = R"({"tool_call_id":"c1"})";
  name_results(later, messages);
  REQUIRE(json::parse(later[0].fields)["name"] == "f");
  REQUIRE_THROWS_AS(name_results(later, {}), RequestError);

  const auto engine = engine_of(dir / "model");
  Service service(*engine);
  const Running running(service);
  const auto ask = [&](const json& body) { return post(running, "/v1/responses", body.dump()); };
  const auto [status, answer] = ask({{"input", "The king said"}});
  REQUIRE(status == 200);
  REQUIRE(answer["store"] == false);
  REQUIRE(!text_of_response(answer).empty());
  for (const auto& [field, value, expected] :
       std::vector<std::tuple<const char*, json, int>>{{"store", true, 400},
                                                       {"previous_response_id", "resp_00", 404},
                                                       {"conversation", "conv_00", 404},
                                                       {"memory", "book", 404}}) {
    const auto [refusal, error] = ask({{"input", "a"}, {field, value}});
    REQUIRE(refusal == expected);
    REQUIRE(error["error"]["param"] == field);
    REQUIRE(error["error"]["message"].get<std::string>().find("memories") != std::string::npos);
  }
  REQUIRE(ask({{"instructions", "Be brief."}}).second["error"]["param"] == "input");
  REQUIRE(ask({{"input", {{{"role", "assistant"}, {"content", "a"}}}}}).first == 400);
  REQUIRE(running.client().Get("/v1/responses/resp_00")->status == 404);
  REQUIRE(post(running, "/v1/conversations", "{}").first == 404);
}

namespace {

const json kResponseTools = json::parse(R"([{"type": "function", "name": "weather", "description":
  "of a town", "parameters": {"type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]},
  "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["town", "days"],
  "additionalProperties": false}}])");

json forced_call() {
  return {{"input", "What is the weather in Rome?"},
          {"max_output_tokens", 200},
          {"tools", kResponseTools},
          {"tool_choice", "required"},
          {"parallel_tool_calls", false}};
}

json result_of(const json& response, const std::string& output) {
  return json::array({{{"type", "function_call_output"},
                       {"call_id", response["output"].back()["call_id"]},
                       {"output", output}}});
}

void check_call(const json& item) {
  INFO(item.dump());
  REQUIRE(item["type"] == "function_call");
  REQUIRE(item["status"] == "completed");
  REQUIRE(item["id"].get<std::string>().starts_with("fc_"));
  REQUIRE(item["name"] == "weather");
  const json arguments = json::parse(item["arguments"].get<std::string>());
  REQUIRE((arguments["town"] == "Rome" || arguments["town"] == "Oslo"));
  REQUIRE(arguments["days"] >= 1);
}

}  // namespace

TEST_CASE("responses: an answer calls a tool, and its result goes on over restarts") {
  const TempDir dir;
  make_chat_model(dir / "model", kToolTemplate);
  House house(dir / "model", dir / "memories");
  // what this small model says by itself is no call
  json body = forced_call();
  body.erase("tool_choice");
  body["max_output_tokens"] = 6;
  const json plain = house.respond(body);
  REQUIRE(plain["output"].size() == 1);
  REQUIRE(plain["output"][0]["type"] == "message");
  REQUIRE(plain["tools"] == kResponseTools);
  REQUIRE(plain["tool_choice"] == "auto");

  const json first = house.respond(forced_call());
  REQUIRE(first["status"] == "completed");
  REQUIRE(first["output"].size() == 1);
  check_call(first["output"][0]);
  REQUIRE(first["tool_choice"] == "required");
  REQUIRE(first["parallel_tool_calls"] == false);
  REQUIRE(house.get("/v1/responses/" + first["id"].get<std::string>()) == first);
  for (const json& choice : {json("required"), json{{"type", "function"}, {"name", "weather"}}}) {
    json named = forced_call();
    named["tool_choice"] = choice;
    check_call(house.respond(named)["output"][0]);
  }

  // a stream has the same call
  json streamed = forced_call();
  streamed["seed"] = 1;
  const json whole = house.respond(streamed);
  std::vector<std::string> names;
  std::string arguments;
  const std::vector<Event> events = stream(house, streamed);
  for (std::size_t i = 0; i < events.size(); ++i) {
    REQUIRE(events[i].data["sequence_number"] == i);
    if (events[i].name == "response.function_call_arguments.delta")
      arguments += events[i].data["delta"].get<std::string>();
    if (names.empty() || names.back() != events[i].name) names.push_back(events[i].name);
  }
  REQUIRE(names == std::vector<std::string>{"response.created", "response.in_progress",
                                            "response.output_item.added",
                                            "response.function_call_arguments.delta",
                                            "response.function_call_arguments.done",
                                            "response.output_item.done", "response.completed"});
  const json last = events.back().data["response"];
  check_call(last["output"][0]);
  REQUIRE(last["output"][0]["arguments"] == whole["output"][0]["arguments"]);
  REQUIRE(arguments == whole["output"][0]["arguments"]);
  const auto data_of = [&](const char* name) {
    return std::find_if(events.begin(), events.end(),
                        [&](const Event& e) { return e.name == name; })
        ->data;
  };
  REQUIRE(data_of("response.output_item.added")["item"]["status"] == "in_progress");
  REQUIRE(data_of("response.output_item.added")["item"]["arguments"] == "");
  REQUIRE(data_of("response.output_item.done")["item"] == last["output"][0]);
  REQUIRE(data_of("response.function_call_arguments.done")["arguments"] == arguments);
  REQUIRE(data_of("response.function_call_arguments.done")["item_id"] == last["output"][0]["id"]);
  REQUIRE(house.get("/v1/responses/" + last["id"].get<std::string>()) == last);

  // the result is read behind the call, alone: tools that were told are not told again
  house.restart();
  const auto behind = [&](const json& response, const std::string& output, bool tools) {
    json next{{"previous_response_id", response["id"]}, {"input", result_of(response, output)}};
    if (tools) next["tools"] = kResponseTools;
    return house.respond(next);
  };
  const json second = behind(first, "sunny", true);
  REQUIRE(second["output"][0]["type"] == "message");
  REQUIRE(!text_of_response(second).empty());
  REQUIRE(second["usage"]["input_tokens"].get<int>() < 40);
  REQUIRE(text_of_response(behind(first, "sunny", false)) == text_of_response(second));
  const json more = behind(first, "sunny and warm from now on, they say", true);
  REQUIRE(more["usage"]["input_tokens"].get<int>() >
          second["usage"]["input_tokens"].get<int>() + 3);
  const json items = house.get("/v1/responses/" + second["id"].get<std::string>() + "/input_items");
  REQUIRE(items["data"][0]["type"] == "function_call_output");
  REQUIRE(items["data"][0]["output"] == "sunny");
  // and so on, over another restart
  house.restart();
  json again = after(second, "And in Oslo?");
  again["tool_choice"] = "required";
  again["parallel_tool_calls"] = false;
  again["tools"] = kResponseTools;
  again["max_output_tokens"] = 200;
  const json third = house.respond(again);
  check_call(third["output"][0]);
  REQUIRE(third["usage"]["input_tokens"].get<int>() < 60);
  REQUIRE(!text_of_response(behind(third, "snow", false)).empty());
  // other tools are told behind what was read
  again["tools"][0]["description"] = "of a village";
  const json other = house.respond(again);
  check_call(other["output"][0]);
  REQUIRE(other["usage"]["input_tokens"].get<int>() > 100);
  // what nobody called put out nothing
  json wrong{{"previous_response_id", second["id"]}, {"input", result_of(first, "sunny")}};
  REQUIRE(house.ask("POST", "/v1/responses", wrong).first == 200);  // of an earlier turn
  wrong["input"][0]["call_id"] = "call_0";
  const auto [status, error] = house.ask("POST", "/v1/responses", wrong);
  REQUIRE(status == 400);
  REQUIRE(error["error"]["param"] == "input");
  REQUIRE(error["error"]["message"].get<std::string>().find("call_0") != std::string::npos);
}

TEST_CASE("responses: a conversation keeps calls and results") {
  const TempDir dir;
  make_chat_model(dir / "model", kToolTemplate);
  House house(dir / "model", dir / "memories");
  const std::string id = house.post("/v1/conversations", json::object())["id"];
  json body = forced_call();
  body["conversation"] = id;
  const json first = house.respond(body);
  check_call(first["output"][0]);
  house.restart();
  const json second =
      house.respond({{"conversation", id}, {"input", result_of(first, "sunny")}, {"store", false}});
  REQUIRE(second["usage"]["input_tokens"].get<int>() < 40);
  body["input"] = "And in Oslo?";
  house.restart();
  const json third = house.respond(body);
  check_call(third["output"][0]);
  REQUIRE(third["usage"]["input_tokens"].get<int>() < 60);  // the tools are known still
  const json items = house.get("/v1/conversations/" + id + "/items?order=asc");
  std::vector<std::string> types;
  for (const json& item : items["data"]) types.push_back(item["type"]);
  REQUIRE(types == std::vector<std::string>{"message", "function_call", "function_call_output",
                                            "message", "message", "function_call"});
  REQUIRE(items["data"][1] == first["output"][0]);
  // a server that keeps nothing takes calls and results as they are sent
  const auto engine = engine_of(dir / "model");
  Service service(*engine);
  const Running running(service);
  const auto ask = [&](const json& asked) {
    const auto [status, answer] = post(running, "/v1/responses", asked.dump());
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer;
  };
  const json alone = ask(forced_call());
  check_call(alone["output"][0]);
  json input = json::array({say("user", "What is the weather in Rome?"), alone["output"][0]});
  input.push_back(result_of(alone, "sunny")[0]);
  REQUIRE(!text_of_response(ask({{"input", input}, {"tools", kResponseTools}})).empty());
}

TEST_CASE("responses: of two calls that the model would make, one where only one may be") {
  const TempDir dir;
  make_chat_model(dir / "model", kToolTemplate);
  House house(dir / "model", dir / "memories");
  const json call{{"name", "weather"}, {"arguments", {{"town", "Rome"}}}};
  json body = forced_call();
  body["tool_choice"] = "auto";
  body["text"] = {
      {"format", {{"type", "json_schema"}, {"schema", {{"const", json::array({call, call})}}}}}};
  const json one = house.respond(body);
  body["parallel_tool_calls"] = true;
  const json both = house.respond(body);
  REQUIRE(one["output"].size() == 1);
  REQUIRE(both["output"].size() == 2);
  REQUIRE(both["output"][0]["call_id"] != both["output"][1]["call_id"]);
  REQUIRE(one["usage"]["output_tokens"].get<int>() <
          both["usage"]["output_tokens"].get<int>() * 2 / 3);
  // each has its result
  json input = json::array();
  for (const json& item : both["output"])
    input.push_back(
        {{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "sunny"}});
  REQUIRE(!text_of_response(house.respond({{"previous_response_id", both["id"]}, {"input", input}}))
               .empty());
}

TEST_CASE("responses: log-probabilities of the text, whole and as a stream") {
  const TempDir dir;
  make_chat_model(dir / "model", kToolTemplate);
  House house(dir / "model", dir / "memories");
  json body{{"input", "The king said"},
            {"include", {"message.output_text.logprobs"}},
            {"top_logprobs", 2}};
  const json response = house.respond(body);
  const json& part = response["output"][0]["content"][0];
  REQUIRE(response["top_logprobs"] == 2);
  REQUIRE(part["logprobs"].size() == 6);
  std::string text;
  for (const json& token : part["logprobs"]) {
    text += token["token"].get<std::string>();
    REQUIRE(token["logprob"] <= 0);
    REQUIRE(token["bytes"].is_array());
    REQUIRE(token["top_logprobs"].size() == 2);
    REQUIRE(token["top_logprobs"][0]["logprob"] >= token["top_logprobs"][1]["logprob"]);
  }
  REQUIRE(text == part["text"]);
  // they are the chat's
  const auto [status, chat] = house.ask("POST", "/v1/chat/completions",
                                        {{"messages", {say("user", "The king said")}},
                                         {"max_tokens", 6},
                                         {"logprobs", true},
                                         {"top_logprobs", 2}});
  REQUIRE(status == 200);
  const json& same = chat["choices"][0]["logprobs"]["content"];
  for (std::size_t i = 0; i < same.size(); ++i) {
    REQUIRE(same[i]["token"] == part["logprobs"][i]["token"]);
    REQUIRE(std::abs(same[i]["logprob"].get<double>() -
                     part["logprobs"][i]["logprob"].get<double>()) < 1e-4);
  }
  for (const bool tools : {false, true}) {
    if (tools) body["tools"] = kResponseTools;
    const json whole = house.respond(body)["output"][0]["content"][0];
    REQUIRE(whole["logprobs"].size() == 6);
    json streamed = json::array();
    for (const Event& event : stream(house, [&] {
           json limited = body;
           limited["max_output_tokens"] = 6;
           return limited;
         }())) {
      if (event.name == "response.output_text.delta")
        streamed.insert(streamed.end(), event.data["logprobs"].begin(),
                        event.data["logprobs"].end());
      if (event.name == "response.output_text.done")
        REQUIRE(event.data["logprobs"] == whole["logprobs"]);
    }
    REQUIRE(streamed == whole["logprobs"]);
  }
  // of a call there are none, and of an answer that is not asked for them
  json forced = forced_call();
  forced["include"] = body["include"];
  check_call(house.respond(forced)["output"][0]);
  const json quiet = house.respond({{"input", "The king said"}});
  REQUIRE(quiet["output"][0]["content"][0]["logprobs"].empty());
}

TEST_CASE("responses: what was told once is not read again, and other instructions are") {
  const TempDir dir;
  make_chat_model(dir / "model");
  House house(dir / "model", dir / "memories");
  const auto turn = [&](json body, const char* instructions) {
    body["instructions"] = instructions;
    const json response = house.respond(body);
    REQUIRE(response["instructions"] == instructions);
    return response;
  };
  const json first = turn({{"input", "The king said"}}, "Be brief.");
  const json same = turn(after(first, "And then?"), "Be brief.");
  const json plain = house.respond(after(first, "And then?"));
  REQUIRE(text_of_response(same) == text_of_response(plain));
  REQUIRE(same["usage"]["input_tokens"] == plain["usage"]["input_tokens"]);
  const json other = turn(after(first, "And then?"), "Tell all of it.");
  REQUIRE(other["usage"]["input_tokens"] > plain["usage"]["input_tokens"]);

  // a format that shows nothing of them later on
  make_chat_model(dir / "deaf",
                  "{{ bos_token }}{% for m in messages %}{% if loop.first or m.role != 'system' %}"
                  "{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"
                  "{% if add_generation_prompt %}assistant:{% endif %}");
  House deaf(dir / "deaf", dir / "deaf-memories");
  json body = after(deaf.respond({{"input", "The king said"}}), "And then?");
  body["instructions"] = "Be brief.";
  const auto [status, error] = deaf.ask("POST", "/v1/responses", body);
  REQUIRE(status == 400);
  REQUIRE(error["error"]["param"] == "instructions");
}

TEST_CASE("conversation: calls and their results are read as they follow any answer") {
  const TempDir dir;
  make_chat_model(dir / "model",
                  "{{ bos_token }}{% if tools %}[tools{% for t in tools %} {{ t.function.name }}"
                  "{% endfor %}]{% endif %}{% for m in messages %}<{{ m.role }}{% if m.name %} "
                  "{{ m.name }}{% endif %}>{{ m.content }}{% for c in m.tool_calls %}<tool_call>"
                  "{{ c.function | tojson }}</tool_call>{% endfor %}</end>{% endfor %}"
                  "{% if add_generation_prompt %}<assistant>{% endif %}");
  const auto model = load_model(dir / "model");
  const Tokenizer& tokenizer = model->tokenizer();
  const auto read = [&](const ChatPrompt& prompt) {
    std::vector<std::int64_t> all = prompt.text;
    all.insert(all.end(), prompt.question.begin(), prompt.question.end());
    return tokenizer.decode(all);
  };
  const auto tools_of = [](const char* name) {
    return read_tools(std::string(R"([{"type": "function", "name": ")") + name + "\"}]", "tools",
                      ToolForm::responses);
  };
  const auto called = [](const char* text) {
    return ChatMessage{"assistant", text,
                       R"({"tool_calls": [{"id": "c1", "function": {"name": "f",
                           "arguments": {"x": 1}}}]})"};
  };
  const ChatMessage result{"tool", "It is 7.", R"({"tool_call_id": "c1", "name": "f"})"};
  const ConversationOptions options{.changed = ChangedTurns::keep,
                                    .calls = ToolCallFormat(model->chat_template())};
  Conversation talk(model->chat_template(), tokenizer, options);
  TurnCalls calls{tools_of("f"), [](const std::string& prompt) {
                    REQUIRE(prompt.ends_with("<assistant>"));
                    return std::string("<tool_call>");
                  }};
  REQUIRE(read(talk.ask({{"user", "Who?"}}, calls)) ==
          "[tools f]<user>Who?</end><assistant><tool_call>");
  talk.answered(called(""));
  // the result alone, whatever the call's words were
  REQUIRE(read(talk.ask({result})) == "</end><tool f>It is 7.</end><assistant>");
  calls.opening = nullptr;
  REQUIRE(read(talk.ask({result}, calls)) == "</end><tool f>It is 7.</end><assistant>");
  talk.answered("It is seven.");
  REQUIRE(read(talk.ask({{"user", "Why?"}}, calls)) == "</end><user>Why?</end><assistant>");
  // others are told as a new conversation tells of them, behind results
  calls.tools = tools_of("g");
  REQUIRE(read(talk.ask({{"user", "Why?"}}, calls)) ==
          "</end>[tools g]<user>Why?</end><assistant>");
  talk.answered(called("Let me see."));
  REQUIRE(read(talk.ask({result, {"user", "And?"}}, calls)) ==
          "</end><tool f>It is 7.</end><user>And?</end><assistant>");
  calls.tools = tools_of("h");
  REQUIRE(read(talk.ask({result, {"user", "And?"}}, calls)) ==
          "</end><tool f>It is 7.</end>[tools h]<user>And?</end><assistant>");
  REQUIRE(read(talk.ask({result}, calls)) ==
          "</end><tool f>It is 7.</end>[tools h]<system></end><assistant>");
  // from the messages alone it goes on in the same way, with the tools that it knew
  ConversationOptions known = options;
  known.tools = tools_of("g");
  Conversation again(model->chat_template(), tokenizer, known, talk.messages());
  calls.tools = tools_of("g");
  REQUIRE(read(again.ask({result}, calls)) == "</end><tool f>It is 7.</end><assistant>");
  REQUIRE_THROWS_AS(Conversation(model->chat_template(), tokenizer).ask({{"user", "Who?"}}, calls),
                    ConfigError);
}

TEST_CASE("conversation: a format that changes earlier turns") {
  const TempDir dir;
  // drops what was thought before the last question, as formats of thinking models do
  make_chat_model(dir / "model",
                  "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not "
                  "loop.last %}{{ m.content.split('#')[-1] }}{% else %}{{ m.content }}{% endif %}"
                  "</end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  const auto model = load_model(dir / "model");
  const Tokenizer& tokenizer = model->tokenizer();
  const auto read = [&](const ChatPrompt& prompt) {
    std::vector<std::int64_t> all = prompt.text;
    all.insert(all.end(), prompt.question.begin(), prompt.question.end());
    return tokenizer.decode(all);
  };
  Conversation strict(model->chat_template(), tokenizer);
  Conversation keeps(model->chat_template(), tokenizer, {.changed = ChangedTurns::keep});
  for (Conversation* talk : {&strict, &keeps}) {
    REQUIRE(read(talk->ask("", "Who?")) == "<user>Who?</end><assistant>");
    talk->answered("It may be#The king.");
  }
  REQUIRE_THROWS_AS(strict.ask("", "Why?"), DataError);
  REQUIRE(read(keeps.ask("", "Why?")) == "</end><user>Why?</end><assistant>");
  // from the messages alone it goes on in the same way
  Conversation again(model->chat_template(), tokenizer, {.changed = ChangedTurns::keep},
                     keeps.messages());
  REQUIRE(read(again.ask({{"user", "Why?"}})) == "</end><user>Why?</end><assistant>");
}
