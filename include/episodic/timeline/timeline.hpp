// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Timeline`: what an event is. One signal a step goes in (surprise, and the keys that refinement
/// and key segmenters read), closed ranges come out (EM 3.1 to 3.3).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "episodic/timeline/step_kind.hpp"
#include "episodic/timeline/surprise.hpp"

namespace EPISODIC_NAMESPACE {

/// What the last finished step decided; rows of the step's n tokens.
struct StepRecord {
  std::int64_t first = 0, n = 0;
  std::int64_t events_before = 0;  ///< closed before this step
  std::vector<float> surprise, threshold;
  std::vector<std::uint8_t> raw_boundaries, final_boundaries;
};

/// One sequence's timeline. Its events are those of one scope, the sequence, or of many: each
/// key/value head of each layer, number l * G + g (scope `head`, HEM 2.4). A step is `begin`, one
/// of the two `read`, `decide` and `commit`; before commit nothing counts, and what fails may be
/// begun anew from the same state.
class Timeline {
 public:
  /// All that a timeline carries from step to step but its closed events, which are only ever
  /// appended to: a value. Its fields are listed once, in `fields`; copies, files and digests
  /// follow that list.
  struct State {
    /// What each scope has by itself.
    struct Scope {
      std::int64_t last_boundary = -1;     ///< last final boundary; -1: none
      std::int64_t last_in_previous = -1;  ///< last final boundary inside the last step; -1: none
      std::vector<std::uint8_t> final_flags;  ///< of token t at t % size(), ring_capacity of them

      template <class Self, class Visitor>
      static void fields(Self& scope, Visitor&& visit) {
        visit(scope.last_boundary);
        visit(scope.last_in_previous);
        visit(scope.final_flags);
      }
      bool operator==(const Scope&) const = default;
    };

    std::int64_t tokens = 0;
    /// Steps of one token since the last recall that they count from; 0 behind a longer step.
    std::int64_t steps_since_recall = 0;
    /// Of the last min(tokens, tau) tokens, in order of time; empty if surprise sets no boundaries.
    std::vector<float> recent_surprise;
    std::vector<std::byte> segmenter;  ///< what other segmenters carry (Segmenter::save)
    std::vector<Scope> scopes = std::vector<Scope>(1);
    std::vector<float> last_logits;  ///< [vocab] that follow the last token, or empty

    /// visit(field) for every field, in the order of the file format.
    template <class Self, class Visitor>
    static void fields(Self& state, Visitor&& visit) {
      visit(state.tokens);
      visit(state.steps_since_recall);
      visit(state.recent_surprise);
      visit(state.segmenter);
      visit(state.scopes);
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
  Timeline(const MemoryConfig& config, const KeyShape& keys, std::int64_t capacity,
           std::vector<std::int64_t> given = {});
  /// With a segmenter of the caller's instead of the configured one, which serves all scopes.
  Timeline(const MemoryConfig& config, const KeyShape& keys, std::int64_t capacity,
           std::unique_ptr<Segmenter> segmenter);

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

  /// Boundaries, refined, and what they close: see `closed`.
  /// \param keys of all layers, the step's own tokens among them
  /// \param group whose ranks have the keys of other heads; null: all heads are here
  void decide(std::span<const KeyRing> keys, Group* group = nullptr);
  /// What the open step closes: ranges that follow the scope's events. Valid until the next begin.
  const std::vector<TokenRange>& closed(std::int64_t scope = 0) const { return at(scope).closed; }

  /// The step has come. Nothing in it can fail.
  void commit() noexcept;

  std::int64_t tokens() const { return tokens_; }
  std::int64_t scopes() const { return static_cast<std::int64_t>(scopes_.size()); }
  const EventTable& events(std::int64_t scope = 0) const { return at(scope).events; }
  const StepRecord& last_step(std::int64_t scope = 0) const { return at(scope).record; }
  const std::vector<float>& last_logits() const { return last_logits_; }

  /// The present state.
  State state() const;
  /// A state that was checked, ready to be taken over.
  struct Ready {
    State state;
    std::vector<std::unique_ptr<Segmenter>> segmenters;
  };
  /// \throws DataError for a state of other settings
  Ready prepare(State state) const;
  /// Takes a state over. The events stay as they are; the last step's record is forgotten.
  void resume(Ready ready) noexcept;
  void resume(State state) { resume(prepare(std::move(state))); }

  /// Forgets a scope's events from `n_events` on; nothing if there are no more.
  void truncate(std::int64_t scope, std::int64_t n_events) noexcept;
  /// Takes over a scope's event closed elsewhere. \throws DataError if it cannot follow
  void append(std::int64_t scope, const TokenRange& event) {
    scopes_[static_cast<std::size_t>(scope)].events.append(event);
  }
  /// Takes over all closed events of a scope, of a timeline of the same settings.
  void take_events(std::int64_t scope, EventTable events) {
    scopes_[static_cast<std::size_t>(scope)].events = std::move(events);
  }
  /// From now on a copy of a scope's events takes no room for them.
  void share_events() {
    for (Scope& scope : scopes_) scope.events.share();
  }
  /// The closed events of all scopes to bytes, and back. \throws FileError
  void save_events(ByteWriter& to) const;
  void load_events(ByteReader& from);

 private:
  void check_ids(const std::int64_t* ids, std::int64_t vocab) const;
  /// Surprise of the step's first token, by the logits kept of the step before.
  void read_first(const std::int64_t* ids, std::int64_t vocab);

  struct Scope {
    BoundaryRefiner refiner;  // a tool: what it carries is in `now`
    State::Scope now;
    EventTable events;
    StepRecord record;

    // The open step: what commit makes the present.
    std::int64_t next_boundary = -1, next_in_previous = -1;
    StepRecord next_record;
    std::vector<TokenRange> closed;
  };
  const Scope& at(std::int64_t scope) const { return scopes_[static_cast<std::size_t>(scope)]; }
  static std::size_t slot(const State::Scope& scope, std::int64_t token) {
    return static_cast<std::size_t>(token % static_cast<std::int64_t>(scope.final_flags.size()));
  }
  void make_scopes(const MemoryConfig& config, std::int64_t capacity);
  void decide(std::size_t scope, std::span<const KeyRing> keys, Group* group);

  KeyShape keys_;
  std::int64_t n_local_ = 0, recall_every_ = 1, refine_layers_ = 0;
  bool refines_ = false, by_head_ = false;
  // One for all scopes, or one for each.
  std::vector<std::unique_ptr<Segmenter>> segmenters_;
  std::vector<Scope> scopes_ = std::vector<Scope>(1);
  std::int64_t tokens_ = 0, steps_since_recall_ = 0;
  std::vector<float> last_logits_;

  // The open step.
  std::int64_t n_ = 0, next_steps_since_recall_ = 0;
  std::vector<float> next_surprise_, next_logits_;
  std::vector<std::int64_t> targets_;
};

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/timeline/impl/timeline.hpp"
#endif
