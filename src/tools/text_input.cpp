// SPDX-License-Identifier: Apache-2.0
// Text files in, as UTF-8: what is none is refused before a model reads garbage from it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "common.hpp"
#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

void append_utf8(std::string& out, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)),
        put(0x80 | (c & 0x3F));
  }
}

std::string from_latin1(const std::string& bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 8);
  for (const char c : bytes) append_utf8(out, static_cast<unsigned char>(c));
  return out;
}

/// Little endian unless a byte order mark says otherwise.
std::string from_utf16(const std::string& bytes, const std::string& name) {
  const auto refuse = [&](std::size_t at, const char* what) {
    throw DataError(fmt::format("{}: is not UTF-16 ({} at byte {})", name, what, at));
  };
  const bool big = bytes.starts_with("\xFE\xFF");
  const std::size_t start = big || bytes.starts_with("\xFF\xFE") ? 2 : 0;
  if (bytes.size() % 2 != 0) refuse(bytes.size() - 1, "half a character");
  const auto unit = [&](std::size_t at) -> std::uint32_t {
    const auto a = static_cast<unsigned char>(bytes[at]),
               b = static_cast<unsigned char>(bytes[at + 1]);
    return big ? std::uint32_t{a} << 8 | b : std::uint32_t{b} << 8 | a;
  };
  std::string out;
  for (std::size_t at = start; at < bytes.size(); at += 2) {
    std::uint32_t c = unit(at);
    if (c >= 0xDC00 && c < 0xE000) refuse(at, "the second half of a pair");
    if (c >= 0xD800 && c < 0xDC00) {
      const std::uint32_t low = at + 2 < bytes.size() ? unit(at + 2) : 0;
      if (low < 0xDC00 || low >= 0xE000) refuse(at, "the first half of a pair");
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
      at += 2;
    }
    append_utf8(out, c);
  }
  return out;
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char c = byte(i);
  const std::size_t n = c < 0x80                ? 1
                        : c >= 0xC2 && c < 0xE0 ? 2
                        : c >= 0xE0 && c < 0xF0 ? 3
                        : c >= 0xF0 && c < 0xF5 ? 4
                                                : 0;
  if (n == 0 || i + n > text.size()) return 0;
  for (std::size_t k = 1; k < n; ++k)
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  // longer than it need be, half of a pair of UTF-16, beyond the last character
  const unsigned char second = n > 1 ? byte(i + 1) : 0;
  if ((c == 0xE0 && second < 0xA0) || (c == 0xED && second >= 0xA0) ||
      (c == 0xF0 && second < 0x90) || (c == 0xF4 && second >= 0x90))
    return 0;
  return n;
}

std::string on_one_line(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t n = utf8_length(text, i);
    if (text[i] == '\n')
      out += "\\n";
    else if (text[i] == '\t')
      out += "\\t";
    else if (n == 0 || byte < 0x20 || byte == 0x7F)
      out += fmt::format("\\x{:02x}", byte);
    else
      out.append(text, i, n);
    i += std::max<std::size_t>(n, 1);
  }
  return out;
}

std::string on_one_line(const std::exception& e) {
  const std::string what = e.what();
  return on_one_line(what.substr(0, what.find("\nException raised from")));
}

std::string read_document(const std::filesystem::path& path, const std::string& encoding) {
  const std::string name = path == "-" ? "stdin" : path.string();
  std::string text = read_text(path);
  if (encoding == "utf-16") {
    text = from_utf16(text, name);
  } else if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw DataError(fmt::format("{}: begins like a UTF-16 file; use --encoding utf-16", name));
  }
  if (const std::size_t zero = text.find('\0'); zero != std::string::npos)
    throw DataError(
        fmt::format("{}: is binary (a zero at byte {}); name a text file, or use --encoding utf-16 "
                    "if it is that",
                    name, zero));
  if (encoding == "latin-1") text = from_latin1(text);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = utf8_length(text, at);
    if (n == 0)
      throw DataError(fmt::format(
          "{}: is not UTF-8 (byte {:#04x} at {}); if it is Latin-1 or Windows-1252, use --encoding "
          "latin-1",
          name, static_cast<unsigned char>(text[at]), at));
    at += n;
  }
  if (text.find_first_not_of(" \t\r\n\f\v") == std::string::npos)
    throw DataError(fmt::format("{}: is empty; there is nothing to read", name));
  return text;
}

}  // namespace episodic::tools
