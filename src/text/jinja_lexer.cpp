// SPDX-License-Identifier: Apache-2.0
#include "jinja_lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "episodic/base/error.hpp"
#include "jinja_unicode.hpp"
#include "utf8.hpp"

namespace episodic::text::jinja {
namespace {

constexpr std::size_t kMostTokens = 400'000;

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

}  // namespace

void fail_at(int line, const std::string& what) {
  throw DataError(fmt::format("line {}: {}", line, what));
}

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).run(); }

}  // namespace episodic::text::jinja
