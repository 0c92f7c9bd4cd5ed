// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Text as Python's `str` sees it. The published scorers are Python programs: what is a space, a
/// digit or a lower-case letter there decides their scores.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::suites {

/// Code points of UTF-8 text; a byte that is part of no character becomes U+FFFD.
std::u32string to_code_points(std::string_view utf8);
std::string to_utf8(std::u32string_view text);

bool is_space(char32_t c);  ///< str.isspace, and \s of `re`
bool is_word(char32_t c);   ///< \w of `re`: letters, numbers, underscore
bool is_digit(char32_t c);  ///< \d of `re`: decimal digits of any script
int digit_value(char32_t c);

/// str.lower, with the capital sigma at a word's end and the dotted capital I.
std::u32string lower(std::u32string_view text);
/// str.upper of one-to-one letters, and of the German sharp s.
std::u32string upper(std::u32string_view text);

/// str.split(): words between runs of spaces, none empty.
std::vector<std::u32string_view> split_words(std::u32string_view text);
/// len(str.split()) of UTF-8.
std::int64_t count_words(std::string_view text);
/// str.split(c): pieces between each two c, empty ones too.
std::vector<std::u32string_view> split_at(std::u32string_view text, char32_t c);
/// str.strip().
std::u32string_view strip(std::u32string_view text);

/// re.findall(r"\d+", text).
std::vector<std::u32string_view> digit_runs(std::u32string_view text);

/// int(text): sign, digits of any script, single underscores between them, spaces around. Nothing
/// where Python raises, and for numbers beyond 64 bits.
std::optional<std::int64_t> python_int(std::u32string_view text);

/// The 32 of string.punctuation.
bool is_ascii_punctuation(char32_t c);
/// The punctuation that both suites' Chinese normalisation deletes beside the ASCII one.
bool is_chinese_punctuation(char32_t c);

}  // namespace episodic::suites
