// SPDX-License-Identifier: Apache-2.0
// Regular expressions of JSON schemas, as far as a grammar can say them.
#include <fmt/format.h>

#include <cctype>
#include <utility>

#include "base/strict_json.hpp"
#include "json_parts.hpp"
#include "text/utf8.hpp"

namespace episodic::grammar {
namespace {

constexpr int kDeepestPattern = 32;
constexpr std::size_t kLongestPattern = 4096;
constexpr std::uint32_t kMostPatternRounds = 1'000'000;

const CharacterRanges kDigits{{'0', '9'}};
const CharacterRanges kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterRanges kSpaces{
    {'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CharacterRanges kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class PatternParser {
 public:
  PatternParser(std::string_view pattern, Builder& builder, JsonParts& json)
      : text_(pattern), b(builder), json_(json) {}

  Part parse() {
    if (text_.size() > kLongestPattern)
      fail(fmt::format("has more than {} bytes", kLongestPattern));
    for (std::size_t i = 0; i < text_.size();) {
      const std::size_t n = text::utf8_length(text_, i);
      if (n == 0) fail("is not UTF-8");
      i += n;
    }
    std::vector<Part> parts{anchored()};
    while (take('|')) parts.push_back(anchored());
    if (at_ < text_.size()) fail("has a ) without its (");
    return b.choice(std::move(parts));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Unsupported(fmt::format("the pattern '{}' {}", printable(text_), what));
  }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  /// One of the outer alternatives: without ^ or $ anything may stand before or behind it.
  Part anchored() {
    const Part any = b.repeat(json_.string_character(), 0, kUnbounded);
    std::vector<Part> parts;
    if (!take('^')) parts.push_back(any);
    parts.push_back(sequence(0));
    if (!take('$')) parts.push_back(any);
    return b.sequence(std::move(parts));
  }

  Part alternatives(int depth) {
    if (depth > kDeepestPattern) fail(fmt::format("is nested more than {} deep", kDeepestPattern));
    std::vector<Part> parts{sequence(depth)};
    while (take('|')) parts.push_back(sequence(depth));
    return b.choice(std::move(parts));
  }

  Part sequence(int depth) {
    std::vector<Part> parts;
    while (at_ < text_.size() && peek() != '|' && peek() != ')') {
      if (peek() == '$') {
        const bool last = depth == 0 && (at_ + 1 == text_.size() || peek(1) == '|');
        if (!last) fail("has a $ that is not at its end, which is not supported");
        break;
      }
      const Part one = atom(depth);
      parts.push_back(repeated(one));
    }
    return parts.empty() ? b.nothing() : b.sequence(std::move(parts));
  }

  Part atom(int depth) {
    const char c = peek();
    if (c == '^') fail("has a ^ that is not at its beginning, which is not supported");
    if (c == '*' || c == '+' || c == '?' || c == '{' || c == '}' || c == ']')
      fail(fmt::format("has a '{}' where a character is expected; escape it with \\", c));
    if (take('(')) {
      if (take('?')) {
        const bool named = peek() == '<' && peek(1) != '=' && peek(1) != '!';
        if (named)
          while (at_ < text_.size() && !take('>')) ++at_;
        else if (!take(':'))
          fail("looks ahead or behind, which is not supported");
      }
      const Part inner = alternatives(depth + 1);
      if (!take(')')) fail("has a ( without its )");
      return inner;
    }
    if (take('[')) return json_.string_character(character_class());
    if (take('.')) return json_.string_character(kLineEnds.complement());
    if (take('\\')) return json_.string_character(escape(false));
    return json_.string_character(character());
  }

  CharacterRanges character() {
    const std::size_t n = text::utf8_length(text_, at_);
    const std::uint32_t c = text::utf8_code_point(text_, at_, n);
    at_ += n;
    return CharacterRanges{{c, c}};
  }

  /// Behind a backslash. \param in_class within [ ]
  CharacterRanges escape(bool in_class) {
    const char c = peek();
    if (c == '\0') fail("ends with a \\");
    if (static_cast<unsigned char>(c) >= 0x80) return character();
    ++at_;
    const auto one = [](std::uint32_t code) { return CharacterRanges{{code, code}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return kDigits.complement();
      case 'w':
        return kWord;
      case 'W':
        return kWord.complement();
      case 's':
        return kSpaces;
      case 'S':
        return kSpaces.complement();
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(hex(2));
      case 'u':
        return one(hex(4));
      case 'b':
        if (in_class) return one('\b');
        break;
      case '0':
        if (!std::isdigit(static_cast<unsigned char>(peek()))) return one(0);
        break;
      default:
        if (!std::isalnum(static_cast<unsigned char>(c))) return one(static_cast<unsigned char>(c));
    }
    fail(fmt::format("has \\{}, which is not supported", c));
  }

  std::uint32_t hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      if (!std::isxdigit(static_cast<unsigned char>(c)))
        fail(fmt::format("lacks one of {} hexadecimal digits", digits));
      value = value << 4 | static_cast<std::uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value >= 0xd800 && value <= 0xdfff) fail("has half of a surrogate pair");
    return value;
  }

  CharacterRanges character_class() {
    const bool without = take('^');
    CharacterRanges set;
    while (!take(']')) {
      if (at_ >= text_.size()) fail("has a [ without its ]");
      const CharacterRanges first = take('\\') ? escape(true) : character();
      if (peek() != '-' || peek(1) == ']' || at_ + 1 >= text_.size()) {
        set.add(first);
        continue;
      }
      ++at_;
      const CharacterRanges last = take('\\') ? escape(true) : character();
      const auto single = [](const CharacterRanges& s) {
        return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].second;
      };
      if (!single(first) || !single(last) || last < first)
        fail("has a range in [ ] that is not from one character to a later one");
      set.add(first.ranges()[0].first, last.ranges()[0].first);
    }
    return without ? set.complement() : set;
  }

  Part repeated(Part part) {
    std::uint32_t min = 0, max = 0;
    if (take('*')) {
      max = kUnbounded;
    } else if (take('+')) {
      min = 1;
      max = kUnbounded;
    } else if (take('?')) {
      max = 1;
    } else if (take('{')) {
      min = number();
      max = min;
      if (take(',')) max = peek() == '}' ? kUnbounded : number();
      if (!take('}') || max < min) fail("has a repetition that is none of {m} {m,} {m,n}");
    } else {
      return part;
    }
    take('?');  // which match is taken first makes no difference
    const char c = peek();
    if (c == '*' || c == '+' || c == '?' || c == '{')
      fail("has two signs of repetition one after another");
    return b.repeat(part, min, max);
  }

  std::uint32_t number() {
    std::uint32_t value = 0;
    if (!std::isdigit(static_cast<unsigned char>(peek())))
      fail("has a repetition that is none of {m} {m,} {m,n}");
    for (; std::isdigit(static_cast<unsigned char>(peek())); ++at_) {
      value = 10 * value + static_cast<std::uint32_t>(peek() - '0');
      if (value > kMostPatternRounds)
        fail(fmt::format("repeats more than {} times", kMostPatternRounds));
    }
    return value;
  }

  std::string_view text_;
  Builder& b;
  JsonParts& json_;
  std::size_t at_ = 0;
};

struct Format {
  std::string_view name;
  const char* pattern;
};

#define EPISODIC_DATE                                    \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|" \
  "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define EPISODIC_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define EPISODIC_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
#define EPISODIC_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

// The 29th of February is never written: whether it is a day depends on the year.
constexpr Format kFormats[] = {
    {"date", "^" EPISODIC_DATE "$"},
    {"time", "^" EPISODIC_TIME "$"},
    {"date-time", "^" EPISODIC_DATE "T" EPISODIC_TIME "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^" EPISODIC_BYTE "(\\." EPISODIC_BYTE "){3}$"},
    {"ipv6", "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$"},
    {"duration", "^P([0-9]{1,4}[WYMD]|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,4}M)?|[0-9]{1,4}[MS]))$"},
    {"hostname", "^" EPISODIC_LABEL "(\\." EPISODIC_LABEL "){0,7}$"},
    {"email", "^[A-Za-z0-9_+-]{1,20}(\\.[A-Za-z0-9_+-]{1,20})?@" EPISODIC_LABEL
              "(\\." EPISODIC_LABEL "){1,4}$"},
    {"uri", "^https?://" EPISODIC_LABEL "(\\." EPISODIC_LABEL "){0,7}(:[1-9][0-9]{0,3})?"
            "(/[A-Za-z0-9._~-]{0,100}){0,20}(\\?[A-Za-z0-9._~&=-]{1,200})?$"}};

#undef EPISODIC_LABEL
#undef EPISODIC_DATE
#undef EPISODIC_TIME
#undef EPISODIC_BYTE

}  // namespace

Part string_of_pattern(std::string_view pattern, Builder& builder, JsonParts& json) {
  return PatternParser(pattern, builder, json).parse();
}

const char* pattern_of_format(std::string_view name) {
  for (const Format& format : kFormats)
    if (format.name == name) return format.pattern;
  return nullptr;
}

}  // namespace episodic::grammar
