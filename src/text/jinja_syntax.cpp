// SPDX-License-Identifier: Apache-2.0
#include "jinja_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "episodic/base/error.hpp"

namespace episodic::text::jinja {
namespace {

constexpr int kMostNested = 100;

[[noreturn]] void fail_at(int line, const std::string& what) {
  throw DataError(fmt::format("line {}: {}", line, what));
}

// -- tokens ---------------------------------------------------------------------------------------

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

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (std::size_t i = 0; i < source.size(); ++i)  // line feeds of every system become one
      if (source[i] != '\r')
        source_ += source[i];
      else if (i + 1 == source.size() || source[i + 1] != '\n')
        source_ += '\n';
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      add_text(tag);
      if (tag == std::string::npos) break;
      const char kind = source_[tag + 1];
      at_ = tag + 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      if (kind == '#') {
        skip_comment();
      } else {
        const bool block = kind == '%';
        add(block ? Token::Kind::begin_block : Token::Kind::begin_output, "");
        read_inside(block);
        if (block && is_raw()) read_raw();
      }
    }
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i)
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    return std::string::npos;
  }

  void count_lines(std::string_view part) {
    line_ += static_cast<int>(std::count(part.begin(), part.end(), '\n'));
  }

  /// Text up to the tag, less the spaces that the tag takes with it.
  void add_text(std::size_t tag) {
    const std::size_t end = std::min(tag, source_.size());
    std::string text = source_.substr(at_, end - at_);
    const std::string whole = text;
    if (tag != std::string::npos) {
      const char kind = source_[tag + 1], mark = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (mark == '-') {
        text.erase(text.find_last_not_of(" \t\n\v\f") + 1);
      } else if (kind != '{' && mark != '+') {
        const std::size_t line = text.rfind('\n') + 1;  // 0 where there is none
        if ((line > 0 || at_line_start_) &&
            text.find_first_not_of(" \t\v\f", line) == std::string::npos)
          text.erase(line);
      }
    }
    if (!text.empty()) add(Token::Kind::text, std::move(text));
    count_lines(whole);
    at_ = end;
  }

  /// Behind the end of a tag. \param end where its closing characters begin
  void close(std::size_t end, bool trims) {
    const bool strips = end > 0 && source_[end - 1] == '-',
               keeps = end > 0 && source_[end - 1] == '+';
    std::size_t after = end + 2;
    if (strips)
      after = std::min(source_.find_first_not_of(" \t\n\v\f", after), source_.size());
    else if (trims && !keeps && after < source_.size() && source_[after] == '\n')
      ++after;
    count_lines(std::string_view(source_).substr(end, after - end));
    at_line_start_ = source_[after - 1] == '\n';
    at_ = after;
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_at(line_, "a comment {# has no end");
    count_lines(std::string_view(source_).substr(at_, end - at_));
    close(end, true);
  }

  void read_inside(bool block) {
    const std::string_view closing = block ? "%}" : "}}";
    int brackets = 0;  // a }} within {...} closes dicts
    while (true) {
      while (at_ < source_.size() &&
             std::string_view(" \t\n\v\f").find(source_[at_]) != std::string::npos)
        line_ += source_[at_++] == '\n';
      if (at_ >= source_.size()) fail_at(line_, fmt::format("a tag has no end {}", closing));
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool marked = rest[0] == '-' || rest[0] == '+';
      if (brackets == 0 &&
          (rest.starts_with(closing) || (marked && rest.substr(1).starts_with(closing)))) {
        add(block ? Token::Kind::end_block : Token::Kind::end_output, "");
        return close(at_ + (marked ? 1 : 0), block);
      }
      read_token(rest, brackets);
    }
  }

  void read_token(std::string_view rest, int& brackets) {
    const auto letter = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    const char c = rest[0];
    if (letter(c)) {
      std::size_t n = 1;
      while (n < rest.size() && (letter(rest[n]) || digit(rest[n]))) ++n;
      add(Token::Kind::name, std::string(rest.substr(0, n)));
      at_ += n;
    } else if (digit(c)) {
      std::size_t n = 1;
      while (n < rest.size() && digit(rest[n])) ++n;
      bool real = false;
      if (n + 1 < rest.size() && rest[n] == '.' && digit(rest[n + 1])) {
        real = true;
        ++n;
        while (n < rest.size() && digit(rest[n])) ++n;
      }
      add(real ? Token::Kind::real : Token::Kind::integer, std::string(rest.substr(0, n)));
      at_ += n;
    } else if (c == '"' || c == '\'') {
      read_string(rest);
    } else {
      static constexpr std::string_view kSigns[] = {
          "==", "!=", "<=", ">=", "//", "**", "<", ">", "=", "+", "-", "*", "/",
          "%",  "~",  "(",  ")",  "[",  "]",  "{", "}", ",", ":", ".", "|"};
      for (const std::string_view sign : kSigns)
        if (rest.starts_with(sign)) {
          if (std::string_view("([{").find(sign) != std::string::npos) ++brackets;
          if (std::string_view(")]}").find(sign) != std::string::npos && brackets > 0) --brackets;
          add(Token::Kind::sign, std::string(sign));
          at_ += sign.size();
          return;
        }
      fail_at(line_, fmt::format("'{}' is not part of the template language", c));
    }
  }

  void read_string(std::string_view rest) {
    std::string out;
    for (std::size_t i = 1; i < rest.size(); ++i) {
      if (rest[i] == rest[0]) {
        add(Token::Kind::string, std::move(out));
        count_lines(rest.substr(0, i));
        at_ += i + 1;
        return;
      }
      if (rest[i] != '\\' || i + 1 == rest.size()) {
        out += rest[i];
        continue;
      }
      const char next = rest[++i];
      static constexpr std::string_view kFrom = "ntrvfab\\'\"0", kTo("\n\t\r\v\f\a\b\\'\"\0", 11);
      if (const std::size_t k = kFrom.find(next); k != std::string_view::npos)
        out += kTo[k];
      else if (next == 'u' && i + 4 < rest.size())
        out += code_point(rest.substr(i + 1, 4)), i += 4;
      else if (next == 'x' && i + 2 < rest.size())
        out += code_point(rest.substr(i + 1, 2)), i += 2;
      else if (next != '\n')
        out += {'\\', next};
    }
    fail_at(line_, "a string has no end");
  }

  std::string code_point(std::string_view hex) const {
    unsigned code = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (error != std::errc() || end != hex.data() + hex.size() || (code >= 0xd800 && code < 0xe000))
      fail_at(line_, fmt::format("'{}' in a string is no character", hex));
    std::string out;
    if (code < 0x80)
      out += static_cast<char>(code);
    else if (code < 0x800)
      out += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    else
      out += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
              static_cast<char>(0x80 | (code & 0x3f))};
    return out;
  }

  bool is_raw() const {
    const std::size_t n = tokens_.size();
    return n >= 3 && tokens_[n - 2].kind == Token::Kind::name && tokens_[n - 2].text == "raw" &&
           tokens_[n - 3].kind == Token::Kind::begin_block;
  }

  void read_raw() {
    tokens_.resize(tokens_.size() - 3);
    const int line = line_;
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{' || source_[i + 1] != '%') continue;
      std::size_t j = i + 2;
      if (j < source_.size() && (source_[j] == '-' || source_[j] == '+')) ++j;
      j = source_.find_first_not_of(" \t\n", j);
      if (j == std::string::npos || source_.compare(j, 6, "endraw") != 0) continue;
      const std::size_t end = source_.find("%}", j);
      if (end == std::string::npos) break;
      add_text(i);
      return close(end, true);
    }
    fail_at(line, "'raw' has no 'endraw'");
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

// -- trees ----------------------------------------------------------------------------------------

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block run() {
    Block block = statements({});
    if (now().kind != Token::Kind::end) fail_at(now().line, "the template ends too early");
    return block;
  }

 private:
  using Kind = Expression::Kind;

  /// Counts nesting, so that a hostile template cannot exhaust the stack.
  class Deeper {
   public:
    explicit Deeper(Parser& p) : p_(p) {
      if (++p_.depth_ > kMostNested) fail_at(p_.now().line, "is nested too deep");
    }
    ~Deeper() { --p_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Parser& p_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  static bool is_sign(const Token& t, std::string_view s) {
    return t.kind == Token::Kind::sign && t.text == s;
  }
  static bool is_name(const Token& t, std::string_view s) {
    return t.kind == Token::Kind::name && t.text == s;
  }
  bool accept_sign(std::string_view s) { return is_sign(now(), s) && (take(), true); }
  bool accept_name(std::string_view s) { return is_name(now(), s) && (take(), true); }
  void expect_sign(std::string_view s) {
    if (!accept_sign(s))
      fail_at(now().line, fmt::format("expected '{}' before '{}'", s, shown(now())));
  }
  void expect_name(std::string_view s) {
    if (!accept_name(s))
      fail_at(now().line, fmt::format("expected '{}' before '{}'", s, shown(now())));
  }
  void expect(Token::Kind kind) {
    if (now().kind != kind)
      fail_at(now().line, fmt::format("expected the end of the tag before '{}'", shown(now())));
    take();
  }
  static std::string shown(const Token& t) {
    return t.text.empty() ? "the end of the tag" : t.text;
  }
  std::string name() {
    if (now().kind != Token::Kind::name)
      fail_at(now().line, fmt::format("expected a name before '{}'", shown(now())));
    return take().text;
  }

  // -- statements --

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
        s.value = tuple();
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
      expect(Token::Kind::end_block);
      for (Statement& inner : body("endgeneration")) block.push_back(std::move(inner));
      return;
    }
    Statement s{.kind = Statement::Kind::text, .line = line};
    if (word == "if") {
      branch(s);
    } else if (word == "for") {
      loop(s);
    } else if (word == "set") {
      set(s);
    } else if (word == "macro") {
      macro(s);
    } else if (word == "break" || word == "continue") {
      s.kind = word == "break" ? Statement::Kind::leave : Statement::Kind::proceed;
      if (loops_ == 0) fail_at(line, fmt::format("'{}' outside a loop", word));
      expect(Token::Kind::end_block);
    } else {
      fail_at(line, fmt::format("'{}' is not supported (if, for, set, macro, break, continue, "
                                "generation and raw are)",
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

  void branch(Statement& s) {
    const Deeper deeper(*this);  // a long chain of elif nests
    s.kind = Statement::Kind::branch;
    s.value = tuple();
    expect(Token::Kind::end_block);
    s.body = statements({"elif", "else", "endif"});
    const int line = now().line;
    const std::string word = name();
    if (word == "elif") {
      Statement inner{.kind = Statement::Kind::branch, .line = line};
      branch(inner);
      s.other.push_back(std::move(inner));
      return;
    }
    expect(Token::Kind::end_block);
    if (word == "else") s.other = body("endif");
  }

  void loop(Statement& s) {
    s.kind = Statement::Kind::loop;
    s.names = names();
    expect_name("in");
    s.value = either();
    if (accept_name("if")) s.condition = expression();
    if (is_name(now(), "recursive")) fail_at(now().line, "'recursive' is not supported");
    expect(Token::Kind::end_block);
    ++loops_;
    s.body = statements({"else", "endfor"});
    --loops_;
    const bool other = name() == "else";
    expect(Token::Kind::end_block);
    if (other) s.other = body("endfor");
  }

  std::vector<std::string> names() {
    const bool bracket = accept_sign("(");
    std::vector<std::string> out{name()};
    while (accept_sign(",")) out.push_back(name());
    if (bracket) expect_sign(")");
    return out;
  }

  void set(Statement& s) {
    s.kind = Statement::Kind::set;
    s.names = names();
    if (s.names.size() == 1 && accept_sign(".")) s.attribute = name();
    if (accept_sign("=")) {
      s.value = tuple();
      expect(Token::Kind::end_block);
      return;
    }
    if (s.names.size() != 1 || !s.attribute.empty()) expect_sign("=");
    expect(Token::Kind::end_block);
    s.body = body("endset");
  }

  void macro(Statement& s) {
    s.kind = Statement::Kind::macro;
    s.text = name();
    expect_sign("(");
    while (!accept_sign(")")) {
      Parameter p{name(), nullptr};
      if (accept_sign("=")) p.value = expression();
      s.parameters.push_back(std::move(p));
      if (!is_sign(now(), ")")) expect_sign(",");
    }
    expect(Token::Kind::end_block);
    const int loops = std::exchange(loops_, 0);
    s.body = body("endmacro");
    loops_ = loops;
  }

  // -- expressions, from what binds least to what binds most --

  ExpressionPtr make(Kind kind, int line, std::string text = {}) const {
    auto e = std::make_unique<Expression>();
    e->kind = kind;
    e->line = line;
    e->text = std::move(text);
    return e;
  }

  ExpressionPtr binary(std::string sign, ExpressionPtr left, ExpressionPtr right, int line) const {
    ExpressionPtr e = make(Kind::binary, line, std::move(sign));
    e->parts.push_back(std::move(left));
    e->parts.push_back(std::move(right));
    return e;
  }

  /// a, b: a list without brackets.
  ExpressionPtr tuple() {
    ExpressionPtr first = expression();
    if (!is_sign(now(), ",")) return first;
    ExpressionPtr e = make(Kind::list, now().line);
    e->parts.push_back(std::move(first));
    while (accept_sign(",")) {
      if (now().kind == Token::Kind::end_block || now().kind == Token::Kind::end_output ||
          is_sign(now(), ")"))
        break;
      e->parts.push_back(expression());
    }
    return e;
  }

  ExpressionPtr expression() {
    const Deeper deeper(*this);
    ExpressionPtr e = either();
    while (is_name(now(), "if")) {
      ExpressionPtr choice = make(Kind::choice, take().line);
      choice->parts.push_back(std::move(e));
      choice->parts.push_back(either());
      choice->parts.push_back(accept_name("else") ? expression() : nullptr);
      e = std::move(choice);
    }
    return e;
  }

  ExpressionPtr either() {
    ExpressionPtr e = both();
    while (is_name(now(), "or")) {
      const int line = take().line;
      e = binary("or", std::move(e), both(), line);
    }
    return e;
  }

  ExpressionPtr both() {
    ExpressionPtr e = negation();
    while (is_name(now(), "and")) {
      const int line = take().line;
      e = binary("and", std::move(e), negation(), line);
    }
    return e;
  }

  ExpressionPtr negation() {
    if (!is_name(now(), "not")) return comparison();
    const Deeper deeper(*this);
    ExpressionPtr e = make(Kind::unary, take().line, "not");
    e->parts.push_back(negation());
    return e;
  }

  std::optional<std::string> comparing() {
    for (const char* sign : {"==", "!=", "<", ">", "<=", ">="})
      if (accept_sign(sign)) return sign;
    if (accept_name("in")) return "in";
    if (is_name(now(), "not") && is_name(next(), "in")) {
      take();
      take();
      return "not in";
    }
    return std::nullopt;
  }

  ExpressionPtr comparison() {
    ExpressionPtr e = sum();
    bool compared = false;
    while (true) {
      const int line = now().line;
      const auto sign = comparing();
      if (!sign) return e;
      if (compared) fail_at(line, "comparisons in a row are not supported; put brackets");
      compared = true;
      e = binary(*sign, std::move(e), sum(), line);
    }
  }

  template <class Operand>
  ExpressionPtr chain(std::initializer_list<const char*> signs, Operand operand) {
    ExpressionPtr e = operand();
    while (true) {
      const auto found = std::find_if(signs.begin(), signs.end(),
                                      [&](const char* s) { return is_sign(now(), s); });
      if (found == signs.end()) return e;
      const int line = take().line;
      e = binary(*found, std::move(e), operand(), line);
    }
  }
  ExpressionPtr sum() {
    return chain({"+", "-"}, [&] { return joined(); });
  }
  ExpressionPtr joined() {
    return chain({"~"}, [&] { return product(); });
  }
  ExpressionPtr product() {
    return chain({"*", "/", "//", "%"}, [&] { return power(); });
  }
  ExpressionPtr power() {
    return chain({"**"}, [&] { return unary(true); });
  }

  ExpressionPtr unary(bool with_filters) {
    const Deeper deeper(*this);
    ExpressionPtr e;
    if (is_sign(now(), "-") || is_sign(now(), "+")) {
      const Token sign = take();
      e = make(Kind::unary, sign.line, sign.text);
      e->parts.push_back(unary(false));
    } else {
      e = primary();
    }
    e = postfix(std::move(e));
    return with_filters ? filters(std::move(e)) : std::move(e);
  }

  ExpressionPtr primary() {
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
        return make(Kind::name, token.line, token.text);
      case Token::Kind::string: {
        std::string s = token.text;
        while (now().kind == Token::Kind::string) s += take().text;
        return literal(std::move(s));
      }
      case Token::Kind::integer: {
        std::int64_t i = 0;
        const auto [end, error] =
            std::from_chars(token.text.data(), token.text.data() + token.text.size(), i);
        if (error != std::errc() || end == nullptr)
          fail_at(token.line, fmt::format("{} is too large", token.text));
        return literal(i);
      }
      case Token::Kind::real:
        return literal(std::stod(token.text));
      case Token::Kind::sign:
        if (token.text == "(") {
          if (accept_sign(")")) return make(Kind::list, token.line);
          ExpressionPtr e = tuple();
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

  ExpressionPtr list(int line) {
    ExpressionPtr e = make(Kind::list, line);
    while (!accept_sign("]")) {
      e->parts.push_back(expression());
      if (!is_sign(now(), "]")) expect_sign(",");
    }
    return e;
  }

  ExpressionPtr dict(int line) {
    ExpressionPtr e = make(Kind::dict, line);
    while (!accept_sign("}")) {
      e->parts.push_back(expression());
      expect_sign(":");
      e->parts.push_back(expression());
      if (!is_sign(now(), "}")) expect_sign(",");
    }
    return e;
  }

  ExpressionPtr postfix(ExpressionPtr e) {
    while (true) {
      const int line = now().line;
      if (accept_sign(".")) {
        ExpressionPtr outer = make(Kind::attribute, line, name());
        outer->parts.push_back(std::move(e));
        e = std::move(outer);
      } else if (accept_sign("[")) {
        e = subscript(std::move(e), line);
      } else if (is_sign(now(), "(")) {
        ExpressionPtr outer = make(Kind::call, line);
        outer->parts.push_back(std::move(e));
        outer->arguments = arguments();
        e = std::move(outer);
      } else {
        return e;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr of, int line) {
    const auto bound = [&]() -> ExpressionPtr {
      return is_sign(now(), ":") || is_sign(now(), "]") ? nullptr : expression();
    };
    ExpressionPtr first = bound();
    if (first && accept_sign("]")) {
      ExpressionPtr e = make(Kind::item, line);
      e->parts.push_back(std::move(of));
      e->parts.push_back(std::move(first));
      return e;
    }
    ExpressionPtr e = make(Kind::slice, line);
    e->parts.push_back(std::move(of));
    e->parts.push_back(std::move(first));
    expect_sign(":");
    e->parts.push_back(bound());
    e->parts.push_back(accept_sign(":") ? bound() : nullptr);
    expect_sign("]");
    return e;
  }

  std::vector<Argument> arguments() {
    expect_sign("(");
    std::vector<Argument> out;
    while (!accept_sign(")")) {
      Argument a;
      if (now().kind == Token::Kind::name && is_sign(next(), "=")) {
        a.name = take().text;
        take();
      } else if (!out.empty() && !out.back().name.empty()) {
        fail_at(now().line, "an argument by its place stands behind one by its name");
      }
      a.value = expression();
      out.push_back(std::move(a));
      if (!is_sign(now(), ")")) expect_sign(",");
    }
    return out;
  }

  ExpressionPtr filters(ExpressionPtr e) {
    while (true) {
      const int line = now().line;
      if (accept_sign("|")) {
        ExpressionPtr outer = make(Kind::filter, line, name());
        outer->parts.push_back(std::move(e));
        if (is_sign(now(), "(")) outer->arguments = arguments();
        e = std::move(outer);
      } else if (accept_name("is")) {
        const bool negated = accept_name("not");
        ExpressionPtr outer = make(Kind::test, line, name());
        outer->parts.push_back(std::move(e));
        if (is_sign(now(), "("))
          outer->arguments = arguments();
        else if (begins_argument())
          outer->arguments.push_back({"", postfix(primary())});
        e = std::move(outer);
        if (negated) {
          ExpressionPtr not_ = make(Kind::unary, line, "not");
          not_->parts.push_back(std::move(e));
          e = std::move(not_);
        }
      } else if (is_sign(now(), "(")) {
        e = postfix(std::move(e));
      } else {
        return e;
      }
    }
  }

  /// A test may have one argument without brackets.
  bool begins_argument() const {
    const Token& t = now();
    if (t.kind == Token::Kind::name)
      return t.text != "else" && t.text != "or" && t.text != "and" && t.text != "is" &&
             t.text != "if" && t.text != "in" && t.text != "not";
    return t.kind == Token::Kind::string || t.kind == Token::Kind::integer ||
           t.kind == Token::Kind::real || is_sign(t, "[") || is_sign(t, "{");
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) { return Parser(Lexer(source).run()).run(); }

}  // namespace episodic::text::jinja
