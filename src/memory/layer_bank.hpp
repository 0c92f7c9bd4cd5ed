// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layer plane: all layers of a memory with the tiers that their events lie in. It meets the
// timeline in two calls of a step: lend_keys, and close with the ranges that the timeline found.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/recall/vector_tier.hpp"
#include "episodic/store/disk_store.hpp"
#include "layer_state.hpp"

namespace episodic::detail {

/// Where closed events lie.
struct Tiers {
  std::unique_ptr<VectorTier> vectors;  ///< null without a disk tier; indexes refer to it
  std::unique_ptr<EventStore> store;    ///< null when no layer recalls
  DiskStore* disk = nullptr;            ///< `store`, where it is one
};

/// Events of one layer, held where they lie for as long as this lives.
class Lease {
 public:
  /// \throws as EventStore::acquire
  Lease(EventStore& store, std::int64_t layer, std::span<const EventId> events,
        std::vector<KvSegment>& out)
      : store_(store), layer_(layer) {
    store.acquire(layer, events, out);
  }
  ~Lease() { store_.release(layer_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  EventStore& store_;
  std::int64_t layer_;
};

struct LayerBank {
  Tiers tiers;
  std::vector<LayerState> layers;

  /// Keys of the layers from `from` on, for the timeline. Valid until the next call.
  std::span<const KeyRing> lend_keys(std::int64_t from);

  /// Writes the events that the open step closes, and their representatives, in every layer that
  /// recalls. \param first_event the number of the first of them \param first of the step's tokens
  /// \throws BudgetError, DiskFullError, FileError, DataError: nothing is changed then
  void close(EventId first_event, std::span<const TokenRange> events, std::int64_t first);
  /// The step of n tokens has come. Nothing in it can fail.
  void commit(std::int64_t first, std::int64_t n) noexcept;

  /// Forgets the events from `n_events` on, as far as they are there. Fails at its beginning or not
  /// at all; never for events that were just appended.
  void truncate(EventId n_events);
  /// Never recalls an event again.
  void forget(EventId event);

  /// Store slot of the layer after this one; -1 if it has none.
  std::int64_t next_slot(std::int64_t layer) const;

 private:
  std::vector<KeyRing> rings_;
};

}  // namespace episodic::detail
