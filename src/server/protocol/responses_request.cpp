// SPDX-License-Identifier: Apache-2.0
#include "protocol/responses_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "protocol/answer_calls.hpp"
#include "protocol/fields.hpp"
#include "protocol/request.hpp"

namespace episodic::server {
namespace {

using nlohmann::json;

constexpr AsksForNothing kOfResponses[] = {
    {"background", "[false]"},
    {"prompt", "[]"},
    {"context_management", "[[]]"},
    {"extra_body", "[{}]"},
};
constexpr AsksForNothing kOfResponsesStream[] = {{"include_obfuscation", "[false]"}};
constexpr AsksForNothing kOfReasoning[] = {{"summary", "[\"auto\"]"},
                                           {"generate_summary", "[\"auto\"]"}};

/// What `include` may ask for that no answer of this server has.
constexpr std::string_view kNeverThere[] = {
    "reasoning.encrypted_content",    "message.input_image.image_url",
    "file_search_call.results",       "web_search_call.results",
    "web_search_call.action.sources", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs"};

constexpr const char* kLogprobs = "message.output_text.logprobs";

std::string id_of(Fields& fields, const char* kind) {
  constexpr std::size_t kLongest = 64;
  const std::string id = fields.text("id", "");
  if (id.size() > kLongest)
    Fields::wrong("id", fmt::format("has more than {} characters", kLongest));
  return id.empty() ? Conversations::new_id(kind) : id;
}

/// A content as a list of parts. \param type of each, in what is kept
Json parts_of(const json& content, const char* type) {
  Json parts = Json::array();
  const auto add = [&](const std::string& text) {
    Json part{{"type", type}, {"text", text}};
    if (std::string_view(type) == "output_text") part["annotations"] = Json::array();
    parts.push_back(std::move(part));
  };
  if (content.is_string()) {
    add(content.get<std::string>());
    return parts;
  }
  if (!content.is_array()) Fields::wrong("content", "must be a text or a list of parts");
  for (const json& given : content) {
    if (!given.is_object()) Fields::wrong("content", "must be a text or a list of parts");
    Fields part(given);
    const std::string of = part.text("type");
    if (of != "input_text" && of != "output_text" && of != "text")
      Fields::wrong("content", fmt::format("has a part '{}'; input_text and output_text are built",
                                           printable(of, 40)));
    add(part.text("text"));
    part.find("annotations");
    part.find("logprobs");
    part.require_known();
  }
  return parts;
}

Json message_item(Fields& fields) {
  const std::string role = fields.text("role");
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant"};
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles))
    Fields::wrong("role", "must be system, developer, user or assistant");
  const json* content = fields.find("content");
  if (!content) Fields::wrong("content", "is missing");
  fields.find("phase");
  return {{"type", "message"},
          {"id", id_of(fields, "msg")},
          {"status", "completed"},
          {"role", role},
          {"content", parts_of(*content, role == "assistant" ? "output_text" : "input_text")}};
}

Json call_item(Fields& fields) {
  fields.find("namespace");
  return {{"type", "function_call"},     {"id", id_of(fields, "fc")},
          {"status", "completed"},       {"call_id", fields.text("call_id")},
          {"name", fields.text("name")}, {"arguments", fields.text("arguments")}};
}

Json output_item(Fields& fields) {
  const json* output = fields.find("output");
  if (!output) Fields::wrong("output", "is missing");
  Json kept =
      output->is_string() ? Json(output->get<std::string>()) : parts_of(*output, "input_text");
  return {{"type", "function_call_output"},
          {"id", id_of(fields, "fco")},
          {"status", "completed"},
          {"call_id", fields.text("call_id")},
          {"output", std::move(kept)}};
}

/// What a model thought, as an output has it: its text, or a summary in its place.
Json thought_item(Fields& fields) {
  Json content = Json::array(), summary = Json::array();
  const auto take = [&](const char* field, const char* type, Json& parts) {
    const json* given = fields.find(field);
    if (!given) return;
    if (!given->is_array()) Fields::wrong(field, "must be a list of parts");
    for (const json& one : *given) {
      if (!one.is_object()) Fields::wrong(field, "must be a list of parts");
      Fields part(one);
      if (part.text("type") != type)
        Fields::wrong(field, fmt::format("has a part of another type than {}", type));
      parts.push_back({{"type", type}, {"text", part.text("text")}});
      part.require_known();
    }
  };
  take("content", "reasoning_text", content);
  take("summary", "summary_text", summary);
  fields.find("encrypted_content");  // of another server's
  return {{"type", "reasoning"},
          {"id", id_of(fields, "rs")},
          {"status", "completed"},
          {"summary", std::move(summary)},
          {"content", std::move(content)}};
}

Json item_of(const json& item) {
  if (!item.is_object()) throw RequestError("must be an object", "");
  Fields fields(item);
  const std::string type = fields.text("type", "message");
  fields.find("status");
  Json kept = type == "message"                ? message_item(fields)
              : type == "function_call"        ? call_item(fields)
              : type == "function_call_output" ? output_item(fields)
              : type == "reasoning"            ? thought_item(fields)
                                               : Json();
  if (kept.is_null())
    Fields::wrong("type", fmt::format("'{}' is not built; message, function_call, "
                                      "function_call_output and reasoning are",
                                      printable(type, 40)));
  fields.require_known();
  return kept;
}

std::string text_of_content(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content) text += part.at("text").get<std::string>();
  return text;
}

/// What an item of this type says was thought.
std::string thought_of(const Json& item) {
  const Json& content = item.at("content");
  return text_of_content(content.empty() ? item.at("summary") : content);
}

/// A field of a body, as it was sent.
Json in_order(const std::string& text, const char* field) {
  try {
    return parse_ordered(text, field, {});
  } catch (const Error& e) {
    throw RequestError(e.what(), field);
  }
}

/// The texts that the answer may be.
void take_text_format(const Body& body, const json& format, ResponsesRequest& request) {
  using Kind = AnswerFormat::Kind;
  constexpr const char* kField = "text.format";
  if (!format.is_object()) Fields::wrong(kField, "must be an object");
  Fields fields(format);
  const std::string type = fields.text("type");
  if (type == "json_object") {
    request.format = AnswerFormat{Kind::json_object, "", kField};
  } else if (type == "json_schema") {
    const json* schema = fields.find("schema");
    if (!schema || !schema->is_object()) Fields::wrong(kField, "needs an object as 'schema'");
    fields.text("name", "");
    fields.text("description", "");
    fields.flag("strict");
    request.format =
        AnswerFormat{Kind::json_schema, body.sent({"text", "format", "schema"}), kField};
  } else if (type != "text") {
    Fields::wrong(kField, "must have the type text, json_object or json_schema");
  }
  fields.require_known();
}

void take_text(const Body& body, Fields& fields, ResponsesRequest& request) {
  Json& said = request.said["text"] = {{"format", {{"type", "text"}}}, {"verbosity", "medium"}};
  const json* text = fields.find("text");
  if (!text) return;
  if (!text->is_object()) Fields::wrong("text", "must be an object");
  Fields of_text(*text);
  if (const json* format = of_text.find("format")) {
    take_text_format(body, *format, request);
    said["format"] = in_order(body.sent({"text", "format"}), "text.format");
  }
  if (const json* verbosity = of_text.find("verbosity"); verbosity && *verbosity != "medium")
    Fields::wrong("text.verbosity", "is not built; leave it out or give \"medium\"");
  of_text.require_known();
}

/// What an answer is to tell beside its text; and how many of the likeliest tokens at each place.
void take_response_includes(Fields& fields, ResponsesRequest& request) {
  constexpr std::int64_t kMost = 20;
  const std::int64_t top = fields.count("top_logprobs", 0, 0);
  if (top > kMost) Fields::wrong("top_logprobs", fmt::format("must be at most {}", kMost));
  request.said["top_logprobs"] = top;
  if (const json* include = fields.find("include")) {
    if (!include->is_array()) Fields::wrong("include", "must be a list of texts");
    for (const json& what : *include) {
      const bool nothing = what.is_string() &&
                           std::find(std::begin(kNeverThere), std::end(kNeverThere),
                                     what.get_ref<const std::string&>()) != std::end(kNeverThere);
      if (what == "recall")
        request.recall = true;
      else if (what == kLogprobs)
        request.options.logprobs = top;
      else if (!nothing)
        Fields::wrong("include", fmt::format("{} is not built; \"recall\" and \"{}\" are",
                                             printable_value(what), kLogprobs));
    }
  }
  if (top > 0 && request.options.logprobs < 0)
    Fields::wrong("top_logprobs", fmt::format("needs \"{}\" in 'include'", kLogprobs));
}

/// Functions, and whether an answer may or must call them.
void take_response_tools(const Body& body, Fields& fields, ResponsesRequest& request) {
  Json& said = request.said;
  said["tools"] = Json::array();
  if (fields.find("tools")) {
    const std::string sent = body.sent({"tools"});
    request.tools = response_tools_of(sent);
    said["tools"] = in_order(sent, "tools");
  }
  const json* choice = fields.find("tool_choice");
  try {
    request.tool_choice = read_tool_choice(choice ? choice->dump() : "", request.tools,
                                           "tool_choice", ToolForm::responses);
  } catch (const ConfigError& e) {
    throw RequestError(e.what(), "tool_choice");
  }
  said["tool_choice"] = choice ? Json(*choice) : Json("auto");
  request.parallel_tool_calls = fields.flag("parallel_tool_calls", true);
  said["parallel_tool_calls"] = request.parallel_tool_calls;
  fields.count("max_tool_calls", 0, 0);  // of tools of the server's own, which it has none of
}

void take_input(Fields& fields, ResponsesRequest& request) {
  const json* input = fields.find("input");
  if (!input) return;  // a conversation may hold what is to be answered
  if (input->is_string())
    request.input = items_of(json::array({{{"role", "user"}, {"content", *input}}}), "input");
  else
    request.input = items_of(*input, "input");
}

void take_start(Fields& fields, ResponsesRequest& request) {
  request.start.previous = fields.text("previous_response_id", "");
  if (const json* conversation = fields.find("conversation")) {
    const json* id = conversation;
    if (conversation->is_object() && conversation->size() == 1 && conversation->contains("id"))
      id = &(*conversation)["id"];
    if (!id->is_string() || id->get_ref<const std::string&>().empty())
      Fields::wrong("conversation", "must be an id, or {\"id\": ...}");
    request.start.conversation = id->get<std::string>();
  }
  request.start.memory = fields.text("memory", "");
  if (fields.find("store")) request.store = fields.flag("store");
}

void take_options(Fields& fields, ResponsesRequest& request) {
  GenerateOptions& o = request.options;
  Json& said = request.said;
  const bool limited = fields.find("max_output_tokens") != nullptr;
  o.max_new = fields.count("max_output_tokens", 1, o.max_new);
  said["max_output_tokens"] = limited ? Json(o.max_new) : Json();
  o.sampling.temperature = fields.number("temperature", 0, 100, o.sampling.temperature);
  o.sampling.top_p = fields.number("top_p", 0, 1, o.sampling.top_p);
  o.sampling.top_k = std::max<std::int64_t>(0, fields.count("top_k", -1, o.sampling.top_k));
  o.sampling.min_p = fields.number("min_p", 0, 1, o.sampling.min_p);
  o.sampling.repetition_penalty =
      fields.number("repetition_penalty", 1e-3, 1e3, o.sampling.repetition_penalty);
  o.sampling.presence_penalty =
      fields.number("presence_penalty", -2, 2, o.sampling.presence_penalty);
  o.sampling.frequency_penalty =
      fields.number("frequency_penalty", -2, 2, o.sampling.frequency_penalty);
  said["temperature"] = o.sampling.temperature;
  said["top_p"] = o.sampling.top_p;
  o.ignore_eos = fields.flag("ignore_eos", o.ignore_eos);
  if (const json* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) Fields::wrong("seed", "must be a whole number");
    o.sampling.seed = static_cast<std::uint64_t>(seed->get<std::int64_t>());
  } else {
    std::random_device device;
    o.sampling.seed = std::uint64_t{device()} << 32 | device();
  }
  try {
    o.sampling.validate();
  } catch (const Error& e) {
    throw RequestError(e.what(), "");
  }
}

/// Nothing is ever cut from what a memory has read, so both ways of cutting ask for the same.
void take_truncation(Fields& fields, ResponsesRequest& request) {
  const std::string how = fields.text("truncation", "disabled");
  if (how != "disabled" && how != "auto")
    Fields::wrong("truncation", "must be \"auto\" or \"disabled\"");
  request.said["truncation"] = how;
}

}  // namespace

Json items_of(const json& items, const std::string& name) {
  if (!items.is_array()) Fields::wrong(name, "must be a text or a list of items");
  Json kept = Json::array();
  for (std::size_t i = 0; i < items.size(); ++i) {
    try {
      kept.push_back(item_of(items[i]));
    } catch (const RequestError& e) {
      throw RequestError(
          fmt::format("{}[{}]: {}", name, i, e.what()),
          fmt::format("{}[{}]{}{}", name, i, e.parameter().empty() ? "" : ".", e.parameter()));
    }
  }
  return kept;
}

std::vector<ChatMessage> messages_of_items(const Json& items) {
  struct Message {
    std::string role, content;
    Json fields = Json::object();
  };
  std::vector<Message> messages;
  std::string thought;  // of the assistant's next message
  for (const Json& item : items) {
    const std::string type = item.at("type");
    if (type == "reasoning") {
      thought += (thought.empty() ? "" : "\n\n") + thought_of(item);
      continue;
    }
    const std::size_t before = messages.size();
    if (type == "message") {
      const std::string role = item.at("role");
      messages.push_back(
          {role == "developer" ? "system" : role, text_of_content(item.at("content"))});
    } else if (type == "function_call") {  // calls and the text before them are one message
      if (messages.empty() || messages.back().role != "assistant")
        messages.push_back({"assistant", ""});
      messages.back().fields["tool_calls"].push_back(
          call_json(item.at("call_id"), item.at("name"), arguments_json(item.at("arguments"))));
    } else if (type == "function_call_output") {
      Message message{"tool", text_of_content(item.at("output"))};
      message.fields["tool_call_id"] = item.at("call_id");
      messages.push_back(std::move(message));
    }
    if (thought.empty() || messages.size() == before) continue;
    if (messages.back().role == "assistant") messages.back().fields["reasoning_content"] = thought;
    thought.clear();
  }
  std::vector<ChatMessage> all;
  for (const Message& m : messages)
    all.push_back({m.role, m.content, m.fields.empty() ? std::string() : text_of(m.fields)});
  return all;
}

ChatMessage answer_of_items(const Json& output) {
  ChatMessage answer{"assistant", ""};
  Json calls = Json::array(), fields = Json::object();
  std::string thought;
  for (const Json& item : output) {
    if (item.at("type") == "reasoning")
      thought += (thought.empty() ? "" : "\n\n") + thought_of(item);
    if (item.at("type") == "message") answer.content += text_of_content(item.at("content"));
    if (item.at("type") == "function_call")
      calls.push_back(
          call_json(item.at("call_id"), item.at("name"), arguments_json(item.at("arguments"))));
  }
  if (!thought.empty()) fields["reasoning_content"] = thought;
  if (!calls.empty()) fields["tool_calls"] = std::move(calls);
  if (!fields.empty()) answer.fields = text_of(fields);
  return answer;
}

void name_results(std::vector<ChatMessage>& turn, std::span<const ChatMessage> history) {
  std::map<std::string, std::string> names;  // by id of the call
  const auto note = [&](const Json& fields) {
    for (const Json& call : fields.value("tool_calls", Json::array()))
      names[call.at("id")] = call.at("function").at("name");
  };
  const auto fields_of = [](const ChatMessage& message) {
    JsonLimits limits;
    limits.depth = 80;  // arguments, and what is around them
    limits.repeated_keys = true;
    return message.fields.empty() ? Json::object()
                                  : parse_ordered(message.fields, "the message", limits);
  };
  for (const ChatMessage& message : history)
    if (message.role == "assistant") note(fields_of(message));
  for (ChatMessage& message : turn) {
    Json fields = fields_of(message);
    note(fields);
    if (message.role != "tool") continue;
    const std::string id = fields.at("tool_call_id");
    const auto name = names.find(id);
    if (name == names.end())
      Fields::wrong("input", fmt::format("has what the function call '{}' put out, and there is no "
                                         "such call before it",
                                         printable(id, 64)));
    fields["name"] = name->second;
    message.fields = text_of(fields);
  }
}

std::vector<Tool> response_tools_of(const std::string& json) {
  try {
    return read_tools(json, "tools", ToolForm::responses);
  } catch (const ConfigError& e) {
    throw RequestError(e.what(), "tools");
  }
}

Json metadata_of(const json* metadata) {
  Json kept = Json::object();
  if (!metadata) return kept;
  constexpr std::size_t kMost = 16;
  const bool fits = metadata->is_object() && metadata->size() <= kMost &&
                    std::all_of(metadata->begin(), metadata->end(),
                                [](const json& value) { return value.is_string(); });
  if (!fits) Fields::wrong("metadata", fmt::format("must be up to {} pairs of texts", kMost));
  for (const auto& [name, value] : metadata->items()) kept[name] = value;
  return kept;
}

ResponsesRequest parse_responses_request(std::string_view body, const GenerateOptions& defaults) {
  const Body parsed(body);
  Fields fields(*parsed);
  ResponsesRequest request;
  request.options = defaults;
  request.instructions = fields.text("instructions", "");
  request.said = {
      {"instructions", fields.find("instructions") ? Json(request.instructions) : Json()}};
  take_input(fields, request);
  take_start(fields, request);
  take_options(fields, request);
  take_text(parsed, fields, request);
  take_truncation(fields, request);
  take_response_includes(fields, request);
  take_response_tools(parsed, fields, request);
  request.said["metadata"] = metadata_of(fields.find("metadata"));
  const std::string user = fields.text("user", "");
  request.said["user"] = user.empty() ? Json() : Json(user);
  const json* effort = nullptr;
  if (const json* reasoning = fields.find("reasoning")) {
    if (!reasoning->is_object()) Fields::wrong("reasoning", "must be an object");
    Fields of_reasoning(*reasoning);
    effort = of_reasoning.find("effort");
    of_reasoning.take(kOfReasoning);
    of_reasoning.require_known();
  }
  request.variables = template_variables_of(fields.find("chat_template_kwargs"), effort, "effort");
  request.stream = fields.flag("stream");
  request.progress = fields.flag("return_progress");
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) Fields::wrong("stream_options", "must be an object");
    Fields of_stream(*options);
    of_stream.take(kOfResponsesStream);
    of_stream.require_known();
  }
  fields.take(kOfResponses);
  fields.require_known();
  return request;
}

}  // namespace episodic::server
