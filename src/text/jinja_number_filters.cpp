// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "jinja_filters.hpp"
#include "jinja_operators.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

/// A number's text without spaces around and underscores between digits, and with ASCII's digits.
/// Empty: it is none.
std::string number_text(Budget& budget, const Value& v) {
  const Value bare = stripped(budget, v, nullptr, true, true);
  const std::string& s = bare.string()->bytes;
  std::string out;
  bool digit_before = false;
  budget.pass(s.size());
  if (s.size() > 100'000) fail("a number is too long");
  for (std::size_t at = 0; at < s.size();) {
    const Character c = character_at(s, at);
    at += c.size;
    if (c.code == '_') {
      if (!digit_before || at == s.size() || !is_alnum(character_at(s, at).code)) return {};
      digit_before = false;
      continue;
    }
    if (c.code == kNoCharacter) return {};
    digit_before = is_decimal(c.code) || (c.code < 0x80 && is_alpha(c.code));
    if (is_decimal(c.code))
      out += static_cast<char>('0' + decimal_value(c.code));
    else if (c.code < 0x80)
      out += static_cast<char>(c.code);
    else
      return {};
  }
  return out;
}

std::optional<Value> integer_of(const std::string& text, int base) {
  std::size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const bool minus = at == 1 && text[0] == '-';
  if (base != 10 && text.size() > at + 2 && text[at] == '0') {
    const char mark = static_cast<char>(text[at + 1] | 0x20);
    if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b'))
      at += 2;
  }
  if (at == text.size()) return std::nullopt;
  Integer value = 0;
  bool too_large = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const int digit = c >= '0' && c <= '9'                      ? c - '0'
                      : is_alpha(static_cast<unsigned char>(c)) ? (c | 0x20) - 'a' + 10
                                                                : 99;
    if (digit >= base) return std::nullopt;
    too_large = too_large || __builtin_mul_overflow(value, Integer{base}, &value) ||
                __builtin_add_overflow(value, Integer{minus ? -digit : digit}, &value);
  }
  if (too_large) fail("an integer beyond 128 bits is not supported");
  return Value(value);
}

std::optional<double> float_of(const std::string& text) {
  std::size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  std::string rest = text.substr(at);
  std::transform(rest.begin(), rest.end(), rest.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  double d = 0;
  if (rest == "inf" || rest == "infinity") {
    d = std::numeric_limits<double>::infinity();
  } else if (rest == "nan") {
    d = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (rest.empty() || rest.find_first_not_of("0123456789.e+-") != kNone || rest[0] == 'e' ||
        rest == ".")
      return std::nullopt;
    if (rest[0] == '+' || rest[0] == '-') return std::nullopt;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), d);
    if (end != rest.data() + rest.size()) return std::nullopt;
    if (error == std::errc::result_out_of_range) fail("a float out of range is not supported");
    if (error != std::errc()) return std::nullopt;
  }
  return text[0] == '-' ? -d : d;
}

Value integer_of(double d) {
  if (!(std::abs(d) < 1e38)) fail("an integer beyond 128 bits is not supported");
  return static_cast<Integer>(d);
}

}  // namespace

Value to_integer(Budget& budget, const Value& v, const Arguments& arguments) {
  const Bound a("int", arguments, {"default", "base"});
  const Value otherwise = a[0] ? *a[0] : Value(Integer{0});
  const Integer base = a.whole(1, 10);
  Integer whole = 0;
  if (v.whole(&whole)) return whole;
  if (const double* d = v.real()) {
    if (std::isnan(*d)) return otherwise;
    if (std::isinf(*d)) fail("int: infinity is no integer");
    return integer_of(*d);
  }
  if (v.undefined()) fail_undefined(v, "'int' of it is asked for");
  if (!v.string()) return otherwise;
  if (base < 2 || base > 36) fail("int: this base is not supported");
  const std::string text = number_text(budget, v);
  if (text.empty()) return otherwise;
  if (const auto i = integer_of(text, static_cast<int>(base))) return *i;
  const auto d = float_of(text);
  return d && std::isfinite(*d) ? integer_of(*d) : otherwise;
}

Value to_float(Budget& budget, const Value& v, const Arguments& arguments) {
  const Bound a("float", arguments, {"default"});
  const Value otherwise = a[0] ? *a[0] : Value(0.0);
  double d = 0;
  if (v.number(&d)) return d;
  if (v.undefined()) fail_undefined(v, "'float' of it is asked for");
  if (!v.string()) return otherwise;
  const auto value = float_of(number_text(budget, v));
  return value ? Value(*value) : otherwise;
}

Value rounded(const Value& v, const Arguments& arguments) {
  const Bound a("round", arguments, {"precision", "method"});
  const Integer precision = a.whole(0, 0);
  const std::string method = a[1] ? a.text(1).bytes : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("round: 'method' must be common, ceil or floor");
  double d = 0;
  if (!v.number(&d)) fail(fmt::format("round: {} is no number", v.kind()));
  if (precision < 0 || precision > 300) fail("round: this precision is not supported");
  Integer whole = 0;
  const bool is_whole = v.whole(&whole);
  if (method == "common") {
    if (is_whole) return whole;
    if (!std::isfinite(d)) return d;
    const std::string text = fmt::format("{:.{}f}", d, static_cast<int>(precision));
    std::from_chars(text.data(), text.data() + text.size(), d);
    return d;
  }
  if (precision > 22) fail("round: this precision is not supported");
  Integer scale = 1;
  for (Integer i = 0; i < precision; ++i) scale *= 10;
  Value scaled = compute('*', v, scale);
  if (const double* large = scaled.real()) {
    if (!std::isfinite(*large)) fail("round: infinity and nan cannot be rounded so");
    scaled = integer_of(method == "ceil" ? std::ceil(*large) : std::floor(*large));
  }
  return compute('/', scaled, scale);
}

Value absolute(const Value& v) {
  Integer i = 0;
  if (v.whole(&i)) {
    if (__builtin_sub_overflow(Integer{0}, i, &i))
      fail("an integer beyond 128 bits is not supported");
    Integer was = 0;
    v.whole(&was);
    return was < 0 ? i : was;
  }
  if (v.real()) return std::abs(*v.real());
  fail(fmt::format("abs: {} is no number", v.kind()));
}

}  // namespace episodic::text::jinja
