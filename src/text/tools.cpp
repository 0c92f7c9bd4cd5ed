// SPDX-License-Identifier: Apache-2.0
// A client's list of tools, and its choice among them.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/text/tool_calls.hpp"
#include "json_option.hpp"

namespace episodic {
namespace {

using ToolJson = nlohmann::ordered_json;

constexpr std::size_t kMostTools = 128;
constexpr int kDeepestTools = 56;  // within messages and lists it still fits what templates read

[[noreturn]] void wrong_tool(const std::string& path, std::string_view what) {
  throw ConfigError(fmt::format("{} {}", path, what));
}

bool name_of_tool(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

/// The member, or null where it is absent or null.
const ToolJson* member(const ToolJson& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string text_member(const ToolJson& object, const char* name, const std::string& path) {
  const ToolJson* value = member(object, name);
  if (!value) return {};
  if (!value->is_string()) wrong_tool(path + "." + name, "must be a text");
  return value->get<std::string>();
}

const ToolJson& function_member(const ToolJson& object, const std::string& path) {
  const ToolJson* function = member(object, "function");
  if (!function || !function->is_object())
    wrong_tool(path + ".function", "must be an object with the function's name");
  return *function;
}

void require_function(const ToolJson& object, const std::string& path) {
  if (!object.is_object()) wrong_tool(path, "must be an object");
  const ToolJson* type = member(object, "type");
  if (!type || *type != "function")
    wrong_tool(path + ".type", "must be \"function\"; no other type is supported");
}

Tool tool_of(const ToolJson& entry, const std::string& path) {
  require_function(entry, path);
  const ToolJson& function = function_member(entry, path);
  const std::string here = path + ".function";
  Tool tool;
  tool.name = text_member(function, "name", here);
  if (!name_of_tool(tool.name))
    wrong_tool(here + ".name", "must be 1 to 64 letters, digits, underscores and hyphens");
  tool.description = text_member(function, "description", here);
  ToolJson parameters = ToolJson::object();
  if (const ToolJson* given = member(function, "parameters")) {
    if (!given->is_object()) wrong_tool(here + ".parameters", "must be a JSON schema, an object");
    parameters = *given;
    if (const ToolJson* type = member(parameters, "type"); type && *type != "object")
      wrong_tool(here + ".parameters.type", "must be \"object\": arguments are passed by name");
  }
  if (!parameters.contains("type")) parameters["type"] = "object";
  if (!parameters.contains("properties")) parameters["properties"] = ToolJson::object();
  tool.parameters = parameters.dump();
  if (const ToolJson* strict = member(function, "strict")) {
    if (!strict->is_boolean()) wrong_tool(here + ".strict", "must be true or false");
    tool.strict = strict->get<bool>();
  }
  ToolJson definition = ToolJson::object();
  for (const auto& [name, value] : function.items())
    if (!value.is_null() && name != "strict")
      definition[name] = name == "parameters" ? parameters : value;
  if (!definition.contains("parameters")) definition["parameters"] = std::move(parameters);
  tool.definition = text::spaced_json(definition);
  return tool;
}

}  // namespace

std::vector<Tool> read_tools(std::string_view json, std::string_view label) {
  const std::string name(label);
  const ToolJson list = text::read_option(json, name, false, kDeepestTools);
  if (list.size() > kMostTools)
    wrong_tool(name, fmt::format("has {} tools; give at most {}", list.size(), kMostTools));
  std::vector<Tool> tools;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", name, i);
    Tool tool = tool_of(list[i], path);
    for (const Tool& other : tools)
      if (other.name == tool.name)
        wrong_tool(path + ".function.name",
                   fmt::format("is '{}', as that of a tool before it; rename one", tool.name));
    tools.push_back(std::move(tool));
  }
  return tools;
}

ToolChoice read_tool_choice(std::string_view json, std::span<const Tool> tools,
                            std::string_view label) {
  const std::string path(label);
  constexpr const char* kRemedy =
      "give \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": "
      "...}}";
  ToolJson value;
  if (!json.empty()) try {
      value = parse_ordered(json, label, {.depth = 4, .remedy = kRemedy});
    } catch (const Error& e) {
      throw ConfigError(e.what());
    }
  ToolChoice choice;
  if (value.is_null()) {
    if (tools.empty()) choice.kind = ToolChoice::Kind::none;
    return choice;
  }
  if (value == "none") {
    choice.kind = ToolChoice::Kind::none;
  } else if (value == "auto") {
    if (tools.empty()) choice.kind = ToolChoice::Kind::none;
  } else if (value == "required" || value == "any") {
    choice.kind = ToolChoice::Kind::required;
    if (tools.empty()) wrong_tool(path, "is \"required\", but there are no tools; give some");
  } else if (value.is_object()) {
    require_function(value, path);
    choice.kind = ToolChoice::Kind::required;
    choice.name = text_member(function_member(value, path), "name", path + ".function");
    if (std::none_of(tools.begin(), tools.end(),
                     [&](const Tool& tool) { return tool.name == choice.name; }))
      wrong_tool(path + ".function.name",
                 fmt::format("is '{}', which is none of the tools", printable(choice.name, 64)));
  } else {
    wrong_tool(path, fmt::format("is {}; {}", printable_value(value), kRemedy));
  }
  return choice;
}

}  // namespace episodic
