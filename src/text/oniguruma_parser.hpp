// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The parser of Oniguruma's expressions: groups and repeats in oniguruma_syntax.cpp, characters,
/// escapes and classes in oniguruma_characters.cpp.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oniguruma_properties.hpp"
#include "oniguruma_syntax.hpp"

namespace episodic::text::onig {

/// What (?imxWDSP) switch.
struct Options {
  bool ignore_case = false, dot_all = false, extended = false;
  AsciiRules ascii;
};

class Parser {
 public:
  explicit Parser(std::string_view expression) : all_(expression) { count_groups(); }

  Parsed run();

 private:
  static constexpr int kDeepest = 200;

  bool done() const { return at_ >= all_.size(); }
  char peek(std::size_t ahead = 0) const;
  bool ahead(std::string_view what) const { return all_.substr(at_).starts_with(what); }
  bool take(std::string_view what);

  std::uint32_t take_character();

  // Named groups: with one of them, plain ( ) capture nothing. So they are counted before.
  void count_groups();
  Node alternation(Options options, int depth);

  /// Goes past what says nothing: comments, and white space where (?x) is on.
  bool skipped(const Options& options);

  // --- repeats

  struct Quantifier {
    std::uint32_t low = 0, high = kUnbounded;
    char how = 0;
  };

  /// \throws Error for numbers that are too large
  std::optional<Quantifier> interval();
  std::optional<Quantifier> quantifier();
  Node quantified(Node atom, const Options& options);

  // --- groups

  Node closed(const char* open, const Options& options, int depth, std::size_t begin);
  Node group(Options options, int depth, bool& whole_rest);
  Node with_options(Options options, int depth, std::size_t begin, bool& whole_rest);

  /// The name in <...> or '...'.
  std::string name_in_brackets();

  // --- single characters, and what a backslash names

  static Node of_class(Class set, const Options& options, bool folds);
  static Class flat(std::string text, bool negated);
  static Node literal(std::uint32_t code, const Options& options);
  static Node assertion(std::string text);

  /// \param branch takes the characters before the last one of \x{61 62}
  std::optional<Node> single(const Options& options, Node& branch);
  std::optional<Node> escape(const Options& options, Node& branch);

  /// \w \d \s \h \p{...} and their opposites, at the letter; nothing else.
  std::optional<Class> named_class(const Options& options, bool within);

  /// The characters that an escape stands for, at the character behind the backslash.
  std::vector<std::uint32_t> code_points(std::size_t begin);
  std::vector<std::uint32_t> numbers(std::size_t begin);

  /// \1 and so on; nothing: it is a character in octal.
  std::optional<Node> numbered(const Options& options, std::size_t begin);
  Node refer(int number, const Options& options, std::size_t begin);

  /// \k<name> and \g<name>, at the letter.
  Node reference(const Options& options, std::size_t begin);

  /// Sets the numbers of what refers to names, now that all are known.
  void resolve(Node& node);

  // --- classes

  /// Behind the [.
  Class char_class(const Options& options, int depth);

  /// A class within the class: [:alpha:], [...], \w.
  std::optional<Class> inner_class(const Options& options, int depth);
  void no_range_from(std::size_t begin);

  /// [:name:]; nothing if it is none, but a class that begins with a colon.
  std::optional<Class> bracket(const Options& options);

  /// The characters of one element of a class, which is no class itself.
  std::vector<std::uint32_t> element();
  void range(std::vector<Class::Item>& items, const Options& options);

  std::string_view all_;
  std::size_t at_ = 0;
  int groups_ = 0;
  bool named_ = false, refers_back_ = false, calls_ = false;
  std::map<std::string, std::vector<int>> numbers_;  // of named groups
};

}  // namespace episodic::text::onig
