// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which events are recalled: capacity, similarity buffer, contiguity buffer and its queue (EM
/// 3.4). Pure functions of ids and sizes; they touch neither keys nor values.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/base/rules/recall.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/timeline/event_table.hpp"

namespace EPISODIC_NAMESPACE {

/// Token budgets of the two buffers. Their capacity is n_init + C + n_mem - outside; the contiguity
/// share is floor(k_r * capacity + 1), taken in double, and similarity gets the rest. k_r = 0 turns
/// contiguity off. May be <= 0.
/// \param outside tokens outside the last query's window that are in no event (sinks and pending)
rules::RecallBudget recall_budget(const MemoryConfig& config, std::int64_t outside);

/// Takes events of `order` in turn, adding their sizes; at the first one that reaches or passes
/// `capacity` stops, and keeps it only if the total with it is strictly nearer to the capacity than
/// without it. capacity <= 0 takes nothing. `out` is overwritten.
void fill_buffer(std::span<const EventId> order, const EventTable& events, std::int64_t capacity,
                 std::vector<EventId>& out);

/// The recall state of one layer: its contiguity queue and the lists of the last step. A value: a
/// copy of it is a snapshot.
class RecallBuffers {
 public:
  /// Another ranking than the index's: the `count` best events, as RepresentativeIndex::search
  /// writes them. \return false where the index is to rank
  using Ranking = std::function<bool(std::int64_t count, std::vector<ScoredEvent>& best)>;

  /// Computes both buffers of a step. Forgotten events are in neither.
  /// \param query [H * d] mean fixed-position query, heads concatenated
  /// \param ranking asked first, if it is not empty
  void recall(const MemoryConfig& config, RepresentativeIndex& index, const EventTable& events,
              const float* query, std::int64_t outside, const Ranking& ranking = {});

  /// By rank, or by time when all events fit.
  const std::vector<EventId>& similarity() const { return similarity_; }
  /// In buffer order. This is also the queue for the next step.
  const std::vector<EventId>& contiguity() const { return contiguity_; }
  /// Both, ordered by time.
  const std::vector<EventId>& recalled() const { return recalled_; }

  /// Takes over the lists of a step that was computed elsewhere.
  void resume(std::vector<EventId> similarity, std::vector<EventId> contiguity);

  /// Nothing recalled and an empty queue (recall off).
  void clear();

  /// Takes an event out of all lists: it was forgotten.
  void drop(EventId event);

  /// The lists to bytes, and back. \throws FileError for an event that is not below `n_events`
  void save(ByteWriter& to) const;
  void load(ByteReader& from, std::int64_t n_events);

 private:
  /// The `reweight_top` most relevant events, with `broad` those next to them (EpMAN 3.2), without
  /// a budget.
  void recall_top(const MemoryConfig& config, RepresentativeIndex& index, std::int64_t n_events,
                  const float* query, const Ranking& ranking);
  void merge();

  std::vector<EventId> similarity_, contiguity_, recalled_;
  std::vector<EventId> order_, listed_;  // scratch, kept to avoid allocation
  std::vector<ScoredEvent> scored_;
};

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/buffers.hpp"
#endif
