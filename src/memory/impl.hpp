// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an EpisodicMemory is made of, for the sources of this room: the steps (episodic_memory.cpp)
// and what is kept (kept_memory.cpp).

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "episodic/attention/attend.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/recall/vector_tier.hpp"
#include "episodic/store/disk_store.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "layer_state.hpp"
#include "memory_directory.hpp"
#include "token_log.hpp"

namespace episodic {

/// Everything but the rings: small, copied whole.
struct Timeline {
  std::int64_t tokens = 0;
  EventTable events;
  std::unique_ptr<Segmenter> segmenter;
  BoundaryRefiner refiner;
  std::vector<float> last_logits;         // row of the last token, for the next step's first
  std::vector<std::uint8_t> final_flags;  // ring over tokens, as the layers' rings
  std::int64_t steps_since_recall = 0;    // decode steps, for recall_every
};

struct EpisodicMemory::Snapshot {
  const void* owner = nullptr;
  std::int64_t tokens = 0, events = 0;
  std::unique_ptr<Segmenter> segmenter;
  BoundaryRefiner refiner;
  std::vector<float> last_logits;
  std::vector<std::uint8_t> final_flags;
  std::int64_t steps_since_recall = 0;
  std::int64_t generation = 0;
  std::vector<detail::LayerWindow> windows;
};

/// disk_bytes in two bounds whose sum it is, by what an event of min_block tokens takes of each.
struct DiskShares {
  std::int64_t segments = 0, vectors = 0;  ///< 0: no bound
};
DiskShares disk_shares(const MemoryConfig& config, const MemoryShape& shape);

/// Where everything lies that a state does not hold itself.
struct TierImages {
  VectorImage vectors;
  StoreImage store;
  void save(ByteWriter& to) const;
  static TierImages load(ByteReader& from);
};

/// Refuses the second of two threads that are in one memory at once.
class OneThreadAtATime {
 public:
  explicit OneThreadAtATime(std::atomic<bool>& busy);
  ~OneThreadAtATime() { busy_.store(false, std::memory_order_release); }
  OneThreadAtATime(const OneThreadAtATime&) = delete;
  OneThreadAtATime& operator=(const OneThreadAtATime&) = delete;

 private:
  std::atomic<bool>& busy_;
};

struct EpisodicMemory::Impl {
  MemoryConfig config;
  MemoryShape shape;
  std::vector<std::int64_t> given;
  std::int64_t capacity = 0;  // tokens of the rings

  Timeline time;
  std::unique_ptr<VectorTier> vectors;  // null without a disk tier; the layers' indexes refer to it
  std::vector<detail::LayerState> layers;
  std::unique_ptr<EventStore> store;  // null when no layer recalls
  std::vector<EventId> forgotten;     // on purpose, in order of time
  StepRecord record, next_record;
  MemoryCounters counters;
  std::int64_t step_number = 0;
  // A snapshot is dead once a restore went back behind it: its events may have been given anew.
  std::int64_t generation = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> rewinds;  // (generation begun, events kept)

  // The open step.
  bool open = false;
  std::int64_t n = 0, next_layer = 0;
  bool recalls_now = true;
  std::vector<detail::StepRun> runs;
  RotaryAngles fixed_angle;
  AttendWorkspace workspace;
  std::vector<float> q_relative, q_fixed, mean_query;
  std::vector<double> query_sum;
  std::vector<KvSegment> segments, event_segments;
  std::vector<float*> sums;
  std::vector<TokenRange> closed;
  std::vector<std::int64_t> targets;
  std::vector<KeyRing> refine_rings;
  BoundaryRefiner next_refiner;

  // A kept memory.
  std::optional<detail::MemoryDirectory> directory;
  KeepOptions keep;
  OpenMode mode = OpenMode::write;
  DiskStore* disk = nullptr;      // `store`, where it is one
  detail::TokenLog ids;           // only of a kept memory
  bool drop_checkpoints = false;  // they would bring back what was forgotten
  // Least token count since the last commit: states kept before, but past it, tell of a sequence
  // that was given up.
  std::int64_t gone_back_to = kNever;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // Set while a call is inside: one memory belongs to one thread at a time.
  mutable std::atomic<bool> busy{false};

  /// An empty sequence over the tiers that are there.
  void build();
  /// Empty tiers of the kind that the configuration asks for. `build` must follow.
  void make_tiers();
  DiskStoreOptions disk_options() const;
  VectorTierOptions vector_options() const;
  StoreShape store_shape() const;
  void check_idle(const char* what) const;
  void check_event(EventId event) const;
  /// Store slot of the layer after this one; -1 if it has none.
  std::int64_t next_store_slot(std::int64_t layer) const;
  /// Undoes all events from `n_events` on.
  void truncate(std::int64_t n_events);
  void commit();
  void save(ByteWriter& to, const TierImages& images) const;
  void load(ByteReader& from);
  void recall(detail::LayerState& layer);
  void fixed_queries(const float* q);
  void finish(std::span<const float> surprise);
  void append_events(const MemoryAdvance& advance);
};

}  // namespace episodic
