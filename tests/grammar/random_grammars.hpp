// SPDX-License-Identifier: Apache-2.0
#pragma once
// Grammars as trees, written as GBNF and matched in the obvious way.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::test {

/// A part of a grammar over the characters a, b, c and two of several bytes.
struct Tree {
  enum Kind { text, set, sequence, choice, repeat, rule } kind = text;
  std::string bytes{};                 // of text
  std::vector<std::string> members{};  // of a set
  bool without = false;                // a set of all but these
  std::vector<Tree> parts{};
  int min = 0, max = 0;  // of repeat; max -1: without an end
  int number = 0;        // of a rule
};

inline const std::vector<std::string>& letters() {
  // one byte, two, three and four; the last two begin alike
  static const std::vector<std::string> all{
      "a", "b", "\xc3\xa9", "\xe2\x82\xac", "\xe2\x82\xad", "\xf0\x9f\x98\x80"};
  return all;
}

inline std::string gbnf_of(const Tree& t) {
  switch (t.kind) {
    case Tree::text:
      return '"' + t.bytes + '"';
    case Tree::set: {
      std::string out = t.without ? "[^" : "[";
      for (const std::string& m : t.members) out += m;
      return out + "]";
    }
    case Tree::sequence:
    case Tree::choice: {
      std::string out = "(";
      for (std::size_t i = 0; i < t.parts.size(); ++i)
        out += (i == 0 ? "" : t.kind == Tree::choice ? " | " : " ") + gbnf_of(t.parts[i]);
      return out + ")";
    }
    case Tree::repeat: {
      const std::string part = gbnf_of(t.parts[0]);
      if (t.max < 0 && t.min == 0) return part + "*";
      if (t.max < 0 && t.min == 1) return part + "+";
      if (t.min == 0 && t.max == 1) return part + "?";
      return part + fmt::format("{{{},{}}}", t.min, t.max < 0 ? "" : std::to_string(t.max));
    }
    case Tree::rule:
      return fmt::format("r{}", t.number);
  }
  return {};
}

/// Where a text may end that begins at `from` and is of the tree, by trying everything.
class Matcher {
 public:
  Matcher(const std::vector<Tree>& rules, std::string_view text) : rules_(rules), text_(text) {}

  std::set<std::size_t> ends(const Tree& t, std::size_t from) const {
    std::set<std::size_t> out;
    switch (t.kind) {
      case Tree::text:
        if (text_.substr(from).starts_with(t.bytes)) out.insert(from + t.bytes.size());
        break;
      case Tree::set:
        for (const std::string& letter : letters()) {
          const bool in = std::find(t.members.begin(), t.members.end(), letter) != t.members.end();
          if (in != t.without && text_.substr(from).starts_with(letter))
            out.insert(from + letter.size());
        }
        break;
      case Tree::sequence:
        out.insert(from);
        for (const Tree& part : t.parts) {
          std::set<std::size_t> next;
          for (const std::size_t at : out) next.merge(ends(part, at));
          out = std::move(next);
        }
        break;
      case Tree::choice:
        for (const Tree& part : t.parts) out.merge(ends(part, from));
        break;
      case Tree::repeat: {
        std::set<std::size_t> at{from};
        if (t.min == 0) out = at;
        const int rounds = t.max < 0 ? t.min + static_cast<int>(text_.size()) + 1 : t.max;
        for (int round = 1; round <= rounds && !at.empty(); ++round) {
          std::set<std::size_t> next;
          for (const std::size_t i : at) next.merge(ends(t.parts[0], i));
          at = std::move(next);
          if (round >= t.min) out.insert(at.begin(), at.end());
        }
        break;
      }
      case Tree::rule:
        return ends(rules_[static_cast<std::size_t>(t.number)], from);
    }
    return out;
  }

  bool whole() const { return ends(rules_[0], 0).contains(text_.size()); }

 private:
  const std::vector<Tree>& rules_;
  std::string_view text_;
};

/// Rules of which each calls later ones only.
class RandomGrammar {
 public:
  explicit RandomGrammar(std::mt19937& random) : random_(random) {
    const int n = 1 + below(4);
    for (int i = 0; i < n; ++i) rules_.push_back(tree(3, i, n));
  }
  const std::vector<Tree>& rules() const { return rules_; }
  std::string gbnf() const {
    std::string out;
    for (std::size_t i = 0; i < rules_.size(); ++i)
      out += fmt::format("r{} ::= {}  # a comment\n", i, gbnf_of(rules_[i]));
    return out + "root ::= r0\n";
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::string letter() { return letters()[static_cast<std::size_t>(below(6))]; }

  Tree tree(int depth, int rule, int rules) {
    Tree t;
    const int kind = depth == 0 ? below(2) : below(7);
    if (kind == 0) {
      for (int i = below(4); i > 0; --i) t.bytes += letter();
    } else if (kind == 1) {
      t.kind = Tree::set;
      for (int i = 1 + below(3); i > 0; --i) t.members.push_back(letter());
      t.without = below(3) == 0;
    } else if (kind == 6 && rule + 1 < rules) {
      t.kind = Tree::rule;
      t.number = rule + 1 + below(rules - rule - 1);
    } else if (kind <= 3) {
      t.kind = kind == 2 ? Tree::sequence : Tree::choice;
      for (int i = 1 + below(3); i > 0; --i) t.parts.push_back(tree(depth - 1, rule, rules));
    } else {
      t.kind = Tree::repeat;
      t.parts.push_back(tree(depth - 1, rule, rules));
      t.min = below(3);
      t.max = below(3) == 0 ? -1 : t.min + below(3);
    }
    return t;
  }

  std::mt19937& random_;
  std::vector<Tree> rules_;
};

/// All texts of at most so many letters.
inline std::vector<std::string> texts_up_to(int letters_at_most) {
  std::vector<std::string> all{""};
  std::size_t begin = 0;
  for (int n = 0; n < letters_at_most; ++n) {
    const std::size_t end = all.size();
    for (std::size_t i = begin; i < end; ++i)
      for (const std::string& letter : letters()) all.push_back(all[i] + letter);
    begin = end;
  }
  return all;
}

}  // namespace episodic::test
