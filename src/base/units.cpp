// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/units.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

[[noreturn]] void refuse(std::string_view text, std::string_view what, const char* examples) {
  // a whole file given by mistake must not fill the message
  const std::string shown(text.substr(0, 40));
  throw ConfigError(fmt::format("{}: \"{}\" is no size; write {}", what, shown, examples));
}

/// \param bytes whether a B may end it
std::int64_t parse(std::string_view text, std::string_view what, bool bytes) {
  const char* examples = bytes ? "a number of bytes, or for example 500MB, 1.5GB, 2GiB"
                               : "a whole number, or for example 100K, 1.5M";
  std::size_t digits = 0;
  while (digits < text.size() &&
         ((text[digits] >= '0' && text[digits] <= '9') || text[digits] == '.'))
    ++digits;
  const std::string_view number = text.substr(0, digits);
  std::string suffix;
  std::size_t at = digits;
  if (at < text.size() && text[at] == ' ') ++at;
  for (; at < text.size() && suffix.size() < 5; ++at) suffix += lower(text[at]);
  if (at < text.size()) refuse(text, what, examples);
  if (bytes && !suffix.empty() && suffix.back() == 'b') suffix.pop_back();

  double unit = 1;
  if (!suffix.empty()) {
    const std::size_t power = std::string_view("kmgt").find(suffix[0]);
    const bool binary = suffix.size() == 2 && suffix[1] == 'i';
    if (power == std::string_view::npos || (suffix.size() > 1 && !binary))
      refuse(text, what, examples);
    unit = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power) + 1);
  }
  std::int64_t whole = 0;
  const char* const end = number.data() + number.size();
  if (const auto [stop, error] = std::from_chars(number.data(), end, whole);
      unit == 1 && error == std::errc() && stop == end)
    return whole <= (std::int64_t{1} << 62) ? whole : (refuse(text, what, examples), 0);
  double value = 0;
  const auto [stop, error] = std::from_chars(number.data(), end, value, std::chars_format::fixed);
  const double all = value * unit;
  if (error != std::errc() || stop != end || unit == 1 || !(all <= 0x1p62) ||
      std::abs(all - std::round(all)) > 1e-3)
    refuse(text, what, examples);
  return static_cast<std::int64_t>(std::llround(all));
}

}  // namespace

std::int64_t parse_count(std::string_view text, std::string_view what) {
  return parse(text, what, false);
}

std::int64_t parse_bytes(std::string_view text, std::string_view what) {
  return parse(text, what, true);
}

std::string bytes_text(std::int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (std::abs(b) >= 1e9) return fmt::format("{:.2f} GB", b / 1e9);
  if (std::abs(b) >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  if (std::abs(b) >= 1e3) return fmt::format("{:.1f} kB", b / 1e3);
  return fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
}

std::string count_text(std::int64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool first = out.empty() || out == "-";
    if (!first && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace episodic
