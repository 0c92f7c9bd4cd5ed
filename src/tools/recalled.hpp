// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which events an answer was recalled from.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic::tools {

/// An event that the last step had before it in one lane.
struct Recalled {
  std::int64_t lane = 0;
  std::int64_t layer = 0;  ///< of those that the memory serves
  std::int64_t rank = 0;   ///< 1 is the best; neighbours in time come behind the similar ones
  EventId event = 0;
  TokenRange tokens;
};

/// What the last step recalled, lane by lane, best first.
/// \throws ConfigError with full attention, or where the engine's memory shows no recalls
std::vector<std::vector<Recalled>> recalled_by_lane(const Engine& engine);

/// An event that several steps recalled, in several layers.
struct RecalledEvent {
  EventId event = 0;
  std::int64_t scope = 0;  ///< whose event: 0 the sequence's, else a head's own
  TokenRange tokens;
  std::vector<std::int64_t> layers;  ///< ascending
  std::int64_t rank = 0;             ///< the best that it had
  double weight = 0;                 ///< sum of 1 / rank over steps and lanes
  double attention = 0;              ///< that it received in these steps, over all heads
};

/// Collects what the steps of a question and its answer recall.
class RecallNotes {
 public:
  /// \param memory that the engine computes with, which then tells what attention each event
  /// received; null, or one that a device computes with a copy of: it cannot be known
  RecallNotes(const Engine& engine, const std::shared_ptr<EpisodicMemory>& memory);
  ~RecallNotes();
  RecallNotes(const RecallNotes&) = delete;
  RecallNotes& operator=(const RecallNotes&) = delete;

  /// Adds the last step's lists. \throws as recalled_by_lane
  void note();
  /// The events that attention read most first; where it cannot be known, those that many layers
  /// and steps ranked high. In a short memory each event is the best in some layer at some token,
  /// so that the best rank alone says little.
  std::vector<RecalledEvent> ranked() const;

 private:
  const Engine& engine_;
  std::shared_ptr<EpisodicMemory> memory_;
  std::map<std::pair<std::int64_t, EventId>, RecalledEvent> events_;  // by scope and number
};

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

/// "layers 2, 3": a list of numbers behind its word. "all 24 layers" where it is all of them.
std::string layers_text(const std::vector<std::int64_t>& layers, std::int64_t of);

/// One line, control characters as spaces, cut to `most` bytes in the middle of no character.
std::string excerpt_of(const std::string& text, std::size_t most);

}  // namespace episodic::tools
