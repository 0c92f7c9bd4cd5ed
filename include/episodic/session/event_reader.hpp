// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Readers (EpMAN 3.1, 3.2): how much each event has to do with what is asked. A memory's
/// own recall and `reweight` read in key space; these are for programs that read otherwise, through
/// the memory's hooks: `ranking` says which events are recalled, `weighting` how much they count.

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/recall/recall_hook.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

/// Scores events by their relevance.
class EventReader {
 public:
  virtual ~EventReader() = default;
  /// \param recalled what a lane attends to \param scores [recalled.events.size()], written: in
  ///   [0, 1] \throws DataError for events or a question that the reader was not told of
  virtual void score(const RecalledEvents& recalled, std::span<float> scores) const = 0;
  /// Events 0 to ready() - 1 can be scored now. 0: none, for nothing is asked yet.
  virtual EventId ready() const { return std::numeric_limits<EventId>::max(); }
};

/// A recall hook that multiplies the values of each recalled event by the reader's score: EpMAN's
/// `exact` attention over what is recalled (all events, if `n_mem` has room for them). Which events
/// are recalled stays the memory's decision.
RecallHook weighting(std::shared_ptr<const EventReader> reader);

/// A rank hook by the reader's scores: the memory recalls what the reader finds relevant, within
/// its budgets or, with `reweight` narrow or broad, the `reweight_top` best (EpMAN's reader over
/// entries). Events that the reader does not know yet are not ranked; while it knows none the
/// memory's index ranks. A layer's step scores all events.
RankHook ranking(std::shared_ptr<const EventReader> reader);

/// Key space: max(0, cosine) of the lane's mean query and the event's representative vector, layer
/// by layer.
class KeyReader final : public EventReader {
 public:
  /// \param memory whose hook it serves; must outlive it
  explicit KeyReader(const EpisodicMemory& memory) : memory_(memory) {}
  void score(const RecalledEvents& recalled, std::span<float> scores) const override;

 private:
  const EpisodicMemory& memory_;
};

/// Text: max(0, cosine) of a sentence encoder's vectors of the question and of the event's text,
/// the same in all layers. Of memories whose events are the sequence's (scope `sequence`).
///
///     auto reader = std::make_shared<EncoderReader>(encoder, tokenizer);
///     ... read a text ...
///     reader->write(memory.events(), ids);
///     reader->read("Who closed the door?");
///     memory.set_rank_hook(ranking(reader));      // and, or
///     memory.set_recall_hook(weighting(reader));  // needs `write` after each step that closes
///     events
///
/// One thread at a time.
class EncoderReader final : public EventReader {
 public:
  /// Both must outlive it.
  EncoderReader(const SentenceEncoder& encoder, const Tokenizer& tokenizer)
      : encoder_(encoder), tokenizer_(tokenizer) {}

  /// Encodes the events that it has not encoded yet: those that closed since the last call, and
  /// after the memory went back those that are others now.
  /// \param ids tokens of the sequence from its first on, at least to the last event's end
  /// \throws DataError for fewer ids
  void write(const EventTable& events, std::span<const std::int64_t> ids);
  /// Encodes the question; empty: none is asked. While none is every event's score is 1.
  void read(std::string_view question);

  /// Relevance of an event, in [0, 1]. \throws DataError for one that was not written
  float score(EventId event) const;
  void score(const RecalledEvents& recalled, std::span<float> scores) const override;
  EventId ready() const override { return question_.empty() ? 0 : size(); }

  /// Events that it knows.
  std::int64_t size() const { return static_cast<std::int64_t>(written_.size()); }

 private:
  struct Written {
    TokenRange range;
    std::uint64_t ids;  ///< their checksum
    std::vector<float> vector;
    mutable float score = -1.0f;  ///< of the question; below 0: not computed yet
  };

  const SentenceEncoder& encoder_;
  const Tokenizer& tokenizer_;
  std::vector<Written> written_;
  std::vector<float> question_;
};

}  // namespace episodic
