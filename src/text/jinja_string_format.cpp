// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja_strings.hpp"

namespace episodic::text::jinja {
Value formatted(Budget& budget, const Str& s, const Arguments& arguments) {
  Builder out(budget);
  std::size_t next = 0, done = 0;
  const auto refuse = [](std::string_view field) {
    fail(fmt::format("format: the field '{{{}}}' is not supported (plain ones are)", field));
  };
  budget.pass(s.bytes.size());
  bool counted = false, numbered = false;
  for (std::size_t at = 0; at < s.bytes.size();) {
    const char c = s.bytes[at];
    if (c != '{' && c != '}') {
      ++at;
      continue;
    }
    out.add(s, done, at);
    if (at + 1 < s.bytes.size() && s.bytes[at + 1] == c) {
      out.add(s, at, at + 1);
      done = at += 2;
      continue;
    }
    const std::size_t end = c == '{' ? s.bytes.find('}', at) : kNone;
    if (end == kNone) fail("format: a single brace");
    const std::string field = s.bytes.substr(at + 1, std::min<std::size_t>(end - at - 1, 200));
    const Value* value = nullptr;
    if (field.empty() || (field.size() < 6 && field.find_first_not_of("0123456789") == kNone)) {
      (field.empty() ? counted : numbered) = true;
      if (counted && numbered) fail("format: numbered and counted fields do not go together");
      const std::size_t i = field.empty() ? next++ : std::stoul(field);
      if (i >= arguments.places.size()) fail(fmt::format("format: has no argument {}", i));
      value = &arguments.places[i];
    } else {
      if (field.find_first_of(".[:!{") != kNone) refuse(field);
      for (const auto& [name, v] : arguments.named)
        if (name == field) value = &v;
      if (value == nullptr) fail(fmt::format("format: has no argument '{}'", field));
    }
    if (value->string() && value->string()->markup) refuse(field);
    out.print(*value);
    done = at = end + 1;
  }
  out.add(s, done, s.bytes.size());
  return out.finish();
}

Value percent(Budget& budget, const Str& s, const Value& arguments) {
  Builder out(budget);
  const Sequence* tuple =
      arguments.sequence() && arguments.sequence()->tuple() ? arguments.sequence() : nullptr;
  const Dict* dict = arguments.dict();
  std::size_t next = 0, done = 0;
  bool named = false;
  budget.pass(s.bytes.size());
  for (std::size_t at = 0; (at = s.bytes.find('%', at)) != kNone;) {
    out.add(s, done, at);
    std::size_t i = at + 1;
    const Value* value = nullptr;
    if (i < s.bytes.size() && s.bytes[i] == '(') {
      const std::size_t end = s.bytes.find(')', i);
      if (end == kNone) fail("%: a name has no end");
      if (dict == nullptr) fail(fmt::format("%: needs a mapping, not {}", arguments.kind()));
      const std::string name = s.bytes.substr(i + 1, end - i - 1);
      value = dict->find(name);
      if (value == nullptr) fail(fmt::format("%: the mapping has no '{:.60}'", name));
      named = true;
      i = end + 1;
    }
    std::string flags;
    while (i < s.bytes.size() && std::string_view("-+ 0#").find(s.bytes[i]) != kNone &&
           flags.size() < 5)
      flags += s.bytes[i++];
    const auto number = [&] {
      Integer n = 0;
      while (i < s.bytes.size() && s.bytes[i] >= '0' && s.bytes[i] <= '9' && n < 100'000)
        n = n * 10 + (s.bytes[i++] - '0');
      return n;
    };
    const Integer width = number();
    Integer precision = -1;
    if (i < s.bytes.size() && s.bytes[i] == '.') {
      ++i;
      precision = number();
    }
    if (i >= s.bytes.size()) fail("%: the format ends too early");
    const char type = s.bytes[i++];
    done = at = i;
    if (type == '%') {
      if (value || !flags.empty() || width != 0) fail("%: '%' with a width is not supported");
      out.add("%");
      continue;
    }
    if (std::string_view("srdiufFeEgGxXoc").find(type) == kNone)
      fail(fmt::format("%: the conversion '{}' is not supported", std::string(1, type)));
    if (value == nullptr) {
      if (tuple ? next >= tuple->items.size() : next > 0) fail("%: too few arguments");
      value = tuple ? &tuple->items[next] : &arguments;
      ++next;
    }
    const bool left = flags.find('-') != kNone, zero = flags.find('0') != kNone && !left;
    Value piece;
    if (type == 's' || type == 'r') {
      Builder made(budget);
      if (type == 's')
        made.print(*value);
      else
        made.repr(*value);
      piece = made.finish();
      if (precision >= 0)
        piece = substring(budget, piece, 0,
                          byte_of(budget, *piece.string(), static_cast<std::size_t>(precision)));
    } else if (type == 'c') {
      if (!value->string() || value->string()->length != 1) fail("%c: needs one character");
      piece = *value;
    } else {
      double d = 0;
      Integer whole = 0;
      if (!value->number(&d)) fail(fmt::format("%{}: needs a number, not {}", type, value->kind()));
      std::string digits;
      bool minus = false;
      if (std::string_view("diuxXo").find(type) != kNone) {
        if (!value->whole(&whole)) {
          if (type == 'x' || type == 'X' || type == 'o')
            fail(fmt::format("%{}: needs an integer, not {}", type, value->kind()));
          if (!(std::abs(d) < 1e38)) fail("%d: the number is too large");
          whole = static_cast<Integer>(d);
        }
        if (flags.find('#') != kNone || precision > 0)
          fail("%: '#' and a precision of integers are not supported");
        minus = whole < 0;
        if (type == 'x' || type == 'X' || type == 'o') {
          const unsigned base = type == 'o' ? 8 : 16;
          Integer rest = minus ? -whole : whole;
          do {
            const auto digit = static_cast<unsigned>(rest % base);
            digits += "0123456789abcdef"[digit];
            rest /= base;
          } while (rest > 0);
          std::reverse(digits.begin(), digits.end());
          if (type == 'X')
            for (char& c : digits)
              if (c >= 'a') c = static_cast<char>(c - 32);
        } else {
          digits = integer_text(whole);
          if (minus) digits.erase(0, 1);
        }
      } else {
        if (!std::isfinite(d) || flags.find('#') != kNone || precision > 300)
          fail("%: this conversion of a float is not supported");
        minus = std::signbit(d);
        digits =
            fmt::format(fmt::runtime(fmt::format(
                            "{{:.{}{}}}", precision < 0 ? 6 : static_cast<int>(precision), type)),
                        std::abs(d));
      }
      std::string sign = minus                      ? "-"
                         : flags.find('+') != kNone ? "+"
                         : flags.find(' ') != kNone ? " "
                                                    : "";
      if (zero && static_cast<Integer>(sign.size() + digits.size()) < width)
        digits.insert(0, static_cast<std::size_t>(width) - sign.size() - digits.size(), '0');
      piece = text_value(budget, sign + digits);
    }
    out.add(*padded(budget, piece, width, nullptr, left ? -1 : 1).string());
  }
  out.add(s, done, s.bytes.size());
  if (tuple ? next < tuple->items.size()
            : next == 0 && !named && !dict && !arguments.sequence() && !arguments.undefined())
    fail("%: too many arguments");
  return out.finish();
}

}  // namespace episodic::text::jinja
