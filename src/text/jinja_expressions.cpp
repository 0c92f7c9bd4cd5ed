// SPDX-License-Identifier: Apache-2.0
#include "jinja_expressions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace episodic::text::jinja {
namespace {

constexpr int kMostHeight = 200;  // of a tree: brackets, and filters and the like in a row

}  // namespace

Token ExpressionParser::take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::is_sign(const Token& t, std::string_view s) {
  return t.kind == Token::Kind::sign && t.text == s;
}

bool ExpressionParser::is_name(const Token& t, std::string_view s) {
  return t.kind == Token::Kind::name && t.text == s;
}

void ExpressionParser::expect_sign(std::string_view s) {
  if (!accept_sign(s))
    fail_at(now().line, fmt::format("expected '{}' before '{}'", s, shown(now())));
}

void ExpressionParser::expect_name(std::string_view s) {
  if (!accept_name(s))
    fail_at(now().line, fmt::format("expected '{}' before '{}'", s, shown(now())));
}

void ExpressionParser::expect(Token::Kind kind) {
  if (now().kind != kind)
    fail_at(now().line, fmt::format("expected the end of the tag before '{}'", shown(now())));
  take();
}

std::string ExpressionParser::shown(const Token& t) {
  return t.text.empty() ? "the end of the tag" : t.text;
}

std::string ExpressionParser::name() {
  if (now().kind != Token::Kind::name)
    fail_at(now().line, fmt::format("expected a name before '{}'", shown(now())));
  return take().text;
}

ExpressionPtr ExpressionParser::make(Kind kind, int line, std::string text) const {
  auto e = std::make_unique<Expression>();
  e->kind = kind;
  e->line = line;
  e->text = std::move(text);
  return e;
}

void ExpressionParser::grow(Expression& e, const ExpressionPtr& part) {
  if (!part) return;
  if (part->height >= kMostHeight) fail_at(part->line, "is nested too deep");
  e.height = std::max(e.height, static_cast<std::uint8_t>(part->height + 1));
}

void ExpressionParser::add(Expression& e, ExpressionPtr part) {
  grow(e, part);
  e.parts.push_back(std::move(part));
}

void ExpressionParser::add_arguments(Expression& e, std::vector<Argument> arguments) {
  for (const Argument& a : arguments) grow(e, a.value);
  e.arguments = std::move(arguments);
}

ExpressionPtr ExpressionParser::tuple(bool choices) {
  const auto one = [&] { return choices ? expression() : either(); };
  ExpressionPtr first = one();
  if (!is_sign(now(), ",")) return first;
  ExpressionPtr e = make(Kind::tuple, now().line);
  add(*e, std::move(first));
  while (accept_sign(",")) {
    if (now().kind == Token::Kind::end_block || now().kind == Token::Kind::end_output ||
        is_sign(now(), ")") || is_name(now(), "recursive"))
      break;
    add(*e, one());
  }
  return e;
}

ExpressionPtr ExpressionParser::expression() {
  const Deeper deeper(*this);
  ExpressionPtr e = either();
  while (is_name(now(), "if")) {
    ExpressionPtr choice = make(Kind::choice, take().line);
    add(*choice, std::move(e));
    add(*choice, either());
    add(*choice, accept_name("else") ? expression() : nullptr);
    e = std::move(choice);
  }
  return e;
}

ExpressionPtr ExpressionParser::either() {
  const Deeper deeper(*this);
  return chain(
      Kind::any, [&] { return accept_name("or") ? '|' : '\0'; }, [&] { return both(); });
}

ExpressionPtr ExpressionParser::both() {
  return chain(
      Kind::all, [&] { return accept_name("and") ? '&' : '\0'; }, [&] { return negation(); });
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_name(now(), "not")) return comparison();
  const Deeper deeper(*this);
  ExpressionPtr e = make(Kind::not_, take().line);
  add(*e, negation());
  return e;
}

char ExpressionParser::comparing() {
  constexpr std::pair<const char*, char> kSigns[] = {{"==", '='}, {"!=", '!'}, {"<", '<'},
                                                     {">", '>'},  {"<=", 'l'}, {">=", 'g'}};
  for (const auto& [sign, code] : kSigns)
    if (accept_sign(sign)) return code;
  if (accept_name("in")) return 'i';
  if (is_name(now(), "not") && is_name(next(), "in")) {
    take();
    take();
    return 'n';
  }
  return 0;
}

char ExpressionParser::one_of(std::initializer_list<std::pair<const char*, char>> signs) {
  for (const auto& [sign, code] : signs)
    if (accept_sign(sign)) return code;
  return 0;
}

ExpressionPtr ExpressionParser::comparison() {
  return chain(
      Kind::compare, [&] { return comparing(); }, [&] { return sum(); });
}

ExpressionPtr ExpressionParser::sum() {
  return chain(
      Kind::sum,
      [&] {
        return one_of({{"+", '+'}, {"-", '-'}});
      },
      [&] { return joined(); });
}

ExpressionPtr ExpressionParser::joined() {
  return chain(
      Kind::join,
      [&] {
        return one_of({{"~", '~'}});
      },
      [&] { return product(); });
}

ExpressionPtr ExpressionParser::product() {
  return chain(
      Kind::sum,
      [&] {
        return one_of({{"*", '*'}, {"//", '\\'}, {"/", '/'}, {"%", '%'}});
      },
      [&] { return power(); });
}

ExpressionPtr ExpressionParser::power() {
  return chain(
      Kind::sum,
      [&] {
        return one_of({{"**", '^'}});
      },
      [&] { return unary(true); });
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(*this);
  ExpressionPtr e;
  if (is_sign(now(), "-") || is_sign(now(), "+")) {
    const Token sign = take();
    e = make(Kind::sign, sign.line, sign.text);
    add(*e, unary(false));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filters(std::move(e)) : std::move(e);
}

ExpressionPtr ExpressionParser::integer(const Token& token) const {
  const std::string& text = token.text;
  const bool prefixed = text.size() > 2 && text[0] == '0' && text[1] > '9';
  const char base = prefixed ? static_cast<char>(text[1] | 0x20) : 'd';
  const Integer of = base == 'x' ? 16 : base == 'o' ? 8 : base == 'b' ? 2 : 10;
  Integer value = 0;
  for (std::size_t i = prefixed ? 2 : 0; i < text.size(); ++i) {
    const char c = text[i];
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (__builtin_mul_overflow(value, of, &value) || __builtin_add_overflow(value, digit, &value))
      fail_at(token.line, fmt::format("{:.60} is too large", text));
  }
  ExpressionPtr e = make(Kind::literal, token.line);
  e->value = value;
  return e;
}

ExpressionPtr ExpressionParser::primary() {
  const Token token = take();
  const auto literal = [&](Value v) {
    ExpressionPtr e = make(Kind::literal, token.line);
    e->value = std::move(v);
    return e;
  };
  switch (token.kind) {
    case Token::Kind::name:
      if (token.text == "true" || token.text == "True") return literal(true);
      if (token.text == "false" || token.text == "False") return literal(false);
      if (token.text == "none" || token.text == "None") return literal(Value());
      if (token.text == "self" || token.text == "super")
        fail_at(token.line, fmt::format("'{}' is not supported", token.text));
      read_.varargs |= token.text == "varargs";
      read_.kwargs |= token.text == "kwargs";
      read_.caller |= token.text == "caller";
      return make(Kind::name, token.line, token.text);
    case Token::Kind::string: {
      std::string s = token.text;
      while (now().kind == Token::Kind::string) s += take().text;
      return literal(literal_text(std::move(s)));
    }
    case Token::Kind::integer:
      return integer(token);
    case Token::Kind::real: {
      double d = 0;
      const auto end = token.text.data() + token.text.size();
      if (std::from_chars(token.text.data(), end, d).ec != std::errc())
        fail_at(token.line, fmt::format("{:.60} is not supported", token.text));
      return literal(d);
    }
    case Token::Kind::sign:
      if (token.text == "(") {
        if (accept_sign(")")) return make(Kind::tuple, token.line);
        ExpressionPtr e = tuple(true);
        expect_sign(")");
        return e;
      }
      if (token.text == "[") return list(token.line);
      if (token.text == "{") return dict(token.line);
      break;
    default:
      break;
  }
  fail_at(token.line, fmt::format("expected a value before '{}'", shown(token)));
}

ExpressionPtr ExpressionParser::list(int line) {
  ExpressionPtr e = make(Kind::list, line);
  while (!accept_sign("]")) {
    add(*e, expression());
    if (!is_sign(now(), "]")) expect_sign(",");
  }
  return e;
}

ExpressionPtr ExpressionParser::dict(int line) {
  ExpressionPtr e = make(Kind::dict, line);
  while (!accept_sign("}")) {
    add(*e, expression());
    expect_sign(":");
    add(*e, expression());
    if (!is_sign(now(), "}")) expect_sign(",");
  }
  return e;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr e) {
  while (true) {
    const int line = now().line;
    if (accept_sign(".")) {
      ExpressionPtr outer;
      if (now().kind == Token::Kind::integer) {
        outer = make(Kind::item, line);
        add(*outer, std::move(e));
        add(*outer, integer(take()));
      } else {
        outer = make(Kind::attribute, line, name());
        add(*outer, std::move(e));
      }
      e = std::move(outer);
    } else if (accept_sign("[")) {
      e = subscript(std::move(e), line);
    } else if (is_sign(now(), "(")) {
      e = call(std::move(e), line);
    } else {
      return e;
    }
  }
}

ExpressionPtr ExpressionParser::call(ExpressionPtr of, int line) {
  ExpressionPtr outer = make(Kind::call, line);
  add(*outer, std::move(of));
  add_arguments(*outer, arguments());
  return outer;
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr of, int line) {
  const auto bound = [&]() -> ExpressionPtr {
    return is_sign(now(), ":") || is_sign(now(), "]") ? nullptr : expression();
  };
  ExpressionPtr first = bound();
  if (is_sign(now(), ",")) fail_at(line, "a tuple as an index is not supported");
  ExpressionPtr e = make(is_sign(now(), "]") && first ? Kind::item : Kind::slice, line);
  add(*e, std::move(of));
  add(*e, std::move(first));
  if (e->kind == Kind::item) {
    take();
    return e;
  }
  expect_sign(":");
  add(*e, bound());
  add(*e, accept_sign(":") ? bound() : nullptr);
  expect_sign("]");
  return e;
}

std::vector<Argument> ExpressionParser::arguments() {
  expect_sign("(");
  std::vector<Argument> out;
  std::set<std::string> names;
  while (!accept_sign(")")) {
    Argument a;
    if (is_sign(now(), "*") || is_sign(now(), "**"))
      fail_at(now().line, fmt::format("'{}' before an argument is not supported", now().text));
    if (now().kind == Token::Kind::name && is_sign(next(), "=")) {
      a.name = take().text;
      take();
      if (!names.insert(a.name).second)
        fail_at(now().line, fmt::format("the argument '{:.60}' is given twice", a.name));
    } else if (!out.empty() && !out.back().name.empty()) {
      fail_at(now().line, "an argument by its place stands behind one by its name");
    }
    a.value = expression();
    out.push_back(std::move(a));
    if (!is_sign(now(), ")")) expect_sign(",");
  }
  return out;
}

std::string ExpressionParser::dotted() {
  std::string out = name();
  while (accept_sign(".")) out += '.' + name();
  return out;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr e) {
  ExpressionPtr outer = make(Kind::filter, now().line, dotted());
  add(*outer, std::move(e));
  if (is_sign(now(), "(")) add_arguments(*outer, arguments());
  return outer;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr e) {
  while (true) {
    const int line = now().line;
    if (accept_sign("|")) {
      e = filter(std::move(e));
    } else if (accept_name("is")) {
      const bool negated = accept_name("not");
      ExpressionPtr outer = make(Kind::test, line, dotted());
      add(*outer, std::move(e));
      if (is_sign(now(), "(")) {
        add_arguments(*outer, arguments());
      } else if (begins_argument()) {
        if (is_name(now(), "is")) fail_at(line, "tests in a row, joined by 'is'");
        std::vector<Argument> one;
        one.push_back({"", postfix(primary())});
        add_arguments(*outer, std::move(one));
      }
      e = std::move(outer);
      if (negated) {
        ExpressionPtr not_ = make(Kind::not_, line);
        add(*not_, std::move(e));
        e = std::move(not_);
      }
    } else if (is_sign(now(), "(")) {
      e = call(std::move(e), line);
    } else {
      return e;
    }
  }
}

bool ExpressionParser::begins_argument() const {
  const Token& t = now();
  if (t.kind == Token::Kind::name) return t.text != "else" && t.text != "or" && t.text != "and";
  return t.kind == Token::Kind::string || t.kind == Token::Kind::integer ||
         t.kind == Token::Kind::real || is_sign(t, "[") || is_sign(t, "{");
}

}  // namespace episodic::text::jinja
