// SPDX-License-Identifier: Apache-2.0
// A client's list of tools, and its choice among them.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

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

/// Members of a function that say nothing to a model.
bool of_the_protocol(ToolForm form, std::string_view member) {
  if (member == "strict") return true;
  if (form == ToolForm::chat) return false;
  constexpr std::string_view kNames[] = {"type", "cache_control", "defer_loading",
                                         "allowed_callers", "eager_input_streaming"};
  return std::find(std::begin(kNames), std::end(kNames), member) != std::end(kNames);
}

/// The entry's function, and where it stands.
std::pair<const ToolJson&, std::string> function_of(const ToolJson& entry, const std::string& path,
                                                    ToolForm form) {
  if (form == ToolForm::chat) {
    require_function(entry, path);
    return {function_member(entry, path), path + ".function"};
  }
  if (form == ToolForm::responses) {
    require_function(entry, path);
  } else {
    if (!entry.is_object()) wrong_tool(path, "must be an object");
    const ToolJson* type = member(entry, "type");
    if (type && *type != "custom")
      wrong_tool(path + ".type", "must be \"custom\" or left out; no other type is supported");
  }
  return {entry, path};
}

Tool tool_of(const ToolJson& entry, const std::string& path, ToolForm form) {
  const auto& [function, here] = function_of(entry, path, form);
  const char* const schema = form == ToolForm::messages ? "input_schema" : "parameters";
  Tool tool;
  tool.name = text_member(function, "name", here);
  if (!name_of_tool(tool.name))
    wrong_tool(here + ".name", "must be 1 to 64 letters, digits, underscores and hyphens");
  tool.description = text_member(function, "description", here);
  ToolJson parameters = ToolJson::object();
  if (const ToolJson* given = member(function, schema)) {
    if (!given->is_object())
      wrong_tool(fmt::format("{}.{}", here, schema), "must be a JSON schema, an object");
    parameters = *given;
    if (const ToolJson* type = member(parameters, "type"); type && *type != "object")
      wrong_tool(fmt::format("{}.{}.type", here, schema),
                 "must be \"object\": arguments are passed by name");
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
    if (!value.is_null() && !of_the_protocol(form, name))
      definition[name == schema ? "parameters" : name] = name == schema ? parameters : value;
  if (!definition.contains("parameters")) definition["parameters"] = std::move(parameters);
  tool.definition = text::spaced_json(definition);
  return tool;
}

}  // namespace

std::vector<Tool> read_tools(std::string_view json, std::string_view label, ToolForm form) {
  const std::string name(label);
  const ToolJson list = text::read_option(json, name, false, kDeepestTools);
  if (list.size() > kMostTools)
    wrong_tool(name, fmt::format("has {} tools; give at most {}", list.size(), kMostTools));
  std::vector<Tool> tools;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", name, i);
    Tool tool = tool_of(list[i], path, form);
    for (const Tool& other : tools)
      if (other.name == tool.name)
        wrong_tool(path + (form == ToolForm::chat ? ".function.name" : ".name"),
                   fmt::format("is '{}', as that of a tool before it; rename one", tool.name));
    tools.push_back(std::move(tool));
  }
  return tools;
}

ToolChoice read_tool_choice(std::string_view json, std::span<const Tool> tools,
                            std::string_view label, ToolForm form) {
  const std::string path(label);
  const bool nested = form == ToolForm::chat;
  const char* const remedy =
      nested ? "give \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": "
               "{\"name\": ...}}"
             : "give \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": ...}";
  ToolJson value;
  if (!json.empty()) try {
      value = parse_ordered(json, label, {.depth = 4, .remedy = remedy});
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
    const std::string here = nested ? path + ".function" : path;
    choice.name = text_member(nested ? function_member(value, path) : value, "name", here);
    if (std::none_of(tools.begin(), tools.end(),
                     [&](const Tool& tool) { return tool.name == choice.name; }))
      wrong_tool(here + ".name",
                 fmt::format("is '{}', which is none of the tools", printable(choice.name, 64)));
  } else {
    wrong_tool(path, fmt::format("is {}; {}", printable_value(value), remedy));
  }
  return choice;
}

}  // namespace episodic
