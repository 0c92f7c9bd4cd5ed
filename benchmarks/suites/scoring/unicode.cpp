// SPDX-License-Identifier: Apache-2.0
#include "scoring/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <limits>

namespace episodic::suites {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_cased(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/// Characters that do not end a word for the rule of the final sigma: marks, and what may stand
/// inside a word.
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  constexpr std::u32string_view kInside = U"'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027";
  return kInside.find(c) != std::u32string_view::npos;
}

bool is_final_sigma(std::u32string_view text, std::size_t at) {
  std::size_t i = at;
  while (i > 0 && is_case_ignorable(text[i - 1])) --i;
  if (i == 0 || !is_cased(text[i - 1])) return false;
  i = at + 1;
  while (i < text.size() && is_case_ignorable(text[i])) ++i;
  return i == text.size() || !is_cased(text[i]);
}

}  // namespace

std::u32string to_code_points(std::string_view utf8) {
  std::u32string out;
  out.reserve(utf8.size());
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data());
  const auto size = static_cast<utf8proc_ssize_t>(utf8.size());
  for (utf8proc_ssize_t at = 0; at < size;) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(bytes + at, size - at, &c);
    out.push_back(n > 0 ? static_cast<char32_t>(c) : U'\ufffd');
    at += std::max<utf8proc_ssize_t>(n, 1);
  }
  return out;
}

std::string to_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  std::array<utf8proc_uint8_t, 4> bytes;
  for (const char32_t c : text) {
    const utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n));
  }
  return out;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c < 0x80)
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

bool is_digit(char32_t c) {
  return c < 0x80 ? c >= '0' && c <= '9' : category(c) == UTF8PROC_CATEGORY_ND;
}

int digit_value(char32_t c) {
  if (c < 0x80) return static_cast<int>(c - '0');
  // The digits of a script stand in order, and scripts whose digits adjoin have ten each.
  char32_t zero = c;
  while (is_digit(zero - 1)) --zero;
  return static_cast<int>((c - zero) % 10);
}

std::u32string lower(std::u32string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c < 0x80)
      out.push_back(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    else if (c == 0x130)
      out += U"i\u0307";
    else if (c == 0x3a3)
      out.push_back(is_final_sigma(text, i) ? 0x3c2 : 0x3c3);
    else
      out.push_back(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
  return out;
}

std::u32string upper(std::u32string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (const char32_t c : text) {
    if (c == 0xdf)
      out += U"SS";
    else
      out.push_back(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
  return out;
}

std::vector<std::u32string_view> split_words(std::u32string_view text) {
  std::vector<std::u32string_view> words;
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && is_space(text[at])) ++at;
    if (at == text.size()) return words;
    const std::size_t start = at;
    while (at < text.size() && !is_space(text[at])) ++at;
    words.push_back(text.substr(start, at - start));
  }
}

std::int64_t count_words(std::string_view text) {
  return static_cast<std::int64_t>(split_words(to_code_points(text)).size());
}

std::vector<std::u32string_view> split_at(std::u32string_view text, char32_t c) {
  std::vector<std::u32string_view> pieces;
  while (true) {
    const std::size_t end = text.find(c);
    pieces.push_back(text.substr(0, end));
    if (end == std::u32string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::u32string_view strip(std::u32string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::u32string_view> digit_runs(std::u32string_view text) {
  std::vector<std::u32string_view> runs;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    if (at > start)
      runs.push_back(text.substr(start, at - start));
    else
      ++at;
  }
  return runs;
}

std::optional<std::int64_t> python_int(std::u32string_view text) {
  text = strip(text);
  bool negative = false;
  if (!text.empty() && (text.front() == '+' || text.front() == '-')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  if (text.empty() || !is_digit(text.front()) || !is_digit(text.back())) return std::nullopt;
  std::int64_t value = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (text[i - 1] == '_') return std::nullopt;  // the first character is a digit
      continue;
    }
    if (!is_digit(text[i])) return std::nullopt;
    const int digit = digit_value(text[i]);
    if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) return std::nullopt;
    value = 10 * value + digit;
  }
  return negative ? -value : value;
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) ||
         (c >= 0x7b && c <= 0x7e);
}

bool is_chinese_punctuation(char32_t c) {
  // Not a whole Unicode block: the opening double angle bracket is missing, as in the suites.
  static constexpr char32_t kList[] = {
      0xff01, 0xff1f, 0xff61, 0x3002, 0xff02, 0xff03, 0xff04, 0xff05, 0xff06, 0xff07, 0xff08,
      0xff09, 0xff0a, 0xff0b, 0xff0c, 0xff0d, 0xff0f, 0xff1a, 0xff1b, 0xff1c, 0xff1d, 0xff1e,
      0xff20, 0xff3b, 0xff3c, 0xff3d, 0xff3e, 0xff3f, 0xff40, 0xff5b, 0xff5c, 0xff5d, 0xff5e,
      0xff5f, 0xff60, 0xff62, 0xff63, 0xff64, 0x3001, 0x3003, 0x300b, 0x300c, 0x300d, 0x300e,
      0x300f, 0x3010, 0x3011, 0x3014, 0x3015, 0x3016, 0x3017, 0x3018, 0x3019, 0x301a, 0x301b,
      0x301c, 0x301d, 0x301e, 0x301f, 0x3030, 0x303e, 0x303f, 0x2013, 0x2014, 0x2018, 0x2019,
      0x201b, 0x201c, 0x201d, 0x201e, 0x201f, 0x2026, 0x2027, 0xfe4f};
  return std::find(std::begin(kList), std::end(kList), c) != std::end(kList);
}

}  // namespace episodic::suites
