// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// UTF-8 as bytes that may be damaged: everything here accepts any bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::text {

/// Length in bytes (1 to 4) of the well-formed character at `at`, 0 if the bytes there are none
/// (surrogates, overlong forms and code points above U+10FFFF are not well formed).
/// \param at < text.size()
std::size_t utf8_length(std::string_view text, std::size_t at);

/// Code point of the well-formed character of `length` bytes at `at`.
std::uint32_t utf8_code_point(std::string_view text, std::size_t at, std::size_t length);

/// The UTF-8 bytes of a code point.
std::string utf8_of(std::uint32_t code_point);

/// Number of bytes at the end of the text that begin a character which more bytes could complete.
std::size_t utf8_incomplete_tail(std::string_view text);

/// A stretch of text that is wholly valid UTF-8, or wholly bytes that are part of no character.
struct Utf8Run {
  std::string_view text;
  bool valid;
};

/// Cuts a text into alternating valid and invalid stretches; none is empty.
std::vector<Utf8Run> utf8_runs(std::string_view text);

}  // namespace episodic::text
