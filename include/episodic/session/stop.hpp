// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What ends an answer: tokens, and strings over text that arrives in pieces.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/model/hf_config.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// Tokens that end an answer: those of the model's files (ModelConfig::eos_tokens), and the eos of
/// its tokenizer, which some models name nowhere else. \param tokenizer may be null
std::vector<std::int64_t> end_tokens(const ModelConfig& config, const Tokenizer* tokenizer);

/// One line where the files disagree about them; empty: they agree.
std::string end_tokens_warning(const ModelConfig& config, const Tokenizer* tokenizer);

/// Passes text on until a stop string is complete. The stop string that ends first counts, of
/// those that end together the longest. The outcome does not depend on how the text is cut.
class StopMatcher {
 public:
  /// \throws ConfigError for an empty stop string
  explicit StopMatcher(std::vector<std::string> stops);

  /// \return text that may be shown now. What could begin a stop string is held back; the stop
  ///   string and what follows it never come out.
  std::string push(std::string_view text);

  /// What was held back, at the end of the text; empty once stopped.
  std::string finish();

  bool stopped() const { return !matched_.empty(); }
  /// The stop string found, empty if none was.
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_, matched_;
};

}  // namespace episodic
