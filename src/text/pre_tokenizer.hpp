// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The "pre_tokenizer" of tokenizer.json: cuts a text into the words that the model works on.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json_node.hpp"

namespace episodic::text {

/// A piece of text on its way through the stages.
struct Piece {
  std::string_view text;
  bool at_start;  ///< begins where the whole text begins
};

/// Owner of the texts that a stage had to change; pieces point into it.
using Arena = std::deque<std::string>;
using PieceSink = std::function<void(const Piece&)>;

/// One stage: cuts (and may change) a piece, hands the parts on from left to right.
class PreTokenizerStage {
 public:
  virtual ~PreTokenizerStage() = default;
  virtual void apply(const Piece& piece, Arena& arena, const PieceSink& sink) const = 0;
};

/// Split, Digits, Metaspace, BertPreTokenizer and ByteLevel, one after another.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// \throws FileError for a pre-tokenizer that is not supported
  explicit PreTokenizer(const JsonNode& node) { add(node, 0); }

  /// Words are to be read as bytes in GPT-2's alphabet.
  bool byte_level() const { return byte_level_; }
  void apply(const Piece& piece, Arena& arena, const PieceSink& sink) const;

 private:
  void add(const JsonNode& node, int depth);
  void apply_from(std::size_t stage, const Piece& piece, Arena& arena, const PieceSink& sink) const;

  std::vector<std::shared_ptr<const PreTokenizerStage>> stages_;
  bool byte_level_ = false;
};

}  // namespace episodic::text
