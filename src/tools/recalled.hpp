// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which events an answer was recalled from, as the programs show it.

#include <cstdint>
#include <string>
#include <vector>

#include "common.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/session/recall_notes.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic::tools {

/// Text of an event out of its memory; empty where its tokens are unknown or forgotten.
std::string event_text(const EpisodicMemory& memory, const Tokenizer& tokenizer, TokenRange event);

/// [{"event", "start", "end", "text", "layers", "rank"}], with "attention", the share of what all
/// of them received, where it is known; events of single heads have "kv_head" too.
Json recalled_json(const std::vector<RecalledEvent>& events, const EpisodicMemory& memory,
                   const Tokenizer& tokenizer);

/// The best of them as a table for people, each with the beginning of its text.
std::string recalled_table(const std::vector<RecalledEvent>& events, const EpisodicMemory& memory,
                           const Tokenizer& tokenizer);

/// "layers 2, 3": a list of numbers behind its word. "all 24 layers" where it is all of them.
std::string layers_text(const std::vector<std::int64_t>& layers, std::int64_t of);

/// One line, control characters as spaces, cut to `most` bytes in the middle of no character.
std::string excerpt_of(const std::string& text, std::size_t most);

}  // namespace episodic::tools
