// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Mistral's tekken.json: byte-level BPE whose tokens are ranked, as tiktoken's are, behind a
/// number of special tokens.

#include <filesystem>

#include "hf_tokenizer.hpp"

namespace episodic::text {

/// The file's name.
constexpr const char* kTekken = "tekken.json";

/// The tokenizer that the file describes: the ids of Tekkenizer of mistral-common, and special
/// tokens that are read in a text as those of a tokenizer.json are. A text begins with <s>. \throws
/// FileError
TokenizerParts read_tekken(const std::filesystem::path& file);

}  // namespace episodic::text
