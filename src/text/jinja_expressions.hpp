// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Expressions as trees.

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja_lexer.hpp"
#include "jinja_syntax.hpp"

namespace episodic::text::jinja {

/// Reads expressions, from what binds least to what binds most. The parser of statements
/// (jinja_parser.cpp) stands on it.
class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  ~ExpressionParser() = default;

  using Kind = Expression::Kind;

  static constexpr int kMostNested = 250;  // brackets and blocks within each other

  /// Counts nesting, so that a hostile template cannot exhaust the stack.
  class Deeper {
   public:
    explicit Deeper(ExpressionParser& p) : p_(p) {
      if (++p_.depth_ > kMostNested) fail_at(p_.now().line, "is nested too deep");
    }
    ~Deeper() { --p_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    ExpressionParser& p_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  static bool is_sign(const Token& t, std::string_view s);
  static bool is_name(const Token& t, std::string_view s);
  bool accept_sign(std::string_view s) { return is_sign(now(), s) && (take(), true); }
  bool accept_name(std::string_view s) { return is_name(now(), s) && (take(), true); }
  void expect_sign(std::string_view s);
  void expect_name(std::string_view s);
  void expect(Token::Kind kind);
  static std::string shown(const Token& t);
  std::string name();
  ExpressionPtr make(Kind kind, int line, std::string text = {}) const;

  static void grow(Expression& e, const ExpressionPtr& part);
  static void add(Expression& e, ExpressionPtr part);
  static void add_arguments(Expression& e, std::vector<Argument> arguments);

  /// a, b: a tuple without brackets. \param choices whether `a if b` may be part of it
  ExpressionPtr tuple(bool choices);
  ExpressionPtr expression();

  /// Operands in a row make one node. \param next reads the operator: its sign, or 0
  template <class Next, class Operand>
  ExpressionPtr chain(Kind kind, Next next, Operand operand) {
    ExpressionPtr e = operand();
    const int line = now().line;
    char sign = next();
    if (sign == 0) return e;
    ExpressionPtr all = make(kind, line);
    add(*all, std::move(e));
    for (; sign != 0; sign = next()) {
      all->text += sign;
      add(*all, operand());
    }
    return all;
  }

  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  char comparing();
  char one_of(std::initializer_list<std::pair<const char*, char>> signs);
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr joined();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr integer(const Token& token) const;
  ExpressionPtr primary();
  ExpressionPtr list(int line);
  ExpressionPtr dict(int line);
  ExpressionPtr postfix(ExpressionPtr e);
  ExpressionPtr call(ExpressionPtr of, int line);
  ExpressionPtr subscript(ExpressionPtr of, int line);
  std::vector<Argument> arguments();
  std::string dotted();

  /// Behind a |.
  ExpressionPtr filter(ExpressionPtr e);
  ExpressionPtr filters(ExpressionPtr e);

  /// A test may have one argument without brackets.
  bool begins_argument() const;

  struct Read {
    bool varargs = false, kwargs = false, caller = false;
  };

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  Read read_;  // in the macro that is read
};

}  // namespace episodic::text::jinja
