// SPDX-License-Identifier: Apache-2.0
#include "protocol/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <span>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "protocol/fields.hpp"

namespace episodic::server {
namespace {

using nlohmann::json;

constexpr AsksForNothing kBoth[] = {
    {"transforms", "[[]]"},
    {"extra_body", "[{}]"},
    // llama.cpp
    {"typical_p", "[1]"},
    {"tfs_z", "[1]"},
    {"top_a", "[0]"},
    {"top_n_sigma", "[-1, 0]"},
    {"mirostat", "[0]"},
    {"dynatemp_range", "[0]"},
    {"xtc_probability", "[0]"},
    {"dry_multiplier", "[0]"},
    {"min_keep", "[0, 1]"},
    {"n_keep", "[0]"},
    {"n_probs", "[0]"},
    {"repeat_penalty", "[1]"},
    {"n_indent", "[0]"},
    {"penalize_nl", "[false]"},
    {"grammar_lazy", "[false]"},
    {"samplers", "[[]]"},
    {"lora", "[[]]"},
    {"t_max_predict_ms", "[0, -1]"},
    {"t_max_prompt_ms", "[0, -1]"},
    {"timings_per_token", "[false]"},
    {"return_tokens", "[false]"},
    {"post_sampling_probs", "[false]"},
    {"response_fields", "[[]]"},
    // vLLM
    {"min_tokens", "[0]"},
    {"length_penalty", "[1]"},
    {"use_beam_search", "[false]"},
    {"early_stopping", "[false]"},
    {"stop_token_ids", "[[]]"},
    {"bad_words", "[[]]"},
    {"allowed_token_ids", "[[]]"},
    {"logits_processors", "[[]]"},
    {"include_stop_str_in_output", "[false]"},
    {"skip_special_tokens", "[true]"},
    {"spaces_between_special_tokens", "[true]"},
    {"truncate_prompt_tokens", "[-1]"},
    {"prompt_logprobs", "[false]"},
    {"return_token_ids", "[false]"},
    {"return_tokens_as_token_ids", "[false]"},
    {"structured_outputs", "[{}]"},
    {"kv_transfer_params", "[{}]"},
};
constexpr AsksForNothing kOfChat[] = {
    {"functions", "[[]]"},
    {"function_call", "[\"none\", \"auto\"]"},
    {"modalities", "[[\"text\"]]"},
    {"verbosity", "[\"medium\"]"},
    {"documents", "[[]]"},
    {"add_special_tokens", "[false]"},
    {"echo", "[false]"},
    {"best_of", "[1]"},
    {"add_generation_prompt", "[true]"},
    {"continue_final_message", "[false]"},
    {"parse_tool_calls", "[false, true]"},
    {"thinking_forced_open", "[false]"},
    {"mm_processor_kwargs", "[{}]"},
};
constexpr AsksForNothing kOfStream[] = {
    {"include_obfuscation", "[false]"},
    {"continuous_usage_stats", "[false]"},
};
constexpr AsksForNothing kOfCompletion[] = {
    {"best_of", "[1]"},
    {"echo", "[false]"},
    {"suffix", "[\"\"]"},
    {"add_special_tokens", "[true]"},
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

/// What a template may read of a message beside role and content, as JSON; nothing where that is
/// all. Arguments of a call are a text in a request, which templates expect as what it says.
std::string more_of(const json& message, const std::string& name) {
  nlohmann::ordered_json more = nlohmann::ordered_json::object();
  for (const auto& [key, value] : message.items())
    if (key != "role" && key != "content" && !value.is_null() &&
        !(key == "tool_calls" && value.empty()))
      more[key] = value;
  if (const auto calls = more.find("tool_calls"); calls != more.end()) {
    if (!calls->is_array()) Fields::wrong(name + ".tool_calls", "must be a list");
    for (auto& call : *calls) {
      if (!call.is_object() || (call.contains("function") && !call["function"].is_object()))
        Fields::wrong(name + ".tool_calls", "must be a list of {\"function\": {...}}");
      if (!call.contains("function") || !call["function"].contains("arguments")) continue;
      auto& arguments = call["function"]["arguments"];
      if (!arguments.is_string()) continue;
      try {
        auto value = parse_ordered(arguments.get_ref<const std::string&>(), name, {});
        if (value.is_object()) arguments = std::move(value);
      } catch (const Error&) {  // a text, then
      }
    }
  }
  return more.empty() ? std::string() : more.dump();
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
    const auto at = message.find("role");
    if (at == message.end() || !at->is_string()) Fields::wrong(name + ".role", "must be a text");
    const auto& role = at->get_ref<const std::string&>();
    constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                           "assistant", "tool",      "function"};
    if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles))
      Fields::wrong(name + ".role", "must be system, developer, user, assistant or tool");
    messages.push_back({role == "developer" ? "system" : role,
                        content_of(message, name + ".content"), more_of(message, name)});
  }
  if (messages.back().role == "assistant")
    Fields::wrong("messages",
                  "end with the assistant's, and an answer that is begun is not gone on with; end "
                  "with a user's");
  return messages;
}

void take_prompt(Fields& fields, Request& request) {
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

/// The texts that an answer may be, by any of the names that clients know.
void take_format(const Body& body, Fields& fields, Request& request) {
  using Kind = AnswerFormat::Kind;
  const auto set = [&](Kind kind, std::string text, const char* field) {
    if (request.format)
      Fields::wrong(field, fmt::format("and '{}' are both given", request.format->field));
    request.format = AnswerFormat{kind, std::move(text), field};
  };
  if (const std::string gbnf = fields.text("grammar", ""); !gbnf.empty())
    set(Kind::gbnf, gbnf, "grammar");
  if (const json* schema = fields.find("json_schema"); schema && *schema != json::object()) {
    if (!schema->is_object()) Fields::wrong("json_schema", "must be an object");
    set(Kind::json_schema, body.sent({"json_schema"}), "json_schema");
  }
  const json* format = fields.find("response_format");
  if (!format) return;
  if (!format->is_object()) Fields::wrong("response_format", "must be an object");
  const json type = format->value("type", json());
  if (type == "json_object") {
    // llama.cpp takes a schema here, too
    const auto schema = format->find("schema");
    const bool given = schema != format->end() && schema->is_object() && !schema->empty();
    set(given ? Kind::json_schema : Kind::json_object,
        given ? body.sent({"response_format", "schema"}) : "", "response_format");
  } else if (type == "json_schema") {
    const json inner = format->value("json_schema", json());
    if (!inner.is_object() || !inner.contains("schema") || !inner["schema"].is_object())
      Fields::wrong("response_format", "needs {\"json_schema\": {\"schema\": {...}}}");
    set(Kind::json_schema, body.sent({"response_format", "json_schema", "schema"}),
        "response_format");
  } else if (type != "text") {
    Fields::wrong("response_format", "must have the type text, json_object or json_schema");
  }
}

/// An object {"id": bias}, or as llama.cpp a list [[id, bias], ...].
void take_biases(Fields& fields, SamplingOptions& sampling) {
  const json* biases = fields.find("logit_bias");
  if (!biases) return;
  const auto add = [&](std::int64_t id, const json& bias) {
    if (!bias.is_number() || !(bias.get<double>() >= -100) || !(bias.get<double>() <= 100))
      Fields::wrong("logit_bias", "must have biases from -100 to 100");
    sampling.logit_bias[id] = bias.get<double>();
  };
  if (biases->is_array()) {
    for (const json& one : *biases) {
      if (!one.is_array() || one.size() != 2 || !one[0].is_number_integer())
        Fields::wrong("logit_bias", "must be {\"id\": bias} or [[id, bias], ...]");
      add(one[0].get<std::int64_t>(), one[1]);
    }
    return;
  }
  if (!biases->is_object()) Fields::wrong("logit_bias", "must be an object");
  for (const auto& [name, bias] : biases->items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size())
      Fields::wrong("logit_bias", fmt::format("has '{}', which is no token id", printable(name)));
    add(id, bias);
  }
}

/// A chat's `logprobs` and `top_logprobs`, a completion's count.
void take_logprobs(Fields& fields, Request& request) {
  constexpr std::int64_t kMost = 20;
  const json* wanted = fields.find("logprobs");
  std::int64_t& logprobs = request.options.logprobs;
  if (request.kind == RequestKind::chat) {
    const bool flag = fields.flag("logprobs");
    const std::int64_t top = fields.count("top_logprobs", 0, 0);
    if (top > kMost) Fields::wrong("top_logprobs", fmt::format("must be at most {}", kMost));
    if (top > 0 && !flag) Fields::wrong("top_logprobs", "needs 'logprobs'");
    if (flag) logprobs = top;
  } else if (wanted && *wanted != false) {
    const std::int64_t top = fields.count("logprobs", 0, 0);
    if (top > kMost) Fields::wrong("logprobs", fmt::format("must be at most {}", kMost));
    logprobs = top;
  }
}

/// The tools of a chat, and whether it may or must call them.
void take_tools(const Body& body, Fields& fields, Request& request) {
  const auto read = [](const char* field, auto&& f) {
    try {
      f();
    } catch (const ConfigError& e) {
      throw RequestError(e.what(), field);
    }
  };
  if (fields.find("tools"))
    read("tools", [&] { request.tools = read_tools(body.sent({"tools"})); });
  const json* choice = fields.find("tool_choice");
  read("tool_choice", [&] {
    request.tool_choice = read_tool_choice(choice ? choice->dump() : "", request.tools);
  });
  request.parallel_tool_calls = fields.flag("parallel_tool_calls", true);
}

/// Whether what a model thinks is told apart from its answer.
void take_reasoning_format(Fields& fields, Request& request) {
  const std::string format = fields.text("reasoning_format", "auto");
  if (format != "auto" && format != "deepseek" && format != "none")
    Fields::wrong("reasoning_format", "must be \"auto\", \"deepseek\" or \"none\"");
  request.part_reasoning = format != "none";
}

constexpr std::size_t kMostChoices = 16;

/// What an answer is to tell beside its text.
void take_includes(Fields& fields, Request& request) {
  const json* include = fields.find("include");
  if (!include) return;
  if (!include->is_array()) Fields::wrong("include", "must be a list of texts");
  for (const json& what : *include) {
    if (what != "recall") Fields::wrong("include", "has what is not built; \"recall\" is");
    request.recall = true;
  }
}

}  // namespace

void take_passages(Fields& fields, Request& request) {
  const nlohmann::json* reread = fields.find("reread");
  if (reread && reread->is_string()) {
    if (*reread != "sure" && *reread != "alone")
      Fields::wrong("reread", "must be a number of passages, \"sure\" or \"alone\"");
    request.passage_use = *reread == "sure" ? PassageUse::where_sure : PassageUse::alone;
  } else {
    request.reread = fields.count_up_to("reread", kMostPassages, 0);
  }
  request.rerank = fields.count_up_to("rerank", kMostCandidates, 0);
}

std::string template_variables_of(const json* variables, const json* effort, const char* field) {
  constexpr std::string_view kSet[] = {"messages",     "tools",
                                       "documents",    "functions",
                                       "conversation", "add_generation_prompt",
                                       "strftime_now", "raise_exception",
                                       "namespace",    "range",
                                       "loop",         "continue_final_message"};
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  const auto among = [](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  json all = json::object();
  if (effort) {
    if (!effort->is_string() || !among(kEfforts, effort->get_ref<const std::string&>()))
      Fields::wrong(field, fmt::format("must be one of {}", fmt::join(kEfforts, ", ")));
    all["reasoning_effort"] = *effort;
    if (*effort == "none") all["enable_thinking"] = false;
  }
  if (variables) {
    if (!variables->is_object()) Fields::wrong("chat_template_kwargs", "must be an object");
    for (const auto& [name, value] : variables->items())
      if (name.ends_with("_token") || name.ends_with("_tokens") || among(kSet, name))
        Fields::wrong("chat_template_kwargs",
                      fmt::format("may not set '{}', which the server sets", printable(name)));
    all.update(*variables);
  }
  return effort || variables ? all.dump() : "";
}

Request parse_request(RequestKind kind, std::string_view body, const GenerateOptions& defaults,
                      std::span<const std::string_view> others) {
  const Body parsed(body);
  Fields fields(*parsed);
  for (const std::string_view other : others) fields.find(std::string(other).c_str());
  Request request;
  request.kind = kind;
  request.options = defaults;
  GenerateOptions& o = request.options;
  o.max_new = fields.count("max_tokens", 0, o.max_new);
  if (kind == RequestKind::chat) {
    request.messages = messages_of(fields);
    o.max_new = fields.count("max_completion_tokens", 0, o.max_new);
    request.variables = template_variables_of(fields.find("chat_template_kwargs"),
                                              fields.find("reasoning_effort"), "reasoning_effort");
    take_tools(parsed, fields, request);
    take_reasoning_format(fields, request);
    fields.take(kOfChat);
  } else {
    take_prompt(fields, request);
    fields.take(kOfCompletion);
  }
  fields.take(kBoth);
  o.sampling.temperature = fields.number("temperature", 0, 100, o.sampling.temperature);
  o.sampling.top_p = fields.number("top_p", 0, 1, o.sampling.top_p);
  // -1: all, as vLLM says it
  o.sampling.top_k = std::max<std::int64_t>(0, fields.count("top_k", -1, o.sampling.top_k));
  o.sampling.min_p = fields.number("min_p", 0, 1, o.sampling.min_p);
  o.sampling.repetition_penalty =
      fields.number("repetition_penalty", 1e-3, 1e3, o.sampling.repetition_penalty);
  o.sampling.presence_penalty =
      fields.number("presence_penalty", -2, 2, o.sampling.presence_penalty);
  o.sampling.frequency_penalty =
      fields.number("frequency_penalty", -2, 2, o.sampling.frequency_penalty);
  take_biases(fields, o.sampling);
  take_logprobs(fields, request);
  take_format(parsed, fields, request);
  if (const json* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) Fields::wrong("seed", "must be a whole number");
    o.sampling.seed = static_cast<std::uint64_t>(seed->get<std::int64_t>());
  } else {
    std::random_device device;
    o.sampling.seed = std::uint64_t{device()} << 32 | device();
  }
  o.ignore_eos = fields.flag("ignore_eos", o.ignore_eos);
  take_stops(fields, o);
  request.choices = static_cast<std::size_t>(fields.count("n", 1, 1));
  if (request.choices > kMostChoices)
    Fields::wrong("n", fmt::format("must be at most {}", kMostChoices));
  request.memory = fields.text("memory", "");
  request.store = fields.flag("store");
  take_includes(fields, request);
  take_passages(fields, request);
  request.stream = fields.flag("stream");
  request.progress = fields.flag("return_progress");
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) Fields::wrong("stream_options", "must be an object");
    Fields of_stream(*options);
    request.stream_usage = of_stream.flag("include_usage");
    of_stream.take(kOfStream);
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

}  // namespace episodic::server
