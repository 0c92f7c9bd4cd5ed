// SPDX-License-Identifier: Apache-2.0
// Answers with thoughts and channels in each protocol, whole and as a stream.
#include "episodic/session/conversation.hpp"
#include "protocol/messages_form.hpp"
#include "protocol/messages_request.hpp"
#include "protocol/openai_form.hpp"
#include "protocol/responses_form.hpp"
#include "protocol/responses_request.hpp"
#include "serving.hpp"
#include "support/temp_dir.hpp"

using namespace serving;

namespace parted_forms_test {

constexpr const char* kHarmony =
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}{# <|channel|> #}";
constexpr const char* kThinks =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}"
    "<assistant>{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

const std::string kThought = "<|channel|>analysis<|message|>Hm, a book.<|end|><|start|>assistant";
const std::string kFinal = kThought + "<|channel|>final<|message|>Jane Austen.";
const std::string kCalled =
    kThought +
    "<|channel|>commentary to=functions.year <|constrain|>json<|message|>{\"book\": \"Emma\"}";

std::shared_ptr<const ToolUse> harmony_use() {
  return std::make_shared<const ToolUse>(
      ToolUse{.format = ToolCallFormat(ChatTemplate(kHarmony, "T")),
              .tools = read_tools(R"([{"type": "function", "function": {"name": "year"}}])")});
}

Served served_of(const std::string& text, bool cut = false) {
  Served served;
  served.result.text = text;
  served.result.finish = cut ? FinishReason::length : FinishReason::stop_token;
  return served;
}

/// The data of a stream of events.
std::vector<json> data_of(const std::string& events) {
  std::vector<json> all;
  for (std::size_t at = events.find("data: {"); at != events.npos;
       at = events.find("data: {", at + 1))
    all.push_back(json::parse(events.substr(at + 6, events.find('\n', at) - at - 6)));
  return all;
}

template <class Form>
std::string streamed(Form& form, const Served& served) {
  std::string events = form.begin();
  for (const char c : served.result.text) {
    Part part;
    part.text = std::string(1, c);
    events += form.part(0, part);
  }
  return events + form.end_of_choice(0, served) + form.end({&served, 1});
}

struct Wanted {
  std::string text, content, reasoning, arguments;
  bool cut = false;
};

std::vector<Wanted> wanted() {
  return {{kFinal, "Jane Austen.", "Hm, a book.", "", false},
          {kCalled, "", "Hm, a book.", "{\"book\": \"Emma\"}", false},
          {kThought.substr(0, kThought.size() - 26), "", "Hm, a book", "", true},
          {"<|channel|>analysis<|message|>Hm<|en", "", "Hm<|en", "", true},
          {"Plain.", "Plain.", "", "", false}};
}

TEST_CASE("parted forms: a chat completion has what was thought beside its content") {
  for (const Wanted& want : wanted()) {
    OpenAiForm::Head head;
    head.kind = RequestKind::chat;
    head.tools = harmony_use();
    const Served served = served_of(want.text, want.cut);
    OpenAiForm whole(head), parts(head);
    const json choice = json::parse(text_of(whole.whole({&served, 1})))["choices"][0];
    const json& message = choice["message"];
    INFO(message.dump());
    CHECK(choice["finish_reason"] == (!want.arguments.empty() ? "tool_calls"
                                      : want.cut              ? "length"
                                                              : "stop"));
    if (want.arguments.empty())
      CHECK(message["content"] == want.content);
    else
      CHECK(message["content"].is_null());
    CHECK(message.value("reasoning_content", "") == want.reasoning);
    CHECK(message.contains("tool_calls") == !want.arguments.empty());
    std::string content, reasoning, arguments, finish;
    for (const json& event : data_of(streamed(parts, served))) {
      const json& part = event["choices"][0];
      content += part["delta"].value("content", "");
      reasoning += part["delta"].value("reasoning_content", "");
      if (part["delta"].contains("tool_calls"))
        arguments += part["delta"]["tool_calls"][0]["function"].value("arguments", "");
      if (part["finish_reason"].is_string()) finish = part["finish_reason"];
    }
    CHECK(content == want.content);
    CHECK(reasoning == want.reasoning);
    CHECK(arguments == want.arguments);
    CHECK(finish == choice["finish_reason"]);
  }
}

TEST_CASE("parted forms: a message has thoughts, texts and calls as blocks") {
  for (const Wanted& want : wanted()) {
    MessagesForm::Head head;
    head.tools = harmony_use();
    const Served served = served_of(want.text, want.cut);
    MessagesForm whole(head), parts(head);
    const json content = json::parse(text_of(whole.whole({&served, 1})))["content"];
    INFO(content.dump());
    json blocks = json::array();
    std::string input;
    for (const json& event : data_of(streamed(parts, served))) {
      if (event["type"] == "content_block_start") blocks.push_back(event["content_block"]);
      if (event["type"] == "content_block_stop") CHECK(event["index"] == blocks.size() - 1);
      if (event["type"] != "content_block_delta") continue;
      const json& delta = event["delta"];
      if (delta["type"] == "text_delta")
        blocks.back()["text"] =
            blocks.back()["text"].get<std::string>() + delta["text"].get<std::string>();
      else if (delta["type"] == "thinking_delta")
        blocks.back()["thinking"] =
            blocks.back()["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      else
        input += delta["partial_json"].get<std::string>();
    }
    if (!want.arguments.empty()) {
      CHECK(json::parse(input) == json::parse(want.arguments));
      CHECK(content.back()["input"] == json::parse(want.arguments));
      CHECK(blocks.back()["type"] == "tool_use");
    } else {
      CHECK(blocks == content);
    }
    CHECK(content.front()["type"] == (want.reasoning.empty() ? "text" : "thinking"));
    if (!want.reasoning.empty()) CHECK(content[0]["thinking"] == want.reasoning);
    if (!want.content.empty()) CHECK(content.back()["text"] == want.content);
  }
}

TEST_CASE("parted forms: a response has an item of reasoning before its message") {
  for (const Wanted& want : wanted()) {
    ResponsesForm::Head head;
    head.tools = harmony_use();
    head.id = "resp_1";
    const Served served = served_of(want.text, want.cut);
    ResponsesForm whole(head), parts(head);
    const json output = json::parse(text_of(whole.whole({&served, 1})))["output"];
    INFO(output.dump());
    std::size_t at = 0;
    if (!want.reasoning.empty()) {
      CHECK(output[at]["type"] == "reasoning");
      CHECK(output[at]["content"][0] == json{{"type", "reasoning_text"}, {"text", want.reasoning}});
      CHECK(output[at++]["status"] == (want.cut ? "incomplete" : "completed"));
    }
    if (!want.content.empty()) CHECK(output[at++]["content"][0]["text"] == want.content);
    if (!want.arguments.empty()) CHECK(output[at++]["arguments"] == want.arguments);
    CHECK(output.size() == at);
    std::string reasoning, content;
    json last;
    for (const json& event : data_of(streamed(parts, served))) {
      if (event["type"] == "response.reasoning_text.delta") reasoning += event["delta"];
      if (event["type"] == "response.output_text.delta") content += event["delta"];
      if (event["type"] == "response.reasoning_text.done") CHECK(event["text"] == want.reasoning);
      last = event;
    }
    CHECK(reasoning == want.reasoning);
    CHECK(content == want.content);
    CHECK(last["response"]["output"].size() == output.size());
    // what comes back with the next request is the assistant's
    const std::string sent = json{{"input", output}}.dump();
    if (want.reasoning.empty()) continue;
    json items = output;
    items.push_back({{"role", "user"}, {"content", "And?"}});
    const auto messages = messages_of_items(items_of(items, "input"));
    if (want.content.empty() && want.arguments.empty()) continue;
    REQUIRE(messages.size() == 2);
    CHECK(messages[0].content == want.content);
    CHECK(json::parse(messages[0].fields)["reasoning_content"] == want.reasoning);
  }
}

TEST_CASE("parted forms: thoughts that a client sends back are the assistant's") {
  const Request request = parse_messages_request(
      R"({"max_tokens": 5, "messages": [{"role": "user", "content": "Who?"},
          {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "She."}]},
          {"role": "user", "content": "Why?"}]})",
      {});
  REQUIRE(request.messages.size() == 3);
  CHECK(request.messages[1].content == "She.");
  CHECK(json::parse(request.messages[1].fields)["reasoning_content"] == "Hm.");
}

/// A chat of the shipped model whose answer a grammar writes.
json chat_with(const Running& running, const std::string& answer, json more = json::object()) {
  json body{{"messages", {say("user", "Who?")}},
            {"max_tokens", 200},
            {"grammar", "root ::= " + json(answer).dump()}};
  body.update(more);
  const auto [status, said] = post(running, "/v1/chat/completions", body.dump());
  INFO(said.dump());
  REQUIRE(status == 200);
  json choice = said["choices"][0];
  choice["usage"] = said["usage"];
  return choice;
}

/// Tokens of a text in an answer of the shipped model.
std::int64_t tokens_of(Service& service, const std::string& text) {
  return static_cast<std::int64_t>(encode_continuation(service.model().tokenizer(), text).size());
}

TEST_CASE("parted forms: a server parts answers without tools, and what is held is content") {
  const TempDir dir;
  make_chat_model(dir / "thinks", kThinks);
  make_chat_model(dir / "harmony", kHarmony);
  {
    const auto engine = engine_of(dir / "thinks");
    Service service(*engine);
    const Running running(service);
    const json parted = chat_with(running, "<think>Hm.</think>\n\nYes.");
    CHECK(parted["message"]["content"] == "Yes.");
    CHECK(parted["message"]["reasoning_content"] == "Hm.");
    const std::int64_t thought = parted["usage"]["completion_tokens_details"]["reasoning_tokens"];
    CHECK(thought >= tokens_of(service, "Hm."));
    CHECK(thought <= tokens_of(service, "<think>Hm.</think>"));
    CHECK(parted["usage"]["completion_tokens"] > thought);
    const json whole =
        chat_with(running, "<think>Hm.</think>\n\nYes.", {{"reasoning_format", "none"}});
    CHECK(whole["message"]["content"] == "<think>Hm.</think>\n\nYes.");
    CHECK(!whole["message"].contains("reasoning_content"));
    CHECK(whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0);
    // the prompt has begun a thought, which an answer that is held to a form has none of
    const json held =
        chat_with(running, "{}", {{"chat_template_kwargs", {{"enable_thinking", true}}}});
    CHECK(held["message"]["content"] == "{}");
    CHECK(!held["message"].contains("reasoning_content"));
    const json cut = chat_with(running, "<think>Hm, hm, hm.</think>Yes.", {{"max_tokens", 8}});
    CHECK(cut["finish_reason"] == "length");
    CHECK(cut["message"]["content"] == "");
    CHECK(std::string("Hm, hm, hm.").starts_with(cut["message"].value("reasoning_content", "")));
    CHECK(post(running, "/v1/chat/completions",
               json{{"messages", {say("user", "Who?")}}, {"reasoning_format", "maybe"}}.dump())
              .first == 400);
  }
  const auto engine = engine_of(dir / "harmony");
  Service service(*engine);
  const Running running(service);
  const json parted =
      chat_with(running, "A<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>");
  CHECK(parted["message"]["content"] == "A");
  CHECK(parted["message"]["reasoning_content"] == "b");
}

TEST_CASE("parted forms: a result follows its call where a format wants that") {
  const TempDir dir;
  make_chat_model(
      dir / "model",
      "{% for m in messages %}{% if m.tool_calls %}<call {{ m.tool_calls[0].function.name }}>"
      "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% set called = true %}"
      "{% elif m.role == 'tool' %}{% if not messages[loop.index0 - 1].tool_calls %}"
      "{{ raise_exception('no call') }}{% endif %}<result>{{ m.content }}<|end|>"
      "{% else %}<{{ m.role }}>{{ m.content }}<|end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}{# <|channel|> <|message|> #}");
  const auto model = load_model(dir / "model");
  const ToolCallFormat format(model->chat_template());
  Conversation talk(model->chat_template(), model->tokenizer(),
                    {.changed = ChangedTurns::keep, .calls = format});
  talk.ask({{"user", "When?"}});
  talk.answered({"assistant", "",
                 R"({"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "year",
                 "arguments": {"book": "Emma"}}}], "reasoning_content": "Hm."})"});
  const ChatPrompt prompt = talk.ask({{"tool", "1815", R"({"tool_call_id": "c1"})"}});
  std::vector<std::int64_t> all = prompt.text;
  all.insert(all.end(), prompt.question.begin(), prompt.question.end());
  CHECK(model->tokenizer().decode(all) == "<|call|><result>1815<|end|><assistant>");
}

}  // namespace parted_forms_test
