// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Patterns of tokenizer.json: a literal string or a regular expression.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json_node.hpp"

namespace episodic::text {

/// Stretch [begin, end) of a text, and whether the pattern matched it.
struct Span {
  std::size_t begin, end;
  bool match;
};

/// A compiled pattern; immutable, safe to use from several threads.
class Pattern {
 public:
  /// \param node {"String": ...} or {"Regex": ...}; the latter in the dialect of Oniguruma, which
  ///   Hugging Face uses, as far as PCRE2 with UTF and Unicode properties agrees with it
  /// \throws FileError
  static Pattern from_json(const JsonNode& node);
  /// A regular expression of our own. \throws Error
  static Pattern regex(const std::string& expression);

  /// Whether it matches in an empty text.
  bool matches_nothing() const;

  /// Covers the text with spans from left to right: matches, and what lies between them. Bytes
  /// that are not UTF-8 never match and are spans of their own.
  /// \param spans overwritten
  /// \throws DataError if the expression runs into its step limit on this text
  void split(std::string_view text, std::vector<Span>& spans) const;

 private:
  struct Code;
  Pattern() = default;
  void split_valid(std::string_view text, std::size_t offset, std::vector<Span>& spans) const;

  std::string literal_;
  std::shared_ptr<const Code> code_;  // null: the literal
};

}  // namespace episodic::text
