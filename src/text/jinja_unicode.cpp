// SPDX-License-Identifier: Apache-2.0
#include "jinja_unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "utf8.hpp"

namespace episodic::text::jinja {
namespace {

struct Range {
  std::uint32_t first, last;
};
struct Special {
  std::uint32_t code;
  std::uint32_t to[3];  // 0: no more
};

#include "jinja_unicode_tables.inc"

bool in(std::span<const Range> table, std::uint32_t c) {
  const auto at =
      std::lower_bound(table.begin(), table.end(), c,
                       [](const Range& r, std::uint32_t code) { return r.last < code; });
  return at != table.end() && at->first <= c;
}

std::string special(std::span<const Special> table, std::uint32_t c) {
  const auto at =
      std::lower_bound(table.begin(), table.end(), c,
                       [](const Special& s, std::uint32_t code) { return s.code < code; });
  std::string out;
  if (at == table.end() || at->code != c) return out;
  for (const std::uint32_t to : at->to)
    if (to != 0) out += utf8_of(to);
  return out;
}

utf8proc_category_t category(std::uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const std::size_t n = utf8_length(text, at);
  return n == 0 ? Character{kNoCharacter, 1} : Character{utf8_code_point(text, at, n), n};
}

std::size_t begin_of_character(std::string_view text, std::size_t end) {
  for (std::size_t n = 1; n <= std::min<std::size_t>(4, end); ++n)
    if (utf8_length(text.substr(0, end), end - n) == n) return end - n;
  return end - 1;
}

std::size_t count_characters(std::string_view text) {
  std::size_t n = 0;
  for (std::size_t at = 0; at < text.size(); ++n)
    at += static_cast<unsigned char>(text[at]) < 0x80 ? 1 : character_at(text, at).size;
  return n;
}

bool is_space(std::uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_line_end(std::uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(std::uint32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_alpha(std::uint32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(std::uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(std::uint32_t c) { return is_decimal(c) || in(kDigits, c); }
bool is_numeric(std::uint32_t c) { return is_digit(c) || in(kNumbers, c); }
bool is_lower(std::uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LL || in(kOtherLower, c); }
bool is_upper(std::uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LU || in(kOtherUpper, c); }
bool is_title(std::uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

int decimal_value(std::uint32_t c) {
  // decimals come in tens, in order
  if (c >= 0x1d7ce && c <= 0x1d7ff) return static_cast<int>((c - 0x1d7ce) % 10);
  int value = 0;
  while (value < 9 && is_decimal(c - 1)) {
    --c;
    ++value;
  }
  return value;
}

std::string in_case(std::uint32_t c, Case which) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  const auto simple = [](utf8proc_int32_t to) { return utf8_of(static_cast<std::uint32_t>(to)); };
  std::string out;
  switch (which) {
    case Case::lower:
      out = special(kSpecialLower, c);
      return out.empty() ? simple(utf8proc_tolower(code)) : out;
    case Case::upper:
      out = special(kSpecialUpper, c);
      return out.empty() ? simple(utf8proc_toupper(code)) : out;
    case Case::title:
      out = special(kSpecialTitle, c);
      return out.empty() ? simple(utf8proc_totitle(code)) : out;
    case Case::swap:
      if (is_upper(c)) return in_case(c, Case::lower);
      return is_lower(c) ? in_case(c, Case::upper) : utf8_of(c);
    case Case::fold: {
      utf8proc_int32_t to[4];
      int boundary = 0;
      const auto n = utf8proc_decompose_char(code, to, 4, UTF8PROC_CASEFOLD, &boundary);
      for (utf8proc_ssize_t i = 0; i < n; ++i) out += simple(to[i]);
      return out;
    }
  }
  return out;
}

std::string lower_sigma(std::string_view text, std::size_t at) {
  constexpr std::uint32_t kSigma = 0x3c3, kFinal = 0x3c2;
  std::size_t i = at;
  bool before = false;
  while (i > 0) {
    i = begin_of_character(text, i);
    const Character c = character_at(text, i);
    if (c.code != kNoCharacter && in(kIgnored, c.code)) continue;
    before = c.code != kNoCharacter && is_cased(c.code);
    break;
  }
  if (!before) return utf8_of(kSigma);
  for (i = at + character_at(text, at).size; i < text.size();) {
    const Character c = character_at(text, i);
    i += c.size;
    if (c.code != kNoCharacter && in(kIgnored, c.code)) continue;
    return utf8_of(c.code != kNoCharacter && is_cased(c.code) ? kSigma : kFinal);
  }
  return utf8_of(kFinal);
}

}  // namespace episodic::text::jinja
