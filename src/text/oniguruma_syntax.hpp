// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Oniguruma's regular expressions as trees (oniguruma.cpp writes them for PCRE2).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::text::onig {

/// A class: what it names, put together by the operators that Oniguruma has within [ ].
struct Class {
  /// One class of PCRE2's without its brackets, or a class within the class.
  struct Item {
    std::string flat;           ///< PCRE2's text; empty: `nested` is the item
    std::vector<Class> nested;  ///< one, or none
  };
  bool negated = false;
  std::vector<std::vector<Item>> operands{1};  ///< of &&, each one a union
};

enum class Kind {
  literal,    ///< one character
  any,        ///< one character out of `characters`
  assertion,  ///< PCRE2's `text`, of no length
  atom,       ///< PCRE2's `text`, of a length of its own
  concat,
  alternate,
  group,   ///< `text` is what PCRE2 opens it with; "(" for a capturing one
  repeat,  ///< of the only kid
  back_reference,
  call,
};

struct Node {
  Kind kind = Kind::concat;
  std::size_t at = 0;        ///< byte of the expression
  std::uint32_t code = 0;    ///< of a literal
  bool ignore_case = false;  ///< of a literal or a class
  Class characters = {};     ///< of any
  std::string text = {};
  std::vector<Node> kids = {};
  std::uint32_t low = 0, high = 0;  ///< of a repeat
  char how = 0;                     ///< of a repeat: 0 greedy, '?' lazy, '+' possessive
  int number = -1;                  ///< of a capturing group, and of what refers to one
};

struct Parsed {
  Node root;
  bool refers_back = false, calls = false;
};

constexpr std::uint32_t kUnbounded = 0xffffffff;

/// \throws Error naming construct, byte and remedy
Parsed parse(std::string_view expression);

/// \throws Error "<what> at byte <at> of the regular expression: <remedy>"
[[noreturn]] void refuse(std::size_t at, const std::string& what, const std::string& remedy);

/// A character as PCRE2 may read it anywhere, also within [ ].
std::string escaped(std::uint32_t code);

}  // namespace episodic::text::onig
