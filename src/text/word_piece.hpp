// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// WordPiece, BERT's subwords ("model" of type WordPiece in tokenizer.json).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bpe.hpp"

namespace episodic::text {

/// A vocabulary of words and of pieces that go on inside a word ("##ing"); immutable.
class WordPiece {
 public:
  /// \throws FileError
  explicit WordPiece(const JsonNode& model);

  const StringToId& vocabulary() const { return ids_; }

  class Encoder {
   public:
    Encoder(const WordPiece& model, std::vector<std::int64_t>& out) : model_(model), out_(out) {}
    /// Appends the ids of a word: from left to right always the longest entry that fits. A word
    /// that has a place where none fits, or that is too long, is the unknown token as a whole.
    void add(std::string_view word);

   private:
    const WordPiece& model_;
    std::vector<std::int64_t>& out_;
    std::string piece_;  // scratch
  };

 private:
  StringToId ids_;
  std::string prefix_;         // of pieces inside a word
  std::int64_t unknown_ = -1;  // id
  std::int64_t longest_word_ = 0;
  std::size_t longest_entry_ = 0;  // bytes
};

}  // namespace episodic::text
