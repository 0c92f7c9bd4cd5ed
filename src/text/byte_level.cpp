// SPDX-License-Identifier: Apache-2.0
#include "byte_level.hpp"

#include <array>
#include <cstdint>

#include "utf8.hpp"

namespace episodic::text {
namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, 512> bytes;  // by code point, -1: stands for no byte

  Alphabet() {
    bytes.fill(-1);
    std::uint32_t next = 256;  // bytes that cannot be printed take the code points from here on
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable =
          (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
      const std::uint32_t code = printable ? b : next++;
      characters[b] = utf8_of(code);
      bytes[code] = static_cast<int>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet a;
  return a;
}

}  // namespace

const std::string& byte_level_character(unsigned char byte) { return alphabet().characters[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view entry) {
  std::string out;
  for (std::size_t at = 0; at < entry.size();) {
    const std::size_t n = utf8_length(entry, at);
    if (n == 0) return std::nullopt;
    const std::uint32_t code = utf8_code_point(entry, at, n);
    const int byte = code < alphabet().bytes.size() ? alphabet().bytes[code] : -1;
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(byte);
    at += n;
  }
  return out;
}

}  // namespace episodic::text
