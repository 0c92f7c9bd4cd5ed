// SPDX-License-Identifier: Apache-2.0
#include "strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "episodic/base/error.hpp"

namespace episodic {

std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 160;
  std::string out;
  for (const char c : name.substr(0, kLongest))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  if (name.size() > kLongest) out += "...";
  return out;
}

nlohmann::json parse_strict(std::string_view text, std::string_view label,
                            const JsonLimits& limits) {
  using Json = nlohmann::json;
  using Event = Json::parse_event_t;
  struct Level {
    std::set<std::string> keys;
    std::size_t values = 0;
  };
  std::vector<Level> levels;
  // The parser reports starts, keys and values as it meets them, so a hostile text is refused
  // before the tree that it describes has grown large.
  const auto watch = [&](int, Event event, Json& parsed) {
    switch (event) {
      case Event::object_start:
      case Event::array_start:
      case Event::value:
        if (!levels.empty() && ++levels.back().values > limits.array_length)
          throw FileError(
              fmt::format("{}: a list or object with more than {} entries; the file is "
                          "damaged or not what its name says",
                          label, limits.array_length));
        if (event == Event::value) break;
        levels.emplace_back();
        if (static_cast<int>(levels.size()) > limits.depth)
          throw FileError(
              fmt::format("{}: nested more than {} deep; the file is damaged or not "
                          "what its name says",
                          label, limits.depth));
        break;
      case Event::object_end:
      case Event::array_end:
        levels.pop_back();
        break;
      case Event::key:
        if (!levels.back().keys.insert(parsed.get_ref<const std::string&>()).second)
          throw FileError(fmt::format("{}: the key '{}' stands twice; remove one of them", label,
                                      printable(parsed.get_ref<const std::string&>())));
        break;
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& e) {
    throw FileError(
        fmt::format("{}: not valid JSON ({}); fetch the file again", label, printable(e.what())));
  }
}

}  // namespace episodic
