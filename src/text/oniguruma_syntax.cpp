// SPDX-License-Identifier: Apache-2.0
#include "oniguruma_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "episodic/base/error.hpp"
#include "oniguruma_parser.hpp"
#include "utf8.hpp"

namespace episodic::text::onig {
namespace {

constexpr int kMostStacked = 16;
constexpr std::uint32_t kMostRepeats = 65535;  // PCRE2's; Oniguruma's is 100000

}  // namespace

Parsed Parser::run() {
  Parsed out;
  out.root = alternation(Options{}, 0);
  if (!done()) refuse(at_, "a ) without its (", "put a backslash before it");
  resolve(out.root);
  out.refers_back = refers_back_;
  out.calls = calls_;
  return out;
}

char Parser::peek(std::size_t ahead) const {
  return at_ + ahead < all_.size() ? all_[at_ + ahead] : '\0';
}

bool Parser::take(std::string_view what) {
  if (!ahead(what)) return false;
  at_ += what.size();
  return true;
}

std::uint32_t Parser::take_character() {
  const std::size_t n = utf8_length(all_, at_);
  if (n == 0) refuse(at_, "a byte that is no UTF-8", "write the file in UTF-8");
  const std::uint32_t c = utf8_code_point(all_, at_, n);
  at_ += n;
  return c;
}

void Parser::count_groups() {
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
      else if (rest.starts_with("(?'") ||
               (rest.starts_with("(?<") && !rest.starts_with("(?<=") && !rest.starts_with("(?<!")))
        named_ = true;
    }
  }
}

Node Parser::alternation(Options options, int depth) {
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

bool Parser::skipped(const Options& options) {
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

std::optional<Parser::Quantifier> Parser::interval() {
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

std::optional<Parser::Quantifier> Parser::quantifier() {
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

Node Parser::quantified(Node atom, const Options& options) {
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

Node Parser::closed(const char* open, const Options& options, int depth, std::size_t begin) {
  Node out{.kind = Kind::group, .at = begin};
  out.text = open;
  out.kids.push_back(alternation(options, depth + 1));
  if (!take(")"))
    refuse(at_, fmt::format("the end of the expression within the group of byte {}", begin),
           "put a ) behind it");
  return out;
}

Node Parser::group(Options options, int depth, bool& whole_rest) {
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

Node Parser::with_options(Options options, int depth, std::size_t begin, bool& whole_rest) {
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

std::string Parser::name_in_brackets() {
  const std::size_t begin = at_;
  const char close = all_[at_++] == '<' ? '>' : '\'';
  const std::size_t end = all_.find(close, at_);
  if (end == std::string_view::npos || end == at_)
    refuse(begin, "a group's name without an end", fmt::format("put a {} behind it", close));
  const std::string name(all_.substr(at_, end - at_));
  at_ = end + 1;
  return name;
}

void refuse(std::size_t at, const std::string& what, const std::string& remedy) {
  throw Error(fmt::format("the regular expression has {} at byte {}, which is not supported; {}",
                          what, at, remedy));
}

std::string escaped(std::uint32_t code) { return fmt::format("\\x{{{:x}}}", code); }

Parsed parse(std::string_view expression) { return Parser(expression).run(); }

}  // namespace episodic::text::onig
