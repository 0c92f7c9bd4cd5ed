// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cctype>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/strict_json.hpp"
#include "builder.hpp"
#include "episodic/base/error.hpp"
#include "episodic/grammar/grammar.hpp"
#include "text/utf8.hpp"

namespace episodic {
namespace grammar {
namespace {

constexpr std::size_t kLongestText = std::size_t{1} << 20;
constexpr int kDeepestGroup = 64;                          // parentheses
constexpr std::uint32_t kMostGroupRounds = 1'000'000'000;  // of {m,n}

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text), builder_("grammar") {}

  std::shared_ptr<const Program> parse() {
    if (text_.size() > kLongestText)
      throw ConfigError(
          fmt::format("grammar: has {} bytes, at most {} are taken", text_.size(), kLongestText));
    for (std::size_t i = 0; i < text_.size();) {
      const std::size_t n = text::utf8_length(text_, i);
      if (n == 0) fail(i, "is not UTF-8 here; save the grammar as UTF-8");
      i += n;
    }
    skip(true);
    while (at_ < text_.size()) rule();
    for (const auto& [name, place] : rules_)
      if (!place.defined)
        fail(place.first_use,
             fmt::format("there is no rule '{}'; write it, or mend its name", printable(name)));
    const auto root = rules_.find("root");
    if (root == rules_.end())
      throw ConfigError("grammar: has no rule 'root', which a text begins with; add root ::= ...");
    return builder_.compile(root->second.rule);
  }

 private:
  struct Place {
    Rule rule;
    std::size_t first_use;
    bool defined;
  };

  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    std::size_t line = 1, column = 1;
    for (std::size_t i = 0; i < at && i < text_.size(); ++i) {
      const bool end = text_[i] == '\n';
      line += end ? 1 : 0;
      column = end ? 1 : column + ((static_cast<unsigned char>(text_[i]) & 0xc0) != 0x80 ? 1 : 0);
    }
    throw ConfigError(fmt::format("grammar: line {}, column {}: {}", line, column, what));
  }

  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  static bool in_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  }

  /// White space and comments. \param lines ends of lines too
  void skip(bool lines) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
        if (at_ == text_.size()) return;
        if (!lines) return;
      } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
        return;
      }
    }
  }

  std::string_view name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && in_name(text_[at_])) ++at_;
    if (at_ == begin) fail(begin, "expected the name of a rule: letters, digits and -");
    return text_.substr(begin, at_ - begin);
  }

  Place& place_of(std::string_view rule_name, std::size_t at) {
    const auto known = rules_.find(std::string(rule_name));
    if (known != rules_.end()) return known->second;
    const Rule rule = builder_.rule(fmt::format("rule '{}'", rule_name));
    return rules_.emplace(std::string(rule_name), Place{rule, at, false}).first->second;
  }

  void rule() {
    const std::size_t begin = at_;
    const std::string_view rule_name = name();
    skip(false);
    if (text_.substr(at_, 3) != "::=")
      fail(at_, fmt::format("expected ::= behind '{}'", printable(rule_name)));
    at_ += 3;
    skip(true);
    const Part part = alternatives(0);
    Place& place = place_of(rule_name, begin);
    if (place.defined)
      fail(begin, fmt::format("the rule '{}' is there twice; put one behind the other with |",
                              printable(rule_name)));
    place.defined = true;
    builder_.define(place.rule, part);
    if (at_ < text_.size() && peek() != '\n' && peek() != '\r')
      fail(at_, fmt::format("'{}' is not expected here", printable(text_.substr(at_, 1))));
    skip(true);
  }

  Part alternatives(int depth) {
    if (depth > kDeepestGroup) fail(at_, fmt::format("is nested more than {} deep", kDeepestGroup));
    std::vector<Part> parts{sequence(depth)};
    const auto another = [&] {
      const std::size_t end = at_;
      skip(true);  // a | may begin the next line
      if (take('|')) return true;
      at_ = end;
      return false;
    };
    while (another()) {
      skip(true);
      parts.push_back(sequence(depth));
    }
    return builder_.choice(std::move(parts));
  }

  Part sequence(int depth) {
    std::vector<Part> parts;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        parts.push_back(literal());
      } else if (c == '[') {
        parts.push_back(characters());
      } else if (c == '(') {
        const std::size_t begin = at_++;
        skip(true);
        const Part inner = alternatives(depth + 1);
        if (!take(')')) fail(begin, "this ( has no ) where its part ends");
        parts.push_back(inner);
      } else if (c == '.') {
        ++at_;
        parts.push_back(builder_.characters(CharacterRanges::all()));
      } else if (in_name(c)) {
        const std::size_t begin = at_;
        const std::string_view rule_name = name();
        parts.push_back(builder_.call(place_of(rule_name, begin).rule));
      } else if (c == '<') {
        fail(at_, "tokens in < > are not supported; write their text in quotation marks");
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        fail(at_, fmt::format("nothing stands before {}", c));
      } else {
        break;
      }
      repeats(parts.back());
      skip(depth > 0);
    }
    return parts.empty() ? builder_.nothing() : builder_.sequence(std::move(parts));
  }

  /// What stands behind a part. Several signs apply one after another.
  void repeats(Part& part) {
    skip_within();
    for (;;) {
      if (take('*')) {
        part = builder_.repeat(part, 0, kUnbounded);
      } else if (take('+')) {
        part = builder_.repeat(part, 1, kUnbounded);
      } else if (take('?')) {
        part = builder_.optional(part);
      } else if (peek() == '{') {
        counts(part);
      } else {
        return;
      }
      if (++signs_ > kMostSigns)
        fail(at_, fmt::format("more than {} signs of repetition one after another", kMostSigns));
      skip_within();
    }
  }
  /// Blanks before a sign of repetition, but none where the line's end, or another part, follows.
  void skip_within() {
    std::size_t next = at_;
    while (next < text_.size() && (text_[next] == ' ' || text_[next] == '\t')) ++next;
    const char c = next < text_.size() ? text_[next] : '\0';
    if (c == '*' || c == '+' || c == '?' || c == '{')
      at_ = next;
    else
      signs_ = 0;
  }

  void counts(Part& part) {
    const std::size_t begin = at_++;
    skip(false);
    const std::optional<std::uint32_t> min = count();
    skip(false);
    std::optional<std::uint32_t> max = min;
    if (take(',')) {
      skip(false);
      max = count();
      skip(false);
      if (!max) max = kUnbounded;
    } else if (!min) {
      fail(at_, "expected a number: {m}, {m,} or {m,n}");
    }
    if (!take('}')) fail(at_, "expected } behind the numbers of a repetition");
    const std::uint32_t least = min.value_or(0);
    if (*max < least) fail(begin, fmt::format("{} is less than {}", *max, least));
    part = builder_.repeat(part, least, *max);
  }

  std::optional<std::uint32_t> count() {
    if (!std::isdigit(static_cast<unsigned char>(peek()))) return std::nullopt;
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    for (; std::isdigit(static_cast<unsigned char>(peek())); ++at_) {
      value = 10 * value + static_cast<std::uint64_t>(peek() - '0');
      if (value > kMostGroupRounds) fail(begin, fmt::format("is more than {}", kMostGroupRounds));
    }
    return static_cast<std::uint32_t>(value);
  }

  Part literal() {
    const std::size_t begin = at_++;
    std::string bytes;
    while (!take('"')) {
      if (at_ >= text_.size() || peek() == '\n') fail(begin, "this \" has no end on its line");
      bytes += text::utf8_of(character());
    }
    return builder_.literal(bytes);
  }

  Part characters() {
    const std::size_t begin = at_++;
    const bool without = take('^');
    std::vector<CharacterRanges::Range> ranges;
    while (!take(']')) {
      if (at_ >= text_.size() || peek() == '\n') fail(begin, "this [ has no end on its line");
      const std::size_t first_at = at_;
      const std::uint32_t first = character();
      std::uint32_t last = first;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        if (at_ >= text_.size()) fail(begin, "this [ has no end on its line");
        last = character();
      }
      if (last < first) fail(first_at, "the range ends before it begins");
      ranges.emplace_back(first, last);
    }
    const CharacterRanges set(std::move(ranges));
    return builder_.characters(without ? set.complement() : set);
  }

  /// One character of a literal or a class, as it is or escaped.
  std::uint32_t character() {
    const std::size_t begin = at_;
    if (!take('\\')) {
      const std::size_t n = text::utf8_length(text_, at_);
      at_ += n;
      return text::utf8_code_point(text_, begin, n);
    }
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(begin, 2);
      case 'u':
        return hex(begin, 4);
      case 'U':
        return hex(begin, 8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '^':
      case '-':
        return static_cast<unsigned char>(c);
      default:
        fail(begin, "after \\ comes one of n r t x u U \\ \" [ ] ^ -");
    }
  }

  std::uint32_t hex(std::size_t begin, int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      if (!std::isxdigit(static_cast<unsigned char>(c)))
        fail(begin, fmt::format("expected {} hexadecimal digits", digits));
      const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
      value = value << 4 | static_cast<std::uint32_t>(digit);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
      fail(begin, fmt::format("U+{:04X} is no character", value));
    return value;
  }

  static constexpr int kMostSigns = 8;
  std::string_view text_;
  Builder builder_;
  std::size_t at_ = 0;
  int signs_ = 0;
  std::unordered_map<std::string, Place> rules_;
};

}  // namespace
}  // namespace grammar

Grammar grammar_of_gbnf(std::string_view text) {
  return Grammar(grammar::GbnfParser(text).parse());
}

}  // namespace episodic
