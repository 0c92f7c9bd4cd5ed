// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <set>
#include <utility>

#include "jinja_expressions.hpp"
#include "jinja_syntax.hpp"

namespace episodic::text::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Block run() {
    Block block = statements({});
    if (now().kind != Token::Kind::end) fail_at(now().line, "the template ends too early");
    return block;
  }

 private:
  /// Statements up to a block tag that begins with one of the names, which is left behind its name.
  Block statements(const std::set<std::string>& until) {
    const Deeper deeper(*this);
    Block block;
    while (now().kind != Token::Kind::end) {
      if (now().kind == Token::Kind::text) {
        Statement s{.kind = Statement::Kind::text, .line = now().line};
        s.text = take().text;
        block.push_back(std::move(s));
      } else if (now().kind == Token::Kind::begin_output) {
        Statement s{.kind = Statement::Kind::output, .line = take().line};
        s.value = tuple(true);
        expect(Token::Kind::end_output);
        block.push_back(std::move(s));
      } else {
        take();
        if (now().kind == Token::Kind::name && until.contains(now().text)) return block;
        statement(block);
      }
    }
    if (!until.empty()) fail_at(now().line, fmt::format("'{}' is missing", *until.begin()));
    return block;
  }

  void statement(Block& block) {
    const int line = now().line;
    const std::string word = name();
    if (word == "generation") {  // marks what a model said; prints what it holds
      Statement s{.kind = Statement::Kind::with, .line = line};
      s.more = std::make_unique<Details>();
      expect(Token::Kind::end_block);
      const int loops = std::exchange(loops_, 0);
      s.more->body = body("endgeneration");
      loops_ = loops;
      block.push_back(std::move(s));
      return;
    }
    Statement s{.kind = Statement::Kind::text, .line = line};
    s.more = std::make_unique<Details>();
    if (word == "if") {
      branch(s);
    } else if (word == "for") {
      loop(s);
    } else if (word == "set") {
      set(s);
    } else if (word == "macro") {
      macro(s);
    } else if (word == "call") {
      call_block(s);
    } else if (word == "filter") {
      s.kind = Statement::Kind::filter;
      s.value = filters_of_block(true);
      s.more->body = apart("endfilter");
    } else if (word == "with") {
      with(s);
    } else if (word == "break" || word == "continue") {
      s.kind = word == "break" ? Statement::Kind::leave : Statement::Kind::proceed;
      if (loops_ == 0) fail_at(line, fmt::format("'{}' outside a loop", word));
      expect(Token::Kind::end_block);
    } else {
      fail_at(line,
              fmt::format("'{:.60}' is not supported (if, for, set, macro, call, filter, with, "
                          "break, continue, generation and raw are)",
                          word));
    }
    block.push_back(std::move(s));
  }

  /// A body and the tag that ends it.
  Block body(const std::string& end) {
    Block block = statements({end});
    take();
    expect(Token::Kind::end_block);
    return block;
  }

  /// The same behind the end of a tag, of a function of its own: no loop around can be left.
  Block apart(const std::string& end) {
    expect(Token::Kind::end_block);
    const int loops = std::exchange(loops_, 0);
    Block block = body(end);
    loops_ = loops;
    return block;
  }

  void branch(Statement& s) {
    s.kind = Statement::Kind::branch;
    ExpressionPtr condition = tuple(false);
    while (true) {
      expect(Token::Kind::end_block);
      Block block = condition ? statements({"elif", "else", "endif"}) : statements({"endif"});
      const bool last = !condition;
      s.more->branches.push_back({std::move(condition), std::move(block)});
      const std::string word = name();
      if (last || word == "endif") break;
      condition = word == "elif" ? tuple(false) : nullptr;
    }
    expect(Token::Kind::end_block);
  }

  void loop(Statement& s) {
    s.kind = Statement::Kind::loop;
    s.more->target = targets(false);
    expect_name("in");
    s.value = tuple(false);
    if (accept_name("if")) s.more->condition = expression();
    s.more->recursive = accept_name("recursive");
    expect(Token::Kind::end_block);
    const int loops = loops_;
    loops_ = s.more->recursive ? 1 : loops + 1;
    s.more->body = statements({"else", "endfor"});
    loops_ = loops;
    const bool other = name() == "else";
    expect(Token::Kind::end_block);
    if (other) s.more->other = body("endfor");
  }

  Target target(bool attributes) {
    const Deeper deeper(*this);
    if (accept_sign("(")) {
      Target of = targets(attributes);
      expect_sign(")");
      return of;
    }
    Target of;
    of.name = name();
    for (const char* taken : {"true", "false", "none", "True", "False", "None"})
      if (of.name == taken) fail_at(now().line, fmt::format("'{}' cannot be set", taken));
    if (attributes && accept_sign(".")) of.attribute = name();
    return of;
  }

  /// a, (b, c)
  Target targets(bool attributes) {
    Target first = target(attributes);
    if (!is_sign(now(), ",")) return first;
    Target all;
    all.parts.push_back(std::move(first));
    while (accept_sign(",")) {
      if (is_name(now(), "in") || is_sign(now(), "=") || is_sign(now(), ")")) break;
      all.parts.push_back(target(attributes));
    }
    return all;
  }

  void set(Statement& s) {
    s.kind = Statement::Kind::set;
    s.more->target = targets(true);
    if (accept_sign("=")) {
      s.value = tuple(true);
      expect(Token::Kind::end_block);
      return;
    }
    if (s.more->target.name.empty()) expect_sign("=");
    s.kind = Statement::Kind::capture;
    if (is_sign(now(), "|")) s.value = filters_of_block(false);
    s.more->body = apart("endset");
  }

  /// The filters of a block, of what it prints. \param first whether the first stands without |
  ExpressionPtr filters_of_block(bool first) {
    ExpressionPtr e = make(Kind::name, now().line, kPrinted);
    if (first) e = filter(std::move(e));
    while (accept_sign("|")) e = filter(std::move(e));
    return e;
  }

  std::vector<Parameter> parameters() {
    expect_sign("(");
    std::vector<Parameter> out;
    while (!accept_sign(")")) {
      if (!out.empty()) expect_sign(",");
      Parameter p{name(), nullptr};
      if (accept_sign("="))
        p.value = expression();
      else if (!out.empty() && out.back().value)
        fail_at(now().line, "a parameter without a value stands behind one that has one");
      out.push_back(std::move(p));
    }
    return out;
  }

  /// The body of a macro or call, and which of the names that it is given by itself it reads.
  void body_of_macro(Statement& s, const std::string& end) {
    const Read around = std::exchange(read_, {});
    s.more->body = apart(end);
    s.more->varargs = read_.varargs;
    s.more->kwargs = read_.kwargs;
    s.more->caller = read_.caller;
    read_.varargs |= around.varargs;
    read_.kwargs |= around.kwargs;
    read_.caller |= around.caller;
  }

  void macro(Statement& s) {
    s.kind = Statement::Kind::macro;
    s.text = name();
    s.more->parameters = parameters();
    body_of_macro(s, "endmacro");
  }

  void call_block(Statement& s) {
    s.kind = Statement::Kind::call;
    s.text = "caller";
    if (is_sign(now(), "(")) s.more->parameters = parameters();
    s.value = expression();
    if (s.value->kind != Kind::call) fail_at(s.line, "'call' needs a call of a macro");
    body_of_macro(s, "endcall");
  }

  void with(Statement& s) {
    s.kind = Statement::Kind::with;
    while (now().kind != Token::Kind::end_block) {
      if (!s.more->bindings.empty()) expect_sign(",");
      Target to = target(false);
      expect_sign("=");
      s.more->bindings.emplace_back(std::move(to), expression());
    }
    expect(Token::Kind::end_block);
    s.more->body = body("endwith");
  }

  int loops_ = 0;  // around the statement that is read
};

}  // namespace

Block parse(std::string_view source) { return Parser(tokens_of(source)).run(); }

}  // namespace episodic::text::jinja
