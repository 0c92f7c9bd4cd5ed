// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Tokenizers from the vocabulary of a GGUF file. Which file format it came from is not known here.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/text/tokenizer.hpp"

namespace EPISODIC_NAMESPACE {

/// What the keys tokenizer.ggml.* say. The views need to live only until the tokenizer is made.
struct GgufVocabulary {
  std::filesystem::path file;  ///< for messages
  std::string model;           ///< "llama": SentencePiece's BPE by scores; "gpt2": byte-level BPE
  std::string pre;             ///< of "gpt2": the name of the rule that cuts a text into words
  std::vector<std::string_view> tokens;
  std::vector<double> scores;            ///< of "llama", one for each token
  std::vector<std::int64_t> types;       ///< 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte
  std::vector<std::string_view> merges;  ///< of "gpt2": two tokens with a space between
  std::int64_t bos = -1, eos = -1, unknown = -1;
  std::optional<bool> add_bos, add_eos, add_space_prefix;  ///< nothing: as the kind has it
};

/// What the keys tokenizer.ggml.*_token_id name as ends of an answer; -1: nothing.
struct GgufEndKeys {
  std::int64_t eos = -1, eot = -1, eom = -1;              ///< of a text, a turn, a message
  std::int64_t fim_pad = -1, fim_rep = -1, fim_sep = -1;  ///< of text filled in between
};

/// Tokens that end an answer, as llama.cpp has it: what the keys say, and tokens of certain names
/// (<|im_end|>, <end_of_turn>, ...) whether or not the file marks them as control tokens. Keys that
/// name no token are passed over. Where several tokens may stand for a missing fim key, llama.cpp
/// takes any of them; here it is the first.
std::vector<std::int64_t> gguf_end_tokens(const std::vector<std::string_view>& tokens,
                                          const GgufEndKeys& keys);

/// \throws FileError naming the file and what is missing, contradictory or not supported
std::unique_ptr<Tokenizer> make_tokenizer(const GgufVocabulary& vocabulary);

/// The tokenizer of a file that carries a tokenizer.json as it is.
/// \param file for messages \param config_json text of tokenizer_config.json; empty: none
/// \throws FileError naming the file and what is not supported
std::unique_ptr<Tokenizer> make_tokenizer(const std::filesystem::path& file,
                                          std::string_view tokenizer_json,
                                          std::string_view config_json);

}  // namespace EPISODIC_NAMESPACE
