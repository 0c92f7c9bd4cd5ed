// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `RecallNotes`: which events a question and its answer were recalled from. Torch-free.
///
/// \code
/// RecallNotes notes(sequence, sequence.kept().get());
/// while (...) {
///   sequence.step(...);
///   notes.note();
/// }
/// for (const RecalledEvent& e : notes.ranked()) ...  // what attention read most comes first
/// \endcode

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "episodic/session/sequence.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

/// An event that the last step had before it in one lane.
struct Recalled {
  std::int64_t lane = 0;
  std::int64_t layer = 0;  ///< of those that the memory serves
  std::int64_t rank = 0;   ///< 1 is the best; neighbours in time come behind the similar ones
  EventId event = 0;
  TokenRange tokens;
};

/// What the last step recalled, lane by lane, best first.
/// \throws ConfigError with full attention, or where the sequence's memory shows no recalls
std::vector<std::vector<Recalled>> recalled_by_lane(const Sequence& sequence);

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
  /// \param memory that the sequence computes with, which then tells what attention each event
  /// received; null, as on a device: it cannot be known. Both must outlive the notes
  RecallNotes(const Sequence& sequence, EpisodicMemory* memory);
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
  const Sequence& sequence_;
  EpisodicMemory* memory_;
  std::map<std::pair<std::int64_t, EventId>, RecalledEvent> events_;  // by scope and number
};

/// Text of tokens [range.start, range.end), spaces at its start kept: decoders of some kinds drop
/// them, so the token before is decoded along. \param ids from token `first` of the sequence on
/// \return empty where one of its tokens is not known
std::string event_text(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                       std::int64_t first, TokenRange range);

}  // namespace episodic
