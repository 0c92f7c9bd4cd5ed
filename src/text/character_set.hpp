// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Sets of characters, for the classes of regular expressions.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace episodic::text {

/// A set of Unicode scalar values: ranges from low to high that do not touch.
class CharacterSet {
 public:
  using Range = std::pair<std::uint32_t, std::uint32_t>;  ///< both ends belong to it

  CharacterSet() = default;
  /// \param ranges in any order; they may overlap. Surrogates fall out
  explicit CharacterSet(std::vector<Range> ranges);

  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool contains(std::uint32_t c) const;

  CharacterSet complement() const;
  CharacterSet operator|(const CharacterSet& other) const;
  CharacterSet operator&(const CharacterSet& other) const;

 private:
  std::vector<Range> ranges_;
};

/// Whether PCRE2 takes the class (`[\p{L}]`).
bool is_pcre2_class(const std::string& pcre2_class);

/// All characters that one class of PCRE2 matches: it tries each. \throws Error if it is none
CharacterSet matched_by(const std::string& pcre2_class);

/// Which characters differ by case alone, by Unicode's full case folding.
class CaseFolds {
 public:
  static const CaseFolds& instance();

  /// Characters that fold to what `c` folds to, `c` among them.
  std::vector<std::uint32_t> same(std::uint32_t c) const;
  /// What `c` folds to if that is more than one character; else empty.
  const std::vector<std::uint32_t>& expansion(std::uint32_t c) const;
  /// Characters that fold to this sequence of two or three; empty: there is none.
  const std::vector<std::uint32_t>& folding_to(const std::vector<std::uint32_t>& sequence) const;
  /// The one character that `c` folds to; `c` itself if it folds to none or to several.
  std::uint32_t fold(std::uint32_t c) const;

  /// The set, and with each character all that differ from it by case alone.
  CharacterSet closure(const CharacterSet& set) const;
  /// Characters of the set that fold to several, in order.
  std::vector<std::uint32_t> expanding(const CharacterSet& set) const;

 private:
  CaseFolds();

  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> folded_;  // where it is not itself
  std::unordered_map<std::u32string, std::vector<std::uint32_t>> members_;  // by what they fold to
  std::vector<std::uint32_t> expanding_;
};

}  // namespace episodic::text
