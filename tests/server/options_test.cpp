// SPDX-License-Identifier: Apache-2.0
// Options of an answer over HTTP: forms that it may have, penalties, biases, log-probabilities.
#include "support/test.hpp"

#include <cmath>

#include "serving.hpp"

using namespace serving;

namespace {

/// A server of the shipped model with a chat format.
struct Chat {
  Chat() {
    make_chat_model(dir / "model");
    engine = engine_of(dir / "model");
    SchedulerOptions limits;
    limits.parallel = 2;
    service = std::make_unique<Service>(*engine, limits);
    running = std::make_unique<Running>(*service);
  }
  std::pair<int, json> ask(json body) const {
    const bool chat = body.contains("messages");
    return post(*running, chat ? "/v1/chat/completions" : "/v1/completions", body.dump());
  }
  /// The text of an answer to a chat.
  std::string text(json body) const {
    body["messages"] = {say("user", "Who closed the door?")};
    const auto [status, answer] = ask(body);
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer["choices"][0]["message"]["content"];
  }
  std::string refused(json body) const {
    body["messages"] = {say("user", "a")};
    const auto [status, answer] = ask(body);
    if (status == 200) return "taken";
    REQUIRE(status == 400);
    return answer["error"]["param"].is_null() ? "" : answer["error"]["param"].get<std::string>();
  }

  TempDir dir;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Service> service;
  std::unique_ptr<Running> running;
};

}  // namespace

TEST_CASE("serve: an answer has the form that a request asks for") {
  const Chat chat;
  const json schema = json::parse(R"({"type": "object", "additionalProperties": false,
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 1,
    "maximum": 99}}, "required": ["name", "age"]})");
  const auto check = [&](const json& body) {
    const json answer = json::parse(chat.text(body));
    REQUIRE(answer.size() == 2);
    REQUIRE((answer["name"] == "Ann" || answer["name"] == "Bob"));
    REQUIRE(answer["age"].is_number_integer());
    REQUIRE(answer["age"] >= 1);
    REQUIRE(answer["age"] <= 99);
  };
  for (const int seed : {1, 2, 3}) {
    const json drawn{{"max_tokens", 80}, {"temperature", 1.5}, {"seed", seed}};
    json body = drawn;
    body["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"name", "x"}, {"schema", schema}}}};
    check(body);
    body = drawn;
    body["json_schema"] = schema;
    check(body);
    body = drawn;
    body["response_format"] = {{"type", "json_object"}, {"schema", schema}};
    check(body);
    body = drawn;
    body["grammar"] = "root ::= (\"yes\" | \"no\") \"!\"";
    const std::string said = chat.text(body);
    REQUIRE((said == "yes!" || said == "no!"));
    body = drawn;
    body["response_format"] = {{"type", "json_object"}};
    body["max_tokens"] = 40;
    REQUIRE(chat.text(body).starts_with("{"));  // as far as its tokens reach
  }
  // a stream has the same text
  json stream{{"messages", {say("user", "a")}},
              {"stream", true},
              {"json_schema", schema},
              {"max_tokens", 80}};
  const auto events =
      chat.running->client().Post("/v1/chat/completions", stream.dump(), "application/json");
  std::string text;
  for (std::size_t at = 0; (at = events->body.find("data: {", at)) != std::string::npos; ++at) {
    const std::string line = events->body.substr(at + 6, events->body.find('\n', at) - at - 6);
    text += json::parse(line)["choices"][0]["delta"].value("content", "");
  }
  REQUIRE(json::parse(text).contains("age"));

  REQUIRE(chat.refused({{"grammar", "root ::= other"}}) == "grammar");
  REQUIRE(chat.refused({{"json_schema", {{"type", "colour"}}}}) == "json_schema");
  REQUIRE(chat.refused({{"response_format", {{"type", "json_schema"}}}}) == "response_format");
  REQUIRE(chat.refused({{"grammar", "root ::= \"a\""}, {"json_schema", schema}}) == "json_schema");
  REQUIRE(chat.refused({{"response_format", {{"type", "text"}}}}) == "taken");
}

TEST_CASE("serve: biases and penalties choose other tokens") {
  const Chat chat;
  const auto tokens = [&](json body) {
    body["prompt"] = "The king said";
    body["max_tokens"] = 12;
    const auto [status, answer] = chat.ask(body);
    INFO(answer.dump());
    REQUIRE(status == 200);
    return chat.engine->tokenizer().encode(answer["choices"][0]["text"].get<std::string>(), false);
  };
  const auto plain = chat.engine->generate(std::string_view("The king said"), few_tokens(12)).ids;
  json biases = json::object();
  biases[std::to_string(plain[0])] = -100;
  const json answer = chat.ask({{"prompt", "The king said"},
                                {"max_tokens", 1},
                                {"logprobs", 1},
                                {"logit_bias", biases}})
                          .second["choices"][0];
  const json without = chat.ask({{"prompt", "The king said"}, {"max_tokens", 1}, {"logprobs", 1}})
                           .second["choices"][0];
  REQUIRE(answer["text"] != without["text"]);
  REQUIRE(tokens({{"frequency_penalty", 2}, {"presence_penalty", 2}}) != tokens(json::object()));
  REQUIRE(chat.ask({{"prompt", "a"}, {"logit_bias", {{"99999999", 1}}}}).first == 400);
}

TEST_CASE("serve: log-probabilities belong to the tokens that were drawn") {
  const Chat chat;
  const json asked{{"messages", {say("user", "Who closed the door?")}},
                   {"max_tokens", 5},
                   {"logprobs", true},
                   {"top_logprobs", 3}};
  const json choice = chat.ask(asked).second["choices"][0];
  const json& content = choice["logprobs"]["content"];
  REQUIRE(content.size() == 5);
  std::string text;
  for (const json& token : content) {
    REQUIRE(token["top_logprobs"].size() == 3);
    REQUIRE(token["logprob"] <= 0);
    REQUIRE(token["top_logprobs"][0]["token"] == token["token"]);  // greedy: the likeliest
    REQUIRE(token["top_logprobs"][0]["logprob"] >= token["top_logprobs"][1]["logprob"]);
    for (const json& byte : token["bytes"]) text += static_cast<char>(byte.get<int>());
  }
  REQUIRE(text.ends_with(choice["message"]["content"].get<std::string>()));
  // a stream has the same, token by token
  json stream = asked;
  stream["stream"] = true;
  const auto events =
      chat.running->client().Post("/v1/chat/completions", stream.dump(), "application/json");
  json streamed = json::array();
  for (std::size_t at = 0; (at = events->body.find("data: {", at)) != std::string::npos; ++at) {
    const std::string line = events->body.substr(at + 6, events->body.find('\n', at) - at - 6);
    const json part = json::parse(line)["choices"][0]["logprobs"];
    if (part.is_object())
      streamed.insert(streamed.end(), part["content"].begin(), part["content"].end());
  }
  REQUIRE(streamed == content);
  // a completion's form
  const json old = chat.ask({{"prompt", "The king"}, {"max_tokens", 4}, {"logprobs", 2}})
                       .second["choices"][0]["logprobs"];
  REQUIRE(old["tokens"].size() == 4);
  REQUIRE(old["token_logprobs"].size() == 4);
  REQUIRE(old["top_logprobs"][0].size() == 2);
  REQUIRE(old["text_offset"][0] == 0);
  REQUIRE(chat.ask({{"prompt", "a"}}).second["choices"][0]["logprobs"].is_null());
  REQUIRE(chat.refused({{"top_logprobs", 3}}) == "top_logprobs");
}

TEST_CASE("serve: answers that would take more memory than there is wait, or are refused") {
  const auto model = load_model(shipped());
  auto root = std::make_shared<Sequence>(model);
  root->attach();
  const auto start = std::make_shared<StartingPoint>(root);
  Work work;
  work.start = start;
  work.prompt.text = model->tokenizer().encode("The king said that the");
  work.options.max_new = 24;
  const std::int64_t each = work.bytes();
  REQUIRE(each > 0);
  Work longer = work;
  longer.options.max_new = 100'000;
  REQUIRE(longer.bytes() > 2 * each);
  SchedulerOptions options;
  options.parallel = 4;
  const auto answers = [&](std::int64_t bytes) {
    options.bytes = bytes;
    Scheduler scheduler(model, options);
    std::vector<std::shared_ptr<InFlight>> all;
    for (int i = 0; i < 6; ++i) all.push_back(scheduler.submit(scheduler.take_place(), work));
    std::int64_t most = 0;
    std::vector<std::vector<std::int64_t>> ids;
    for (const auto& one : all) {
      while (!one->wait(milliseconds(1)).ended) most = std::max(most, scheduler.counters().bytes);
      ids.push_back(one->served().result.ids);
    }
    REQUIRE(
        std::all_of(ids.begin(), ids.end(), [&](const auto& other) { return other == ids[0]; }));
    REQUIRE(ids[0].size() == 24);
    return most;
  };
  REQUIRE(answers(0) >= 2 * each);  // several at once, where nothing bounds them
  REQUIRE(answers(2 * each + 1) <= 2 * each + 1);
  options.bytes = each;
  Scheduler scheduler(model, options);
  try {
    scheduler.submit(scheduler.take_place(), longer);
    FAIL("taken");
  } catch (const RequestError& e) {
    REQUIRE(e.status() == 400);
    REQUIRE(e.parameter() == "max_tokens");
  }
  REQUIRE(scheduler.answer(work).result.ids.size() == 24);
}

TEST_CASE("serve: a short question waits for one piece of a book, and books for few questions") {
  const auto model = load_model(shipped());
  auto root = std::make_shared<Sequence>(model);
  root->attach();
  const std::int64_t chunk = root->chunk();
  SchedulerOptions options;
  options.parallel = 4;
  Scheduler scheduler(model, options);
  Work book;
  book.start = std::make_shared<StartingPoint>(root);
  book.reads_only = true;
  std::string text;
  while (std::ssize(book.prompt.text) < 40 * chunk) {
    text += "The king said that the door was closed. ";
    book.prompt.text = model->tokenizer().encode(text);
  }
  std::vector<std::shared_ptr<InFlight>> books, questions;
  const auto read = [&] {
    std::int64_t tokens = 0;
    for (const auto& one : books) tokens += one->wait(milliseconds(0)).read;
    return tokens;
  };

  // Each question is asked where the one before got its first token, in the thread that computes:
  // so it is known how far the books are. The first one, where a talker's tenth token came.
  constexpr int kQuestions = 12;
  std::vector<std::int64_t> asked, answered;
  std::function<void()> ask = [&] {
    Work question;
    question.start = book.start;
    question.prompt.question =
        model->tokenizer().encode("Who closed door " + std::to_string(questions.size()) + "?");
    question.options.max_new = 1;
    question.ends = [&] {
      return [&](std::string_view) {
        answered.push_back(read());
        if (asked.size() < kQuestions) ask();
        return false;
      };
    };
    asked.push_back(read());
    questions.push_back(scheduler.submit(scheduler.take_place(), std::move(question)));
  };
  Work talk;
  talk.start = book.start;
  talk.prompt.question = model->tokenizer().encode("The king");
  talk.options.max_new = 400;
  talk.ends = [&] {
    return [&, tokens = 0](std::string_view) mutable {
      if (++tokens == 10) ask();
      return false;
    };
  };
  for (int i = 0; i < 2; ++i) books.push_back(scheduler.submit(scheduler.take_place(), book));
  while (read() < chunk) std::this_thread::yield();
  const auto talker = scheduler.submit(scheduler.take_place(), std::move(talk));
  while (!talker->wait(milliseconds(10)).ended) {
  }
  REQUIRE(answered.size() == kQuestions);
  REQUIRE(answered.back() < 80 * chunk);  // the books were being read all the time
  for (int i = 0; i < kQuestions; ++i) {
    CAPTURE(i, asked[i], answered[i], chunk);
    REQUIRE(answered[i] - asked[i] <= chunk);
  }
  // at most three steps pass a book over, and a question takes two
  REQUIRE(answered.back() - asked.front() >= kQuestions / 2 * chunk);
  for (const auto& one : books) one->give_up(GivenUp::client_left);
}

TEST_CASE("serve: an answer calls tools, by itself or because it must") {
  const TempDir dir;
  make_chat_model(dir / "model", kToolTemplate);
  const auto engine = engine_of(dir / "model");
  Service service(*engine);
  const Running running(service);
  const json tools = json::parse(R"([
    {"type": "function", "function": {"name": "weather", "description": "of a town", "parameters":
      {"type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]}, "days": {"type":
      "integer", "minimum": 1, "maximum": 9}}, "required": ["town", "days"],
      "additionalProperties": false}}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object",
      "properties": {}, "additionalProperties": false}}}])");
  json body{{"messages", {say("user", "What is the weather in Rome?")}},
            {"tools", tools},
            {"max_tokens", 200},
            {"temperature", 1},
            {"seed", 3}};
  const auto ask = [&](const json& asked) {
    const auto [status, answer] = post(running, "/v1/chat/completions", asked.dump());
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer["choices"][0];
  };
  const auto check = [&](const json& call) {
    REQUIRE(call["type"] == "function");
    REQUIRE(!call["id"].get<std::string>().empty());
    const json arguments = json::parse(call["function"]["arguments"].get<std::string>());
    if (call["function"]["name"] == "time") {
      REQUIRE(arguments == json::object());
      return;
    }
    REQUIRE(call["function"]["name"] == "weather");
    REQUIRE((arguments["town"] == "Rome" || arguments["town"] == "Oslo"));
    REQUIRE(arguments["days"] >= 1);
    REQUIRE(arguments["days"] <= 9);
  };
  // by itself: what this small model says is no call, and is its answer
  const json plain = ask(body);
  REQUIRE(plain["message"]["content"].is_string());
  REQUIRE(!plain["message"].contains("tool_calls"));

  for (const json& choice :
       {json("required"),
        json::parse(R"({"type": "function", "function": {"name": "weather"}})")}) {
    json forced = body;
    forced["tool_choice"] = choice;
    forced["parallel_tool_calls"] = false;
    const json answer = ask(forced);
    REQUIRE(answer["finish_reason"] == "tool_calls");
    REQUIRE(answer["message"]["content"].is_null());
    REQUIRE(answer["message"]["tool_calls"].size() == 1);
    check(answer["message"]["tool_calls"][0]);
    if (choice.is_object())
      REQUIRE(answer["message"]["tool_calls"][0]["function"]["name"] == "weather");

    // a stream has the same call
    json stream = forced;
    stream["stream"] = true;
    const auto events =
        running.client().Post("/v1/chat/completions", stream.dump(), "application/json");
    std::string name, arguments, finish;
    for (std::size_t at = 0; (at = events->body.find("data: {", at)) != std::string::npos; ++at) {
      const std::string line = events->body.substr(at + 6, events->body.find('\n', at) - at - 6);
      const json part = json::parse(line)["choices"][0];
      for (const json& call : part["delta"].value("tool_calls", json::array())) {
        REQUIRE(call["index"] == 0);
        name += call["function"].value("name", "");
        arguments += call["function"].value("arguments", "");
      }
      if (part["finish_reason"].is_string()) finish = part["finish_reason"];
    }
    REQUIRE(finish == "tool_calls");
    const json& whole = answer["message"]["tool_calls"][0]["function"];
    REQUIRE(name == whole["name"]);
    REQUIRE(arguments == whole["arguments"]);

    // and the conversation continues behind what the tool said
    json next = body;
    next["messages"].push_back(answer["message"]);
    next["messages"].push_back({{"role", "tool"},
                                {"tool_call_id", answer["message"]["tool_calls"][0]["id"]},
                                {"content", "Sunny."}});
    REQUIRE(!ask(next)["message"]["content"].get<std::string>().empty());
  }
  json none = body;
  none["tool_choice"] = "none";
  REQUIRE(!ask(none)["message"].contains("tool_calls"));

  // of its own will, two calls; where one may be made, nothing is written behind it
  json two = body;
  two["grammar"] =
      R"(call ::= "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>"
root ::= "So. " call "\n" call " And on.")";
  const auto tokens_of = [&](json asked, std::size_t calls, const char* content) {
    const auto [status, answer] = post(running, "/v1/chat/completions", asked.dump());
    INFO(answer.dump());
    REQUIRE(status == 200);
    const json& choice = answer["choices"].back();
    REQUIRE(choice["finish_reason"] == "tool_calls");
    REQUIRE(choice["message"]["tool_calls"].size() == calls);
    REQUIRE(choice["message"]["content"] == content);
    return answer["usage"]["completion_tokens"].get<int>();
  };
  const int both = tokens_of(two, 2, "So. And on.");
  two["parallel_tool_calls"] = false;
  const int one = tokens_of(two, 1, "So.");
  REQUIRE(one < both * 2 / 3);
  two["n"] = 2;  // each ends by itself
  REQUIRE(tokens_of(two, 1, "So.") == 2 * one);
  // and the log-probabilities of a stream are those of the whole
  two["n"] = 1;
  two["logprobs"] = true;
  const json whole = ask(two)["logprobs"]["content"];
  REQUIRE(whole.size() == static_cast<std::size_t>(one));
  two["stream"] = true;
  const auto streamed =
      running.client().Post("/v1/chat/completions", two.dump(), "application/json");
  json parts = json::array();
  for (std::size_t at = 0; (at = streamed->body.find("data: {", at)) != std::string::npos; ++at) {
    const std::string line = streamed->body.substr(at + 6, streamed->body.find('\n', at) - at - 6);
    const json known = json::parse(line)["choices"][0]["logprobs"];
    if (known.is_object())
      parts.insert(parts.end(), known["content"].begin(), known["content"].end());
  }
  REQUIRE(parts == whole);
  const auto refused = [&](const char* field, const json& value) {
    json bad = body;
    bad[field] = value;
    const auto [status, answer] = post(running, "/v1/chat/completions", bad.dump());
    INFO(answer.dump());
    REQUIRE(status == 400);
    REQUIRE(answer["error"]["param"] == field);
  };
  refused("tools", json::array({5}));
  refused("tools", "weather");
  refused("tools", json::parse(R"([{"type": "function", "function": {"name": "a b"}}])"));
  refused("tool_choice", "sometimes");
  refused("tool_choice", json::parse(R"({"type": "function", "function": {"name": "tide"}})"));
}
