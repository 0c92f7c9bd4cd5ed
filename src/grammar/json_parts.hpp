// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What JSON consists of, as parts of a grammar.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "builder.hpp"

namespace episodic::grammar {

using OrderedJson = nlohmann::ordered_json;

/// What of a schema cannot be a grammar, before it is known where it stands.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bounds of a number as they stand in a schema.
struct NumberBounds {
  const OrderedJson *minimum = nullptr, *maximum = nullptr;
  const OrderedJson *above = nullptr, *below = nullptr;  ///< exclusive ones
  bool any() const { return minimum || maximum || above || below; }
};

/// Rules are made when they are first asked for.
class JsonParts {
 public:
  explicit JsonParts(Builder& builder) : b(builder) {}

  /// Nothing, a space, or a line break with an indentation: no more, or an answer could go on with
  /// white space for ever.
  Part space();
  /// Any value of each kind.
  Part value();
  Part object();
  Part array();
  Part string();
  Part number();
  Part integer();
  Part boolean();
  /// A string of `min` to `max` characters.
  Part string(std::uint32_t min, std::uint32_t max);
  /// One character of a string: as it is, or escaped.
  Part string_character();
  /// Characters that stand for themselves in a string.
  static CharacterRanges plain_characters();
  /// One character of a set within a string, escaped only where it must be.
  Part string_character(const CharacterRanges& set);

  /// Digits that stand for [least, most], no more than 18 of them.
  Part digits(std::uint64_t least, std::uint64_t most);
  /// \throws Unsupported naming what is wrong with the bounds
  Part integer(const NumberBounds& bounds);
  Part number(const NumberBounds& bounds);

  /// `first ( , more )*` as `{ }` or `[ ]` has it; \param min items at least, \param max at most
  Part list(char open, Part item, char close, std::uint32_t min, std::uint32_t max);
  /// Behind the mark, with the space that may follow.
  Part mark(char c);

 private:
  /// A rule of this name, which `make` defines once.
  template <class Make>
  Part once(std::optional<Rule>& rule, const char* name, Make make) {
    if (!rule) {
      rule = b.rule(name);
      b.define(*rule, make());
    }
    return b.call(*rule);
  }

  Builder& b;
  std::optional<Rule> space_, value_, object_, array_, string_, character_, number_, integer_;
};

/// A string that a regular expression describes, without its quotation marks: of ECMA 262 what a
/// grammar can say. \throws Unsupported naming what is not supported
Part string_of_pattern(std::string_view pattern, Builder& builder, JsonParts& json);

/// The regular expression of a format's name; null: not known.
const char* pattern_of_format(std::string_view name);

}  // namespace episodic::grammar
