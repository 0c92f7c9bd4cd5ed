// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// One JSON object or list, byte by byte: where it ends, and the first byte that cannot be. It
/// keeps no text; UTF-8 is not looked at.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace episodic::text {

class JsonScanner {
 public:
  static constexpr std::size_t kDeepest = 64;

  /// Where the next byte stands.
  enum class Place : std::uint8_t {
    value,         ///< before a value
    value_or_end,  ///< of a list that has just begun
    key,           ///< before a key
    key_or_end,    ///< of an object that has just begun
    colon,         ///< behind a key
    separator,     ///< behind a value: a comma or the end
    in_key,        ///< within a key's quotation marks
    in_string,     ///< within a text's
    escape,        ///< behind a backslash
    digits,        ///< within \uXXXX
    literal,       ///< within true, false or null
    number,        ///< within a number
    done,          ///< the object or list has ended
    bad            ///< a byte that cannot stand where it stood
  };

  Place place() const { return place_; }
  /// Objects and lists that are open.
  std::size_t depth() const { return open_.size(); }

  /// Takes one byte. Nothing changes once the place is `done` or `bad`.
  Place push(char c) {
    place_ = next(c);
    return place_;
  }

 private:
  enum class Number : std::uint8_t { minus, zero, whole, point, fraction, e, sign, exponent };

  static bool space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
  static bool digit(char c) { return c >= '0' && c <= '9'; }

  Place next(char c) {
    switch (place_) {
      case Place::value:
        return space(c) ? place_ : begin(c);
      case Place::value_or_end:
        return space(c) ? place_ : c == ']' ? close(c) : begin(c);
      case Place::key:
        return space(c) ? place_ : c == '"' ? Place::in_key : Place::bad;
      case Place::key_or_end:
        return space(c) ? place_ : c == '"' ? Place::in_key : c == '}' ? close(c) : Place::bad;
      case Place::colon:
        return space(c) ? place_ : c == ':' ? Place::value : Place::bad;
      case Place::separator:
        return separate(c);
      case Place::in_key:
      case Place::in_string:
        return string(c);
      case Place::escape:
        return escaped(c);
      case Place::digits:
        if (!digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return Place::bad;
        return --left_ == 0 ? within_ : Place::digits;
      case Place::literal:
        if (rest_.empty() || c != rest_.front()) return Place::bad;
        rest_.remove_prefix(1);
        return rest_.empty() ? Place::separator : Place::literal;
      case Place::number:
        return number(c);
      case Place::done:
      case Place::bad:
        return place_;
    }
    return Place::bad;
  }

  Place begin(char c) {
    if (c == '{' || c == '[') {
      if (open_.size() == kDeepest) return Place::bad;
      open_ += c;
      return c == '{' ? Place::key_or_end : Place::value_or_end;
    }
    if (open_.empty()) return Place::bad;  // neither an object nor a list
    if (c == '"') return Place::in_string;
    if (c == 't' || c == 'f' || c == 'n') {
      rest_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
      return Place::literal;
    }
    if (c != '-' && !digit(c)) return Place::bad;
    number_ = c == '-' ? Number::minus : c == '0' ? Number::zero : Number::whole;
    return Place::number;
  }

  Place separate(char c) {
    if (space(c)) return Place::separator;
    if (c == ',') return open_.back() == '{' ? Place::key : Place::value;
    return close(c);
  }

  Place close(char c) {
    if (c != (open_.back() == '{' ? '}' : ']')) return Place::bad;
    open_.pop_back();
    return open_.empty() ? Place::done : Place::separator;
  }

  Place string(char c) {
    if (c == '"') return place_ == Place::in_key ? Place::colon : Place::separator;
    if (c == '\\') {
      within_ = place_;
      return Place::escape;
    }
    return static_cast<unsigned char>(c) < 0x20 ? Place::bad : place_;
  }

  Place escaped(char c) {
    if (c == 'u') {
      left_ = 4;
      return Place::digits;
    }
    return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos ? within_ : Place::bad;
  }

  Place number(char c) {
    const Number at = number_;
    const auto to = [this](Number n) {
      number_ = n;
      return Place::number;
    };
    switch (at) {
      case Number::minus:
        return c == '0' ? to(Number::zero) : digit(c) ? to(Number::whole) : Place::bad;
      case Number::point:
        return digit(c) ? to(Number::fraction) : Place::bad;
      case Number::e:
        if (c == '+' || c == '-') return to(Number::sign);
        [[fallthrough]];
      case Number::sign:
        return digit(c) ? to(Number::exponent) : Place::bad;
      case Number::zero:
      case Number::whole:
        if (c == '.') return to(Number::point);
        [[fallthrough]];
      case Number::fraction:
        if (c == 'e' || c == 'E') return to(Number::e);
        [[fallthrough]];
      case Number::exponent:
        if (digit(c)) return at == Number::zero ? Place::bad : Place::number;
        return separate(c);  // a number ends at what follows it
    }
    return Place::bad;
  }

  Place place_ = Place::value, within_ = Place::in_string;
  Number number_ = Number::zero;
  std::string open_;
  std::string_view rest_;  // of a literal
  int left_ = 0;           // digits of \uXXXX
};

}  // namespace episodic::text
