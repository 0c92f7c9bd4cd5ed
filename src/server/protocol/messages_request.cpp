// SPDX-License-Identifier: Apache-2.0
#include "protocol/messages_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "protocol/answer_calls.hpp"
#include "protocol/fields.hpp"
#include "protocol/request.hpp"

namespace episodic::server {
namespace {

using Tree = nlohmann::json;

constexpr AsksForNothing kOfMessages[] = {
    {"mcp_servers", "[[]]"},   {"container", "[]"},     {"context_management", "[{}]"},
    {"output_config", "[{}]"}, {"output_format", "[]"}, {"speed", "[\"standard\"]"},
};

/// Says nothing about the answer, whatever it holds: prefixes are kept for every request.
constexpr const char* kCacheControl = "cache_control";

/// A block of a content. \throws RequestError for fields that nobody looked at
class Block {
 public:
  Block(const Tree& block, std::string name)
      : name_(std::move(name)), fields_(object(block, name_)), type_(fields_.text("type")) {}

  const std::string& name() const { return name_; }
  const std::string& type() const { return type_; }
  Fields& fields() { return fields_; }
  /// A text that must be there.
  std::string text(const char* field) {
    const Tree* value = fields_.find(field);
    if (!value || !value->is_string())
      Fields::wrong(fmt::format("{}.{}", name_, field), "must be a text");
    return value->get<std::string>();
  }
  [[noreturn]] void refuse(const char* built) const {
    Fields::wrong(name_, fmt::format("is of type '{}', which is not built here; {}",
                                     printable(type_, 40), built));
  }
  /// Nothing else is looked at.
  void end() {
    fields_.find(kCacheControl);
    fields_.require_known();
  }

 private:
  static const Tree& object(const Tree& block, const std::string& name) {
    if (!block.is_object()) Fields::wrong(name, "must be an object");
    return block;
  }
  std::string name_;
  Fields fields_;
  std::string type_;
};

std::string text_of_block(Block& block) {
  std::string text = block.text("text");
  if (const Tree* citations = block.fields().find("citations"); citations && !citations->empty())
    Fields::wrong(block.name() + ".citations", "is not built; leave it out");
  block.end();
  return text;
}

/// A text, or a list of blocks that are texts.
std::string text_of_blocks(const Tree& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) Fields::wrong(name, "must be a text or a list of blocks");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    Block block(content[i], fmt::format("{}[{}]", name, i));
    if (block.type() != "text") block.refuse("\"text\" is");
    text += text_of_block(block);
  }
  return text;
}

/// Turns of a conversation, as they become messages of a chat.
class Turns {
 public:
  explicit Turns(std::string system) {
    if (!system.empty()) add({"system", std::move(system)});
  }

  void take(const std::string& role, const Tree& content, const std::string& name) {
    role_ = role;
    begun_ = false;
    if (content.is_string()) return say(content.get<std::string>());
    if (!content.is_array()) Fields::wrong(name, "must be a text or a list of blocks");
    for (std::size_t i = 0; i < content.size(); ++i) {
      Block block(content[i], fmt::format("{}[{}]", name, i));
      if (block.type() == "text")
        say(text_of_block(block));
      else if (block.type() == "thinking" && role == "assistant")
        think(block);
      else if (block.type() == "redacted_thinking" && role == "assistant")
        pass_over(block, "data");
      else if (block.type() == "tool_use" && role == "assistant")
        call(block);
      else if (block.type() == "tool_result" && role == "user")
        result(block);
      else
        block.refuse(
            "\"text\" is, \"thinking\" and \"tool_use\" of an assistant, and \"tool_result\" of a "
            "user");
    }
    if (!begun_) say("");
  }

  std::vector<ChatMessage> messages() const {
    std::vector<ChatMessage> all;
    for (const Message& m : messages_)
      all.push_back({m.role, m.content, m.fields.empty() ? std::string() : text_of(m.fields)});
    return all;
  }

 private:
  struct Message {
    std::string role, content;
    Json fields = Json::object();
  };

  void add(Message message) {
    messages_.push_back(std::move(message));
    begun_ = true;
  }
  /// Texts of one message are one, and so are those of turns of one role in a row.
  void say(const std::string& text) {
    const bool joins = !messages_.empty() && messages_.back().role == role_;
    if (!joins) return add({role_, text});
    std::string& content = messages_.back().content;
    if (!begun_ && !content.empty() && !text.empty()) content += "\n\n";
    content += text;
    begun_ = true;
  }
  static void pass_over(Block& block, const char* field) {
    block.fields().find(field);
    block.end();
  }
  /// What was thought in a message that may have thought before.
  void think(Block& block) {
    const std::string text = block.text("thinking");
    pass_over(block, "signature");
    if (messages_.empty() || messages_.back().role != role_) add({role_, ""});
    Json& thought = messages_.back().fields["reasoning_content"];
    thought = thought.is_null() ? text : thought.get<std::string>() + "\n\n" + text;
  }
  void call(Block& block) {
    const std::string id = block.text("id");
    const Tree* input = block.fields().find("input");
    if (!input || !input->is_object()) Fields::wrong(block.name() + ".input", "must be an object");
    if (messages_.empty() || messages_.back().role != role_) add({role_, ""});
    begun_ = true;
    messages_.back().fields["tool_calls"].push_back(call_json(id, block.text("name"), *input));
    block.fields().find("caller");
    block.end();
  }
  void result(Block& block) {
    const std::string id = block.text("tool_use_id");
    const Tree* content = block.fields().find("content");
    Message message{"tool", content ? text_of_blocks(*content, block.name() + ".content") : ""};
    message.fields["tool_call_id"] = id;
    if (!names_result(id, message.fields))
      Fields::wrong(block.name() + ".tool_use_id", "names no call of the turns before it");
    if (block.fields().flag("is_error")) message.fields["is_error"] = true;
    block.end();
    add(std::move(message));
  }
  /// Puts in the function's name. \return false: there is no such call
  bool names_result(const std::string& id, Json& fields) const {
    for (auto m = messages_.rbegin(); m != messages_.rend(); ++m)
      for (const Json& call : m->fields.value("tool_calls", Json::array()))
        if (call["id"] == id) {
          fields["name"] = call["function"]["name"];
          return true;
        }
    return false;
  }

  std::vector<Message> messages_;
  std::string role_;
  bool begun_ = false;  // the message of now has said something
};

std::vector<ChatMessage> turns_of(Fields& fields) {
  const Tree* system = fields.find("system");
  Turns turns(system ? text_of_blocks(*system, "system") : std::string());
  const Tree* list = fields.find("messages");
  if (!list || !list->is_array() || list->empty())
    Fields::wrong("messages", "must be a list of at least one message");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Tree& message = (*list)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) Fields::wrong(name, "must be an object");
    const auto role = message.find("role"), content = message.find("content");
    if (role == message.end() || (*role != "user" && *role != "assistant"))
      Fields::wrong(name + ".role", "must be user or assistant (a system's text is 'system')");
    if (content == message.end()) Fields::wrong(name + ".content", "is missing");
    for (const auto& [key, value] : message.items())
      if (key != "role" && key != "content" && !value.is_null())
        Fields::wrong(fmt::format("{}.{}", name, printable(key, 40)), "is not built; leave it out");
    turns.take(role->get<std::string>(), *content, name + ".content");
  }
  std::vector<ChatMessage> messages = turns.messages();
  if (messages.back().role == "assistant")
    Fields::wrong("messages",
                  "end with the assistant's, and an answer that is begun is not gone on with; end "
                  "with a user's");
  return messages;
}

/// Tools, and whether an answer may or must call them.
void take_message_tools(const Body& body, Fields& fields, Request& request) {
  using Kind = ToolChoice::Kind;
  constexpr const char* kChoice = "tool_choice";
  if (fields.find("tools")) {
    try {
      request.tools = read_tools(body.sent({"tools"}), "tools", ToolForm::messages);
    } catch (const ConfigError& e) {
      throw RequestError(e.what(), "tools");
    }
  }
  request.tool_choice.kind = request.tools.empty() ? Kind::none : Kind::automatic;
  const Tree* given = fields.find(kChoice);
  if (!given) return;
  if (!given->is_object()) Fields::wrong(kChoice, "must be an object");
  Fields choice(*given);
  const std::string type = choice.text("type");
  request.parallel_tool_calls = !choice.flag("disable_parallel_tool_use");
  const bool forces = type == "any" || type == "tool";
  if (type == "none") request.tool_choice.kind = Kind::none;
  if (forces) request.tool_choice.kind = Kind::required;
  if (!forces && type != "none" && type != "auto")
    Fields::wrong(kChoice, "must have the type auto, any, tool or none");
  if (forces && request.tools.empty())
    Fields::wrong(kChoice, "asks for a call, but there are no tools; give some");
  if (type == "tool") {
    request.tool_choice.name = choice.text("name");
    if (std::none_of(request.tools.begin(), request.tools.end(),
                     [&](const Tool& tool) { return tool.name == request.tool_choice.name; }))
      Fields::wrong("tool_choice.name", fmt::format("is '{}', which is none of the tools",
                                                    printable(request.tool_choice.name, 64)));
  }
  choice.require_known();
}

void take_stop_sequences(Fields& fields, GenerateOptions& options) {
  const Tree* list = fields.find("stop_sequences");
  if (!list) return;
  constexpr std::size_t kMost = 64;
  if (!list->is_array() || list->size() > kMost)
    Fields::wrong("stop_sequences", fmt::format("must be a list of at most {} texts", kMost));
  options.stop.clear();
  for (const Tree& text : *list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      Fields::wrong("stop_sequences", "must be a list of texts, none empty");
    options.stop.push_back(text.get<std::string>());
  }
}

/// What models with a switch for it read of it. A budget is checked, and not held to: `max_tokens`
/// bounds thoughts and answer together.
std::string thinking_of(Fields& fields) {
  const Tree* thinking = fields.find("thinking");
  if (!thinking) return "";
  const Tree type = thinking->is_object() ? thinking->value("type", Tree()) : Tree();
  if (type == "disabled") return R"({"enable_thinking":false})";
  if (type == "adaptive") return "";
  if (type != "enabled")
    Fields::wrong("thinking", "must have the type enabled, adaptive or disabled");
  const Tree budget = thinking->value("budget_tokens", Tree());
  if (!budget.is_number_integer() || budget < 1)
    Fields::wrong("thinking", "must have budget_tokens, a whole number above 0");
  return R"({"enable_thinking":true})";
}

void take_sampling(Fields& fields, SamplingOptions& sampling) {
  sampling.temperature = fields.number("temperature", 0, 100, sampling.temperature);
  sampling.top_p = fields.number("top_p", 0, 1, sampling.top_p);
  sampling.top_k = std::max<std::int64_t>(0, fields.count("top_k", -1, sampling.top_k));
  sampling.min_p = fields.number("min_p", 0, 1, sampling.min_p);
  sampling.repetition_penalty =
      fields.number("repetition_penalty", 1e-3, 1e3, sampling.repetition_penalty);
  if (const Tree* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) Fields::wrong("seed", "must be a whole number");
    sampling.seed = static_cast<std::uint64_t>(seed->get<std::int64_t>());
  } else {
    std::random_device device;
    sampling.seed = std::uint64_t{device()} << 32 | device();
  }
  try {
    sampling.validate();
  } catch (const Error& e) {
    throw RequestError(e.what(), "");
  }
}

}  // namespace

Request parse_messages_request(std::string_view body, const GenerateOptions& defaults,
                               bool counts) {
  const Body parsed(body);
  Fields fields(*parsed);
  Request request;
  request.kind = RequestKind::chat;
  request.options = defaults;
  request.messages = turns_of(fields);
  request.variables = thinking_of(fields);
  take_message_tools(parsed, fields, request);
  if (!fields.find("max_tokens") && !counts) Fields::wrong("max_tokens", "is missing");
  request.options.max_new = fields.count("max_tokens", 1, request.options.max_new);
  take_stop_sequences(fields, request.options);
  take_sampling(fields, request.options.sampling);
  request.options.ignore_eos = fields.flag("ignore_eos", request.options.ignore_eos);
  fields.take(kOfMessages);
  for (const char* ignored : {kCacheControl, "inference_geo", "betas", "anthropic_version"})
    fields.find(ignored);
  request.stream = fields.flag("stream");
  request.progress = fields.flag("return_progress");
  request.memory = fields.text("memory", "");
  request.store = fields.flag("store");
  take_passages(fields, request);
  if (const Tree* include = fields.find("include")) {
    if (!include->is_array()) Fields::wrong("include", "must be a list of texts");
    for (const Tree& what : *include) {
      if (what != "recall") Fields::wrong("include", "has what is not built; \"recall\" is");
      request.recall = true;
    }
  }
  fields.require_known();
  return request;
}

}  // namespace episodic::server
