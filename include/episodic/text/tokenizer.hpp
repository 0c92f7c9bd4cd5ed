// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Tokenizers from a Hugging Face model directory.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Bytes of a text, from `begin` to before `end`.
struct TextSpan {
  std::size_t begin, end;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

/// Text <-> token ids. Immutable after loading; safe to use from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of a UTF-8 text (invalid bytes are kept as bytes where the vocabulary can).
  /// \param add_special also the tokens that the tokenizer adds around a text (BOS, ...)
  virtual std::vector<std::int64_t> encode(std::string_view text,
                                           bool add_special = true) const = 0;

  /// Ids of a text of which some parts are data: the text of a special token that lies in one of
  /// them, wholly or in part, is not read as that token. All else is as `encode(text, false)`.
  /// \param input ascending, apart from each other
  /// Tokenizers of one's own that read special tokens out of a text override it: what is here
  /// refuses texts in which there are some within the input. \throws DataError
  virtual std::vector<std::int64_t> encode_marked(std::string_view text,
                                                  std::span<const TextSpan> input) const;

  /// Text of the ids; bytes of an incomplete character stay as they are, so the text need not be
  /// valid UTF-8. \param skip_special leave out special tokens
  /// \throws DataError for an id out of range
  virtual std::string decode(const std::vector<std::int64_t>& ids,
                             bool skip_special = true) const = 0;

  /// Vocabulary entry of an id as it stands in the file.
  virtual std::string token(std::int64_t id) const = 0;

  /// Id of a vocabulary entry, -1 if there is none.
  virtual std::int64_t id_of(std::string_view token) const = 0;

  virtual std::int64_t vocab_size() const = 0;

  /// Begin- and end-of-sequence ids as configured (tokenizer_config.json), -1 if none.
  virtual std::int64_t bos() const = 0;
  virtual std::int64_t eos() const = 0;
};

/// Streaming decode: returns the text that became certain with each id, holding back incomplete
/// UTF-8 sequences. Special tokens have no text, except those that are to be shown.
class StreamDecoder {
 public:
  /// \param shown special tokens whose text is wanted, such as those that mark calls of tools
  explicit StreamDecoder(const Tokenizer& tokenizer, std::vector<std::int64_t> shown = {})
      : tokenizer_(&tokenizer), shown_(std::move(shown)) {}
  std::string push(std::int64_t id);
  /// What is still held back.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::vector<std::int64_t> shown_;
  std::vector<std::int64_t> ids_;
  std::size_t emitted_ = 0;  // bytes of the decoded text already returned
};

/// Reads tokenizer.json (byte-level or byte-fallback BPE, BERT's WordPiece) and, if present,
/// tokenizer_config.json. Without it tokenizer.model (SentencePiece, unigram or BPE, with the ids
/// of its library: no special tokens are read out of a text), without that BERT's vocab.txt.
/// \throws FileError naming the file and what in it is missing or unsupported
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir);

}  // namespace EPISODIC_NAMESPACE
