// SPDX-License-Identifier: Apache-2.0
// Bodies that are wrong in random ways, to every route; and many streams at once, half of them read
// slowly.
#include "support/test.hpp"

#include <fmt/format.h>

#include <atomic>
#include <random>
#include <thread>

#include "serving.hpp"

using namespace serving;

namespace {

/// Bodies that are wrong, mostly. The same for a seed.
class WrongBodies {
 public:
  explicit WrongBodies(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t n) { return random_() % n; }

  std::string next(const json& valid) {
    switch (below(8)) {
      case 0:
        return bytes(below(200));
      case 1:
        return std::string(1 + below(3000), "[{\"0-"[below(5)]);
      default:
        break;
    }
    json body = valid;
    for (std::size_t i = below(4); i > 0; --i) {
      const char* field = kFields[below(std::size(kFields))];
      if (below(6) == 0)
        body.erase(field);
      else
        body[field] = value(3);
    }
    std::string text = body.dump(-1, ' ', false, json::error_handler_t::replace);
    if (below(3) == 0) text.resize(below(text.size() + 1));
    for (std::size_t i = below(3) == 0 ? 1 + below(4) : 0; i > 0 && !text.empty(); --i)
      text[below(text.size())] = static_cast<char>(below(256));
    if (below(20) == 0) text += bytes(1 + below(9));
    return text;
  }

 private:
  static constexpr const char* kFields[] = {"prompt",
                                            "messages",
                                            "max_tokens",
                                            "system",
                                            "temperature",
                                            "top_p",
                                            "top_k",
                                            "min_p",
                                            "seed",
                                            "stop",
                                            "stop_sequences",
                                            "stream",
                                            "stream_options",
                                            "n",
                                            "memory",
                                            "store",
                                            "include",
                                            "ignore_eos",
                                            "repetition_penalty",
                                            "chat_template_kwargs",
                                            "tools",
                                            "tool_choice",
                                            "thinking",
                                            "content",
                                            "add_special",
                                            "parse_special",
                                            "with_pieces",
                                            "tokens",
                                            "input",
                                            "encoding_format",
                                            "dimensions",
                                            "name",
                                            "settings",
                                            "text",
                                            "ids",
                                            "resume",
                                            "event",
                                            "pinned",
                                            "metadata",
                                            "model",
                                            "return_progress",
                                            "logit_bias",
                                            "response_format",
                                            "max_completion_tokens",
                                            "conversation",
                                            "previous_response_id",
                                            "grammar",
                                            "logprobs",
                                            "a\nb",
                                            ""};

  std::string bytes(std::size_t n) {
    std::string text(n, ' ');
    for (char& c : text) c = static_cast<char>(below(256));
    return text;
  }
  json value(int depth) {
    constexpr std::int64_t kWhole[] = {
        0, 1, -1, 2, 5, 127, 1 << 20, 2147483647, -2147483648LL, 9223372036854775807LL};
    constexpr double kBroken[] = {0.5, -0.5, 1e300, -1e-300, 1e18, 2.5};
    const std::string texts[] = {"",
                                 "a",
                                 "The king said",
                                 "user",
                                 "recall",
                                 "book",
                                 "../..",
                                 "<|eos|>",
                                 "\xC3\xA9\xF0\x9F\x98\x80",
                                 std::string(3, '\0'),
                                 std::string(3000, 'x'),
                                 "text"};
    switch (below(depth > 0 ? 8 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return below(2) == 0;
      case 2:
        return kWhole[below(std::size(kWhole))];
      case 3:
        return below(4) == 0 ? json(18446744073709551615U)
                             : json(kBroken[below(std::size(kBroken))]);
      case 4:
      case 5:
        return texts[below(std::size(texts))];
      case 6: {
        json list = json::array();
        for (std::size_t i = below(4); i > 0; --i) list.push_back(value(depth - 1));
        return list;
      }
      default: {
        constexpr const char* kNames[] = {"role", "content",       "type",
                                          "text", "include_usage", "name"};
        json object = json::object();
        for (std::size_t i = below(4); i > 0; --i)
          object[kNames[below(std::size(kNames))]] = value(depth - 1);
        return object;
      }
    }
  }

  std::mt19937_64 random_;
};

/// Every route that takes a body gets `count` of them in all. Nothing but 2xx and 4xx comes back,
/// each error in its protocol's form, and proper requests have their answers afterwards.
void send_wrong_bodies(int count, std::uint64_t seed) {
  const TempDir dir;
  make_chat_model(dir / "model");
  const std::shared_ptr<const Model> model = load_model(dir / "model");
  Memories memories(model, dir / "memories", MemoryConfig{}, 300);
  auto root = std::make_shared<Sequence>(model);
  root->attach();
  SchedulerOptions limits;
  limits.max_tokens = 300;
  limits.parallel = 2;
  Service service(model, std::make_shared<StartingPoint>(std::move(root)), &memories, limits);
  ServerOptions options;
  options.limits.body = 1 << 20;
  options.encoder = std::make_shared<const SentenceEncoder>(
      SentenceEncoder::open(fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder/tiny"));
  const Running running(service, options);
  REQUIRE(post(running, "/v1/memories", R"({"name": "book"})").first == 201);
  REQUIRE(post(running, "/v1/memories/book/read", R"({"text": "The king said."})").first == 200);

  const json turns = json::array({say("user", "Who is it?")});
  const std::vector<std::pair<const char*, json>> routes = {
      {"/v1/completions", {{"prompt", "The king said"}, {"max_tokens", 2}}},
      {"/v1/chat/completions", {{"messages", turns}, {"max_tokens", 2}}},
      {"/v1/messages", {{"messages", turns}, {"max_tokens", 2}}},
      {"/v1/messages/count_tokens", {{"messages", turns}}},
      {"/tokenize", {{"content", "The king said"}}},
      {"/detokenize", {{"tokens", {5, 6}}}},
      {"/apply-template", {{"messages", turns}}},
      {"/v1/embeddings", {{"input", "The king said"}}},
      {"/v1/memories", {{"name", "other"}}},
      {"/v1/memories/book/read", {{"ids", {5, 6}}}},
      {"/v1/memories/book/fork", {{"name", "third"}}},
      {"/v1/memories/book/forget", {{"event", 0}}},
      {"/v1/memories/book/pin", {{"event", 0}}},
      {"/v1/memories/book/rewind", {{"tokens", 3}}},
      {"/v1/memories/book/verify", json::object()},
      {"/v1/nothing", json::object()},
  };
  WrongBodies wrong(seed);
  httplib::Client client = running.client();
  client.set_keep_alive(true);
  int refused = 0, answered = 0, connections_closed = 0;
  for (int i = 0; i < count; ++i) {
    const auto& [path, valid] = routes[static_cast<std::size_t>(i) % routes.size()];
    const std::string body = wrong.next(valid);
    const auto response = client.Post(path, body, "application/json");
    INFO("request " << i << " of seed " << seed << " to " << path << ": " << body.substr(0, 2000));
    if (!response) {  // a connection has an end; the next one serves
      REQUIRE(++connections_closed < 3 + count / 100);
      continue;
    }
    INFO(response->body.substr(0, 2000));
    REQUIRE(((response->status >= 200 && response->status < 300) ||
             (response->status >= 400 && response->status < 500)));
    if (response->status < 400) {
      ++answered;
      continue;
    }
    ++refused;
    const json error = json::parse(response->body);
    const bool messages = std::string(path).starts_with("/v1/messages");
    REQUIRE(error["error"]["message"].is_string());
    REQUIRE(error["error"]["type"].is_string());
    REQUIRE(error.contains("type") == messages);
    REQUIRE(error["error"]["message"].get<std::string>().find_first_of("\r\n") ==
            std::string::npos);
    REQUIRE(response->body.size() < 4000);
  }
  REQUIRE(refused > count / 2);
  REQUIRE(answered > count / 20);  // not all are wrong: what is right goes on beside them
  REQUIRE(running.healthy());
  REQUIRE(comes([&] { return service.scheduler().counters().places == 0; }));
  for (std::size_t i = 0; i < 3; ++i)
    REQUIRE(post(running, routes[i].first, routes[i].second.dump()).first == 200);
  const auto verified = post(running, "/v1/memories/book/verify", "{}");
  REQUIRE(verified.second["ok"] == true);
}

/// Texts of a stream of events, put together; nothing where it did not come to its end.
std::string text_of_stream(const std::string& answer, bool messages) {
  const std::string end = messages ? "event: message_stop\n" : "data: [DONE]\n";
  if (answer.find(end) == answer.npos) return "no end";
  // chunks of HTTP: sizes stand on lines of their own between events, which are whole in each
  std::string text;
  for (std::size_t at = 0; (at = answer.find("data: {", at)) != answer.npos;) {
    const std::size_t line = answer.find('\n', at);
    const json event = json::parse(answer.substr(at + 6, line - at - 6));
    at = line;
    if (messages && event["type"] == "content_block_delta")
      text += event["delta"]["text"].get<std::string>();
    if (!messages && !event["choices"].empty())
      text += event["choices"][0]["text"].get<std::string>();
  }
  return text;
}

}  // namespace

TEST_CASE("serve: a few hundred random wrong bodies are refused, and nothing falls") {
  send_wrong_bodies(320, 1);
}

TEST_CASE("serve: 10,000 random wrong bodies are refused, and nothing falls", "[heavy]") {
  for (std::uint64_t seed = 2; seed < 7; ++seed) send_wrong_bodies(2000, seed);
}

TEST_CASE("serve: 32 streams at once, half of them read slowly, have each their own answer") {
  const TempDir dir;
  make_chat_model(dir / "model");
  const std::shared_ptr<const Model> model = load_model(dir / "model");
  auto root = std::make_shared<Sequence>(model);
  root->attach();
  SchedulerOptions limits;
  limits.parallel = 8;
  Service service(model, std::make_shared<StartingPoint>(std::move(root)), nullptr, limits);
  const Running running(service);
  struct Asked {
    bool messages;
    json body;
    std::string text;
  };
  std::vector<Asked> asked;
  for (int i = 0; i < 8; ++i) {
    Asked one{i % 2 == 1,
              {{"max_tokens", 30}, {"ignore_eos", true}, {"seed", i}, {"temperature", 0.8}},
              {}};
    const std::string prompt = fmt::format("The king said for time {} that", i);
    if (one.messages)
      one.body["messages"] = json::array({say("user", prompt)});
    else
      one.body["prompt"] = prompt;
    const auto [status, whole] =
        post(running, one.messages ? "/v1/messages" : "/v1/completions", one.body.dump());
    REQUIRE(status == 200);
    one.text = one.messages ? whole["content"][0]["text"] : whole["choices"][0]["text"];
    REQUIRE(!one.text.empty());
    one.body["stream"] = true;
    asked.push_back(std::move(one));
  }
  std::vector<std::thread> clients;
  std::atomic<int> right = 0;
  for (std::size_t i = 0; i < 32; ++i)
    clients.emplace_back([&, i] {
      const Asked& mine = asked[i % asked.size()];
      const bool slow = i >= 16;
      Raw raw(running, slow ? 4096 : 0);
      raw.send(post_text(mine.body, "", mine.messages ? "/v1/messages" : "/v1/completions"));
      std::string answer;
      if (!slow) answer = raw.receive();
      for (std::string some = "."; slow && !some.empty();) {
        some = raw.receive_some(97);
        answer += some;
        std::this_thread::sleep_for(milliseconds(2));
      }
      if (text_of_stream(answer, mine.messages) == mine.text) ++right;
    });
  for (std::thread& client : clients) client.join();
  REQUIRE(right == 32);
  REQUIRE(service.scheduler().counters().given_up == 0);
  REQUIRE(service.scheduler().counters().places == 0);
  REQUIRE(running.healthy());
}
