// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Tokenizers that are a tokenizer.model file alone.

#include <filesystem>
#include <memory>

#include "episodic/text/tokenizer.hpp"

namespace episodic::text {

/// Reads MODEL_DIR/tokenizer.model, and of tokenizer_config.json which tokens begin and end a text.
/// \throws FileError naming the file
std::unique_ptr<Tokenizer> load_sentence_piece(const std::filesystem::path& model_dir);

}  // namespace episodic::text
