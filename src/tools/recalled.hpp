// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which events an answer was recalled from, as the programs show it.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/session/recall_notes.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic::tools {

/// Text of an event out of tokens that `ids_of` knows, negative where they are unknown or
/// forgotten: the text is then empty.
std::string event_text(const std::function<std::vector<std::int64_t>(TokenRange)>& ids_of,
                       const Tokenizer& tokenizer, TokenRange event);
/// The same out of its memory.
std::string event_text(const EpisodicMemory& memory, const Tokenizer& tokenizer, TokenRange event);

/// Text of an event by its tokens, wherever these are kept; empty where it is not known.
using EventText = std::function<std::string(TokenRange)>;

/// [{"event", "start", "end", "text", "layers", "rank"}], with "attention", the share of what all
/// of them received, where it is known; events of single heads have "kv_head" too.
Json recalled_json(const std::vector<RecalledEvent>& events, const EpisodicMemory& memory,
                   const Tokenizer& tokenizer);
Json recalled_json(const std::vector<RecalledEvent>& events, const SequenceMemory& memory,
                   const EventText& text);

/// The best of them as a table for people, each with the beginning of its text.
std::string recalled_table(const std::vector<RecalledEvent>& events, const EpisodicMemory& memory,
                           const Tokenizer& tokenizer);
std::string recalled_table(const std::vector<RecalledEvent>& events, const SequenceMemory& memory,
                           const EventText& text);

/// A line of such a table.
struct RecalledLine {
  double attention = -1;  ///< share of what all of them received; negative: it is not known
  std::int64_t rank = 0, event = 0;
  TokenRange tokens;
  std::string layers, text;
};
std::string recalled_table(const std::vector<RecalledLine>& lines);

/// [{"start", "end", "text", "score", "gain", "lead"}] of passages that are read again, best first.
Json passages_json(std::span<const Passage> passages);

/// "layers 2, 3": a list of numbers behind its word. "all 24 layers" where it is all of them.
/// \param of 0: it is not known how many there are
std::string layers_text(const std::vector<std::int64_t>& layers, std::int64_t of);

/// One line, control characters as spaces, cut to `most` bytes in the middle of no character.
std::string excerpt_of(const std::string& text, std::size_t most);

}  // namespace episodic::tools
