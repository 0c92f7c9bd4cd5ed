// SPDX-License-Identifier: Apache-2.0
#include "json_parts.hpp"

#include <utility>

namespace episodic::grammar {
namespace {

const CharacterRanges kAnyDigit{{'0', '9'}};
const CharacterRanges kHex{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

// A double holds these digits exactly, and no number that is written with them overflows.
constexpr std::uint32_t kWrittenDigits = 15;

}  // namespace

Part JsonParts::space() {
  return once(space_, "white space", [&] {
    return b.choice(
        {b.nothing(), b.literal(" "),
         b.sequence({b.literal("\n"), b.repeat(b.characters({{' ', ' '}, {'\t', '\t'}}), 0, 20)})});
  });
}

Part JsonParts::mark(char c) { return b.sequence({b.literal(std::string(1, c)), space()}); }

Part JsonParts::list(char open, Part item, char close, std::uint32_t min, std::uint32_t max) {
  if (max == 0) return b.sequence({mark(open), b.literal(std::string(1, close))});
  const std::uint32_t more = max == kUnbounded ? kUnbounded : max - 1;
  const Part items = b.sequence(
      {item, b.repeat(b.sequence({mark(','), item}), min > 0 ? min - 1 : 0, more), space()});
  return b.sequence(
      {mark(open), min == 0 ? b.optional(items) : items, b.literal(std::string(1, close))});
}

Part JsonParts::value() {
  if (value_) return b.call(*value_);
  value_ = b.rule("a value");
  const Part part = b.choice({object(), array(), string(), number(), boolean(), b.literal("null")});
  b.define(*value_, part);
  return b.call(*value_);
}

Part JsonParts::object() {
  if (object_) return b.call(*object_);
  object_ = b.rule("an object");
  b.define(*object_, list('{', b.sequence({string(), mark(':'), value()}), '}', 0, kUnbounded));
  return b.call(*object_);
}

Part JsonParts::array() {
  if (array_) return b.call(*array_);
  array_ = b.rule("an array");
  b.define(*array_, list('[', value(), ']', 0, kUnbounded));
  return b.call(*array_);
}

Part JsonParts::string() {
  return once(string_, "a string", [&] { return string(0, kUnbounded); });
}

Part JsonParts::string(std::uint32_t min, std::uint32_t max) {
  return b.sequence({b.literal("\""), b.repeat(string_character(), min, max), b.literal("\"")});
}

CharacterRanges JsonParts::plain_characters() {
  return CharacterRanges{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}};
}

Part JsonParts::string_character() {
  return once(character_, "a character", [&] {
    const Part hex = b.characters(kHex);
    // one half of a surrogate pair by itself is no character
    const Part other = b.choice(
        {b.sequence({b.characters({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}),
                     b.repeat(hex, 3, 3)}),
         b.sequence({b.characters({{'D', 'D'}, {'d', 'd'}}), b.characters({{'0', '7'}}),
                     b.repeat(hex, 2, 2)}),
         b.sequence({b.characters({{'D', 'D'}, {'d', 'd'}}),
                     b.characters({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), b.repeat(hex, 2, 2),
                     b.literal("\\u"), b.characters({{'D', 'D'}, {'d', 'd'}}),
                     b.characters({{'C', 'F'}, {'c', 'f'}}), b.repeat(hex, 2, 2)})});
    const Part escaped = b.choice({b.characters({{'"', '"'},
                                                 {'\\', '\\'},
                                                 {'/', '/'},
                                                 {'b', 'b'},
                                                 {'f', 'f'},
                                                 {'n', 'n'},
                                                 {'r', 'r'},
                                                 {'t', 't'}}),
                                   b.sequence({b.literal("u"), other})});
    return b.choice({b.characters(plain_characters()), b.sequence({b.literal("\\"), escaped})});
  });
}

Part JsonParts::string_character(const CharacterRanges& set) {
  std::vector<Part> parts;
  const CharacterRanges plain = set.intersection(plain_characters());
  if (!plain.empty()) parts.push_back(b.characters(plain));
  constexpr std::pair<char, const char*> kShort[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"},
                                                     {'\f', "\\f"}, {'\n', "\\n"},  {'\r', "\\r"},
                                                     {'\t', "\\t"}};
  for (const auto& [c, escape] : kShort)
    if (set.contains(static_cast<unsigned char>(c))) parts.push_back(b.literal(escape));
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  for (unsigned c = 0; c < 0x20; ++c) {
    const bool has_short = (c >= '\b' && c <= '\n') || c == '\f' || c == '\r';
    if (has_short || !set.contains(c)) continue;
    std::string escape = "\\u00";
    escape += kHexDigits[c >> 4];
    escape += kHexDigits[c & 15];
    parts.push_back(b.literal(escape));
  }
  if (parts.empty()) return b.characters({});
  return b.choice(std::move(parts));
}

Part JsonParts::integer() {
  return once(integer_, "an integer", [&] {
    return b.choice(
        {b.literal("0"), b.sequence({b.optional(b.literal("-")), b.characters({{'1', '9'}}),
                                     b.repeat(b.characters(kAnyDigit), 0, kWrittenDigits - 1)})});
  });
}

Part JsonParts::number() {
  return once(number_, "a number", [&] {
    const Part digit = b.characters(kAnyDigit);
    const Part whole = b.choice(
        {b.literal("0"),
         b.sequence({b.characters({{'1', '9'}}), b.repeat(digit, 0, kWrittenDigits - 1)})});
    const Part fraction = b.sequence({b.literal("."), b.repeat(digit, 1, kWrittenDigits + 1)});
    const Part exponent =
        b.sequence({b.characters({{'E', 'E'}, {'e', 'e'}}),
                    b.optional(b.characters({{'+', '+'}, {'-', '-'}})), b.repeat(digit, 1, 2)});
    return b.sequence(
        {b.optional(b.literal("-")), whole, b.optional(fraction), b.optional(exponent)});
  });
}

Part JsonParts::boolean() { return b.choice({b.literal("true"), b.literal("false")}); }

}  // namespace episodic::grammar
