// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Templates as trees. What is no part of the language that chat templates use is refused here, by
/// its name and line.

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
  enum class Kind {
    literal,    // value
    name,       // text
    list,       // parts
    dict,       // parts: key, value, key, value
    attribute,  // parts[0].text
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1]:parts[2]:parts[3]], any of these null
    call,       // parts[0](arguments)
    filter,     // parts[0] | text(arguments)
    test,       // parts[0] is text(arguments)
    unary,      // text parts[0]
    binary,     // parts[0] text parts[1]
    choice,     // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind;
  int line = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<Argument> arguments;
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr value;  // null: must be given
};

struct Statement {
  enum class Kind {
    text,     // text, as it is
    output,   // {{ value }}
    branch,   // if value: body, else: other
    loop,     // for names in value, if condition: body, else: other
    set,      // names = value, or names[0].attribute = value, or names[0] = what body prints
    macro,    // text(parameters): body
    leave,    // break
    proceed,  // continue
  };
  Kind kind;
  int line = 0;
  std::string text = {}, attribute = {};
  std::vector<std::string> names = {};
  ExpressionPtr value = {}, condition = {};
  Block body = {}, other = {};
  std::vector<Parameter> parameters = {};
};

/// With blocks trimmed as transformers has it: the line feed behind a block tag goes, and so do
/// spaces before one that stands first on its line.
/// \throws DataError beginning with the line, for what is not part of the language
Block parse(std::string_view source);

}  // namespace episodic::text::jinja
