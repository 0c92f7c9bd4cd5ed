// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the readers of answers share: texts that come in pieces, and the arguments of calls.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace episodic::text {

inline constexpr std::size_t kLongestWord = 64;  // a name, or an id
// White space that is kept back because a call, or an answer behind a thought, may follow it.
inline constexpr std::size_t kMostSpaces = 256;

inline bool json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

inline bool in_call_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

/// Without white space at both ends.
inline std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && json_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Whether a text begins with another one, or may once it goes on.
enum class TextMatch : std::uint8_t { no, partly, yes };

inline TextMatch match_text(std::string_view text, std::string_view with) {
  if (with.empty()) return TextMatch::no;
  if (text.starts_with(with)) return TextMatch::yes;
  return with.starts_with(text) ? TextMatch::partly : TextMatch::no;
}

/// How many bytes at the end of a text may be the beginning of a mark that it does not hold.
inline std::size_t begun_mark(std::string_view text, std::string_view mark) {
  if (mark.empty()) return 0;
  std::size_t n = text.size() < mark.size() ? text.size() : mark.size() - 1;
  while (n > 0 && !mark.starts_with(text.substr(text.size() - n))) --n;
  return n;
}

/// The JSON text of an object, or nothing.
std::optional<std::string> object_text(std::string_view json);

/// The same of a JSON text whose content is one.
std::optional<std::string> object_in_text(std::string_view json);

}  // namespace episodic::text
