// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What stands before WordPiece in BERT's tokenizers: BertNormalizer and BertPreTokenizer of
/// tokenizer.json, and the tokenizer that a directory with a vocab.txt alone stands for.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "json_node.hpp"
#include "pre_tokenizer.hpp"

namespace episodic::text {

/// The file's name.
constexpr const char* kBertVocabulary = "vocab.txt";

/// BertNormalizer.
class BertNormalizer {
 public:
  explicit BertNormalizer(const JsonNode& node);
  /// Bytes that are not UTF-8 are dropped where control characters are, else they pass.
  std::string operator()(const std::string& text) const;

 private:
  bool clean_, spaced_chinese_, strip_accents_, lower_;
};

/// BertPreTokenizer: white space parts words and is dropped; a punctuation mark is a word of its
/// own.
class BertWordStage : public PreTokenizerStage {
 public:
  void apply(const Piece& piece, Arena& arena, const PieceSink& sink) const override;
};

/// The tokenizer.json of a directory that has only vocab.txt, one entry a line, with
/// do_lower_case, tokenize_chinese_chars and strip_accents of tokenizer_config.json if it is there.
/// \throws FileError naming the file, for an entry that stands twice too
nlohmann::json bert_tokenizer_json(const std::filesystem::path& vocab_file);

}  // namespace episodic::text
