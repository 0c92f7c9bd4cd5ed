// SPDX-License-Identifier: Apache-2.0
#include "utf8.hpp"

#include <algorithm>
#include <cstring>

namespace episodic::text {
namespace {

/// Length a lead byte announces, 0 if it is no lead byte; the range of the byte after it in lo, hi.
std::size_t announced(unsigned char lead, unsigned char& lo, unsigned char& hi) {
  lo = 0x80;
  hi = 0xbf;
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) {
    if (lead == 0xe0) lo = 0xa0;
    if (lead == 0xed) hi = 0x9f;
    return 3;
  }
  if (lead > 0xf4) return 0;
  if (lead == 0xf0) lo = 0x90;
  if (lead == 0xf4) hi = 0x8f;
  return 4;
}

/// Bytes of the character at `at` that are there and in range, and in `whole` how many it needs.
std::size_t matched(std::string_view text, std::size_t at, std::size_t& whole) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lo = 0, hi = 0;
  whole = announced(byte(at), lo, hi);
  if (whole == 0) return 0;
  std::size_t n = 1;
  for (; n < whole && at + n < text.size(); ++n) {
    if (byte(at + n) < lo || byte(at + n) > hi) return n;
    lo = 0x80;
    hi = 0xbf;
  }
  return n;
}

/// First byte at or after `at` that is not ASCII.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  while (at + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ull) break;
    at += 8;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  std::size_t whole = 0;
  const std::size_t n = matched(text, at, whole);
  return n == whole ? n : 0;
}

std::uint32_t utf8_code_point(std::string_view text, std::size_t at, std::size_t length) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  if (length == 1) return byte(0);
  std::uint32_t code = byte(0) & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3f);
  return code;
}

std::string utf8_of(std::uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | c >> 18), tail(12), tail(6), tail(0)};
}

std::size_t utf8_incomplete_tail(std::string_view text) {
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, text.size()); ++n) {
    const std::size_t at = text.size() - n;
    if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
    std::size_t whole = 0;
    return matched(text, at, whole) == n && n < whole ? n : 0;
  }
  return 0;
}

std::vector<Utf8Run> utf8_runs(std::string_view text) {
  std::vector<Utf8Run> runs;
  std::size_t start = 0, at = 0;
  bool valid = true;
  const auto close = [&] {
    if (at > start) runs.push_back({text.substr(start, at - start), valid});
    start = at;
  };
  while (at < text.size()) {
    const std::size_t ascii = skip_ascii(text, at);
    const std::size_t n = ascii > at ? ascii - at : utf8_length(text, at);
    if ((n > 0) != valid) {
      close();
      valid = n > 0;
    }
    at += n > 0 ? n : 1;
  }
  close();
  return runs;
}

}  // namespace episodic::text
