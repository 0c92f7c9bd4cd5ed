// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the parts of a DeviceMemory share: its settings with the sizes that follow from them, and
// where its sequence stands.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "episodic/device/device_memory.hpp"
#include "episodic/memory/sizes.hpp"
#include "kernels/codes.hpp"
#include "kernels/timeline_state.hpp"

namespace episodic::device {

struct MemorySizes {
  MemoryConfig config;
  MemoryShape shape;
  DeviceMemoryOptions options;

  LaneShape lanes;          // P lanes of each layer, heads side by side that recall by themselves
  std::int64_t scopes = 1;  // with tables of events: the sequence, or each kv head of each layer
  std::int64_t recalling = 0;      // layers
  std::int64_t element = 2;        // bytes of one of options.dtype
  std::int64_t window_tokens = 0;  // that the windows have rows for, as the host's
  /// More rows, for tokens behind a snapshot before what it needs is overwritten
  /// (memory_snapshot.cpp).
  std::int64_t spare = 0;
  std::int64_t capacity = 0, head_stride = 0;             // of the rings: with those
  std::int64_t max_events = 0, max_closed = 0, room = 0;  // of a scope; a step; a lane's lists
  std::int64_t max_rows = 0, max_event_rows = 0;          // of a lane; of events among them
  std::int64_t lane_bytes = 0, token_bytes = 0;           // of a lane's events

  /// \throws ConfigError for settings that a device does not have
  void check_settings() const;
  /// Everything that `config`, `shape` and `options` say, but for `room`.
  /// \param with_spare whether there may be room for snapshots \throws ConfigError
  void count(bool with_spare);
  void set_spare(std::int64_t rows);

  /// Whether each kv head has events of its own.
  bool by_head() const { return config.scope == EventScope::head; }
  /// Of keys and values of events; of all else that is kept of them it is options.dtype.
  DType event_dtype() const { return is_code(config.kv_dtype) ? config.kv_dtype : options.dtype; }
  /// Scales of a lane's event: of each kv head's keys, then of each one's values. 0: it has none.
  std::int64_t scales_of_event() const { return is_code(event_dtype()) ? 2 * lanes.n_kv_heads : 0; }
  StoreShape store_shape() const {
    return {lanes.n_lanes, lanes.n_kv_heads, shape.head_dim, event_dtype()};
  }
  /// What is pending is shorter than an event.
  std::int64_t most_closed_tokens() const { return config.chunk + config.max_block; }

  /// From scope to scope, where lanes have events of their own: of counts (in numbers) and of
  /// tables.
  std::int64_t count_stride() const {
    constexpr std::int64_t kNumbers = sizeof(kernels::TimelineState) / sizeof(std::int64_t);
    return by_head() ? kNumbers : 0;
  }
  std::int64_t table_stride() const { return by_head() ? max_events : 0; }

  /// Channels of a token's queries; of a lane's share of them.
  std::int64_t width() const { return shape.n_heads * shape.head_dim; }
  std::int64_t lane_width() const { return lanes.width(shape.head_dim); }
  /// Bytes of a lane's representative vector.
  std::int64_t repr_row() const { return lane_width() * size_of(options.representatives); }
  /// Bytes of the individual ones of a lane's event, as many as it may have.
  std::int64_t each_row() const { return most_repr() * repr_row(); }
  /// Representatives of an event: none has more than tokens.
  std::int64_t most_repr() const { return std::min(config.n_repr, config.max_block); }
  /// That it has.
  std::int64_t count_of_each(const TokenRange& event) const {
    return std::min(config.n_repr, event.size());
  }
  /// Whether representatives have codes, which recall reads first: where a sequence may come to
  /// events enough, and recall is what reads them.
  bool keeps_codes() const {
    return codes_from() > 0 && recalling > 0 && !takes_top() && !keeps_each() &&
           max_events >= codes_from();
  }
  std::int64_t codes_from() const {
    return options.codes_from != DeviceMemoryOptions::kCodesWherePaid
               ? options.codes_from
               : kernels::codes_pay_from(lane_width(), lanes.per_layer, options.representatives);
  }
  /// Whether the individual representatives are kept too, by which events are scored then.
  bool keeps_each() const { return config.score == RepresentativeScore::max; }
  /// Reweighting that chooses the events by itself.
  bool takes_top() const {
    return config.reweight == Reweighting::narrow || config.reweight == Reweighting::broad;
  }
  std::int64_t most_of_top() const {
    return (config.reweight == Reweighting::broad ? 3 : 1) * config.reweight_top;
  }
};

/// What launches of a step write between two kernels of theirs; one after the other may use it.
struct Workspace {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

/// Where the sequence stands, as the host knows it.
struct StepState {
  std::int64_t tokens = 0;    // of the finished steps
  std::uint32_t n_steps = 0;  // finished since the sequence began, those gone back behind too
  bool open = false;
  // of the open step
  std::int64_t n = 0, next_layer = 0;
  bool far = false;         // something may lie outside its window
  bool recalls_now = true;  // else it attends what the step before recalled
  bool has_angles = false;  // its rotary angles are there
  std::int64_t steps_since_recall = 0, next_since_recall = 0;
  bool has_thresholds = false;  // its raw flags by surprise are there
  // The recall lists came from outside (a snapshot, a memory of the host): their events may be in
  // no slot, so that the next step that reads them fetches them, though it recalls nothing.
  bool lists_are_written = false;
  // of the last step
  bool far_in_last_step = false;
  std::int64_t last_first = 0, last_n = 0;

  /// Which of a layer's two lists the finished steps left, and which the open step attends.
  static constexpr std::size_t kLeft = 0, kOpen = 1;
  std::size_t lists() const { return recalls_now ? kOpen : kLeft; }
  /// Back to the empty sequence.
  void clear() { *this = {}; }
};

}  // namespace episodic::device
