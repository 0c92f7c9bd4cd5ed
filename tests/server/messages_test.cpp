// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API: requests, whole answers, streams, errors, counts of tokens.
#include "support/test.hpp"

#include <fmt/format.h>

#include <set>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "protocol/messages_form.hpp"
#include "protocol/messages_request.hpp"
#include "serving.hpp"
#include "support/refusal.hpp"

using namespace serving;

namespace {

constexpr const char* kMessages = "/v1/messages";

json message_body(const std::string& text, const json& more = json::object()) {
  json body{{"model", "any"}, {"max_tokens", 6}, {"messages", {say("user", text)}}};
  body.update(more);
  return body;
}

/// The field that a message is refused for, or "taken".
std::string message_refusal(const json& body) {
  try {
    parse_messages_request(body.dump(), {});
  } catch (const RequestError& e) {
    REQUIRE(e.status() == 400);
    REQUIRE(std::string(e.what()).find('\n') == std::string::npos);
    return e.parameter();
  }
  return "taken";
}

/// Events of a stream, each with the name that its data has too.
std::vector<json> named_events(const std::string& body) {
  std::vector<json> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = body.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    const std::size_t line = event.find('\n');
    INFO(event);
    REQUIRE(event.starts_with("event: "));
    REQUIRE(event.substr(line + 1).starts_with("data: "));
    events.push_back(json::parse(event.substr(line + 7)));
    REQUIRE(events.back()["type"] == event.substr(7, line - 7));
  }
  return events;
}

struct MessagesServer {
  TempDir dir;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Service> service;
  std::unique_ptr<Running> running;

  explicit MessagesServer(SchedulerOptions limits = {}, ServerOptions options = {},
                          const char* chat_template = kTemplate) {
    make_chat_model(dir / "model", chat_template);
    engine = engine_of(dir / "model");
    service = std::make_unique<Service>(*engine, limits);
    running = std::make_unique<Running>(*service, std::move(options));
  }
  std::pair<int, json> ask(const json& body, const char* path = kMessages,
                           const httplib::Headers& headers = {}) const {
    return post(*running, path, body.dump(), headers);
  }
};

}  // namespace

TEST_CASE("messages: what a request says") {
  GenerateOptions defaults = few_tokens(9);
  defaults.stop = {"END"};
  const Request plain = parse_messages_request(message_body("a").dump(), defaults);
  REQUIRE((plain.kind == RequestKind::chat));
  REQUIRE(plain.messages.size() == 1);
  REQUIRE(plain.options.max_new == 6);
  REQUIRE(plain.options.stop == std::vector<std::string>{"END"});
  REQUIRE(plain.variables.empty());
  const Request all = parse_messages_request(R"({
    "model": "claude", "max_tokens": 7, "metadata": {"user_id": "u"}, "service_tier": "auto",
    "system": [{"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "brief.", "citations": null}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                 {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
                 {"role": "user", "content": "e"}],
    "stop_sequences": ["x", "y"], "stream": true, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3,
    "thinking": {"type": "disabled"}, "tools": [], "tool_choice": {"type": "auto"}, "container": null,
    "memory": "book", "store": true, "include": ["recall"], "return_progress": true})",
                                             defaults);
  REQUIRE(all.messages.size() == 4);
  REQUIRE(all.messages[0].role == "system");
  REQUIRE(all.messages[0].content == "Be brief.");
  REQUIRE(all.messages[1].content == "ab\n\nc");  // turns of one role in a row are one
  REQUIRE(all.messages[2].role == "assistant");
  REQUIRE(all.messages[3].content == "e");
  REQUIRE(all.options.max_new == 7);
  REQUIRE(all.options.stop == std::vector<std::string>{"x", "y"});
  REQUIRE(all.options.sampling.temperature == 0.5);
  REQUIRE(all.options.sampling.top_p == 0.9);
  REQUIRE(all.options.sampling.top_k == 7);
  REQUIRE(all.options.sampling.seed == 3);
  REQUIRE((all.stream && all.store && all.recall && all.progress));
  REQUIRE(all.memory == "book");
  REQUIRE(json::parse(all.variables) == json{{"enable_thinking", false}});
  const auto variables = [](const char* thinking) {
    return parse_messages_request(message_body("a", {{"thinking", json::parse(thinking)}}).dump(),
                                  {})
        .variables;
  };
  REQUIRE(json::parse(variables(R"({"type": "enabled", "budget_tokens": 1024})")) ==
          json{{"enable_thinking", true}});
  REQUIRE(variables(R"({"type": "adaptive"})").empty());
  // a system's text alone is no turn, and an empty one is none
  json empty = message_body("a", {{"system", ""}});
  REQUIRE(parse_messages_request(empty.dump(), {}).messages.size() == 1);
}

TEST_CASE("messages: what is wrong with a request is named") {
  const auto with = [](const char* field, const char* value) {
    json body = message_body("a");
    body[field] = json::parse(value);
    return message_refusal(body);
  };
  REQUIRE(message_refusal(message_body("a")) == "taken");
  for (const auto& [field, value] : std::vector<std::pair<const char*, const char*>>{
           {"max_tokens", "0"},
           {"max_tokens", "null"},
           {"max_tokens", "\"5\""},
           {"system", "5"},
           {"stop_sequences", "\"x\""},
           {"stop_sequences", "[\"\"]"},
           {"stop_sequences", "[1]"},
           {"temperature", "-1"},
           {"top_p", "2"},
           {"top_k", "-2"},
           {"seed", "0.5"},
           {"stream", "1"},
           {"store", "\"yes\""},
           {"include", "[\"all\"]"},
           {"memory", "7"},
           {"tools", R"([{"name": "f g", "input_schema": {}}])"},
           {"tools", R"([{"name": "bash", "type": "bash_20250124"}])"},
           {"tool_choice", R"({"type": "any"})"},
           {"tool_choice", R"({"type": "sometimes"})"},
           {"tool_choice", "\"auto\""},
           {"thinking", R"({"type": "enabled"})"},
           {"thinking", R"({"type": "enabled", "budget_tokens": 0})"},
           {"thinking", R"({"type": "sometimes"})"},
           {"thinking", "true"},
           {"mcp_servers", "[{}]"},
           {"container", "\"c\""},
           {"what", "1"},
           {"messages", "[]"},
           {"messages", "\"hello\""},
           {"messages",
            R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"}}) {
    INFO(field << ": " << value);
    REQUIRE(with(field, value) == field);
  }
  REQUIRE(with("system", R"([{"type": "image"}])") == "system[0]");
  REQUIRE(with("messages", "[5]") == "messages[0]");
  REQUIRE(with("messages", R"([{"role": "system", "content": "a"}])") == "messages[0].role");
  REQUIRE(with("messages", R"([{"role": "user"}])") == "messages[0].content");
  REQUIRE(with("messages", R"([{"role": "user", "content": 5}])") == "messages[0].content");
  REQUIRE(with("messages", R"([{"role": "user", "content": "a", "name": "b"}])") ==
          "messages[0].name");
  for (const char* type : {"image", "document", "tool_use", "thinking"})
    REQUIRE(
        with("messages",
             fmt::format(R"([{{"role": "user", "content": [{{"type": "{}"}}]}}])", type).c_str()) ==
        "messages[0].content[0]");
  for (const char* body : {"", "[]", "{", "5"}) {
    try {
      parse_messages_request(body, {});
      FAIL("taken");
    } catch (const RequestError& e) {
      REQUIRE(e.parameter().empty());
    }
  }
}

TEST_CASE("messages: an answer, whole and as a stream of named events") {
  const MessagesServer server;
  const json body = message_body("Who is it?", {{"system", "Be brief."}, {"seed", 1}});
  const auto [counted, count] = server.ask(body, "/v1/messages/count_tokens");
  REQUIRE(counted == 200);
  const auto [status, whole] = server.ask(body);
  INFO(whole.dump());
  REQUIRE(status == 200);
  REQUIRE(whole["type"] == "message");
  REQUIRE(whole["role"] == "assistant");
  REQUIRE(whole["model"] == "tiny");
  REQUIRE(whole["id"].get<std::string>().starts_with("msg"));
  REQUIRE(whole["content"].size() == 1);
  REQUIRE(whole["content"][0]["type"] == "text");
  const std::string text = whole["content"][0]["text"];
  REQUIRE(!text.empty());
  REQUIRE(whole["stop_reason"] == "max_tokens");
  REQUIRE(whole["stop_sequence"].is_null());
  REQUIRE(whole["usage"]["output_tokens"] == 6);
  REQUIRE(whole["usage"]["input_tokens"] == count["input_tokens"]);
  REQUIRE(whole["usage"]["cache_read_input_tokens"] == 0);
  // it is the chat's answer
  const auto chat =
      server.ask({{"messages", {say("system", "Be brief."), say("user", "Who is it?")}},
                  {"max_tokens", 6},
                  {"seed", 1}},
                 "/v1/chat/completions");
  REQUIRE(chat.second["choices"][0]["message"]["content"] == text);
  REQUIRE(chat.second["usage"]["prompt_tokens"] == count["input_tokens"]);

  json streamed = body;
  streamed["stream"] = true;
  const auto response =
      server.running->client().Post(kMessages, streamed.dump(), "application/json");
  REQUIRE(response);
  REQUIRE(response->get_header_value("Content-Type") == "text/event-stream");
  const std::vector<json> events = named_events(response->body);
  std::vector<std::string> order;
  std::string all;
  for (const json& event : events) {
    const std::string type = event["type"];
    if (type == "content_block_delta") {
      REQUIRE(event["delta"]["type"] == "text_delta");
      REQUIRE(event["index"] == 0);
      all += event["delta"]["text"].get<std::string>();
    }
    if (order.empty() || order.back() != type) order.push_back(type);
  }
  REQUIRE(all == text);
  REQUIRE(order == std::vector<std::string>{"message_start", "content_block_start", "ping",
                                            "content_block_delta", "content_block_stop",
                                            "message_delta", "message_stop"});
  const json& start = events.front()["message"];
  REQUIRE(start["content"].empty());
  REQUIRE(start["stop_reason"].is_null());
  REQUIRE(start["usage"]["input_tokens"] == count["input_tokens"]);
  REQUIRE(start["usage"]["output_tokens"] == 0);
  REQUIRE(events[1]["content_block"] == json{{"type", "text"}, {"text", ""}});
  const json& last = events[events.size() - 2];
  REQUIRE(last["delta"] == json{{"stop_reason", "max_tokens"}, {"stop_sequence", nullptr}});
  REQUIRE(last["usage"]["output_tokens"] == 6);
  // the whole prompt is what was read and what need not be read again
  REQUIRE(last["usage"]["input_tokens"].get<int>() +
              last["usage"]["cache_read_input_tokens"].get<int>() ==
          count["input_tokens"].get<int>());
  REQUIRE(last["usage"]["cache_read_input_tokens"].get<int>() > 0);
}

TEST_CASE("messages: the sequence that ended an answer is told") {
  const MessagesServer server;
  json body = message_body("Who is it?", {{"max_tokens", 24}, {"seed", 1}});
  const std::string text = server.ask(body).second["content"][0]["text"];
  REQUIRE(text.size() > 8);
  const std::string stop = text.substr(text.size() / 2, 3);
  body["stop_sequences"] = json::array({"never in it", stop});
  const json whole = server.ask(body).second;
  REQUIRE(whole["stop_reason"] == "stop_sequence");
  REQUIRE(whole["stop_sequence"] == stop);
  REQUIRE(whole["content"][0]["text"] == text.substr(0, text.find(stop)));
  body["stream"] = true;
  const auto response = server.running->client().Post(kMessages, body.dump(), "application/json");
  REQUIRE(response);
  const std::vector<json> events = named_events(response->body);
  REQUIRE(events[events.size() - 2]["delta"] ==
          json{{"stop_reason", "stop_sequence"}, {"stop_sequence", stop}});
}

TEST_CASE("messages: an answer without a text has an empty block") {
  const MessagesServer server;
  json body = message_body("Who is it?", {{"max_tokens", 24}, {"seed", 1}});
  const std::string text = server.ask(body).second["content"][0]["text"];
  body["stop_sequences"] = json::array({text.substr(0, 1)});
  const json whole = server.ask(body).second;
  REQUIRE(whole["content"] == json::array({{{"type", "text"}, {"text", ""}}}));
  REQUIRE(whole["stop_reason"] == "stop_sequence");
  body["stream"] = true;
  const auto response = server.running->client().Post(kMessages, body.dump(), "application/json");
  REQUIRE(response);
  std::set<std::string> types;
  for (const json& event : named_events(response->body)) types.insert(event["type"]);
  REQUIRE(types.count("content_block_start") == 1);
  REQUIRE(types.count("content_block_stop") == 1);
  REQUIRE(types.count("content_block_delta") == 0);
}

TEST_CASE("messages: calls and their results become messages of a chat") {
  const auto read = [](const char* messages) {
    json body = message_body("a");
    body["messages"] = json::parse(messages);
    return parse_messages_request(body.dump(), {}).messages;
  };
  const std::vector<ChatMessage> all = read(R"([
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [{"type": "text", "text": "Let me see."},
      {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}, "cache_control": null},
      {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "7"}]},
      {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": true},
      {"type": "text", "text": "And then?"}]}])");
  REQUIRE(all.size() == 5);
  REQUIRE(all[1].role == "assistant");
  REQUIRE(all[1].content == "Let me see.");
  REQUIRE(json::parse(all[1].fields)["tool_calls"] == json::parse(R"([
    {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
    {"id": "t2", "type": "function", "function": {"name": "g", "arguments": {}}}])"));
  REQUIRE(all[2].role == "tool");
  REQUIRE(all[2].content == "7");
  REQUIRE(json::parse(all[2].fields) == json{{"tool_call_id", "t2"}, {"name", "g"}});
  REQUIRE(all[3].content == "no");
  REQUIRE(json::parse(all[3].fields) ==
          json{{"tool_call_id", "t1"}, {"name", "f"}, {"is_error", true}});
  REQUIRE(all[4].role == "user");
  REQUIRE(all[4].content == "And then?");
  // a turn may end with results alone
  REQUIRE(read(R"([{"role": "user", "content": "a"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}])")
              .back()
              .role == "tool");
  const auto refused = [](const char* role, const char* block) {
    json body = message_body("a");
    body["messages"] = json::parse(fmt::format(
        R"([{{"role": "{}", "content": [{}]}}, {{"role": "user", "content": "b"}}])", role, block));
    return message_refusal(body);
  };
  const char* const at = "messages[0].content[0]";
  REQUIRE(refused("user", R"({"type": "tool_use", "id": "t", "name": "f", "input": {}})") == at);
  REQUIRE(refused("assistant", R"({"type": "tool_result", "tool_use_id": "t"})") == at);
  const std::string place = at;
  REQUIRE(refused("user", R"({"type": "tool_result", "tool_use_id": "t"})") ==
          place + ".tool_use_id");
  REQUIRE(refused("user", R"({"type": "tool_result"})") == place + ".tool_use_id");
  REQUIRE(refused("assistant", R"({"type": "tool_use", "name": "f", "input": {}})") ==
          place + ".id");
  REQUIRE(refused("assistant", R"({"type": "tool_use", "id": "t", "input": {}})") ==
          place + ".name");
  REQUIRE(refused("assistant", R"({"type": "tool_use", "id": "t", "name": "f", "input": "x"})") ==
          place + ".input");
}

TEST_CASE("messages: an answer calls tools, whole and as a stream, and goes on with the result") {
  const MessagesServer server({}, {}, kToolTemplate);
  const json tools = json::parse(R"([{"name": "weather", "description": "of a town", "input_schema":
    {"type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]}, "days": {"type":
    "integer", "minimum": 1, "maximum": 9}}, "required": ["town", "days"],
    "additionalProperties": false}}])");
  json body = message_body("What is the weather in Rome?",
                           {{"max_tokens", 200}, {"seed", 3}, {"tools", tools}});
  // what this small model says by itself is no call
  const json plain = server.ask(body).second;
  INFO(plain.dump());
  REQUIRE(plain["content"].size() == 1);
  REQUIRE(plain["content"][0]["type"] == "text");
  REQUIRE(plain["stop_reason"] != "tool_use");
  for (const char* choice :
       {R"({"type": "any", "disable_parallel_tool_use": true})",
        R"({"type": "tool", "name": "weather", "disable_parallel_tool_use": true})"}) {
    json forced = body;
    forced["tool_choice"] = json::parse(choice);
    const json whole = server.ask(forced).second;
    INFO(whole.dump());
    REQUIRE(whole["stop_reason"] == "tool_use");
    REQUIRE(whole["stop_sequence"].is_null());
    REQUIRE(whole["content"].size() == 1);
    const json& call = whole["content"][0];
    REQUIRE(call["type"] == "tool_use");
    REQUIRE(call["name"] == "weather");
    REQUIRE(!call["id"].get<std::string>().empty());
    REQUIRE((call["input"]["town"] == "Rome" || call["input"]["town"] == "Oslo"));
    REQUIRE(call["input"]["days"] >= 1);

    forced["stream"] = true;
    const auto response =
        server.running->client().Post(kMessages, forced.dump(), "application/json");
    REQUIRE(response);
    std::vector<std::string> order;
    std::string input;
    json block;
    for (const json& event : named_events(response->body)) {
      const std::string type = event["type"];
      if (event.contains("index")) REQUIRE(event["index"] == 0);
      if (type == "content_block_start") block = event["content_block"];
      if (type == "content_block_delta") {
        REQUIRE(event["delta"]["type"] == "input_json_delta");
        input += event["delta"]["partial_json"].get<std::string>();
      }
      if (type == "message_delta") REQUIRE(event["delta"]["stop_reason"] == "tool_use");
      if (type != "ping" && (order.empty() || order.back() != type)) order.push_back(type);
    }
    REQUIRE(order == std::vector<std::string>{"message_start", "content_block_start",
                                              "content_block_delta", "content_block_stop",
                                              "message_delta", "message_stop"});
    REQUIRE(block["type"] == "tool_use");
    REQUIRE(block["name"] == "weather");
    REQUIRE(block["input"] == json::object());
    REQUIRE(json::parse(input) == call["input"]);

    // the result is read behind the call: each of its tokens counts
    const auto counted = [&](const std::string& result) {
      json next = body;
      next["messages"].push_back({{"role", "assistant"}, {"content", whole["content"]}});
      next["messages"].push_back(
          {{"role", "user"},
           {"content",
            {{{"type", "tool_result"}, {"tool_use_id", call["id"]}, {"content", result}}}}});
      next["max_tokens"] = 4;
      const auto [status, answer] = server.ask(next);
      INFO(answer.dump());
      REQUIRE(status == 200);
      next.erase("max_tokens");
      const json count = server.ask(next, "/v1/messages/count_tokens").second;
      const json& usage = answer["usage"];
      REQUIRE(count["input_tokens"] ==
              usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
      return count["input_tokens"].get<int>();
    };
    REQUIRE(counted("sunny") + 3 <= counted("sunny and warm from now on, they say"));
  }
  json none = body;
  none["tool_choice"] = {{"type", "none"}};
  REQUIRE(server.ask(none, "/v1/messages/count_tokens").second["input_tokens"] <
          server.ask(body, "/v1/messages/count_tokens").second["input_tokens"]);
}

TEST_CASE("messages: several calls and texts are blocks in their order") {
  const TempDir dir;
  make_chat_model(dir / "model", kToolTemplate);
  const auto model = load_model(dir / "model");
  ToolUse use{ToolCallFormat(model->chat_template()),
              read_tools(R"([{"name": "f"}])", "tools", ToolForm::messages), "", false, true};
  const char* const text =
      "One. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>\n"
      "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> Two.";
  for (const bool parallel : {true, false}) {
    use.parallel = parallel;
    MessagesForm::Head head;
    head.tools = std::make_shared<const ToolUse>(use);
    Served served;
    served.result.text = text;
    MessagesForm whole(head), streamed(head);
    const json message = json::parse(text_of(whole.whole({&served, 1})));
    REQUIRE(message["stop_reason"] == "tool_use");
    const json& content = message["content"];
    REQUIRE(content.size() == (parallel ? 4 : 2));
    REQUIRE(content[0] == json{{"type", "text"}, {"text", "One."}});
    REQUIRE(content[1]["input"] == json{{"a", 2}, {"b", 1}});
    if (parallel) REQUIRE(content[3] == json{{"type", "text"}, {"text", " Two."}});
    std::string events;
    for (const char* c = text; *c; ++c) events += streamed.part(0, Part{std::string(1, *c)});
    events += streamed.end_of_choice(0, served);
    json blocks = json::array();
    std::vector<std::string> inputs;
    for (const json& event : named_events(events)) {
      if (event["type"] == "content_block_start") {
        REQUIRE(event["index"] == blocks.size());
        blocks.push_back(event["content_block"]);
        inputs.emplace_back();
      }
      if (event["type"] == "content_block_stop") REQUIRE(event["index"] == blocks.size() - 1);
      if (event["type"] != "content_block_delta") continue;
      REQUIRE(event["index"] == blocks.size() - 1);
      if (event["delta"]["type"] == "text_delta")
        blocks.back()["text"].get_ref<std::string&>() += event["delta"]["text"].get<std::string>();
      else
        inputs.back() += event["delta"]["partial_json"].get<std::string>();
    }
    REQUIRE(blocks.size() == content.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (content[i]["type"] == "text") {
        REQUIRE(blocks[i] == content[i]);
      } else {
        REQUIRE(blocks[i]["name"] == content[i]["name"]);
        REQUIRE(json::parse(inputs[i]) == content[i]["input"]);
      }
    }
  }
}

TEST_CASE("messages: every error has Anthropic's form, whoever finds it") {
  SchedulerOptions limits;
  limits.queue = 0;
  ServerOptions options;
  options.limits.body = 2 << 20;
  options.access.api_key = "secret";
  const MessagesServer server(limits, options);
  const httplib::Headers key{{"x-api-key", "secret"}, {"anthropic-version", "2023-06-01"}};
  const auto check = [&](const std::pair<int, json>& answer, int status, const char* type) {
    INFO(answer.second.dump());
    REQUIRE(answer.first == status);
    REQUIRE(answer.second["type"] == "error");
    REQUIRE(answer.second["error"]["type"] == type);
    REQUIRE(answer.second["error"]["message"].get<std::string>().size() > 5);
  };
  check(server.ask(message_body("a")), 401, "authentication_error");
  check(server.ask(message_body("a"), "/messages/count_tokens?beta=true"), 401,
        "authentication_error");
  check(server.ask({{"messages", {say("user", "a")}}}, kMessages, key), 400,
        "invalid_request_error");
  check(server.ask(message_body("a"), "/v1/messages/batches", key), 404, "not_found_error");
  check(server.ask(message_body("a", {{"memory", "book"}}), kMessages, key), 404,
        "not_found_error");
  check(server.ask(message_body("a", {{"memory", "book"}}), "/v1/messages/count_tokens", key), 404,
        "not_found_error");
  const auto wrong_method = server.running->client().Get(kMessages, key);
  REQUIRE(wrong_method);
  check({wrong_method->status, json::parse(wrong_method->body)}, 405, "invalid_request_error");
  const auto long_body =
      server.running->client().Post(kMessages, key, std::string(4 << 20, ' '), "application/json");
  if (long_body)  // else the client found the connection closed while it sent
    check({long_body->status, json::parse(long_body->body)}, 413, "request_too_large");
  // other paths keep OpenAI's, their beginnings alike or not
  for (const char* path : {"/v1/chat/completions", "/v1/messagesx", "/v1/xmessages"})
    REQUIRE(!server.ask(json::object(), path, key).second.contains("type"));
  // while another is answered there is no place
  Raw busy(*server.running);
  busy.send(post_text(
      message_body("a", {{"max_tokens", 2'000'000}, {"stream", true}, {"ignore_eos", true}}),
      "x-api-key: secret\r\n", kMessages));
  REQUIRE(busy.receive("content_block_delta").find("200 OK") != std::string::npos);
  check(server.ask(message_body("a"), kMessages, key), 429, "rate_limit_error");
  // counting takes none
  REQUIRE(server.ask(message_body("a"), "/v1/messages/count_tokens", key).first == 200);
  // one that breaks off has its error as an event
  server.running->server().stop();
  const std::string rest = busy.receive();
  REQUIRE(rest.find(
              "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"") !=
          std::string::npos);
}

TEST_CASE("messages: a stream that waits is pinged, and told of a long prompt") {
  ServerOptions options;
  options.silence = milliseconds(50);
  const MessagesServer server({}, options);
  Raw busy(*server.running);
  busy.send(post_text(
      message_body("a", {{"max_tokens", 2'000'000}, {"stream", true}, {"ignore_eos", true}}), "",
      kMessages));
  REQUIRE(busy.receive("content_block_delta").find("200 OK") != std::string::npos);
  Raw waiting(*server.running);
  waiting.send(post_text(
      message_body(program::some_book(400), {{"stream", true}, {"return_progress", true}}), "",
      kMessages));
  const std::string first = waiting.receive("event: ping\n");
  REQUIRE(first.find("event: message_start\n") != std::string::npos);
  REQUIRE(first.find(": waiting") == std::string::npos);
  REQUIRE(first.find("content_block_start") == std::string::npos);
  busy.leave();
  const std::string rest = waiting.receive();
  REQUIRE(rest.find("\"prompt_progress\":{\"total\":") != std::string::npos);
  REQUIRE(rest.find("event: message_stop\n") != std::string::npos);
}

TEST_CASE("messages: behind a memory, and kept in it") {
  const TempDir dir;
  make_chat_model(dir / "model");
  const std::shared_ptr<const Model> model = load_model(dir / "model");
  Memories memories(model, dir / "memories", memory_config_of(dir / "model"), 100'000);
  auto root = std::make_shared<Sequence>(model);
  root->attach();
  Service service(model, std::make_shared<StartingPoint>(std::move(root)), &memories);
  const Running running(service);
  REQUIRE(post(running, "/v1/memories", R"({"name": "book"})").first == 201);
  const std::string book = program::some_book(60);
  REQUIRE(post(running, "/v1/memories/book/read", json{{"text", book}}.dump()).first == 200);
  const std::int64_t read = memories.info("book").tokens;
  const json body = message_body("Who is it?", {{"seed", 1}});
  const auto ask = [&](const json& more, const httplib::Headers& headers = {}) {
    json all = body;
    all.update(more);
    const auto [status, answer] = post(running, kMessages, all.dump(), headers);
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer;
  };
  const json by_field = ask({{"memory", "book"}, {"include", {"recall"}}});
  REQUIRE(by_field["recalled"].is_array());
  const json by_header = ask(json::object(), {{"X-Episodic-Memory", "book"}});
  REQUIRE(by_header["content"] == by_field["content"]);
  REQUIRE(memories.info("book").tokens == read);
  json counted = body;
  counted["memory"] = "book";
  const json count = post(running, "/v1/messages/count_tokens", counted.dump()).second;
  const json& usage = by_field["usage"];
  REQUIRE(count["input_tokens"] ==
          usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
  // `store` keeps the turn; where no memory is named it means nothing
  ask({{"store", true}});
  REQUIRE(memories.info("book").tokens == read);
  const json kept = ask({{"store", true}}, {{"X-Episodic-Memory", "book"}});
  REQUIRE(kept["content"] == by_field["content"]);
  REQUIRE(memories.info("book").tokens ==
          read + count["input_tokens"].get<int>() + kept["usage"]["output_tokens"].get<int>());
}
