// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Timeline`: what an event is. One signal a step goes in (surprise, and the keys that refinement
/// and key segmenters read), closed ranges come out (spec 2 to 4).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/config.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "episodic/timeline/step_kind.hpp"
#include "episodic/timeline/surprise.hpp"

namespace episodic {

/// What the last finished step decided; rows of the step's n tokens.
struct StepRecord {
  std::int64_t first = 0, n = 0;
  std::int64_t events_before = 0;  ///< closed before this step
  std::vector<float> surprise, threshold;
  std::vector<std::uint8_t> raw_boundaries, final_boundaries;
};

/// One sequence's timeline. A step is `begin`, one of the two `read`, `decide` and `commit`; before
/// commit nothing counts, and what fails may be begun anew from the same state.
class Timeline {
 public:
  /// All that a timeline carries from step to step but its closed events, which are only ever
  /// appended to: a value. Its fields are listed once, in `fields`; copies, files and digests
  /// follow that list.
  struct State {
    std::int64_t tokens = 0;
    /// Steps of one token since the last recall that they count from; 0 behind a longer step.
    std::int64_t steps_since_recall = 0;
    std::int64_t last_boundary = -1;     ///< last final boundary; -1: none
    std::int64_t last_in_previous = -1;  ///< last final boundary inside the last step; -1: none
    /// Of the last min(tokens, tau) tokens, in order of time; empty if surprise sets no boundaries.
    std::vector<float> recent_surprise;
    std::vector<std::byte> segmenter;       ///< what another segmenter carries (Segmenter::save)
    std::vector<std::uint8_t> final_flags;  ///< of token t at t % size(), ring_capacity of them
    std::vector<float> last_logits;         ///< [vocab] that follow the last token, or empty

    /// visit(field) for every field, in the order of the file format.
    template <class Self, class Visitor>
    static void fields(Self& state, Visitor&& visit) {
      visit(state.tokens);
      visit(state.steps_since_recall);
      visit(state.last_boundary);
      visit(state.last_in_previous);
      visit(state.recent_surprise);
      visit(state.segmenter);
      visit(state.final_flags);
      visit(state.last_logits);
    }
    void save(ByteWriter& to) const;
    /// \throws FileError for bytes that end too early. What the fields say is judged by
    /// Timeline::resume.
    void load(ByteReader& from);
    bool operator==(const State&) const = default;
  };

  Timeline() = default;
  /// \param capacity tokens of the ring of boundary flags: window, pending and step
  /// \param given boundaries, only for segmenter `given` \throws ConfigError, DataError
  Timeline(const MemoryConfig& config, std::int64_t n_kv_heads, std::int64_t head_dim,
           std::int64_t capacity, std::vector<std::int64_t> given = {});
  /// With a segmenter of the caller's instead of the configured one.
  Timeline(const MemoryConfig& config, std::int64_t n_kv_heads, std::int64_t head_dim,
           std::int64_t capacity, std::unique_ptr<Segmenter> segmenter);

  /// Opens a step of n tokens. \return whether it recalls anew, or goes on with the last recall
  bool begin(std::int64_t n, StepKind kind) noexcept;

  /// The step's surprise, from logits [n, vocab] (row i follows token i, `row_stride` elements
  /// between rows) and those kept of the step before.
  /// \throws DataError for ids out of range, NaN logits or another vocabulary than before
  void read(const std::int64_t* ids, const float* logits, std::int64_t vocab,
            std::int64_t row_stride);
  /// The same from surprises: what needs no row of logits but the last.
  void read(const std::int64_t* ids, const StepSurprise& step);
  /// The same, given. \param surprise [n] nats; that of token 0 is ignored
  /// \throws DataError unless all are finite
  void read(const float* surprise);

  /// Boundaries, refined, and what they close: ranges that follow the table's events.
  /// \param keys of the layers in refinement's graph, in the order of the layers, the step's own
  /// tokens among them \return valid until the next begin
  const std::vector<TokenRange>& decide(std::span<const KeyRing> keys);

  /// The step has come. Nothing in it can fail.
  void commit() noexcept;

  std::int64_t tokens() const { return now_.tokens; }
  const EventTable& events() const { return events_; }
  const StepRecord& last_step() const { return record_; }
  const std::vector<float>& last_logits() const { return now_.last_logits; }

  /// The present state.
  State state() const;
  /// A state that was checked, ready to be taken over.
  struct Ready {
    State state;
    std::unique_ptr<Segmenter> segmenter;
  };
  /// \throws DataError for a state of other settings
  Ready prepare(State state) const;
  /// Takes a state over. The events stay as they are; the last step's record is forgotten.
  void resume(Ready ready) noexcept;
  void resume(State state) { resume(prepare(std::move(state))); }

  /// Forgets the events from `n_events` on; nothing if there are no more.
  void truncate(std::int64_t n_events) noexcept;
  /// Takes over an event closed elsewhere. \throws DataError if it cannot follow
  void append(const TokenRange& event) { events_.append(event); }
  /// The closed events from bytes. \throws FileError
  void load_events(ByteReader& from) { events_.load(from); }

 private:
  void check_ids(const std::int64_t* ids, std::int64_t vocab) const;
  /// Surprise of the step's first token, by the logits kept of the step before.
  void read_first(const std::int64_t* ids, std::int64_t vocab);
  std::size_t slot(std::int64_t token) const {
    return static_cast<std::size_t>(token % static_cast<std::int64_t>(now_.final_flags.size()));
  }

  std::int64_t n_local_ = 0, n_kv_heads_ = 0, head_dim_ = 0, recall_every_ = 1;
  bool refines_ = false;
  std::unique_ptr<Segmenter> segmenter_;  // carries recent_surprise and segmenter of the state
  BoundaryRefiner refiner_;               // a tool: what it carries is in the state
  State now_;
  EventTable events_;
  StepRecord record_;

  // The open step: what commit makes the present.
  std::int64_t n_ = 0, next_steps_since_recall_ = 0;
  std::int64_t next_boundary_ = -1, next_in_previous_ = -1;
  StepRecord next_record_;
  std::vector<float> next_logits_;
  std::vector<std::int64_t> targets_;
  std::vector<TokenRange> closed_;
};

}  // namespace episodic
