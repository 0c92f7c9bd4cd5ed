// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Templates as trees. What is no part of the language that chat templates use is refused here, by
/// its name and line. No tree is deeper than a limit, so that code that walks one may recurse:
/// chains of operators are one node each.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jinja_value.hpp"

namespace episodic::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Argument {
  std::string name;  // empty: by its place
  ExpressionPtr value;
};

struct Expression {
  enum class Kind : std::uint8_t {
    literal,    // value
    name,       // text
    list,       // parts
    tuple,      // parts
    dict,       // parts: key, value, key, value
    attribute,  // parts[0].text
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1]:parts[2]:parts[3]], any of these null
    call,       // parts[0](arguments)
    filter,     // parts[0] | text(arguments)
    test,       // parts[0] is text(arguments)
    not_,       // not parts[0]
    sign,       // text parts[0]
    sum,        // parts, and in text the signs between them: + - * / % ^ (for **) \ (for //)
    join,       // parts[0] ~ parts[1] ~ ...
    all,        // parts[0] and parts[1] and ...
    any,        // parts[0] or parts[1] or ...
    compare,    // parts, and in text between them: = ! (not equal) < > l (<=) g (>=) i (in) n (not
                // in)
    choice,     // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind;
  std::uint8_t height = 1;  // of the tree
  int line = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<Argument> arguments;
};

/// What a value is bound to.
struct Target {
  std::string name;           // or, if empty, `parts`
  std::string attribute;      // of a namespace
  std::vector<Target> parts;  // one for each item of the value
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr value;  // null: must be given
};

struct Branch {
  ExpressionPtr condition;  // null: else
  Block body;
};

/// What macros, calls, loops and the like have beside a body.
struct Details {
  Target target;
  ExpressionPtr condition;
  Block body, other;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExpressionPtr>> bindings;
  bool recursive = false, varargs = false, kwargs = false, caller = false;
};

struct Statement {
  enum class Kind : std::uint8_t {
    text,     // text, as it is
    output,   // {{ value }}
    branch,   // the first of `branches` whose condition holds
    loop,     // for target in value, if condition: body, else: other
    set,      // target = value
    capture,  // target = what body prints, through value if there is one (a filter of `filtered`)
    macro,    // text(parameters): body
    call,     // value, which may call back `caller` (parameters): body
    filter,   // prints value, a filter of what body prints
    with,     // bindings, body
    leave,    // break
    proceed,  // continue
  };
  Kind kind;
  int line = 0;
  std::string text = {};
  ExpressionPtr value = {};
  std::unique_ptr<Details> more = {};
};

/// The name under which the filter of a block finds what the block printed. No template can write
/// it.
constexpr const char* kPrinted = "<printed>";

/// With blocks trimmed as transformers has it: the line feed behind a block tag goes, and so do
/// spaces before one that stands first on its line.
/// \throws DataError beginning with the line, for what is not part of the language
Block parse(std::string_view source);

}  // namespace episodic::text::jinja
