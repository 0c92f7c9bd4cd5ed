// SPDX-License-Identifier: Apache-2.0
#include "protocol/messages_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "protocol/fields.hpp"

namespace episodic::server {
namespace {

using Tree = nlohmann::json;

constexpr AsksForNothing kOfMessages[] = {
    {"tools", "[[]]"},
    {"tool_choice", "[{\"type\": \"auto\"}, {\"type\": \"none\"}]"},
    {"mcp_servers", "[[]]"},
    {"container", "[]"},
    {"context_management", "[{}]"},
    {"output_config", "[{}]"},
    {"output_format", "[]"},
    {"speed", "[\"standard\"]"},
};

/// Says nothing about the answer, whatever it holds: prefixes are kept for every request.
constexpr const char* kCacheControl = "cache_control";

/// A text, or a list of blocks that are texts.
std::string text_of_blocks(const Tree& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) Fields::wrong(name, "must be a text or a list of blocks");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Tree& block = content[i];
    const std::string at = fmt::format("{}[{}]", name, i);
    if (!block.is_object()) Fields::wrong(at, "must be an object");
    Fields fields(block);
    const std::string type = fields.text("type");
    if (type != "text")
      Fields::wrong(
          at, fmt::format("is of type '{}', which is not built; \"text\" is", printable(type, 40)));
    text += fields.text("text");
    fields.find(kCacheControl);
    if (const Tree* citations = fields.find("citations"); citations && !citations->empty())
      Fields::wrong(at + ".citations", "is not built; leave it out");
    fields.require_known();
  }
  return text;
}

std::vector<ChatMessage> turns_of(Fields& fields) {
  std::vector<ChatMessage> turns;
  if (const Tree* system = fields.find("system"))
    if (std::string text = text_of_blocks(*system, "system"); !text.empty())
      turns.push_back({"system", std::move(text)});
  const std::size_t first = turns.size();
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
    std::string text = text_of_blocks(*content, name + ".content");
    if (turns.size() > first && turns.back().role == *role)
      turns.back().content += "\n\n" + text;
    else
      turns.push_back({role->get<std::string>(), std::move(text)});
  }
  if (turns.back().role == "assistant")
    Fields::wrong("messages",
                  "end with the assistant's, and an answer that is begun is not gone on with; end "
                  "with a user's");
  return turns;
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

/// What models with a switch for it read of it.
std::string thinking_of(Fields& fields) {
  const Tree* thinking = fields.find("thinking");
  if (!thinking) return "";
  if (!thinking->is_object() || thinking->value("type", Tree()) != "disabled")
    Fields::wrong("thinking", "is not built; leave it out or give {\"type\": \"disabled\"}");
  return R"({"enable_thinking":false})";
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
