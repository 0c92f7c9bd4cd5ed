// SPDX-License-Identifier: Apache-2.0
#pragma once
// Log-probabilities of an answer's tokens, as OpenAI's protocols write them.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "episodic/grammar/token_trie.hpp"
#include "episodic/session/sampling.hpp"
#include "episodic/text/tokenizer.hpp"
#include "protocol/json.hpp"

namespace episodic::server {

/// Texts of a model's tokens.
class TokenTexts {
 public:
  TokenTexts() = default;
  /// \param trie null: nobody asks \param tokenizer must outlive it
  TokenTexts(std::shared_ptr<const TokenTrie> trie, const Tokenizer& tokenizer)
      : trie_(std::move(trie)), tokenizer_(&tokenizer) {}

  bool asked() const { return trie_ != nullptr; }
  /// Of a special token: its name.
  std::string bytes(std::int64_t id) const;
  /// Bytes of an answer's text that come from it.
  std::size_t text_bytes(std::int64_t id) const { return trie_->bytes(id).size(); }
  /// {"token", "logprob", "bytes"}.
  Json token(const TokenLogprob& token) const;
  /// The same with "top_logprobs".
  Json token(const Logprobs& token) const;

 private:
  std::shared_ptr<const TokenTrie> trie_;
  const Tokenizer* tokenizer_ = nullptr;
};

/// Hands out log-probabilities with the text that they belong to: text becomes certain later than
/// its tokens, and text of a call is none of the message's.
class TextLogprobs {
 public:
  explicit TextLogprobs(TokenTexts texts) : texts_(std::move(texts)) {}

  void add(const Logprobs& token);
  /// Of the tokens that end within so many more bytes of text.
  Json behind(std::size_t bytes);
  /// Of all others; none of them come again.
  Json rest();
  /// Of those so far only the last are told of, those of so many bytes of text.
  void keep(std::size_t bytes);
  /// What comes from here on is not told of.
  void drop();

 private:
  TokenTexts texts_;
  std::deque<Logprobs> waiting_;
  std::size_t bytes_ = 0;  // of text that was sent and is not covered by tokens handed out
  bool dropped_ = false;
};

}  // namespace episodic::server
