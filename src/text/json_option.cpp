// SPDX-License-Identifier: Apache-2.0
#include "json_option.hpp"

#include <fmt/format.h>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic::text {
namespace {

/// Integers beyond 64 bits would be read as floats.
void refuse_large_integers(std::string_view text, const std::string& label) {
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      while (++at < text.size() && text[at] != '"') at += text[at] == '\\';
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < text.size() &&
           std::string_view("0123456789+-.eE").find(text[at]) != std::string::npos)
      ++at;
    const std::string_view number = text.substr(begin, at - begin);
    if (at == begin) {
      ++at;
    } else if (number.find_first_of(".eE") == std::string_view::npos) {
      const std::string_view digits = number.substr(number.starts_with('-') ? 1 : 0);
      const std::string_view most =
          number.starts_with('-') ? "9223372036854775808" : "18446744073709551615";
      if (digits.size() > most.size() || (digits.size() == most.size() && digits > most))
        throw ConfigError(
            fmt::format("{}: an integer beyond 64 bits ({}) is not supported; give "
                        "it as a string",
                        label, printable(number, 40)));
    }
  }
}

}  // namespace

nlohmann::ordered_json read_option(std::string_view text, const std::string& label, bool object,
                                   int depth) {
  nlohmann::ordered_json json;
  const char* remedy = object ? "give a JSON object" : "give a JSON list";
  try {
    json = parse_ordered(text, label, {.depth = depth, .remedy = remedy});
  } catch (const Error& e) {
    throw ConfigError(e.what());
  }
  if (object ? !json.is_object() : !json.is_array())
    throw ConfigError(
        fmt::format("{}: is no JSON {}: {}", label, object ? "object" : "list", printable(text)));
  refuse_large_integers(text, label);
  return json;
}

std::string spaced_json(const nlohmann::ordered_json& value) {
  if (!value.is_structured()) return value.dump();
  std::string out(1, value.is_object() ? '{' : '[');
  for (const auto& [key, member] : value.items()) {
    if (out.size() > 1) out += ", ";
    if (value.is_object()) out += json_string(key) + ": ";
    out += spaced_json(member);
  }
  return out + (value.is_object() ? '}' : ']');
}

}  // namespace episodic::text
