// SPDX-License-Identifier: Apache-2.0
#include "oniguruma.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "character_set.hpp"
#include "episodic/base/error.hpp"
#include "oniguruma_syntax.hpp"

namespace episodic::text {
namespace onig {
namespace {

/// A class of so many ranges is written by its parts instead, each tested by a look-ahead: PCRE2
/// has limits on the size of an expression, and walks long lists from end to end.
constexpr std::size_t kMostRanges = 300;

/// Classes whose characters are all tried, to put sets together: each one takes milliseconds.
constexpr std::size_t kMostSets = 64;

std::string text_of(const CharacterSet& set, bool negated) {
  if (set.empty()) return negated ? "[\\x{0}-\\x{10ffff}]" : "[^\\x{0}-\\x{10ffff}]";
  std::string out = negated ? "[^" : "[";
  for (const auto& [low, high] : set.ranges())
    out += low == high ? escaped(low) : escaped(low) + "-" + escaped(high);
  return out + "]";
}

class Writer {
 public:
  explicit Writer(const Parsed& parsed) : captures_(parsed.refers_back || parsed.calls) {
    if (parsed.refers_back && parsed.calls)
      refuse(0, "\\g<...> beside references to groups (somewhere)",
             "write out what \\g<...> calls");
  }

  std::string operator()(const Node& node) {
    switch (node.kind) {
      case Kind::literal:
        return literals({&node});
      case Kind::any:
        return any(node);
      case Kind::assertion:
        if (node.text == "\\K" && looking_ > 0)
          refuse(node.at, "\\K within a look-ahead or look-behind", "take it out of there");
        return node.text;
      case Kind::atom:
        return node.text;
      case Kind::concat:
        return concat(node);
      case Kind::alternate:
        return "(?:" + branches(node) + ")";
      case Kind::group:
        return group(node);
      case Kind::repeat:
        return repeat(node);
      case Kind::back_reference:
        return fmt::format("\\g{{{}}}", node.number);
      case Kind::call:
        return node.number == 0 ? "(?R)" : fmt::format("(?{})", node.number);
    }
    return {};
  }

 private:
  // --- what stands beside and within each other

  std::string branches(const Node& node) {
    std::string out;
    for (std::size_t i = 0; i < node.kids.size(); ++i) {
      if (i > 0) out += '|';
      out += (*this)(node.kids[i]);
    }
    return out;
  }

  /// The parts in order, those of plain groups among them: Oniguruma joins literals over their
  /// borders, which matters where two letters are one by case.
  static void flatten(const Node& node, std::vector<const Node*>& out) {
    if (node.kind == Kind::repeat && node.low == 1 && node.high == 1 && node.how == 0)
      return flatten(node.kids[0], out);
    if (node.kind != Kind::concat) return out.push_back(&node);
    for (const Node& kid : node.kids) flatten(kid, out);
  }

  std::string concat(const Node& node) {
    std::vector<const Node*> parts;
    flatten(node, parts);
    std::string out;
    for (std::size_t i = 0; i < parts.size();) {
      std::vector<const Node*> run;
      while (i < parts.size() && parts[i]->kind == Kind::literal &&
             (run.empty() || run[0]->ignore_case == parts[i]->ignore_case))
        run.push_back(parts[i++]);
      out += run.empty() ? (*this)(*parts[i++]) : literals(run);
    }
    return out;
  }

  std::string group(const Node& node) {
    const bool behind = node.text == "(?<=" || node.text == "(?<!";
    const bool look = behind || node.text == "(?=" || node.text == "(?!";
    if (behind) check_behind(node.kids[0]);
    looking_ += look;
    behind_ += behind;
    const Node& kid = node.kids[0];
    const std::string open = node.text == "(" && !captures_ ? "(?:" : node.text;
    std::string out = open + (kid.kind == Kind::alternate ? branches(kid) : (*this)(kid)) + ")";
    looking_ -= look;
    behind_ -= behind;
    return out;
  }

  std::string repeat(const Node& node) {
    const Node* kid = &node.kids[0];
    while (kid->kind == Kind::concat && kid->kids.size() == 1) kid = &kid->kids[0];
    const std::string what = (*this)(*kid);
    std::string count;
    if (node.low == 0 && node.high == kUnbounded)
      count = "*";
    else if (node.low == 1 && node.high == kUnbounded)
      count = "+";
    else if (node.high == kUnbounded)
      count = fmt::format("{{{},}}", node.low);
    else
      count = fmt::format("{{{},{}}}", node.low, node.high);
    if (node.how != 0) count += node.how;
    // All others are one item of PCRE2's. A group around a class would make it slow.
    const bool several = kid->kind == Kind::concat || kid->kind == Kind::repeat;
    return (several ? "(?:" + what + ")" : what) + count;
  }

  // --- look-behind: PCRE2 knows lengths that are fixed, of each alternative at the top

  static std::optional<std::size_t> length(const Node& node) {
    switch (node.kind) {
      case Kind::literal:
      case Kind::any:
        return 1;
      case Kind::assertion:
        return 0;
      case Kind::concat: {
        std::size_t sum = 0;
        for (const Node& kid : node.kids) {
          const auto n = length(kid);
          if (!n) return std::nullopt;
          sum += *n;
        }
        return sum;
      }
      case Kind::alternate: {
        const auto first = length(node.kids[0]);
        for (const Node& kid : node.kids)
          if (!first || length(kid) != first) return std::nullopt;
        return first;
      }
      case Kind::group:
        if (node.text.starts_with("(?=") || node.text.starts_with("(?!") ||
            node.text.starts_with("(?<"))
          return 0;
        return length(node.kids[0]);
      case Kind::repeat: {
        const auto n = length(node.kids[0]);
        if (!n || node.low != node.high || node.high > 1000) return std::nullopt;
        return *n * node.low;
      }
      default:
        return std::nullopt;
    }
  }

  static void check_behind(const Node& node) {
    if (node.kind == Kind::alternate) {
      for (const Node& kid : node.kids) check_behind(kid);
    } else if (!length(node)) {
      refuse(node.at, "a look-behind of several lengths",
             "write one alternative for each length: (?<=a|bc)");
    }
  }

  // --- literals

  std::string one(std::uint32_t code, bool ignore_case) {
    if (!ignore_case) return escaped(code);
    std::vector<CharacterSet::Range> same;
    for (const std::uint32_t c : CaseFolds::instance().same(code)) same.emplace_back(c, c);
    return same.size() == 1 ? escaped(same[0].first)
                            : text_of(CharacterSet(std::move(same)), false);
  }

  /// Each character of the sequence, in any case.
  std::string each_of(const std::vector<std::uint32_t>& sequence) {
    std::string out;
    for (const std::uint32_t c : sequence) out += one(c, true);
    return out;
  }

  /// Literals in a row. By case one character may be two or three others (sharp s is "ss").
  std::string literals(const std::vector<const Node*>& run) {
    const CaseFolds& folds = CaseFolds::instance();
    std::string out;
    for (std::size_t i = 0; i < run.size();) {
      const std::uint32_t code = run[i]->code;
      if (!run[i]->ignore_case || behind_ > 0) {
        out += one(code, run[i++]->ignore_case);
        continue;
      }
      if (const auto& expansion = folds.expansion(code); !expansion.empty()) {
        out += "(?:" + one(code, true) + "|" + each_of(expansion) + ")";
        ++i;
        continue;
      }
      std::vector<std::uint32_t> sequence, taken;
      std::size_t length = 0;
      for (std::size_t n = 0; n < 3 && i + n < run.size(); ++n) {
        if (!folds.expansion(run[i + n]->code).empty()) break;
        sequence.push_back(folds.fold(run[i + n]->code));
        if (n == 0 || folds.folding_to(sequence).empty()) continue;
        length = n + 1;
        taken = folds.folding_to(sequence);
      }
      if (length == 0) {
        out += one(code, true);
        ++i;
        continue;
      }
      sequence.resize(length);
      out += "(?:" + each_of(sequence) + "|" + one(taken[0], true) + ")";
      i += length;
    }
    return out;
  }

  // --- classes

  const CharacterSet& flat_set(const std::string& flat) {
    const auto [it, fresh] = sets_.try_emplace(flat);
    if (!fresh) return it->second;
    if (sets_.size() > kMostSets)
      refuse(0, fmt::format("more than {} classes under (?i), with && or within others", kMostSets),
             "write fewer");
    return it->second = matched_by("[" + flat + "]");
  }

  CharacterSet evaluated(const Class& c) {
    CharacterSet all;
    for (std::size_t i = 0; i < c.operands.size(); ++i) {
      CharacterSet one;
      std::string flat_items;
      for (const Class::Item& item : c.operands[i]) {
        if (item.nested.empty())
          flat_items += item.flat;
        else
          one = one | evaluated(item.nested[0]);
      }
      if (!flat_items.empty()) one = one | flat_set(flat_items);
      all = i == 0 ? std::move(one) : all & one;
    }
    return c.negated ? all.complement() : all;
  }

  /// The class as one of PCRE2's without brackets, if it is a mere union.
  static std::optional<std::string> flat(const Class& c) {
    if (c.operands.size() != 1) return std::nullopt;
    std::string out;
    for (const Class::Item& item : c.operands[0]) {
      if (item.nested.empty()) {
        out += item.flat;
        continue;
      }
      const auto inner = item.nested[0].negated ? std::nullopt : flat(item.nested[0]);
      if (!inner) return std::nullopt;
      out += *inner;
    }
    return out.empty() ? std::nullopt : std::optional(out);
  }

  /// [[^a]] is [^a].
  static const Class& unwrapped(const Class& c, bool& negated) {
    negated = c.negated;
    const Class* at = &c;
    while (at->operands.size() == 1 && at->operands[0].size() == 1 &&
           !at->operands[0][0].nested.empty()) {
      at = &at->operands[0][0].nested[0];
      negated = negated != at->negated;
    }
    return *at;
  }

  /// A look-ahead that holds where a character of the class comes.
  std::string test(const Class& c) {
    std::string all;
    for (const auto& operand : c.operands) {
      std::string flat_items, any_of;
      for (const Class::Item& item : operand) {
        if (item.nested.empty())
          flat_items += item.flat;
        else
          any_of.append("|").append(test(item.nested[0]));
      }
      if (!flat_items.empty()) any_of.append("|[").append(flat_items).append("]");
      all += any_of.empty() ? "(?!)" : "(?=" + any_of.substr(1) + ")";
    }
    return c.negated ? "(?!" + all + ")" : all;
  }

  std::string any(const Node& node) {
    if (node.ignore_case) return folded_class(node);
    bool negated = false;
    const Class& c = unwrapped(node.characters, negated);
    if (const auto text = flat(c)) return (negated ? "[^" : "[") + *text + "]";
    const CharacterSet set = evaluated(node.characters);
    if (set.ranges().size() <= kMostRanges) return text_of(set, false);
    return "(?:" + test(node.characters) + "[\\x{0}-\\x{10ffff}])";
  }

  /// A class under (?i): before it is negated, it takes in what differs by case alone.
  std::string folded_class(const Node& node) {
    const CaseFolds& folds = CaseFolds::instance();
    const bool negated = node.characters.negated;
    Class plain = node.characters;
    plain.negated = false;
    const CharacterSet set = evaluated(plain), closed = folds.closure(set);
    const CharacterSet added = closed & set.complement();
    std::string out;
    if (const auto text = flat(plain)) {
      const std::string more = added.empty() ? "" : text_of(added, false);
      out = (negated ? "[^" : "[") + *text + (more.empty() ? "" : more.substr(1, more.size() - 2)) +
            "]";
    } else {
      out = text_of(closed, negated);
    }
    if (negated) return out;
    const std::vector<std::uint32_t> expanding = folds.expanding(set);
    if (expanding.empty()) return out;
    if (behind_ > 0)
      refuse(node.at, "a class under (?i) in a look-behind with letters that are two by case",
             "take those letters out of it, or write (?-i:...)");
    for (const std::uint32_t c : expanding) out += "|" + each_of(folds.expansion(c));
    return "(?:" + out + ")";
  }

  bool captures_;
  int looking_ = 0, behind_ = 0;  // look-arounds that the node stands in
  std::map<std::string, CharacterSet> sets_;
};

}  // namespace
}  // namespace onig

std::string pcre2_of_oniguruma(std::string_view expression) {
  const onig::Parsed parsed = onig::parse(expression);
  return onig::Writer(parsed)(parsed.root);
}

}  // namespace episodic::text
