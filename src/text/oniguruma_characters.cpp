// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "oniguruma_parser.hpp"
#include "utf8.hpp"

namespace episodic::text::onig {

Node Parser::of_class(Class set, const Options& options, bool folds) {
  Node out{.kind = Kind::any};
  out.characters = std::move(set);
  out.ignore_case = folds && options.ignore_case;
  return out;
}

Class Parser::flat(std::string text, bool negated) {
  Class out;
  out.negated = negated;
  out.operands[0].push_back({std::move(text), {}});
  return out;
}

Node Parser::literal(std::uint32_t code, const Options& options) {
  Node out{.kind = Kind::literal};
  out.code = code;
  out.ignore_case = options.ignore_case;
  return out;
}

Node Parser::assertion(std::string text) {
  Node out{.kind = Kind::assertion};
  out.text = std::move(text);
  return out;
}

std::optional<Node> Parser::single(const Options& options, Node& branch) {
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

std::optional<Node> Parser::escape(const Options& options, Node& branch) {
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

std::optional<Class> Parser::named_class(const Options& options, bool within) {
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
        refuse(at_ - 1, fmt::format("the property \\p{{{}}}", all_.substr(at_ + 2, end - at_ - 2)),
               "name a general category (Lu), a script (Han) or write the characters as [ ]; "
               "blocks (In_...) are not there");
      at_ = end + 1;
      return flat(known->text, known->negated != (caret != (c == 'P')));
    }
    default:
      return std::nullopt;
  }
}

std::vector<std::uint32_t> Parser::code_points(std::size_t begin) {
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

std::vector<std::uint32_t> Parser::numbers(std::size_t begin) {
  const auto digits = [&](std::uint32_t base, std::size_t most) -> std::optional<std::uint32_t> {
    std::uint32_t value = 0;
    std::size_t n = 0;
    for (; n < most && !done(); ++n, ++at_) {
      const char c = peek();
      const std::uint32_t digit = c >= '0' && c <= '9'   ? static_cast<std::uint32_t>(c - '0')
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

std::optional<Node> Parser::numbered(const Options& options, std::size_t begin) {
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

Node Parser::refer(int number, const Options& options, std::size_t begin) {
  if (options.ignore_case)
    refuse(begin, "a reference to a group under (?i)", "write (?-i:...) around it");
  refers_back_ = true;
  Node out{.kind = Kind::back_reference, .at = begin};
  out.number = number;
  return out;
}

Node Parser::reference(const Options& options, std::size_t begin) {
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

void Parser::resolve(Node& node) {
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

Class Parser::char_class(const Options& options, int depth) {
  if (depth > kDeepest)
    refuse(at_, fmt::format("more than {} classes within each other", kDeepest),
           "write it with fewer");
  const std::size_t begin = at_ - 1;
  Class out;
  out.negated = take("^");
  bool first = true;
  while (true) {
    if (done()) refuse(begin, "a class [ without its ]", "put one behind it, or \\[ for the sign");
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

std::optional<Class> Parser::inner_class(const Options& options, int depth) {
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

void Parser::no_range_from(std::size_t begin) {
  if (peek() == '-' && peek(1) != ']' && !all_.substr(at_ + 1).starts_with("&&") &&
      all_[begin] != '[')
    refuse(begin, "a range from a class of characters", "put a backslash before the -");
  if (all_[begin] == '[' && all_.substr(begin).starts_with("[:") && peek() == '-' && peek(1) != ']')
    refuse(begin, "a range from a class of characters", "put a backslash before the -");
}

std::optional<Class> Parser::bracket(const Options& options) {
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

std::vector<std::uint32_t> Parser::element() {
  const std::size_t begin = at_;
  if (peek() != '\\') return {take_character()};
  ++at_;
  if (done()) refuse(begin, "a backslash at the end", "write two of them");
  if (take("b")) return {8};
  return code_points(begin);
}

void Parser::range(std::vector<Class::Item>& items, const Options& options) {
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

}  // namespace episodic::text::onig
