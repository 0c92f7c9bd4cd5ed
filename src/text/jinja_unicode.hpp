// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Characters of texts as Python's str methods see them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "jinja_value.hpp"

namespace episodic::text::jinja {

constexpr std::uint32_t kNoCharacter = 0xffffffff;  ///< of a byte that is part of none

struct Character {
  std::uint32_t code;
  std::size_t size;  ///< bytes
};
/// \param at < text.size()
Character character_at(std::string_view text, std::size_t at);
/// Where the character that ends at `end` begins. \param end > 0
std::size_t begin_of_character(std::string_view text, std::size_t end);
std::size_t count_characters(std::string_view text);

/// Whether bytes of a text are input, asked for from left to right.
class MarkCursor {
 public:
  explicit MarkCursor(const Str& s) : next_(s.input.data()), end_(next_ + s.input.size()) {}
  bool at(std::size_t byte) {
    while (next_ != end_ && next_->end <= byte) ++next_;
    return next_ != end_ && next_->begin <= byte;
  }

 private:
  const TextSpan* next_;
  const TextSpan* end_;
};

// The names of Python's methods, of one character.
bool is_space(std::uint32_t c);
bool is_line_end(std::uint32_t c);  ///< what splitlines cuts at
bool is_printable(std::uint32_t c);
bool is_alpha(std::uint32_t c);
bool is_decimal(std::uint32_t c);
bool is_digit(std::uint32_t c);
bool is_numeric(std::uint32_t c);
bool is_lower(std::uint32_t c);
bool is_upper(std::uint32_t c);
bool is_title(std::uint32_t c);
inline bool is_alnum(std::uint32_t c) { return is_alpha(c) || is_numeric(c); }
inline bool is_cased(std::uint32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }
/// Of a decimal.
int decimal_value(std::uint32_t c);

enum class Case : std::uint8_t { lower, upper, title, fold, swap };
/// One character in another case: one to three characters, as UTF-8.
std::string in_case(std::uint32_t c, Case which);
/// Of a capital sigma at `at`: what it becomes in lower case, which depends on what stands around.
std::string lower_sigma(std::string_view text, std::size_t at);

}  // namespace episodic::text::jinja
