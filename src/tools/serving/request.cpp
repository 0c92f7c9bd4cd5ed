// SPDX-License-Identifier: Apache-2.0
#include "request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

using nlohmann::json;

/// Fields that say nothing about the tokens of the answer.
constexpr std::array<std::string_view, 9> kIgnored{"model",
                                                   "user",
                                                   "metadata",
                                                   "store",
                                                   "service_tier",
                                                   "safety_identifier",
                                                   "prompt_cache_key",
                                                   "cache_prompt",
                                                   "parallel_tool_calls"};

class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  /// The field's value; null where it is absent or null.
  const json* find(const char* name) {
    seen_.push_back(name);
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  bool flag(const char* name, bool otherwise = false) {
    const json* value = find(name);
    if (value && !value->is_boolean()) wrong(name, "must be true or false");
    return value ? value->get<bool>() : otherwise;
  }
  std::int64_t count(const char* name, std::int64_t least, std::int64_t otherwise) {
    const json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_number_integer() || value->get<std::int64_t>() < least ||
        value->get<std::int64_t>() > std::numeric_limits<std::int32_t>::max())
      wrong(name, fmt::format("must be a whole number of at least {}", least));
    return value->get<std::int64_t>();
  }
  double number(const char* name, double least, double most, double otherwise) {
    const json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_number() || !(value->get<double>() >= least) || !(value->get<double>() <= most))
      wrong(name, fmt::format("must be a number from {} to {}", least, most));
    return value->get<double>();
  }
  /// A field that is refused unless it asks for what is done anyway.
  void only(const char* name, const json& allowed) {
    const json* value = find(name);
    if (value && *value != allowed)
      wrong(name, fmt::format("is not built; leave it out or give {}", allowed.dump()));
  }
  /// \throws RequestError for a field that nobody looked at
  void require_known() const {
    for (const auto& [name, value] : object_.items())
      if (!value.is_null() && std::find(seen_.begin(), seen_.end(), name) == seen_.end() &&
          std::find(kIgnored.begin(), kIgnored.end(), name) == kIgnored.end())
        throw RequestError(fmt::format("'{}' is not built; leave it out", printable(name)), name);
  }
  [[noreturn]] static void wrong(const std::string& name, const std::string& what) {
    throw RequestError(fmt::format("'{}' {}", name, what), name);
  }

 private:
  const json& object_;
  std::vector<std::string> seen_;
};

/// A message's text: a string, or a list of parts that are texts.
std::string content_of(const json& message, const std::string& name) {
  const auto at = message.find("content");
  if (at == message.end() || at->is_null()) return "";
  if (at->is_string()) return at->get<std::string>();
  if (!at->is_array()) Fields::wrong(name, "must be a text or a list of parts");
  std::string text;
  for (const json& part : *at) {
    if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text") ||
        !part["text"].is_string())
      Fields::wrong(name, "has a part that is no text; only {\"type\": \"text\"} is built");
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<ChatMessage> messages_of(Fields& fields) {
  const json* list = fields.find("messages");
  if (!list || !list->is_array() || list->empty())
    Fields::wrong("messages", "must be a list of at least one message");
  std::vector<ChatMessage> messages;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const json& message = (*list)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) Fields::wrong(name, "must be an object");
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string())
      Fields::wrong(name + ".role", "must be a text");
    if (*role != "system" && *role != "developer" && *role != "user" && *role != "assistant")
      Fields::wrong(name + ".role", "must be system, developer, user or assistant");
    for (const char* calls : {"tool_calls", "function_call"})
      if (const auto at = message.find(calls); at != message.end() && !at->is_null())
        Fields::wrong(name + "." + calls, "is not built");
    messages.push_back({*role == "developer" ? "system" : role->get<std::string>(),
                        content_of(message, name + ".content")});
  }
  return messages;
}

void take_prompt(Fields& fields, ServedRequest& request) {
  const json* prompt = fields.find("prompt");
  if (!prompt) Fields::wrong("prompt", "is missing");
  const json* one = prompt;
  if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number())
    one = &prompt->front();
  if (one->is_string()) {
    request.prompt = one->get<std::string>();
    return;
  }
  const bool ids =
      one->is_array() && !one->empty() &&
      std::all_of(one->begin(), one->end(), [](const json& id) { return id.is_number_integer(); });
  if (!ids)
    Fields::wrong("prompt", "must be a text or a list of token ids; several prompts are not built");
  request.ids = one->get<std::vector<std::int64_t>>();
}

void take_stops(Fields& fields, GenerateOptions& options) {
  const json* stop = fields.find("stop");
  if (!stop) return;
  constexpr std::size_t kMost = 16;
  options.stop.clear();
  const auto add = [&](const json& text) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      Fields::wrong("stop", "must be a text or a list of texts, none empty");
    options.stop.push_back(text.get<std::string>());
  };
  if (stop->is_array() && stop->size() <= kMost)
    for (const json& text : *stop) add(text);
  else if (stop->is_array())
    Fields::wrong("stop", fmt::format("has more than {} texts", kMost));
  else
    add(*stop);
}

}  // namespace

ServedRequest parse_request(RequestKind kind, std::string_view body,
                            const GenerateOptions& defaults) {
  json parsed;
  try {
    JsonLimits limits;
    limits.remedy = "send a JSON object";
    parsed = parse_strict(body, "the request", limits);
  } catch (const Error& e) {
    throw RequestError(e.what(), "");
  }
  const JsonGuard guard(parsed);
  if (!parsed.is_object()) throw RequestError("the request is no JSON object", "");
  Fields fields(parsed);
  ServedRequest request;
  request.kind = kind;
  request.options = defaults;
  GenerateOptions& o = request.options;
  o.max_new = fields.count("max_tokens", 0, o.max_new);
  if (kind == RequestKind::chat) {
    request.messages = messages_of(fields);
    o.max_new = fields.count("max_completion_tokens", 0, o.max_new);
    if (const json* variables = fields.find("chat_template_kwargs")) {
      if (!variables->is_object()) Fields::wrong("chat_template_kwargs", "must be an object");
      request.variables = variables->dump();
    }
    fields.only("logprobs", false);
    fields.only("tool_choice", "none");
    fields.only("tools", json::array());
    fields.only("response_format", {{"type", "text"}});
  } else {
    take_prompt(fields, request);
    fields.only("best_of", 1);
    fields.only("echo", false);
    fields.only("suffix", "");
  }
  o.sampling.temperature = fields.number("temperature", 0, 100, o.sampling.temperature);
  o.sampling.top_p = fields.number("top_p", 0, 1, o.sampling.top_p);
  o.sampling.top_k = fields.count("top_k", 0, o.sampling.top_k);
  o.sampling.min_p = fields.number("min_p", 0, 1, o.sampling.min_p);
  o.sampling.repetition_penalty =
      fields.number("repetition_penalty", 1e-3, 1e3, o.sampling.repetition_penalty);
  if (const json* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) Fields::wrong("seed", "must be a whole number");
    o.sampling.seed = static_cast<std::uint64_t>(seed->get<std::int64_t>());
  } else {
    std::random_device device;
    o.sampling.seed = std::uint64_t{device()} << 32 | device();
  }
  o.ignore_eos = fields.flag("ignore_eos", o.ignore_eos);
  take_stops(fields, o);
  fields.only("n", 1);
  fields.only("frequency_penalty", 0);
  fields.only("presence_penalty", 0);
  fields.only("logit_bias", json::object());
  request.stream = fields.flag("stream");
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) Fields::wrong("stream_options", "must be an object");
    Fields of_stream(*options);
    request.stream_usage = of_stream.flag("include_usage");
    of_stream.require_known();
  }
  fields.require_known();
  try {
    o.sampling.validate();
  } catch (const Error& e) {
    throw RequestError(e.what(), "");
  }
  return request;
}

}  // namespace episodic::tools
