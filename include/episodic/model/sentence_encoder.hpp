// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `SentenceEncoder`: one vector for a text, for retrieval over chunks and for readers over events
/// (EpMAN 3.1). Runs encoders of BERT's shape, such as all-MiniLM-L6-v2, from a directory in
/// Hugging Face's layout. Torch-free.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace episodic {

/// Immutable after loading; safe to use from several threads.
///
///     const auto encoder = SentenceEncoder::open("all-minilm-l6-v2");
///     const std::vector<float> a = encoder.encode("Who closed the door?");
///     // the cosine of two texts is the dot product of their vectors
class SentenceEncoder {
 public:
  /// As `max_tokens`: all that the model has positions for.
  static constexpr std::int64_t kAllPositions = -1;

  /// Reads config.json (`model_type` bert), model.safetensors (float32, float16 or bfloat16),
  /// tokenizer.json or vocab.txt, and where they are there sentence-transformers' own files: its
  /// sentence_bert_config.json (longest text) and 1_Pooling/config.json (mean or first token; mean
  /// without it). Tensors that the vector does not depend on (a pooler's) are not looked at.
  /// \param max_tokens longest text in tokens, its special tokens included, up to the model's
  ///   positions (512 in most); 0: max_seq_length of sentence_bert_config.json (256 for
  ///   all-MiniLM-L6-v2), or all positions if there is none
  /// \throws FileError naming file, key or tensor for what is missing, damaged or no such encoder;
  ///   ConfigError for `max_tokens` out of range
  static SentenceEncoder open(const std::filesystem::path& dir, std::int64_t max_tokens = 0);

  SentenceEncoder(SentenceEncoder&&) noexcept;
  SentenceEncoder& operator=(SentenceEncoder&&) noexcept;
  ~SentenceEncoder();

  /// Numbers of a vector.
  std::int64_t width() const;
  /// Tokens of a text that are read, special tokens included; what follows them is left out.
  std::int64_t max_tokens() const;
  /// Tokens of a text, special tokens included, before any are left out.
  std::int64_t count_tokens(std::string_view text) const;
  /// Of config.json and all weights: vectors of encoders with different ones do not compare.
  const std::string& fingerprint() const;

  /// The vector of a UTF-8 text, of unit length: [width].
  /// \throws DataError if the weights give no finite vector of a length other than 0
  std::vector<float> encode(std::string_view text) const;
  /// The same for several at once, one after another: [texts.size(), width]. Equal to `encode` but
  /// for rounding.
  std::vector<float> encode_all(std::span<const std::string> texts) const;

 private:
  struct Impl;
  explicit SentenceEncoder(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace episodic
