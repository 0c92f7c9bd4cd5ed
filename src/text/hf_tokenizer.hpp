// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The tokenizer that tokenizer.json describes, put together from its parts.

#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include "added_tokens.hpp"
#include "bpe.hpp"
#include "decoder.hpp"
#include "episodic/text/tokenizer.hpp"
#include "normalizer.hpp"
#include "pre_tokenizer.hpp"
#include "word_piece.hpp"

namespace episodic::text {

/// What load_tokenizer reads.
struct TokenizerParts {
  std::filesystem::path file;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::variant<Bpe, WordPiece> model;
  Decoder decoder;
  std::vector<std::string> entries{};  ///< by id, vocabulary and added tokens
  std::vector<bool> special{};         ///< by id
  /// What ids are decoded from where it is not their entry: normalized added tokens.
  std::unordered_map<std::int64_t, std::string> shown{};
  StringToId ids{};                              ///< of `entries`
  AddedTokens raw_added{};                       ///< looked for in the text as it is
  AddedTokens normalized_added{};                ///< looked for in the normalized text
  std::vector<std::int64_t> prefix{}, suffix{};  ///< special tokens around a text
  std::int64_t bos = -1, eos = -1;
};

/// The parts that the content of a tokenizer.json describes, but for bos and eos.
/// \param file for messages \param merges instead of those in the JSON \throws FileError
TokenizerParts read_parts(const std::filesystem::path& file, const nlohmann::json& json,
                          const IdMerges* merges = nullptr);

class HfTokenizer : public Tokenizer {
 public:
  explicit HfTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {}

  std::vector<std::int64_t> encode(std::string_view text, bool add_special) const override;
  std::vector<std::int64_t> encode_marked(std::string_view text,
                                          std::span<const TextSpan> input) const override;
  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special) const override;
  std::string token(std::int64_t id) const override;
  std::int64_t id_of(std::string_view token) const override;
  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(parts_.entries.size());
  }
  std::int64_t bos() const override { return parts_.bos; }
  std::int64_t eos() const override { return parts_.eos; }

 private:
  /// Appends the ids of the text without what stands around it.
  /// \param input null, or the parts in which no special tokens are read
  template <class Model>
  void encode(std::string_view text, const Model& model, std::vector<std::int64_t>& ids,
              const std::span<const TextSpan>* input) const;
  /// Whether the text of a token is that token only where the template wrote it.
  bool controls(std::int64_t id) const {
    return parts_.special[static_cast<std::size_t>(id)] || id == parts_.bos || id == parts_.eos;
  }
  std::size_t checked(std::int64_t id) const;
  TokenizerParts parts_;
};

}  // namespace episodic::text
