// SPDX-License-Identifier: Apache-2.0
#include "base/strict_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

/// Bytes of the character that begins here, if it is one that may be shown; 0 if not.
std::size_t shown(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  unsigned point = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3f);
  }
  const bool control = point < 0xa0;  // of a terminal
  const bool turns = (point >= 0x200e && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
                     (point >= 0x2066 && point <= 0x2069);  // the direction, or the line
  return control || turns ? 0 : length;
}

/// Refuses a text that is nested too deep, without a tree or a stack. What the parser takes from a
/// text up to where it refuses it is nested no deeper than this finds.
void check_depth(std::string_view text, std::string_view label, const JsonLimits& limits) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limits.depth)
        throw FileError(
            fmt::format("{}: nested more than {} deep; {}", label, limits.depth, limits.remedy));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

/// The parser reports starts, keys and values as it meets them, so a hostile text is refused before
/// the tree that it describes has grown large.
template <class Json>
Json parse_watched(std::string_view text, std::string_view label, const JsonLimits& limits) {
  using Event = typename Json::parse_event_t;
  struct Level {
    std::size_t most;
    std::set<std::string> keys;
    std::size_t values = 0;
  };
  std::vector<Level> levels;
  const auto watch = [&](int, Event event, Json& parsed) {
    switch (event) {
      case Event::object_start:
      case Event::array_start:
      case Event::value:
        if (!levels.empty() && ++levels.back().values > levels.back().most)
          throw FileError(fmt::format("{}: a list or object with more than {} entries; {}", label,
                                      levels.back().most, limits.remedy));
        if (event != Event::value)
          levels.push_back(
              {event == Event::array_start ? limits.array_length : limits.keys, {}, 0});
        break;
      case Event::object_end:
      case Event::array_end:
        levels.pop_back();
        break;
      case Event::key:
        if (!limits.repeated_keys &&
            !levels.back().keys.insert(parsed.template get_ref<const std::string&>()).second)
          throw FileError(fmt::format("{}: the key '{}' stands twice; remove one of them", label,
                                      printable(parsed.template get_ref<const std::string&>())));
        break;
    }
    return true;
  };
  return Json::parse(text.begin(), text.end(), watch);
}

template <class Json>
Json parse(std::string_view text, std::string_view label, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw FileError(fmt::format("{}: {} bytes long, at most {} were expected; {}", label,
                                text.size(), limits.bytes, limits.remedy));
  check_depth(text, label, limits);
  try {
    return parse_watched<Json>(text, label, limits);
  } catch (const nlohmann::json::exception& e) {
    throw FileError(
        fmt::format("{}: not valid JSON ({}); {}", label, printable(e.what()), limits.remedy));
  }
}

template <class Json>
std::string shown_value(const Json& value) {
  return printable(std::string_view(value.dump(-1, ' ', true, Json::error_handler_t::replace)));
}

}  // namespace

nlohmann::json parse_strict(std::string_view text, std::string_view label,
                            const JsonLimits& limits) {
  return parse<nlohmann::json>(text, label, limits);
}

nlohmann::ordered_json parse_ordered(std::string_view text, std::string_view label,
                                     JsonLimits limits) {
  constexpr std::size_t kMostKeys = 4096;
  limits.keys = std::min(limits.keys, kMostKeys);
  return parse<nlohmann::ordered_json>(text, label, limits);
}

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = shown(text.substr(i));
    if (out.size() + std::max<std::size_t>(length, 1) > longest) return out + "...";
    out += length == 0 ? "?" : text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string printable_value(const nlohmann::json& value) { return shown_value(value); }
std::string printable_value(const nlohmann::ordered_json& value) { return shown_value(value); }

std::string json_string(std::string_view text) {
  using Json = nlohmann::json;
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace episodic
