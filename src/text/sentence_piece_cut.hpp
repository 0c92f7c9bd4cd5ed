// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How SentencePiece cuts a normalized text into pieces.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "sentence_piece_file.hpp"
#include "sentence_piece_normalizer.hpp"

namespace episodic::text {

/// A stretch of the text and its piece. What is no piece has the unknown piece's id, a character at
/// a time.
struct Cut {
  std::string_view text;
  std::int64_t id;
};

class PieceCutter {
 public:
  virtual ~PieceCutter() = default;
  /// \param text what a SentencePieceNormalizer gives; fewer than 2^31 bytes
  virtual std::vector<Cut> cut(std::string_view text) const = 0;
};

/// By the file's model. Unigram: of all ways to cut the text the one whose scores' sum is highest
/// (Kudo 2018, arXiv:1804.10959). BPE: the neighbours whose piece has the highest score are joined
/// until none make a piece. Both as the library does it, with its float32 sums and its order of
/// equals. \param file, normalizer must outlive it
std::unique_ptr<PieceCutter> make_piece_cutter(const SentencePieceFile& file,
                                               const SentencePieceNormalizer& normalizer);

}  // namespace episodic::text
