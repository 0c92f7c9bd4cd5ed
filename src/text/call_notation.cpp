// SPDX-License-Identifier: Apache-2.0
#include "call_notation.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "answer_text.hpp"
#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "json_option.hpp"
#include "json_scanner.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

using CallJson = nlohmann::ordered_json;

constexpr int kDeepestValue = 60;

/// What remains of a text that is being read.
class Rest {
 public:
  explicit Rest(std::string_view text) : text_(text) {}

  bool empty() const { return text_.empty(); }
  char front() const { return text_.empty() ? '\0' : text_.front(); }
  std::string_view text() const { return text_; }
  void skip_spaces() {
    while (!text_.empty() && json_space(text_.front())) text_.remove_prefix(1);
  }
  /// \return whether it stood here
  bool take(std::string_view part) {
    if (!text_.starts_with(part)) return false;
    text_.remove_prefix(part.size());
    return true;
  }
  std::string_view take(std::size_t bytes) {
    const std::string_view taken = text_.substr(0, bytes);
    text_.remove_prefix(bytes);
    return taken;
  }
  /// Up to a mark, which is taken too; nothing where there is none.
  std::optional<std::string_view> up_to(std::string_view mark) {
    const std::size_t at = text_.find(mark);
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view taken = take(at);
    take(mark);
    return taken;
  }
  /// Up to a mark behind which, but for white space, one of two texts follows; an empty one is the
  /// end. What else looks like the mark is a part of what stands before it.
  std::optional<std::string_view> up_to(std::string_view mark, std::string_view next,
                                        std::string_view other) {
    for (std::size_t at = text_.find(mark); at != std::string_view::npos;
         at = text_.find(mark, at + 1)) {
      Rest behind(text_.substr(at + mark.size()));
      behind.skip_spaces();
      const bool ends = other.empty() ? behind.empty() : behind.text().starts_with(other);
      if (!ends && !behind.text().starts_with(next)) continue;
      const std::string_view taken = take(at);
      take(mark);
      return taken;
    }
    return std::nullopt;
  }
  std::string_view word() {
    std::size_t n = 0;
    while (n < text_.size() && in_call_name(text_[n])) ++n;
    return take(n);
  }

 private:
  std::string_view text_;
};

const Tool* tool_named(std::span<const Tool> tools, std::string_view name) {
  const auto at =
      std::find_if(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name; });
  return at == tools.end() ? nullptr : &*at;
}

// Values by their types.

/// The types that a schema names, also in its alternatives.
void add_types(const CallJson& schema, std::vector<std::string>& types, int depth = 0) {
  if (!schema.is_object() || depth > 4) return;
  const auto add = [&](const CallJson& type) {
    if (type.is_string()) types.push_back(type.get<std::string>());
  };
  if (const auto type = schema.find("type"); type != schema.end()) {
    add(*type);
    if (type->is_array())
      for (const CallJson& one : *type) add(one);
  }
  for (const char* name : {"anyOf", "oneOf", "allOf"})
    if (const auto all = schema.find(name); all != schema.end() && all->is_array())
      for (const CallJson& one : *all) add_types(one, types, depth + 1);
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array())
    for (const CallJson& value : *values)
      types.push_back(value.is_string() ? "string" : value.is_null() ? "null" : "other");
}

/// The properties of a tool's arguments.
CallJson properties_of(const Tool& tool) {
  try {
    const CallJson schema =
        parse_ordered(tool.parameters, "parameters", {.depth = 64, .repeated_keys = true});
    return schema.value("properties", CallJson::object());
  } catch (const Error&) {
    return CallJson::object();
  }
}

bool is_json_value(std::string_view text) {
  try {  // a list, since a scalar alone is no text of JSON
    std::string list = "[";
    list.append(text).append("]");
    return parse_strict(list, "value", {.depth = kDeepestValue, .repeated_keys = true}).size() == 1;
  } catch (const Error&) {
    return false;
  }
}

/// A list or an object as Python prints it, which some templates write, as JSON.
std::optional<std::string> python_value_of(std::string_view text);

/// A value that was written without quotation marks, as JSON.
std::string typed_value(std::string_view text, const CallJson& properties, std::string_view key) {
  std::vector<std::string> types;
  if (const auto schema = properties.find(std::string(key)); schema != properties.end())
    add_types(*schema, types);
  const auto may_be = [&](std::string_view type) {
    return types.empty() || std::find(types.begin(), types.end(), type) != types.end();
  };
  const std::string_view bare = without_spaces(text);
  if (may_be("null") && (bare == "null" || bare == "None")) return "null";
  if (!types.empty() && may_be("string")) return json_string(text);
  if (may_be("boolean") && (bare == "True" || bare == "False"))
    return bare == "True" ? "true" : "false";
  if (is_json_value(bare)) return std::string(bare);
  const auto python = python_value_of(bare);
  return python ? *python : json_string(text);
}

/// Members of an object, as they come.
class Members {
 public:
  void add(std::string_view key, std::string_view value) {
    text_ += text_.size() > 1 ? ", " : "";
    text_ += json_string(key) + ": ";
    text_ += value;
  }
  std::string text() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

using Calls = std::optional<std::vector<WrittenCall>>;

/// \return nothing where the arguments are no object of JSON after all
Calls one_call(const Tool& tool, const Members& members) {
  const auto valid = object_text(members.text());
  if (!valid) return std::nullopt;
  return std::vector<WrittenCall>{{tool.name, *valid}};
}

Calls read_parameters(std::string_view text, std::span<const Tool> tools, bool lines) {
  Rest rest(text);
  rest.skip_spaces();
  if (!rest.take("<function=")) return std::nullopt;
  const auto name = rest.up_to(">");
  const Tool* tool = name ? tool_named(tools, without_spaces(*name)) : nullptr;
  if (!tool) return std::nullopt;
  const CallJson properties = properties_of(*tool);
  Members members;
  for (rest.skip_spaces(); rest.take("<parameter="); rest.skip_spaces()) {
    const auto key = rest.up_to(">");
    auto value = rest.up_to("</parameter>", "<parameter=", "</function>");
    if (!key || !value) return std::nullopt;
    if (lines && value->starts_with('\n')) value->remove_prefix(1);
    if (lines && value->ends_with('\n')) value->remove_suffix(1);
    members.add(*key, typed_value(*value, properties, *key));
  }
  if (!rest.take("</function>")) return std::nullopt;
  rest.skip_spaces();
  return rest.empty() ? one_call(*tool, members) : std::nullopt;
}

Calls read_arg_keys(std::string_view text, std::span<const Tool> tools) {
  Rest rest(text);
  rest.skip_spaces();
  const Tool* tool = tool_named(tools, rest.word());
  if (!tool) return std::nullopt;
  const CallJson properties = properties_of(*tool);
  Members members;
  for (rest.skip_spaces(); rest.take("<arg_key>"); rest.skip_spaces()) {
    const auto key = rest.up_to("</arg_key>");
    rest.skip_spaces();
    if (!key || !rest.take("<arg_value>")) return std::nullopt;
    const auto value = rest.up_to("</arg_value>", "<arg_key>", "");
    if (!value) return std::nullopt;
    members.add(*key, typed_value(*value, properties, *key));
  }
  return rest.empty() ? one_call(*tool, members) : std::nullopt;
}

/// A list of {"N": {...}}.
Calls read_keyed(std::string_view text, std::span<const Tool> tools) {
  try {
    const CallJson list =
        parse_ordered(without_spaces(text), "calls", {.depth = 64, .repeated_keys = true});
    if (!list.is_array() || list.empty()) return std::nullopt;
    std::vector<WrittenCall> calls;
    for (const CallJson& call : list) {
      if (!call.is_object() || call.size() != 1 || !call.begin().value().is_object() ||
          !tool_named(tools, call.begin().key()))
        return std::nullopt;
      calls.push_back({call.begin().key(), spaced_json(call.begin().value())});
    }
    return calls;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Numbers of Python and JSON alike; nothing where there is none.
std::optional<std::string_view> number_of(Rest& rest) {
  std::size_t n = 0;
  while (n < rest.text().size() &&
         std::string_view("+-.0123456789eE").find(rest.text()[n]) != std::string_view::npos)
    ++n;
  if (n == 0 || !is_json_value(rest.text().substr(0, n))) return std::nullopt;
  return rest.take(n);
}

/// A word that stands for a value.
std::optional<std::string> constant_of(Rest& rest) {
  constexpr std::pair<std::string_view, std::string_view> kConstants[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"},
      {"true", "true"}, {"false", "false"}, {"null", "null"}};
  for (const auto& [word, json] : kConstants) {
    Rest behind = rest;
    if (!behind.take(word) || in_call_name(behind.front())) continue;
    rest = behind;
    return std::string(json);
  }
  return std::nullopt;
}

// Calls as Python writes them.

class PythonCalls {
 public:
  PythonCalls(std::string_view text, std::span<const Tool> tools) : rest_(text), tools_(tools) {}

  /// A value that is all of the text.
  std::optional<std::string> value() {
    auto read = read_value(0, false);
    return rest_.empty() ? read : std::nullopt;
  }

  Calls read() {
    std::vector<WrittenCall> calls;
    rest_.skip_spaces();
    const bool listed = rest_.take("[");
    for (;;) {
      rest_.skip_spaces();
      if (rest_.empty() || (listed && rest_.front() == ']')) break;
      if (!read_call(calls)) return std::nullopt;
      rest_.skip_spaces();
      rest_.take(",");  // or a line of its own for each
    }
    if (listed && !rest_.take("]")) return std::nullopt;
    rest_.skip_spaces();
    if (!rest_.empty() || calls.empty()) return std::nullopt;
    return calls;
  }

 private:
  bool read_call(std::vector<WrittenCall>& calls) {
    const Tool* tool = tool_named(tools_, rest_.word());
    if (!tool || !rest_.take("(")) return false;
    Members members;
    for (;;) {
      rest_.skip_spaces();
      if (rest_.take(")")) break;
      const std::string_view key = rest_.word();
      rest_.skip_spaces();
      if (key.empty() || !rest_.take("=")) return false;
      rest_.skip_spaces();
      const auto value = read_value(0, true);
      if (!value) return false;
      members.add(key, *value);
      rest_.skip_spaces();
      if (!rest_.take(",") && rest_.front() != ')') return false;
    }
    auto call = one_call(*tool, members);
    if (!call) return false;
    calls.push_back(std::move(call->front()));
    return true;
  }

  std::optional<std::string> read_value(int depth, bool argument) {
    if (depth > kDeepestValue) return std::nullopt;
    const char c = rest_.front();
    if (c == '\'' || c == '"') {
      const auto text = read_text(argument);
      return text ? std::optional(json_string(*text)) : std::nullopt;
    }
    if (c == '[' || c == '(') return read_list(depth, c == '[' ? "]" : ")");
    if (c == '{') return read_dict(depth);
    if (auto constant = constant_of(rest_)) return constant;
    const auto number = number_of(rest_);
    return number ? std::optional(std::string(*number)) : std::nullopt;
  }

  std::optional<std::string> read_list(int depth, std::string_view end) {
    rest_.take(1);
    std::string list = "[";
    for (;;) {
      rest_.skip_spaces();
      if (rest_.take(end)) return list + "]";
      const auto value = read_value(depth + 1, false);
      if (!value) return std::nullopt;
      list += (list.size() > 1 ? ", " : "") + *value;
      rest_.skip_spaces();
      if (!rest_.take(",") && !rest_.text().starts_with(end)) return std::nullopt;
    }
  }

  std::optional<std::string> read_dict(int depth) {
    rest_.take(1);
    Members members;
    for (;;) {
      rest_.skip_spaces();
      if (rest_.take("}")) return members.text();
      if (rest_.front() != '\'' && rest_.front() != '"') return std::nullopt;
      const auto key = read_text(false);
      rest_.skip_spaces();
      if (!key || !rest_.take(":")) return std::nullopt;
      rest_.skip_spaces();
      const auto value = read_value(depth + 1, false);
      if (!value) return std::nullopt;
      members.add(*key, *value);
      rest_.skip_spaces();
      if (!rest_.take(",") && rest_.front() != '}') return std::nullopt;
    }
  }

  /// Whether a quotation mark before this text ends an argument. Templates put texts between
  /// quotation marks as they are, so there may be more of these within.
  static bool ends_argument(std::string_view behind) {
    Rest rest(behind);
    rest.skip_spaces();
    if (rest.take(")")) {
      rest.skip_spaces();
      return rest.empty() || rest.front() == ',' || rest.front() == ']' ||
             in_call_name(rest.front());
    }
    if (!rest.take(",")) return false;
    rest.skip_spaces();
    if (rest.word().empty()) return rest.front() == ')';
    rest.skip_spaces();
    return rest.front() == '=';
  }

  std::optional<std::string> read_text(bool argument) {
    const char quote = rest_.front();
    rest_.take(1);
    std::string out;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.take(1);
      if (c == quote && (!argument || ends_argument(rest_.text()))) return out;
      if (c == '\\' && !rest_.empty())
        read_escape(out);
      else
        out += c;
    }
    return std::nullopt;
  }

  void read_escape(std::string& out) {
    constexpr std::string_view kNames = "ntrbfv0'\"\\/", kMeanings = "\n\t\r\b\f\v\0'\"\\/";
    constexpr std::string_view kMeant(kMeanings.data(), kNames.size());
    const char c = rest_.front();
    if (const std::size_t at = kNames.find(c); at != std::string_view::npos) {
      rest_.take(1);
      out += kMeant[at];
      return;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const std::string_view number = rest_.text().substr(0, digits + 1).substr(digits > 0 ? 1 : 0);
    std::uint32_t code = 0;
    bool good = digits > 0 && number.size() == digits;
    for (const char d : number) {
      const std::size_t value =
          std::string_view("0123456789abcdef")
              .find(d >= 'A' && d <= 'F' ? static_cast<char>(d - 'A' + 'a') : d);
      good = good && value != std::string_view::npos;
      code = code * 16 + static_cast<std::uint32_t>(value & 15);
    }
    if (!good || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      out += '\\';  // none: Python leaves it as it is
      return;
    }
    rest_.take(digits + 1);
    out += utf8_of(code);
  }

  Rest rest_;
  std::span<const Tool> tools_;
};

std::optional<std::string> python_value_of(std::string_view text) {
  if (!text.starts_with('{') && !text.starts_with('[')) return std::nullopt;
  return PythonCalls(text, {}).value();
}

// Calls as Gemma 4 writes them.

class GemmaCall {
 public:
  GemmaCall(std::string_view text, std::span<const Tool> tools) : rest_(text), tools_(tools) {}

  Calls read() {
    rest_.skip_spaces();
    if (!rest_.take("call:")) return std::nullopt;
    const Tool* tool = tool_named(tools_, rest_.word());
    if (!tool || rest_.front() != '{') return std::nullopt;
    const auto arguments = read_object(0);
    rest_.skip_spaces();
    if (!arguments || !rest_.empty()) return std::nullopt;
    const auto valid = object_text(*arguments);
    if (!valid) return std::nullopt;
    return std::vector<WrittenCall>{{tool->name, *valid}};
  }

 private:
  std::optional<std::string> read_value(int depth) {
    if (depth > kDeepestValue) return std::nullopt;
    rest_.skip_spaces();
    if (rest_.take(kGemmaQuote)) {
      const auto text = rest_.up_to(kGemmaQuote);
      return text ? std::optional(json_string(*text)) : std::nullopt;
    }
    if (rest_.front() == '{') return read_object(depth);
    if (rest_.front() == '[') return read_list(depth);
    if (auto constant = constant_of(rest_)) return constant;
    const auto number = number_of(rest_);
    return number ? std::optional(std::string(*number)) : std::nullopt;
  }

  std::optional<std::string> read_object(int depth) {
    rest_.take(1);
    Members members;
    for (;;) {
      rest_.skip_spaces();
      if (rest_.take("}")) return members.text();
      const bool quoted = rest_.take(kGemmaQuote);
      const auto key = rest_.up_to(quoted ? kGemmaQuote : ":");
      if (!key || (quoted && !rest_.take(":"))) return std::nullopt;
      const auto value = read_value(depth + 1);
      if (!value) return std::nullopt;
      members.add(*key, *value);
      rest_.skip_spaces();
      if (!rest_.take(",") && rest_.front() != '}') return std::nullopt;
    }
  }

  std::optional<std::string> read_list(int depth) {
    rest_.take(1);
    std::string list = "[";
    for (;;) {
      rest_.skip_spaces();
      if (rest_.take("]")) return list + "]";
      const auto value = read_value(depth + 1);
      if (!value) return std::nullopt;
      list += (list.size() > 1 ? ", " : "") + *value;
      rest_.skip_spaces();
      if (!rest_.take(",") && rest_.front() != ']') return std::nullopt;
    }
  }

  Rest rest_;
  std::span<const Tool> tools_;
};

std::string python_value(const CallJson& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!value.is_structured()) return spaced_json(value);
  std::string out(1, value.is_object() ? '{' : '[');
  for (const auto& [key, one] : value.items()) {
    if (out.size() > 1) out += ", ";
    if (value.is_object()) out += json_string(key) + ": ";
    out += python_value(one);
  }
  return out + (value.is_object() ? '}' : ']');
}

}  // namespace

std::optional<std::string> object_text(std::string_view json) {
  try {
    const JsonLimits limits{.depth = static_cast<int>(JsonScanner::kDeepest),
                            .repeated_keys = true};
    if (!parse_strict(json, "arguments", limits).is_object()) return std::nullopt;
    return std::string(json);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<std::string> object_in_text(std::string_view json) {
  try {
    const auto value = parse_strict(json, "arguments", {.depth = 1});
    return value.is_string() ? object_text(value.get_ref<const std::string&>()) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool ends_calls(CallNotation notation, std::string_view text) {
  text = without_spaces(text);
  switch (notation) {
    case CallNotation::parameters:
    case CallNotation::lines:
      return text.ends_with("</function>");
    case CallNotation::arg_keys:
      return text.ends_with("</arg_value>") || text.find('<') == std::string_view::npos;
    case CallNotation::python:
      return text.ends_with(']') || text.ends_with(')');
    case CallNotation::gemma:
      return text.ends_with('}');
    case CallNotation::keyed:
      return text.ends_with(']');
    case CallNotation::json:
      break;
  }
  return true;
}

std::optional<std::vector<WrittenCall>> read_calls(CallNotation notation, std::string_view text,
                                                   std::span<const Tool> tools) {
  switch (notation) {
    case CallNotation::parameters:
    case CallNotation::lines:
      return read_parameters(text, tools, notation == CallNotation::lines);
    case CallNotation::arg_keys:
      return read_arg_keys(text, tools);
    case CallNotation::python:
      return PythonCalls(text, tools).read();
    case CallNotation::gemma:
      return GemmaCall(text, tools).read();
    case CallNotation::keyed:
      return read_keyed(text, tools);
    case CallNotation::json:
      break;
  }
  return std::nullopt;
}

std::string python_call(std::string_view name, const std::string& arguments) {
  std::string out(name);
  out += '(';
  try {
    const CallJson object =
        parse_ordered(arguments, "arguments", {.depth = 64, .repeated_keys = true});
    bool first = true;
    for (const auto& [key, value] : object.items()) {
      out += (std::exchange(first, false) ? "" : ", ") + key + "=" + python_value(value);
    }
  } catch (const Error&) {
    out += arguments;  // a model's mistake of an earlier turn
  }
  return out + ")";
}

}  // namespace episodic::text
