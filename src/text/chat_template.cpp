// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/chat_template.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <fstream>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "jinja_render.hpp"
#include "json_node.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;
namespace jinja = text::jinja;

constexpr std::uintmax_t kLongestTemplate = 1 << 20;

std::tm local_time() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

jinja::Value format_time(const std::optional<std::tm>& now, const jinja::List& arguments) {
  if (arguments.size() != 1 || !arguments[0].string()) jinja::fail("strftime_now: needs a format");
  const std::string& format = *arguments[0].string();
  const std::tm parts = now ? *now : local_time();
  std::array<char, 512> out{};
  const std::size_t n = std::strftime(out.data(), out.size(), format.c_str(), &parts);
  if (n == 0 && !format.empty()) jinja::fail("strftime_now: the format is too long");
  return std::string(out.data(), n);
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

/// \param name of the setting, for messages
nlohmann::ordered_json read_object(const std::string& text, const std::string& name) {
  nlohmann::ordered_json json;
  try {
    json = parse_ordered(text, name, {.depth = 64, .remedy = "give a JSON object"});
  } catch (const Error& e) {
    throw ConfigError(e.what());
  }
  if (!json.is_object()) throw ConfigError(name + ": is no JSON object: " + printable(text));
  return json;
}

std::string template_in(const text::JsonNode& node) {
  if (node.json().is_string()) return node.str();
  if (node.json().is_array())
    for (std::size_t i = 0; i < node.size(); ++i)
      if (node.at(i).at("name").str() == "default") return node.at(i).at("template").str();
  node.fail("must be a template, or a list of templates of which one is named default");
}

}  // namespace

struct ChatTemplate::Impl {
  std::string name;
  std::map<std::string, std::string> tokens;
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name,
                           std::map<std::string, std::string> tokens) {
  auto impl = std::make_shared<Impl>();
  try {
    impl->block = jinja::parse(source);
  } catch (const Error& e) {
    throw FileError(fmt::format("{}: chat template, {}", name, e.what()));
  }
  impl->name = std::move(name);
  impl->tokens = std::move(tokens);
  impl_ = std::move(impl);
}

ChatTemplate::ChatTemplate(const ChatTemplate&) = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(const ChatTemplate&) = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 const ChatOptions& options) const {
  jinja::Dict globals;
  for (const auto& [name, token] : impl_->tokens) globals.set(name, token);
  jinja::List list;
  for (const ChatMessage& m : messages) {
    jinja::Dict message;
    message.items = {{"role", m.role}, {"content", m.content}};
    if (!m.fields.empty()) {
      const nlohmann::ordered_json more = read_object(m.fields, "ChatMessage::fields");
      for (const auto& [name, value] : more.items())
        if (name != "role" && name != "content") message.set(name, jinja::Value::from(value));
    }
    list.emplace_back(std::move(message));
  }
  globals.set("messages", std::move(list));
  globals.set("tools", {});
  globals.set("documents", {});
  globals.set("add_generation_prompt", options.add_generation_prompt);
  globals.set("strftime_now",
              jinja::Function([&options](jinja::List arguments, jinja::Named) -> jinja::Value {
                return format_time(options.now, arguments);
              }));
  if (!options.variables.empty()) {
    const nlohmann::ordered_json json = read_object(options.variables, "ChatOptions::variables");
    for (const auto& [name, value] : json.items()) globals.set(name, jinja::Value::from(value));
  }
  try {
    return jinja::render(impl_->block, std::move(globals.items));
  } catch (const DataError& e) {
    throw DataError(fmt::format("{}: chat template, {}", impl_->name, e.what()));
  }
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
