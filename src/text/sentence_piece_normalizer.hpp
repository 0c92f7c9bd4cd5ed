// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How SentencePiece changes a text before it cuts it: characters by a table of the model's, spaces
/// by its rules.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "prefix_table.hpp"
#include "sentence_piece_file.hpp"

namespace episodic::text {

class SentencePieceNormalizer {
 public:
  /// \param file must outlive it
  /// \throws FileError naming a file whose table of characters is damaged, as operator() does where
  ///         it comes upon it only then
  explicit SentencePieceNormalizer(const SentencePieceFile& file);

  /// The text as it is cut: well-formed UTF-8, bytes that are none become U+FFFD.
  std::string operator()(std::string_view text) const;
  /// Bytes of the longest user-defined piece that the text begins with, which is always a piece of
  /// its own; 0: none.
  std::size_t user_defined(std::string_view text) const { return user_defined_.longest(text); }

 private:
  struct Change {
    std::size_t length;  // bytes that are replaced
    std::string_view becomes;
  };
  Change first(std::string_view text) const;
  std::uint32_t node(std::size_t at) const;

  const SentencePieceFile* file_;
  std::vector<std::uint32_t> trie_;  // of what is changed
  std::string_view becomes_;         // what it is changed into, each with a NUL behind
  PrefixTable user_defined_;
};

}  // namespace episodic::text
