// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The bytes of a vocabulary's tokens, in the order in which a grammar looks at them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// What each token adds to a text. Immutable; made once for a tokenizer and shared by all grammars.
/// Takes about 20 bytes a token, and half a second for 150,000 of them.
class TokenTrie {
 public:
  /// The bytes that a token adds behind other text: with a vocabulary that writes a space as U+2581
  /// that space is one, also where a text begins. Special tokens add none.
  explicit TokenTrie(const Tokenizer& tokenizer);
  /// \param bytes of each id; empty: a token that no text has
  explicit TokenTrie(std::span<const std::string> bytes);

  std::int64_t vocab_size() const { return static_cast<std::int64_t>(ends_.size()); }
  /// Empty for special tokens. \throws DataError for an id out of range
  std::string_view bytes(std::int64_t id) const;
  /// Bytes of the longest token.
  std::size_t longest() const { return longest_; }

  /// A node of the tree, in depth-first order.
  struct Node {
    std::uint32_t end;          ///< the node behind its last descendant
    std::uint32_t first_token;  ///< where its tokens begin, if it has any
    std::uint16_t depth;        ///< bytes from the root, 1 and more
    std::uint8_t byte;
    bool has_tokens;
  };
  std::span<const Node> nodes() const { return nodes_; }
  /// Tokens that end at a node, whose numbers ascend with the nodes'.
  struct Token {
    std::uint32_t node, id;
  };
  /// Ordered by node.
  std::span<const Token> tokens() const { return tokens_; }

 private:
  std::string text_;                 // all tokens' bytes
  std::vector<std::uint32_t> ends_;  // by id, in text_
  std::vector<Node> nodes_;
  std::vector<Token> tokens_;
  std::size_t longest_ = 0;

  void build();
};

}  // namespace episodic
