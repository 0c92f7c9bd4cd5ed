// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which events of a layer lie in device memory (EM C.3): the map from events to slots, stamps of
/// their last recall, and the choice of what makes room. All of it stays on the device.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "close_events.hpp"
#include "copies.hpp"
#include "timeline_state.hpp"

namespace episodic::kernels {

inline constexpr DeviceEventId kNoEvent = -1;
inline constexpr std::int32_t kNoSlot = -1;

/// Slots of one size and the events in them; all pointers are to device memory, owned by the
/// caller. At first all are kNoSlot, kNoEvent and kNoEvent (as a stamp: never recalled). One stream
/// at a time: those that share a map take turns by events.
///
/// Lanes of a layer, which recall by themselves, share its slots: event e of lane p is number
/// p * (max_events / n_lanes) + e wherever events are numbered here, but for the lists of what
/// lanes recall: those are each lane's own, of its own numbers.
struct ResidencyMap {
  std::int32_t* slot_of_event = nullptr;   ///< [max_events], kNoSlot: not resident
  std::int64_t* last_recalled = nullptr;   ///< [max_events] step
  DeviceEventId* event_of_slot = nullptr;  ///< [n_slots], kNoEvent: free
  std::int64_t* newest = nullptr;          ///< [1] step of the last recall
  std::int64_t max_events = 0;             ///< < 2^31
  std::int64_t n_slots = 0;                ///< < 2^31
  std::int64_t n_lanes = 1;                ///< a divisor of max_events
};

/// All pointers are to device memory.
struct TouchParams {
  ResidencyMap map;
  const std::int64_t* step = nullptr;     ///< number of the step, >= 0, larger than all before it
  const DeviceEventId* events = nullptr;  ///< [n_lanes, max_count] recalled, each once
  const std::int32_t* count = nullptr;    ///< <= max_count, beyond it ignored; lane p: 3 p behind
  std::int64_t max_count = 0;             ///< < 2^31, of all lanes together
  DeviceEventId* missing = nullptr;   ///< [n_lanes * max_count], written: not resident, in order
  std::int32_t* n_missing = nullptr;  ///< written
  bool is_recall = true;  ///< false: lists only, for a fetch ahead of the recall; no stamps
  /// How many events lane p has, `count_stride` numbers behind that of lane 0: others are no
  /// events. A guess from another layer's recall may name some where each lane has a table of its
  /// own. null: all that the map has room for.
  const std::int64_t* maybe_n_events = nullptr;
  std::int64_t count_stride = 0;
};

/// Stamps the recalled events with the step and lists those that are not resident, lane by lane, in
/// one launch of one block. Numbers that are no events of the lane are passed over.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launch said
cudaError_t touch_events(const TouchParams& params, cudaStream_t stream);
/// The field of them that touch_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const TouchParams& params);

/// Of several sequences (batch.hpp), which need share nothing.
cudaError_t touch_events_batch(const TouchParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const TouchParams* params, std::int64_t n_sequences);

/// All pointers are to device memory.
struct VictimParams {
  ResidencyMap map;
  /// Events recalled in this step or later stay: the step as touch_events was given it; for a fetch
  /// ahead map.newest, so that nothing leaves for a guess that the layer's last recall held.
  const std::int64_t* since = nullptr;
  const std::int32_t* n_needed = nullptr;  ///< slots asked for: n_missing of touch_events
  std::int64_t max_needed = 0;             ///< *n_needed <= max_needed; more is not given
  std::int32_t* slots = nullptr;           ///< [max_needed], written: free ones, then the victims'
  std::int32_t* n_given = nullptr;         ///< written: slots listed, <= *n_needed
  DeviceEventId* victims = nullptr;        ///< [max_needed], written
  std::int32_t* n_victims = nullptr;       ///< written
  /// [n_lanes, kept_capacity] more events that stay, each lane's in ascending order: those that a
  /// fetch ahead is for. Or null.
  const DeviceEventId* maybe_kept = nullptr;
  const std::int32_t* n_kept = nullptr;  ///< lane p: 3 p numbers behind
  std::int64_t kept_capacity = 0;        ///< not looked at for one lane
  /// [map.max_events / n_lanes] not 0 where an event is pinned: it leaves behind all others. Lane
  /// p: `pin_stride` marks behind. Or null.
  const std::uint8_t* maybe_pinned = nullptr;
  std::int64_t pin_stride = 0;  ///< 0 where lanes have one table of events
};

/// Finds room for *n_needed events, in one launch: free slots in their order, then those of the
/// events recalled longest ago (ties: the earlier event; pinned ones last), as many as needed and
/// no more. Some events stay, so fewer slots may be given than are needed. The map stays as it is
/// until occupy_slots.
///
/// Each slot counts those that come before it: n_slots^2 comparisons over all threads, of 16 bytes
/// each out of shared memory, and none where nothing is needed. For some thousand slots a layer.
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launch said
cudaError_t choose_victims(const VictimParams& params, cudaStream_t stream);
/// The field of them that choose_victims refuses, by its name; null: none. Reads no array.
const char* invalid_field(const VictimParams& params);

/// Of several sequences (batch.hpp), which need share nothing.
cudaError_t choose_victims_batch(const VictimParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream);
const char* invalid_field(const VictimParams* params, std::int64_t n_sequences);

/// All pointers are to device memory, but that `home` is any memory that the device can address.
struct OccupyParams {
  ResidencyMap map;
  // the lists of touch_events and choose_victims
  const DeviceEventId* missing = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* n_given = nullptr;
  const DeviceEventId* victims = nullptr;
  const std::int32_t* n_victims = nullptr;
  std::int64_t max_needed = 0;

  // where events lie: at home for good (kernels/place_events.hpp), and in slots
  const EventRange* events = nullptr;  ///< [map.max_events / n_lanes]; lane p: table_stride behind
  std::int64_t table_stride = 0;       ///< 0 where lanes have one table of events
  std::int64_t n_init = 0;
  unsigned char* home = nullptr;  ///< of this layer's first lane
  std::int64_t lane_bytes = 0;    ///< between homes of lanes; not looked at for one lane
  /// Home of events that begin before token base_end: in another memory, which has them at the same
  /// places. Not looked at where base_end is 0.
  unsigned char* base_home = nullptr;
  std::int64_t base_end = 0;
  std::int64_t token_bytes = 0;
  unsigned char* slot_memory = nullptr;  ///< [map.n_slots, slot_bytes]
  std::int64_t slot_bytes = 0;           ///< what the longest event takes

  void** blocks = nullptr;  ///< [map.max_events], written: where attention now reads an event
  CopyRun* runs = nullptr;  ///< [max_needed], written: *n_given copies that the caller then makes
};

/// The victims leave the map and are read at home again; missing[i] lies in slots[i] for i <
/// *n_given, once runs[i] is made. What is missing beyond that stays at home. One launch.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launch said
cudaError_t occupy_slots(const OccupyParams& params, cudaStream_t stream);
/// The field of them that occupy_slots refuses, by its name; null: none. Reads no array.
const char* invalid_field(const OccupyParams& params);

/// Of several sequences (batch.hpp), which need share nothing.
cudaError_t occupy_slots_batch(const OccupyParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const OccupyParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
