// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Events by the words around them: BM25 whose documents are soft. A word counts for an event by
/// its distance to the event's middle, so that no border parts a sentence from its answer.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

class WordVoice {
 public:
  /// Appends tokens of the text. Negative ids have no text.
  void add(const Tokenizer& tokenizer, std::span<const std::int32_t> ids);
  struct Scores {
    std::vector<double> events;  ///< of each, 0 where no word of the question is near
    /// The best of them as a share of what all words of the question at one place would give, most
    /// of them rare: how much this voice has to say. [0, 1]
    double coverage = 0;
  };
  Scores score(std::string_view question, std::span<const TokenRange> events) const;
  std::int64_t bytes() const { return bytes_; }

 private:
  void take(const std::string& text, std::span<const std::size_t> behind, std::int64_t first);

  std::unordered_map<std::string, std::vector<std::int32_t>> places_;  // tokens, ascending
  std::int64_t tokens_ = 0, bytes_ = 0;
};

}  // namespace episodic
