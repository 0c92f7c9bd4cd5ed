// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.hpp"

#include <array>

#include "support/test.hpp"

using namespace episodic;

namespace utf8_test {

/// Bytes of the character that `bytes` begin with, 0 if it is none: by the number that the bytes
/// stand for.
std::size_t reference_length(const std::string& bytes) {
  const auto at = [&](std::size_t i) {
    return i < bytes.size() ? static_cast<std::uint8_t>(bytes[i]) : 0u;
  };
  constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (at(0) < 0x80) return 1;
  std::size_t length = 0;
  while (length < 5 && (at(0) << length & 0x80)) ++length;  // ones that the lead byte begins with
  if (length < 2 || length > 4) return 0;
  std::uint32_t number = at(0) & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (at(i) / 64 != 2) return 0;
    number = number * 64 + at(i) % 64;
  }
  const bool surrogate = number / 0x800 == 0x1b;
  return number < kSmallest[length] || number > 0x10ffff || surrogate ? 0 : length;
}

TEST_CASE("utf-8: every sequence of bytes is a character or none, as its number says") {
  constexpr std::array<int, 6> kMore = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b)
      for (const int c : kMore)
        for (const int d : kMore)
          for (std::size_t n = 1; n <= 4; ++n) {
            const char bytes[] = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c),
                                  static_cast<char>(d)};
            const std::string whole(bytes, n);
            if (text::utf8_length(whole, 0) == reference_length(whole)) continue;
            INFO("bytes " << a << ' ' << b << ' ' << c << ' ' << d << ", the first " << n);
            REQUIRE(text::utf8_length(whole, 0) == reference_length(whole));
          }
}

TEST_CASE("utf-8: code points and their bytes come back") {
  for (std::uint32_t c = 0; c <= 0x10ffff; ++c) {
    const std::string bytes = text::utf8_of(c);
    const std::size_t length = text::utf8_length(bytes, 0);
    if (c >= 0xd800 && c <= 0xdfff) {
      if (length != 0) FAIL("a surrogate is taken for a character: " << c);
    } else if (length != bytes.size() || text::utf8_code_point(bytes, 0, length) != c) {
      FAIL("code point " << c);
    }
  }
}

}  // namespace utf8_test
