// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The tokens of a template.

#include <string>
#include <string_view>
#include <vector>

namespace episodic::text::jinja {

struct Token {
  enum class Kind {
    text,
    begin_output,
    end_output,
    begin_block,
    end_block,
    name,
    string,
    integer,
    real,
    sign,
    end
  };
  Kind kind;
  std::string text;
  int line;
};

/// \throws DataError "line <line>: <what>"
[[noreturn]] void fail_at(int line, const std::string& what);

/// The last token is of kind `end`. \throws DataError beginning with the line
std::vector<Token> tokens_of(std::string_view source);

}  // namespace episodic::text::jinja
