// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/chat_template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "jinja_render.hpp"
#include "jinja_strings.hpp"
#include "json_node.hpp"
#include "json_option.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;
namespace jinja = text::jinja;

constexpr std::size_t kLongestTemplate = 1 << 20;
constexpr std::size_t kLongestReason = 400;  // of what a template is refused for, in bytes

std::tm local_time() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

jinja::Value format_time(jinja::Budget& budget, const std::optional<std::tm>& now,
                         const jinja::Arguments& arguments) {
  const jinja::Bound bound("strftime_now", arguments, {"format"}, 1);
  const std::string& format = bound.text(0).bytes;
  const std::tm parts = now ? *now : local_time();
  std::array<char, 512> out{};
  const std::size_t n = std::strftime(out.data(), out.size(), format.c_str(), &parts);
  if (n == 0 && !format.empty()) jinja::fail("strftime_now: the format is too long");
  return jinja::text_value(budget, std::string_view(out.data(), n));
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (fs::file_size(path, error) > kLongestTemplate || error)
    throw FileError(fmt::format("{}: cannot be read as a chat template; {}", path.string(),
                                error ? error.message() : "it is longer than 1 MB"));
  std::ifstream in(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in) throw FileError(fmt::format("{}: cannot be read", path.string()));
  return text;
}

/// tokenizer_config.json writes special tokens as a string, or as an object with `content`.
std::map<std::string, std::string> special_tokens(const nlohmann::json& config) {
  std::map<std::string, std::string> tokens;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string())
      tokens[key] = value.get<std::string>();
    else if (value.is_object() && value.contains("content") && value["content"].is_string())
      tokens[key] = value["content"].get<std::string>();
  }
  return tokens;
}

/// A role that is a plain word cannot hold a special token, but be put into one by the template.
bool plain_word(std::string_view role) {
  return role.size() <= 40 && std::all_of(role.begin(), role.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
         });
}

/// A message as the template reads it: the members of transformers' own preparation.
jinja::Value message_value(jinja::Budget& budget, const ChatMessage& m, std::size_t index) {
  using Json = nlohmann::ordered_json;
  Json json = Json::object();
  if (!m.fields.empty()) {
    const std::string label = fmt::format("ChatMessage::fields of message {}", index);
    json = text::read_option(m.fields, label, true);
    if (json.contains("role") && json["role"] != m.role)
      throw ConfigError(fmt::format("{}: 'role' is not the message's own", label));
  }
  jinja::DictMaker message(budget);
  // names of members are the template's as much as the client's, and hold no text of anybody
  const auto set = [&](const std::string& name, jinja::Value value) {
    message.set(jinja::text_value(budget, name, !plain_word(name)), std::move(value));
  };
  const auto role = [&] { set("role", jinja::text_value(budget, m.role, !plain_word(m.role))); };
  const auto content = [&] { set("content", jinja::text_value(budget, m.content, true)); };
  std::optional<jinja::Value> thought;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (const auto it = json.find(name); !thought && it != json.end() && !it->is_null())
      thought = jinja::from_json(budget, *it);
  if (thought) set("thinking", *thought);
  if (!json.contains("role")) role();
  if (!json.contains("content")) content();
  for (const auto& [name, value] : json.items()) {
    if (value.is_null() || (name == "thinking" && thought)) {
      if (name != "thinking" || value.is_null()) continue;
      set(name, jinja::from_json(budget, value));
    } else if (name == "role") {
      role();
    } else {
      set(name, jinja::from_json(budget, value));
    }
  }
  if (thought) set("reasoning_content", *thought);
  return message.finish();
}

/// The bytes of what a caller gives, which a rendering's time and memory are in proportion to.
std::size_t size_of(std::span<const ChatMessage> messages, const ChatOptions& options) {
  std::size_t n = options.variables.size() + options.tools.size() + options.documents.size();
  for (const ChatMessage& m : messages) n += m.role.size() + m.content.size() + m.fields.size();
  return n;
}

// A rendering may take what no template of today comes near, and for each message and each byte of
// what is given as much again as a template could want.
constexpr std::uint64_t kSteps = 12'000'000, kStepsOfMessage = 500, kStepsOfByte = 4;
constexpr std::size_t kBytes = std::size_t{128} << 20, kBytesOfMessage = 8'192, kBytesOfByte = 16;

std::string template_in(const text::JsonNode& node) {
  if (node.json().is_string()) return node.str();
  if (node.json().is_array())
    for (std::size_t i = 0; i < node.size(); ++i)
      if (node.at(i).at("name").str() == "default") return node.at(i).at("template").str();
  node.fail("must be a template, or a list of templates of which one is named default");
}

}  // namespace

struct ChatTemplate::Impl {
  std::string name, source;
  std::map<std::string, std::string> tokens;
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name,
                           std::map<std::string, std::string> tokens) {
  if (source.size() > kLongestTemplate)
    throw FileError(fmt::format("{}: the chat template is longer than 1 MB", name));
  auto impl = std::make_shared<Impl>();
  try {
    impl->block = jinja::parse(source);
  } catch (const Error& e) {
    throw FileError(
        fmt::format("{}: chat template, {}", name, printable(e.what(), kLongestReason)));
  }
  impl->name = std::move(name);
  impl->source = source;
  impl->tokens = std::move(tokens);
  impl_ = std::move(impl);
}

ChatTemplate::ChatTemplate(const ChatTemplate&) = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(const ChatTemplate&) = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return impl_->source; }

RenderedPrompt ChatTemplate::render_prompt(std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const {
  const std::size_t size = size_of(messages, options);
  jinja::Budget budget(kSteps + kStepsOfMessage * messages.size() + kStepsOfByte * size,
                       kBytes + kBytesOfMessage * messages.size() + kBytesOfByte * size);
  jinja::Named globals;
  const auto set = [&](const std::string& name, jinja::Value value) {
    globals.emplace_back(name, std::move(value));
  };
  try {
    if (!options.variables.empty()) {
      const auto json = text::read_option(options.variables, "ChatOptions::variables", true);
      for (const auto& [name, value] : json.items()) {
        const bool taken = name == "messages" || name == "add_generation_prompt" ||
                           name == "strftime_now" || name == "loop" || name.ends_with("_token") ||
                           jinja::is_global(name) || impl_->tokens.contains(name) ||
                           (name == "tools" && !options.tools.empty()) ||
                           (name == "documents" && !options.documents.empty());
        if (taken)
          throw ConfigError(
              fmt::format("ChatOptions::variables: '{}' is not a variable to give; leave it out",
                          printable(name, 60)));
        set(name, jinja::from_json(budget, value));
      }
    }
    for (const auto& [name, token] : impl_->tokens) set(name, jinja::text_value(budget, token));
    jinja::List list;
    list.reserve(messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i)
      list.push_back(message_value(budget, messages[i], i));
    set("messages", jinja::list_value(budget, std::move(list)));
    const auto optional = [&](const char* name, const std::string& text) {
      const bool given = std::any_of(globals.begin(), globals.end(),
                                     [&](const auto& global) { return global.first == name; });
      if (!text.empty())
        set(name, jinja::from_json(budget, text::read_option(
                                               text, fmt::format("ChatOptions::{}", name), false)));
      else if (!given)
        set(name, {});
    };
    optional("tools", options.tools);
    optional("documents", options.documents);
    set("add_generation_prompt", options.add_generation_prompt);
    auto now = std::make_shared<jinja::Function>();
    now->name = "strftime_now";
    now->call = [&](jinja::Arguments& a) { return format_time(budget, options.now, a); };
    set(now->name, std::shared_ptr<const jinja::Function>(now));
    return jinja::render(impl_->block, std::move(globals), budget);
  } catch (const DataError& e) {
    throw DataError(
        fmt::format("{}: chat template, {}", impl_->name, printable(e.what(), kLongestReason)));
  }
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 const ChatOptions& options) const {
  return render_prompt(messages, options).text;
}

RenderedPrompt RenderedPrompt::part(std::size_t begin, std::size_t end) const {
  end = std::min(end, text.size());
  begin = std::min(begin, end);
  RenderedPrompt out{text.substr(begin, end - begin), {}};
  for (const TextSpan& span : input) {
    const std::size_t from = std::max(span.begin, begin), to = std::min(span.end, end);
    if (from < to) out.input.push_back({from - begin, to - begin});
  }
  return out;
}

std::vector<std::int64_t> encode_prompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt) {
  return tokenizer.encode_marked(prompt.text, prompt.input);
}

ChatTemplate load_chat_template(const fs::path& model_dir) {
  const fs::path config_file = model_dir / "tokenizer_config.json";
  const fs::path template_file = model_dir / "chat_template.jinja";
  std::error_code ignored;
  nlohmann::json config = nlohmann::json::object();
  if (fs::exists(config_file, ignored)) config = text::parse_json_file(config_file);
  const text::JsonNode root(config_file, config);
  if (!config.is_object()) root.fail("must be an object");
  if (fs::exists(template_file, ignored))
    return {read_file(template_file), template_file.string(), special_tokens(config)};
  const text::JsonNode node = root.at("chat_template");
  if (node.null())
    throw FileError(
        fmt::format("{}: has no chat template (chat_template in tokenizer_config.json, or "
                    "chat_template.jinja): "
                    "it is a base model; prompt it with plain text, not with messages",
                    model_dir.string()));
  return {template_in(node), config_file.string(), special_tokens(config)};
}

}  // namespace episodic
