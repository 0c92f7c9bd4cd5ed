// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "episodic/base/error.hpp"
#include "sentence_piece.hpp"

namespace episodic::text {

std::unique_ptr<Tokenizer> load_sentence_piece(const std::filesystem::path& model_dir) {
  throw NotBuiltError(fmt::format(
      "{}/tokenizer.model: this build is without the library SentencePiece; put the model's "
      "tokenizer.json beside it, or install libsentencepiece-dev (scripts/setup) and build anew",
      model_dir.string()));
}

}  // namespace episodic::text
