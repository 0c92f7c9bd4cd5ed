// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A grammar over a vocabulary: which tokens may come next.
///
/// \code
/// auto trie = std::make_shared<const TokenTrie>(tokenizer);  // once for a model
/// auto json = std::make_shared<const TokenGrammar>(grammar_of_json_object(), trie);
/// GenerateOptions options;
/// options.grammar = json;  // any number of answers share it
/// \endcode

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "episodic/grammar/grammar.hpp"
#include "episodic/grammar/token_trie.hpp"

namespace episodic {

/// A bit for each token: word id / 64, bit id % 64.
using TokenMask = std::vector<std::uint64_t>;

inline bool allows(std::span<const std::uint64_t> mask, std::int64_t id) {
  return (mask[static_cast<std::size_t>(id) / 64] >> (static_cast<std::size_t>(id) % 64) & 1) != 0;
}

/// A grammar joined to the tokens of a vocabulary, with the masks found so far. Share one between
/// all answers of one grammar: they find each other's masks. Safe to use from several threads, one
/// of which at a time computes.
class TokenGrammar {
 public:
  /// \param cache_bytes about what masks and states may take; once full, it starts anew
  TokenGrammar(Grammar grammar, std::shared_ptr<const TokenTrie> trie,
               std::size_t cache_bytes = std::size_t{64} << 20);
  ~TokenGrammar();
  TokenGrammar(const TokenGrammar&) = delete;
  TokenGrammar& operator=(const TokenGrammar&) = delete;

  const TokenTrie& trie() const;

 private:
  friend class GrammarState;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// How far a text has come in a grammar: a value, cheap to copy.
///
/// All calls throw DataError where a grammar is so ambiguous that a text can be read in more than
/// thousands of ways at once, or that a mask takes millions of steps. The state is then as before.
class GrammarState {
 public:
  /// At the beginning of a text.
  explicit GrammarState(std::shared_ptr<const TokenGrammar> grammar);

  /// Goes on by bytes, which may end within a character. \return false, and stays as it was, if no
  /// text of the grammar goes on so
  bool advance(std::string_view bytes);
  /// Goes on by a token. \return false, and stays as it was, for one that is not allowed
  bool advance(std::int64_t id);
  /// The text so far is one of the grammar's.
  bool may_end() const;
  /// Tokens that some text of the grammar goes on with: of the trie's vocabulary, without special
  /// tokens. Tokens that end an answer are the caller's, and allowed where `may_end`.
  std::shared_ptr<const TokenMask> allowed() const;

  const TokenGrammar& grammar() const { return *grammar_; }

 private:
  struct Place;
  friend class TokenGrammar;
  void settle();

  std::shared_ptr<const TokenGrammar> grammar_;
  std::shared_ptr<Place> place_;  // which the number is of
  std::uint32_t state_ = 0;
};

}  // namespace episodic
