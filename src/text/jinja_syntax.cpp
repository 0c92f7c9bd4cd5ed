// SPDX-License-Identifier: Apache-2.0
#include "jinja_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "episodic/base/error.hpp"
#include "jinja_unicode.hpp"
#include "utf8.hpp"

namespace episodic::text::jinja {
namespace {

constexpr int kMostNested = 250;  // brackets and blocks within each other
constexpr int kMostHeight = 200;  // of a tree: brackets, and filters and the like in a row
constexpr std::size_t kMostTokens = 400'000;

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
      } else if (kind != '%' || !read_raw()) {
        const bool block = kind == '%';
        add(block ? Token::Kind::begin_block : Token::Kind::begin_output, "");
        read_inside(block);
      }
    }
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string text) {
    if (tokens_.size() >= kMostTokens) fail_at(line_, "the template is too long");
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

  /// Behind the white space at `at`.
  std::size_t skip_spaces(std::size_t at) const {
    while (at < source_.size()) {
      const Character c = character_at(source_, at);
      if (c.code == kNoCharacter || !is_space(c.code)) break;
      at += c.size;
    }
    return at;
  }
  static std::size_t without_spaces(const std::string& text) {
    std::size_t end = text.size();
    while (end > 0) {
      const std::size_t before = begin_of_character(text, end);
      const Character c = character_at(text, before);
      if (c.code == kNoCharacter || !is_space(c.code)) break;
      end = before;
    }
    return end;
  }

  /// Text up to the tag, less the spaces that the tag takes with it.
  void add_text(std::size_t tag) {
    const std::size_t end = std::min(tag, source_.size());
    std::string text = source_.substr(at_, end - at_);
    const std::string_view whole = std::string_view(source_).substr(at_, end - at_);
    if (tag != std::string::npos) {
      const char kind = source_[tag + 1], mark = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (mark == '-') {
        text.erase(without_spaces(text));
      } else if (kind != '{' && mark != '+') {
        const std::size_t line = text.rfind('\n') + 1;  // 0 where there is none
        if ((line > 0 || at_line_start_) && without_spaces(text.substr(line)) == 0)
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
      after = skip_spaces(after);
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
    brackets_.clear();  // a }} within {...} closes dicts
    while (true) {
      const std::size_t next = skip_spaces(at_);
      count_lines(std::string_view(source_).substr(at_, next - at_));
      at_ = next;
      if (at_ >= source_.size()) fail_at(line_, fmt::format("a tag has no end {}", closing));
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool marked = rest[0] == '-' || (block && rest[0] == '+');
      if (brackets_.empty() &&
          (rest.starts_with(closing) || (marked && rest.substr(1).starts_with(closing)))) {
        add(block ? Token::Kind::end_block : Token::Kind::end_output, "");
        return close(at_ + (marked ? 1 : 0), block);
      }
      read_token(rest);
    }
  }

  static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           static_cast<unsigned char>(c) >= 0x80;
  }
  static bool digit(char c) { return c >= '0' && c <= '9'; }

  void read_token(std::string_view rest) {
    const char c = rest[0];
    if (letter(c)) {
      std::size_t n = 1;
      while (n < rest.size() && (letter(rest[n]) || digit(rest[n]))) ++n;
      add(Token::Kind::name, std::string(rest.substr(0, n)));
      at_ += n;
    } else if (digit(c)) {
      read_number(rest);
    } else if (c == '"' || c == '\'') {
      read_string(rest);
    } else {
      static constexpr std::string_view kSigns[] = {
          "==", "!=", "<=", ">=", "//", "**", "<", ">", "=", "+", "-", "*", "/",
          "%",  "~",  "(",  ")",  "[",  "]",  "{", "}", ",", ":", ".", "|"};
      for (const std::string_view sign : kSigns)
        if (rest.starts_with(sign)) {
          bracket(sign[0]);
          add(Token::Kind::sign, std::string(sign));
          at_ += sign.size();
          return;
        }
      fail_at(line_, fmt::format("'{}' is not part of the template language", c));
    }
  }

  void bracket(char c) {
    if (c == '(' || c == '[' || c == '{') brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (brackets_.empty() || brackets_.back() != c)
      fail_at(line_, fmt::format("'{}' closes nothing", c));
    brackets_.pop_back();
  }

  /// Digits, with single underscores between them. \return behind them
  static std::size_t digits(std::string_view s, std::size_t at, unsigned base) {
    const auto one = [&](std::size_t i) {
      if (i >= s.size()) return false;
      const char c = s[i];
      const unsigned value = digit(c)               ? static_cast<unsigned>(c - '0')
                             : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a') + 10
                             : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A') + 10
                                                    : 99;
      return value < base;
    };
    while (one(at) || (at < s.size() && s[at] == '_' && one(at + 1))) ++at;
    return at;
  }

  void read_number(std::string_view rest) {
    const auto take = [&](Token::Kind kind, std::size_t n) {
      std::string text(rest.substr(0, n));
      std::erase(text, '_');
      add(kind, std::move(text));
      at_ += n;
    };
    const std::size_t whole = digits(rest, 0, 10);
    std::size_t n = whole;
    if (!(at_ > 0 && source_[at_ - 1] == '.')) {
      const auto fraction = [&] {
        return n + 1 < rest.size() && rest[n] == '.' && digit(rest[n + 1]);
      };
      const bool point = fraction();
      if (point) n = digits(rest, n + 1, 10);
      bool exponent = false;
      if (n < rest.size() && (rest[n] == 'e' || rest[n] == 'E')) {
        std::size_t e = n + 1;
        if (e < rest.size() && (rest[e] == '+' || rest[e] == '-')) ++e;
        if (e < rest.size() && digit(rest[e])) {
          exponent = true;
          n = digits(rest, e, 10);
        }
      }
      if (point || exponent) return take(Token::Kind::real, n);
    }
    if (rest[0] == '0' && rest.size() > 1) {
      const char base = static_cast<char>(rest[1] | 0x20);
      const unsigned of = base == 'x' ? 16 : base == 'o' ? 8 : base == 'b' ? 2 : 0;
      if (of != 0) {
        n = digits(rest, 2, of);
        if (n > 2) return take(Token::Kind::integer, n);
      }
      n = 1;  // zeros alone
      while (n < rest.size() &&
             (rest[n] == '0' || (rest[n] == '_' && n + 1 < rest.size() && rest[n + 1] == '0')))
        ++n;
      return take(Token::Kind::integer, n);
    }
    take(Token::Kind::integer, whole);
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
      static constexpr std::string_view kFrom = "ntrvfab\\'\"", kTo("\n\t\r\v\f\a\b\\'\"", 10);
      if (const std::size_t k = kFrom.find(next); k != std::string_view::npos) {
        out += kTo[k];
      } else if (next == 'u' || next == 'U' || next == 'x') {
        const std::size_t n = next == 'u' ? 4 : next == 'U' ? 8 : 2;
        out += code_point(rest.substr(i + 1, n), n);
        i += n;
      } else if (next >= '0' && next <= '7') {
        std::uint32_t code = 0;
        std::size_t n = 0;
        while (n < 3 && i + n < rest.size() && rest[i + n] >= '0' && rest[i + n] <= '7')
          code = code * 8 + static_cast<std::uint32_t>(rest[i + n++] - '0');
        out += utf8_of(code);
        i += n - 1;
      } else if (next == 'N') {
        fail_at(line_, "'\\N{...}' in a string is not supported");
      } else if (next != '\n') {
        out += {'\\', next};
      }
    }
    fail_at(line_, "a string has no end");
  }

  std::string code_point(std::string_view hex, std::size_t digits) const {
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (hex.size() != digits || error != std::errc() || end != hex.data() + hex.size() ||
        code > 0x10ffff)
      fail_at(line_, "an escape in a string is no character");
    if (code >= 0xd800 && code < 0xe000)
      fail_at(line_, "half a surrogate pair in a string is not supported");
    return utf8_of(code);
  }

  /// What stands between raw and endraw is text. \return false if this tag is no raw
  bool read_raw() {
    const std::size_t name = skip_spaces(at_);
    if (source_.compare(name, 3, "raw") != 0) return false;
    std::size_t end = skip_spaces(name + 3);
    if (source_.compare(end, 3, "-%}") == 0)
      ++end;
    else if (source_.compare(end, 2, "%}") != 0)
      return false;
    count_lines(std::string_view(source_).substr(at_, end - at_));
    const int line = line_;
    close(end, false);
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{' || source_[i + 1] != '%') continue;
      std::size_t j = i + 2;
      if (j < source_.size() && (source_[j] == '-' || source_[j] == '+')) ++j;
      j = skip_spaces(j);
      if (source_.compare(j, 6, "endraw") != 0) continue;
      j = skip_spaces(j + 6);
      if (j < source_.size() && (source_[j] == '-' || source_[j] == '+')) ++j;
      if (source_.compare(j, 2, "%}") != 0) continue;
      add_text(i);
      count_lines(std::string_view(source_).substr(i, j - i));
      close(j, true);
      return true;
    }
    fail_at(line, "'raw' has no 'endraw'");
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::string brackets_;  // what closes those that are open
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

  // -- expressions, from what binds least to what binds most --

  ExpressionPtr make(Kind kind, int line, std::string text = {}) const {
    auto e = std::make_unique<Expression>();
    e->kind = kind;
    e->line = line;
    e->text = std::move(text);
    return e;
  }

  static void grow(Expression& e, const ExpressionPtr& part) {
    if (!part) return;
    if (part->height >= kMostHeight) fail_at(part->line, "is nested too deep");
    e.height = std::max(e.height, static_cast<std::uint8_t>(part->height + 1));
  }
  static void add(Expression& e, ExpressionPtr part) {
    grow(e, part);
    e.parts.push_back(std::move(part));
  }
  static void add_arguments(Expression& e, std::vector<Argument> arguments) {
    for (const Argument& a : arguments) grow(e, a.value);
    e.arguments = std::move(arguments);
  }

  /// a, b: a tuple without brackets. \param choices whether `a if b` may be part of it
  ExpressionPtr tuple(bool choices) {
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

  ExpressionPtr expression() {
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

  ExpressionPtr either() {
    const Deeper deeper(*this);
    return chain(
        Kind::any, [&] { return accept_name("or") ? '|' : '\0'; }, [&] { return both(); });
  }

  ExpressionPtr both() {
    return chain(
        Kind::all, [&] { return accept_name("and") ? '&' : '\0'; }, [&] { return negation(); });
  }

  ExpressionPtr negation() {
    if (!is_name(now(), "not")) return comparison();
    const Deeper deeper(*this);
    ExpressionPtr e = make(Kind::not_, take().line);
    add(*e, negation());
    return e;
  }

  char comparing() {
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

  char one_of(std::initializer_list<std::pair<const char*, char>> signs) {
    for (const auto& [sign, code] : signs)
      if (accept_sign(sign)) return code;
    return 0;
  }

  ExpressionPtr comparison() {
    return chain(
        Kind::compare, [&] { return comparing(); }, [&] { return sum(); });
  }
  ExpressionPtr sum() {
    return chain(
        Kind::sum,
        [&] {
          return one_of({{"+", '+'}, {"-", '-'}});
        },
        [&] { return joined(); });
  }
  ExpressionPtr joined() {
    return chain(
        Kind::join,
        [&] {
          return one_of({{"~", '~'}});
        },
        [&] { return product(); });
  }
  ExpressionPtr product() {
    return chain(
        Kind::sum,
        [&] {
          return one_of({{"*", '*'}, {"//", '\\'}, {"/", '/'}, {"%", '%'}});
        },
        [&] { return power(); });
  }
  ExpressionPtr power() {
    return chain(
        Kind::sum,
        [&] {
          return one_of({{"**", '^'}});
        },
        [&] { return unary(true); });
  }

  ExpressionPtr unary(bool with_filters) {
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

  ExpressionPtr integer(const Token& token) const {
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

  ExpressionPtr list(int line) {
    ExpressionPtr e = make(Kind::list, line);
    while (!accept_sign("]")) {
      add(*e, expression());
      if (!is_sign(now(), "]")) expect_sign(",");
    }
    return e;
  }

  ExpressionPtr dict(int line) {
    ExpressionPtr e = make(Kind::dict, line);
    while (!accept_sign("}")) {
      add(*e, expression());
      expect_sign(":");
      add(*e, expression());
      if (!is_sign(now(), "}")) expect_sign(",");
    }
    return e;
  }

  ExpressionPtr postfix(ExpressionPtr e) {
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

  ExpressionPtr call(ExpressionPtr of, int line) {
    ExpressionPtr outer = make(Kind::call, line);
    add(*outer, std::move(of));
    add_arguments(*outer, arguments());
    return outer;
  }

  ExpressionPtr subscript(ExpressionPtr of, int line) {
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

  std::vector<Argument> arguments() {
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

  std::string dotted() {
    std::string out = name();
    while (accept_sign(".")) out += '.' + name();
    return out;
  }

  /// Behind a |.
  ExpressionPtr filter(ExpressionPtr e) {
    ExpressionPtr outer = make(Kind::filter, now().line, dotted());
    add(*outer, std::move(e));
    if (is_sign(now(), "(")) add_arguments(*outer, arguments());
    return outer;
  }

  ExpressionPtr filters(ExpressionPtr e) {
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

  /// A test may have one argument without brackets.
  bool begins_argument() const {
    const Token& t = now();
    if (t.kind == Token::Kind::name) return t.text != "else" && t.text != "or" && t.text != "and";
    return t.kind == Token::Kind::string || t.kind == Token::Kind::integer ||
           t.kind == Token::Kind::real || is_sign(t, "[") || is_sign(t, "{");
  }

  struct Read {
    bool varargs = false, kwargs = false, caller = false;
  };

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  Read read_;  // in the macro that is read
};

}  // namespace

Block parse(std::string_view source) { return Parser(Lexer(source).run()).run(); }

}  // namespace episodic::text::jinja
