// SPDX-License-Identifier: Apache-2.0
#include "oniguruma_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "episodic/base/error.hpp"
#include "oniguruma_properties.hpp"
#include "utf8.hpp"

namespace episodic::text::onig {
namespace {

constexpr int kDeepest = 200, kMostStacked = 16;
constexpr std::uint32_t kMostRepeats = 65535;  // PCRE2's; Oniguruma's is 100000

/// What (?imxWDSP) switch.
struct Options {
  bool ignore_case = false, dot_all = false, extended = false;
  AsciiRules ascii;
};

class Parser {
 public:
  explicit Parser(std::string_view expression) : all_(expression) { count_groups(); }

  Parsed run() {
    Parsed out;
    out.root = alternation(Options{}, 0);
    if (!done()) refuse(at_, "a ) without its (", "put a backslash before it");
    resolve(out.root);
    out.refers_back = refers_back_;
    out.calls = calls_;
    return out;
  }

 private:
  bool done() const { return at_ >= all_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < all_.size() ? all_[at_ + ahead] : '\0';
  }
  bool ahead(std::string_view what) const { return all_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!ahead(what)) return false;
    at_ += what.size();
    return true;
  }

  std::uint32_t take_character() {
    const std::size_t n = utf8_length(all_, at_);
    if (n == 0) refuse(at_, "a byte that is no UTF-8", "write the file in UTF-8");
    const std::uint32_t c = utf8_code_point(all_, at_, n);
    at_ += n;
    return c;
  }

  // Named groups: with one of them, plain ( ) capture nothing. So they are counted before.
  void count_groups() {
    bool in_comment = false;
    int classes = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const std::string_view rest = all_.substr(i);
      if (rest[0] == '\\') {
        ++i;
      } else if (in_comment) {
        in_comment = rest[0] != ')';
      } else if (rest[0] == '[') {
        ++classes;
      } else if (rest[0] == ']') {
        classes = std::max(0, classes - 1);
      } else if (classes == 0 && rest[0] == '(') {
        if (rest.starts_with("(?#"))
          in_comment = true;
        else if (rest.starts_with("(?'") || (rest.starts_with("(?<") && !rest.starts_with("(?<=") &&
                                             !rest.starts_with("(?<!")))
          named_ = true;
      }
    }
  }

  Node alternation(Options options, int depth) {
    if (depth > kDeepest)
      refuse(at_, fmt::format("more than {} groups within each other", kDeepest),
             "write it with fewer");
    Node out{.kind = Kind::alternate, .at = at_};
    Node branch{.at = at_};
    while (!done() && peek() != ')') {
      if (take("|")) {
        out.kids.push_back(std::move(branch));
        branch = Node{.at = at_};
        continue;
      }
      if (skipped(options)) continue;
      const std::size_t begin = at_;
      std::optional<Node> atom;
      if (peek() == '(') {
        bool whole_rest = false;
        atom = group(options, depth, whole_rest);
        if (whole_rest) {  // (?i) takes in all up to the end of the group, its | as well
          branch.kids.push_back(std::move(*atom));
          break;
        }
      } else {
        atom = single(options, branch);
      }
      if (!atom) continue;
      atom->at = begin;
      branch.kids.push_back(quantified(std::move(*atom), options));
    }
    if (out.kids.empty()) return branch;
    out.kids.push_back(std::move(branch));
    return out;
  }

  /// Goes past what says nothing: comments, and white space where (?x) is on.
  bool skipped(const Options& options) {
    if (ahead("(?#")) {
      const std::size_t begin = at_;
      for (at_ += 3; !done() && peek() != ')'; ++at_)
        if (peek() == '\\') ++at_;
      if (done()) refuse(begin, "a comment (?# without an end", "put a ) behind it");
      ++at_;
      return true;
    }
    if (!options.extended) return false;
    if (peek() == '#') {
      while (!done() && peek() != '\n') ++at_;
      return true;
    }
    if (std::string_view(" \t\n\r\f\v").find(peek()) == std::string_view::npos) return false;
    ++at_;
    return true;
  }

  // --- repeats

  struct Quantifier {
    std::uint32_t low = 0, high = kUnbounded;
    char how = 0;
  };

  /// \throws Error for numbers that are too large
  std::optional<Quantifier> interval() {
    const std::size_t begin = at_;
    const auto number = [&]() -> std::optional<std::uint32_t> {
      if (peek() < '0' || peek() > '9') return std::nullopt;
      std::uint32_t n = 0;
      for (; peek() >= '0' && peek() <= '9'; ++at_)
        n = std::min<std::uint32_t>(1'000'000, n * 10 + static_cast<std::uint32_t>(peek() - '0'));
      return n;
    };
    ++at_;
    const auto low = number();
    const bool comma = take(",");
    const auto high = comma ? number() : low;
    if (!take("}") || (!low && !high)) {  // then { is a character
      at_ = begin;
      return std::nullopt;
    }
    Quantifier q{low.value_or(0), high.value_or(kUnbounded), 0};
    if (q.low > kMostRepeats || (q.high > kMostRepeats && q.high != kUnbounded))
      refuse(begin, fmt::format("a repeat of more than {}", kMostRepeats),
             "nest two repeats: (?:(?:a{1000}){100})");
    if (q.low > q.high) {
      std::swap(q.low, q.high);
      q.how = '+';
    } else if (comma && take("?")) {
      q.how = '?';
    }
    return q;
  }

  std::optional<Quantifier> quantifier() {
    if (peek() == '{') return interval();
    Quantifier q;
    if (take("?"))
      q.high = 1;
    else if (take("+"))
      q.low = 1;
    else if (!take("*"))
      return std::nullopt;
    if (peek() == '?' || peek() == '+') q.how = all_[at_++];
    return q;
  }

  Node quantified(Node atom, const Options& options) {
    for (int n = 0;; ++n) {
      if (n > kMostStacked)
        refuse(at_, fmt::format("more than {} repeats of repeats", kMostStacked), "write one");
      while (!done() && skipped(options)) {
      }
      const std::size_t begin = at_;
      const auto q = done() ? std::nullopt : quantifier();
      if (!q) return atom;
      const bool look =
          atom.kind == Kind::group && atom.text != "(" && atom.text != "(?:" && atom.text != "(?>";
      if (atom.kind == Kind::assertion || look)
        refuse(begin, "a repeat of what has no length", "take the repeat away");
      Node repeat{.kind = Kind::repeat, .at = atom.at};
      repeat.low = q->low;
      repeat.high = q->high;
      repeat.how = q->how;
      repeat.kids.push_back(std::move(atom));
      atom = std::move(repeat);
    }
  }

  // --- groups

  Node closed(const char* open, const Options& options, int depth, std::size_t begin) {
    Node out{.kind = Kind::group, .at = begin};
    out.text = open;
    out.kids.push_back(alternation(options, depth + 1));
    if (!take(")"))
      refuse(at_, fmt::format("the end of the expression within the group of byte {}", begin),
             "put a ) behind it");
    return out;
  }

  Node group(Options options, int depth, bool& whole_rest) {
    const std::size_t begin = at_;
    if (ahead("(*")) refuse(begin, "a callout (*...)", "take it away");
    if (take("(?:")) return closed("(?:", options, depth, begin).kids[0];
    for (const char* open : {"(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (take(open)) return closed(open, options, depth, begin);
    if (take("(?~")) refuse(begin, "an absent operator (?~...)", "write it as (?:(?!X)(?m:.))*");
    if (ahead("(?(")) refuse(begin, "a condition (?(...)...)", "write both cases as alternatives");
    if (ahead("(?{")) refuse(begin, "a callout (?{...})", "take it away");
    if (ahead("(?<") || ahead("(?'")) {
      at_ += 2;
      const std::string name = name_in_brackets();
      const int number = ++groups_;
      auto& all = numbers_[name];
      all.push_back(number);
      Node out = closed("(", options, depth, begin);
      out.number = number;
      return out;
    }
    if (take("(?")) return with_options(options, depth, begin, whole_rest);
    ++at_;
    if (named_) return closed("(?:", options, depth, begin);
    const int number = ++groups_;
    Node out = closed("(", options, depth, begin);
    out.number = number;
    return out;
  }

  Node with_options(Options options, int depth, std::size_t begin, bool& whole_rest) {
    bool on = true;
    for (; !done() && peek() != ')' && peek() != ':'; ++at_) {
      switch (peek()) {
        case '-':
          on = false;
          break;
        case 'i':
          options.ignore_case = on;
          break;
        case 'm':
          options.dot_all = on;
          break;
        case 'x':
          options.extended = on;
          break;
        case 'W':
          options.ascii.word = on;
          break;
        case 'D':
          options.ascii.digit = on;
          break;
        case 'S':
          options.ascii.space = on;
          break;
        case 'P':
          options.ascii = {on, on, on, on};
          break;
        default:
          refuse(at_, fmt::format("the option or group (?{}...)", all_.substr(at_, 1)),
                 "options are i, m, x, W, D, S and P; groups are (?:, (?=, (?!, (?<=, (?<!, (?> "
                 "and (?<name>");
      }
    }
    if (at_ == begin + 2) refuse(begin, "a group (? without a kind", "write (?: or \\(\\?");
    if (take(":")) return closed("(?:", options, depth, begin).kids[0];
    if (!take(")")) refuse(begin, "options without an end", "put a ) or : behind them");
    whole_rest = true;
    return alternation(options, depth + 1);
  }

  /// The name in <...> or '...'.
  std::string name_in_brackets() {
    const std::size_t begin = at_;
    const char close = all_[at_++] == '<' ? '>' : '\'';
    const std::size_t end = all_.find(close, at_);
    if (end == std::string_view::npos || end == at_)
      refuse(begin, "a group's name without an end", fmt::format("put a {} behind it", close));
    const std::string name(all_.substr(at_, end - at_));
    at_ = end + 1;
    return name;
  }

  // --- single characters, and what a backslash names

  static Node of_class(Class set, const Options& options, bool folds) {
    Node out{.kind = Kind::any};
    out.characters = std::move(set);
    out.ignore_case = folds && options.ignore_case;
    return out;
  }

  static Class flat(std::string text, bool negated) {
    Class out;
    out.negated = negated;
    out.operands[0].push_back({std::move(text), {}});
    return out;
  }

  static Node literal(std::uint32_t code, const Options& options) {
    Node out{.kind = Kind::literal};
    out.code = code;
    out.ignore_case = options.ignore_case;
    return out;
  }

  static Node assertion(std::string text) {
    Node out{.kind = Kind::assertion};
    out.text = std::move(text);
    return out;
  }

  /// \param branch takes the characters before the last one of \x{61 62}
  std::optional<Node> single(const Options& options, Node& branch) {
    const std::size_t begin = at_;
    switch (peek()) {
      case '.':
        ++at_;
        return of_class(options.dot_all ? flat("\\x{0}-\\x{10ffff}", false) : flat("\\n", true),
                        options, false);
      case '^':
        return ++at_, assertion("^");
      case '$':
        return ++at_, assertion("$");
      case '[':
        ++at_;
        return of_class(char_class(options, 0), options, true);
      case '*':
      case '+':
      case '?':
        refuse(begin, fmt::format("a repeat {} of nothing", all_[begin]),
               "put a backslash before it");
      case '{':
        if (interval()) refuse(begin, "a repeat {...} of nothing", "put a backslash before it");
        break;
      case '\\':
        return escape(options, branch);
      default:
        break;
    }
    return literal(take_character(), options);
  }

  std::optional<Node> escape(const Options& options, Node& branch) {
    const std::size_t begin = at_++;
    if (done()) refuse(begin, "a backslash at the end", "write two of them");
    const char c = peek();
    if (const auto named = named_class(options, false)) return of_class(*named, options, false);
    switch (c) {
      case 'A':
        return ++at_, assertion("\\A");
      case 'z':
        return ++at_, assertion("\\z");
      case 'Z':
        return ++at_, assertion("\\Z");
      case 'G':
        return ++at_, assertion("\\G");
      case 'K':
        return ++at_, assertion("\\K");
      case 'b':
      case 'B': {
        ++at_;
        const std::string w = "[" + word_class(options.ascii, false) + "]";
        return assertion(c == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", w)
                                  : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", w));
      }
      case 'R': {
        ++at_;
        Node out{.kind = Kind::atom};
        out.text = "(?>\\r\\n|[\\x{a}-\\x{d}\\x{85}\\x{2028}\\x{2029}])";
        return out;
      }
      case 'N':
        return ++at_, of_class(flat("\\n", true), options, false);
      case 'O':
        return ++at_, of_class(flat("\\x{0}-\\x{10ffff}", false), options, false);
      case 'X':
      case 'y':
      case 'Y':
        refuse(begin, fmt::format("\\{} (whole characters as they are seen)", c),
               "write \\P{M}\\p{M}* for a letter with its marks");
      case 'k':
      case 'g':
        if (peek(1) == '<' || peek(1) == '\'') return reference(options, begin);
        return ++at_, literal(static_cast<unsigned char>(c), options);
      default:
        break;
    }
    if (c >= '1' && c <= '9')
      if (auto back = numbered(options, begin)) return back;
    const std::vector<std::uint32_t> codes = code_points(begin);
    for (std::size_t i = 0; i + 1 < codes.size(); ++i)
      branch.kids.push_back(literal(codes[i], options));
    return literal(codes.back(), options);
  }

  /// \w \d \s \h \p{...} and their opposites, at the letter; nothing else.
  std::optional<Class> named_class(const Options& options, bool within) {
    const AsciiRules& ascii = options.ascii;
    const char c = peek();
    switch (c) {
      case 'w':
      case 'W':
        return ++at_, flat(word_class(ascii, within), c == 'W');
      case 'd':
      case 'D':
        return ++at_, flat(ascii.digit ? "0-9" : "\\p{Nd}", c == 'D');
      case 's':
      case 'S':
        return ++at_, flat(space_class(ascii), c == 'S');
      case 'h':
      case 'H':
        return ++at_, flat("0-9A-Fa-f", c == 'H');
      case 'p':
      case 'P': {
        if (peek(1) != '{') return std::nullopt;
        const std::size_t end = all_.find('}', at_);
        if (end == std::string_view::npos)
          refuse(at_ - 1, "\\p{ without an end", "put a } behind the name");
        std::string_view name = all_.substr(at_ + 2, end - at_ - 2);
        const bool caret = name.starts_with('^');
        if (caret) name.remove_prefix(1);
        const auto known = property(name, ascii, within);
        if (!known)
          refuse(at_ - 1,
                 fmt::format("the property \\p{{{}}}", all_.substr(at_ + 2, end - at_ - 2)),
                 "name a general category (Lu), a script (Han) or write the characters as [ ]; "
                 "blocks (In_...) are not there");
        at_ = end + 1;
        return flat(known->text, known->negated != (caret != (c == 'P')));
      }
      default:
        return std::nullopt;
    }
  }

  /// The characters that an escape stands for, at the character behind the backslash.
  std::vector<std::uint32_t> code_points(std::size_t begin) {
    const char c = peek();
    constexpr std::pair<char, std::uint32_t> kControls[] = {
        {'t', 9}, {'n', 10}, {'v', 11}, {'f', 12}, {'r', 13}, {'a', 7}, {'e', 27}};
    for (const auto& [name, code] : kControls)
      if (c == name) return ++at_, std::vector{code};
    if (c == 'x' || c == 'u' || c == 'o' || (c >= '0' && c <= '7')) return numbers(begin);
    if (c == 'c' || ahead("C-")) {
      at_ += c == 'c' ? 1 : 2;
      if (done()) refuse(begin, "a control character without its letter", "write \\x{...}");
      std::uint32_t of = take_character();
      if (of == '\\') {
        const auto inner = code_points(begin);
        of = inner.back();
      }
      if (of >= 0x80) refuse(begin, "a control character of no ASCII letter", "write \\x{...}");
      return {of == '?' ? 0x7fu : of & 0x1fu};
    }
    if (ahead("M-")) refuse(begin, "\\M-x (a byte)", "write \\x{...}");
    return {take_character()};
  }

  std::vector<std::uint32_t> numbers(std::size_t begin) {
    const auto digits = [&](std::uint32_t base, std::size_t most) -> std::optional<std::uint32_t> {
      std::uint32_t value = 0;
      std::size_t n = 0;
      for (; n < most && !done(); ++n, ++at_) {
        const char c = peek();
        const std::uint32_t digit =
            c >= '0' && c <= '9'   ? static_cast<std::uint32_t>(c - '0')
            : c >= 'a' && c <= 'f' ? static_cast<std::uint32_t>(c - 'a' + 10)
            : c >= 'A' && c <= 'F' ? static_cast<std::uint32_t>(c - 'A' + 10)
                                   : 99;
        if (digit >= base) break;
        value = value * base + digit;
        if (value > 0x10ffff) break;
      }
      return n > 0 && value <= 0x10ffff ? std::optional(value) : std::nullopt;
    };
    const auto bad = [&] {
      refuse(begin, "a character's number that names none", "write \\x{...} with a code point");
    };
    const auto checked = [&](std::optional<std::uint32_t> code) {
      if (!code || (*code >= 0xd800 && *code <= 0xdfff)) bad();
      return *code;
    };
    const char kind = peek();
    const bool braces = peek(1) == '{' && (kind == 'x' || kind == 'o');
    if (braces) {
      at_ += 2;
      std::vector<std::uint32_t> codes;
      while (true) {
        codes.push_back(checked(digits(kind == 'x' ? 16 : 8, kind == 'x' ? 8 : 11)));
        if (take("}")) return codes;
        if (peek() != ' ' && peek() != '\n') bad();
        while (peek() == ' ' || peek() == '\n') ++at_;
      }
    }
    if (kind == 'u') {
      const std::size_t first = ++at_;
      const auto code = digits(16, 4);
      if (at_ != first + 4) bad();
      return {checked(code)};
    }
    if (kind == 'o') return {take_character()};
    std::optional<std::uint32_t> byte;
    if (kind == 'x') {
      ++at_;
      byte = digits(16, 2);
    } else {
      byte = digits(8, 3);
    }
    if (!byte) bad();
    if (*byte >= 0x80)
      refuse(begin, fmt::format("the byte {}", all_.substr(begin, at_ - begin)),
             "write the character itself or \\x{...} with its code point");
    return {*byte};
  }

  /// \1 and so on; nothing: it is a character in octal.
  std::optional<Node> numbered(const Options& options, std::size_t begin) {
    std::size_t end = at_;
    int number = 0;
    for (; end < all_.size() && all_[end] >= '0' && all_[end] <= '9'; ++end)
      number = std::min(10000, number * 10 + (all_[end] - '0'));
    if (number > 9 && number > groups_) {
      if (all_[at_] >= '8') refuse(begin, "a reference to no group", "write \\x{...}");
      return std::nullopt;
    }
    if (named_) refuse(begin, "a reference by number beside named groups", "write \\k<name>");
    at_ = end;
    return refer(number, options, begin);
  }

  Node refer(int number, const Options& options, std::size_t begin) {
    if (options.ignore_case)
      refuse(begin, "a reference to a group under (?i)", "write (?-i:...) around it");
    refers_back_ = true;
    Node out{.kind = Kind::back_reference, .at = begin};
    out.number = number;
    return out;
  }

  /// \k<name> and \g<name>, at the letter.
  Node reference(const Options& options, std::size_t begin) {
    const bool call = all_[at_++] == 'g';
    const std::string name = name_in_brackets();
    Node out = call ? Node{.kind = Kind::call, .at = begin} : refer(-1, options, begin);
    calls_ = calls_ || call;
    const bool relative = name[0] == '-' || name[0] == '+';
    const std::string digits = name.substr(relative ? 1 : 0);
    if (std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
        !digits.empty() && digits.size() < 5) {
      if (named_)
        refuse(begin, "a reference by number beside named groups", "write the group's name");
      const int n = std::stoi(digits);
      out.number = !relative ? n : name[0] == '-' ? groups_ + 1 - n : groups_ + n;
      if (out.number < (call ? 0 : 1)) refuse(begin, "a reference to no group", "name one");
    } else {
      out.text = name;
    }
    return out;
  }

  /// Sets the numbers of what refers to names, now that all are known.
  void resolve(Node& node) {
    if (node.kind == Kind::back_reference || node.kind == Kind::call) {
      if (!node.text.empty()) {
        const auto it = numbers_.find(node.text);
        if (it == numbers_.end())
          refuse(node.at, fmt::format("a reference to '{}', which is no group's name", node.text),
                 "levels (name+1) are not supported; name one of the groups");
        if (it->second.size() > 1)
          refuse(node.at, fmt::format("a reference to '{}', the name of several groups", node.text),
                 "give each group a name of its own");
        node.number = it->second[0];
      }
      if (node.number > groups_) refuse(node.at, "a reference to no group", "name one");
    }
    for (Node& kid : node.kids) resolve(kid);
  }

  // --- classes

  /// Behind the [.
  Class char_class(const Options& options, int depth) {
    if (depth > kDeepest)
      refuse(at_, fmt::format("more than {} classes within each other", kDeepest),
             "write it with fewer");
    const std::size_t begin = at_ - 1;
    Class out;
    out.negated = take("^");
    bool first = true;
    while (true) {
      if (done())
        refuse(begin, "a class [ without its ]", "put one behind it, or \\[ for the sign");
      if (peek() == ']' && !first) return ++at_, out;
      if (peek() == ']' && all_.find(']', at_ + 1) == std::string_view::npos)
        refuse(begin, "a class of nothing", "put \\] for the sign");
      if (take("&&")) {
        out.operands.emplace_back();
        first = false;
        continue;
      }
      first = false;
      std::vector<Class::Item>& items = out.operands.back();
      const std::size_t here = at_;
      if (auto inner = inner_class(options, depth)) {
        items.push_back({"", {std::move(*inner)}});
        no_range_from(here);
        continue;
      }
      range(items, options);
    }
  }

  /// A class within the class: [:alpha:], [...], \w.
  std::optional<Class> inner_class(const Options& options, int depth) {
    if (ahead("[:"))
      if (auto posix = bracket(options)) return posix;
    if (take("[")) return char_class(options, depth + 1);
    if (peek() == '\\' && at_ + 1 < all_.size()) {
      ++at_;
      if (auto named = named_class(options, true)) return named;
      --at_;
    }
    return std::nullopt;
  }

  void no_range_from(std::size_t begin) {
    if (peek() == '-' && peek(1) != ']' && !all_.substr(at_ + 1).starts_with("&&") &&
        all_[begin] != '[')
      refuse(begin, "a range from a class of characters", "put a backslash before the -");
    if (all_[begin] == '[' && all_.substr(begin).starts_with("[:") && peek() == '-' &&
        peek(1) != ']')
      refuse(begin, "a range from a class of characters", "put a backslash before the -");
  }

  /// [:name:]; nothing if it is none, but a class that begins with a colon.
  std::optional<Class> bracket(const Options& options) {
    const std::size_t begin = at_;
    std::size_t end = at_ + 2;
    if (end < all_.size() && all_[end] == '^') ++end;
    const std::size_t name = end;
    while (end < all_.size() && all_[end] >= 'a' && all_[end] <= 'z') ++end;
    if (!all_.substr(end).starts_with(":]")) return std::nullopt;
    const auto text = posix_class(all_.substr(name, end - name), options.ascii);
    if (!text)
      refuse(begin, fmt::format("the class {}", all_.substr(begin, end + 2 - begin)),
             "they are alnum, alpha, ascii, blank, cntrl, digit, graph, lower, print, punct, "
             "space, upper, word and xdigit");
    at_ = end + 2;
    return flat(text->text, text->negated != (all_[begin + 2] == '^'));
  }

  /// The characters of one element of a class, which is no class itself.
  std::vector<std::uint32_t> element() {
    const std::size_t begin = at_;
    if (peek() != '\\') return {take_character()};
    ++at_;
    if (done()) refuse(begin, "a backslash at the end", "write two of them");
    if (take("b")) return {8};
    return code_points(begin);
  }

  void range(std::vector<Class::Item>& items, const Options& options) {
    const std::size_t begin = at_;
    const bool braces = ahead("\\x{") || ahead("\\o{");
    if (braces) {
      const std::size_t end = all_.find('}', at_);
      if (end != std::string_view::npos &&
          all_.substr(at_, end - at_).find('-') != std::string_view::npos)
        refuse(begin, "a range within \\x{...}", "write \\x{...}-\\x{...}");
    }
    const std::vector<std::uint32_t> low = element();
    for (std::size_t i = 0; i + 1 < low.size(); ++i) items.push_back({escaped(low[i]), {}});
    // a - that nothing follows, or an operator, is the sign itself
    const bool ranged = peek() == '-' && peek(1) != ']' && at_ + 1 < all_.size();
    if (!ranged) return items.push_back({escaped(low.back()), {}});
    const std::string_view behind = all_.substr(at_ + 1);
    if (behind.starts_with("[") || behind.starts_with("&&"))
      refuse(at_, "a - before a class or &&", "put a backslash before it");
    ++at_;
    if (peek() == '\\') {
      const std::size_t here = at_++;
      if (named_class(options, true))
        refuse(here, "a range to a class of characters", "put a backslash before the -");
      at_ = here;
    }
    const std::vector<std::uint32_t> high = element();
    if (high[0] < low.back()) refuse(begin, "a range that runs backwards", "turn it around");
    items.push_back({escaped(low.back()) + "-" + escaped(high[0]), {}});
    for (std::size_t i = 1; i < high.size(); ++i) items.push_back({escaped(high[i]), {}});
    // [a-b-c]: the second - is the sign itself, whatever follows
    if (peek() == '-' && peek(1) != ']') {
      items.push_back({"\\-", {}});
      ++at_;
    }
  }

  std::string_view all_;
  std::size_t at_ = 0;
  int groups_ = 0;
  bool named_ = false, refers_back_ = false, calls_ = false;
  std::map<std::string, std::vector<int>> numbers_;  // of named groups
};

}  // namespace

void refuse(std::size_t at, const std::string& what, const std::string& remedy) {
  throw Error(fmt::format("the regular expression has {} at byte {}, which is not supported; {}",
                          what, at, remedy));
}

std::string escaped(std::uint32_t code) { return fmt::format("\\x{{{:x}}}", code); }

Parsed parse(std::string_view expression) { return Parser(expression).run(); }

}  // namespace episodic::text::onig
