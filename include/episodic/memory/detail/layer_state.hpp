// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layer plane of one attention layer: sinks, window ring, relevance, and its lanes, each with
// an index and recall lists of its own.
//
// Sinks and window are in the dtype that the layer's events will have, rounded when a token comes:
// what is attended, refined, represented and stored of a token are the same numbers all its life.
// Rotated keys follow from the others but are kept: a third of the window, at the paper's settings
// (5,248 tokens, G d = 1024) 10.7 of 32.2 MB a layer in 16 bits. Without them a decoded token would
// rotate 4,096 keys anew in every layer: 13 of 67 MFLOP more, which is little, but 19 MB of scratch
// and angles to move beside the 17 MB of the window that attention reads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/attention/rotary.hpp"
#include "episodic/attention/segment.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_view.hpp"
#include "episodic/memory/detail/pages.hpp"
#include "episodic/memory/detail/row_log.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/memory/memory_state.hpp"
#include "episodic/recall/buffers.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/store/event_store.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/timeline.hpp"

namespace EPISODIC_NAMESPACE::detail {

class RotateRow;

/// A rotary table with its angles, shared by all layers that have it.
struct Rotation {
  RotaryTable table;
  RotaryAngles fixed;  ///< of queries for far keys, at n_local - 1
  RotaryAngles step;   ///< of the open step's tokens
  RotaryAngles back;   ///< that turn them back, if any layer's queries or keys came rotated
  bool has_back = false;

  /// Makes `back` for the n tokens from `first` on.
  /// \param name, layer of what came rotated, for a message
  /// \throws DataError for a table that turns nothing, or nothing back
  void turn_back(const char* name, std::int64_t layer, std::int64_t first, std::int64_t n);
};

/// Of a window, by that of its events: the same. But 8-bit codes have a scale that follows from the
/// whole event, so until it is closed its tokens are float32.
constexpr DType window_dtype(DType kv_dtype) {
  return is_code(kv_dtype) ? DType::float32 : kv_dtype;
}

/// Names what is not finite in x, of the tokens from `first` on, also when it is turned back: one
/// bad key would make every later query that sees it NaN.
/// \return the numbers before rotary embedding, [n, heads, d], if all are finite
/// \throws DataError naming layer, token and number
std::vector<float> refuse_not_finite(const char* name, const TensorView& x,
                                     const Rotation& rotation, std::int64_t layer,
                                     std::int64_t first);

/// Of the first n_init tokens, for good.
struct Sinks {
  std::vector<std::byte> keys;    // [G, n_init, d] in the window's dtype, before rotary embedding
  std::vector<std::byte> values;  // [G, n_init, d]
};

/// What a snapshot copies of a layer. Rows of its rings are saved when they are overwritten
/// (row_log.hpp), and the index needs no copy: its early entries never change.
struct LayerMark {
  std::vector<float> relevance;        // [capacity, H], r(i) of EM 3.3, in a ring over tokens
  std::shared_ptr<const Sinks> sinks;  // of all snapshots since they last changed
  std::vector<RecallBuffers> recall;   // of each lane in the last finished step
};

/// Some key/value heads of a layer, side by side, that recall for themselves.
struct Lane {
  std::unique_ptr<RepresentativeIndex> index;  ///< null in a layer that does not recall
  std::int64_t store_lane = -1;                ///< its number in the store; -1: none
  std::int64_t scope = 0;                      ///< of the timeline, whose events these are
  RecallBuffers next_recall;                   ///< of the step that is open
};

/// The version of a state from which it holds only the rows of windows that a token has reached.
inline constexpr std::uint32_t kReachedRows = 6;

class LayerState {
 public:
  /// \param rotation outlives the layer \param rings what its rings begin with; empty: zeros
  LayerState(const MemoryConfig& config, const MemoryShape& shape, const Rotation& rotation,
             std::int64_t capacity, std::vector<Lane> lanes, Pages rings);

  /// Writes the step's keys and values [n, G, d] behind token `first`, rounded to the window's
  /// dtype; nothing that a restart of the step would need is overwritten.
  /// \param layer its number, for a message \param k, v checked; keys that come rotated are turned
  /// back by the rotation's `back`
  /// \throws DataError for a number that is not finite, or would not be after rounding
  void append(std::int64_t layer, std::int64_t first, const TensorView& k, const TensorView& v);

  /// Sinks, pending tokens (of the scope that has closed what came before `pending_start`) and the
  /// local window as the queries first .. first + n - 1 see them, behind what `out` holds.
  void window_segments(std::int64_t first, std::int64_t n, std::int64_t pending_start,
                       std::vector<KvSegment>& out) const;

  /// Zeroed arrays to which `attend` adds what the keys of the relative segments receive.
  /// \param segments of one lane: all see the same window
  void open_sums(std::span<const KvSegment> segments, std::vector<float*>& out);

  /// Chooses the representatives of an event that the open step closes, by the relevance that its
  /// tokens will have, and adds them to the lane's index. \param first of the step's tokens
  void add_event(std::int64_t lane, const TokenRange& event, std::int64_t first);

  /// The step of n tokens has come: adds its sums to the relevance of its tokens and takes over its
  /// recall.
  void commit(std::int64_t first, std::int64_t n) noexcept;

  /// The window and recall lists for a twin elsewhere, and taken over from one.
  MemoryState::Layer state() const;
  /// \throws DataError for arrays of other sizes than this window's, or beyond its dtype
  void check(const MemoryState::Layer& state) const;
  /// \param recall lists of each lane, made of the state before anything changes
  void resume(const MemoryState::Layer& state, std::vector<RecallBuffers> recall,
              std::int64_t tokens);

  /// \throws std::bad_alloc
  LayerMark mark() const;
  /// Back to a mark, all but the rings. \param recall that of the mark, or what is still to be
  /// recalled
  void restore(const LayerMark& from, std::vector<RecallBuffers> recall) noexcept;
  /// Saves what is where tokens up to `end` will go, as far as it was not saved. \throws
  /// std::bad_alloc
  void save_rows(RowLog::Layer& log, std::int64_t end) const;
  void put_back(const RowLog::Layer& log) noexcept;
  std::span<const std::byte> rings() const { return rings_.span(); }

  /// The window of an empty sequence, and lanes of none.
  void reset(std::vector<Lane> lanes) noexcept;

  /// The windows and recall lists to bytes and back; the indexes by themselves. Of a window that is
  /// not full yet only the rows that a token has reached, but whole by versions before
  /// kReachedRows. \param tokens of the sequence \param time whose events the lists name \param
  /// windows as they were saved: in their dtype, or in float32 by versions that knew no other
  void save(ByteWriter& to, std::int64_t tokens) const;
  void load(ByteReader& from, std::int64_t tokens, const Timeline& time, DType windows);

  /// Of a lane's heads.
  RingView ring(std::int64_t lane) const;
  KeyRing key_ring() const;
  const float* relevance(std::int64_t token) const;
  std::int64_t n_lanes() const { return static_cast<std::int64_t>(lanes.size()); }
  Lane& lane(std::int64_t p) { return lanes[static_cast<std::size_t>(p)]; }
  const Lane& lane(std::int64_t p) const { return lanes[static_cast<std::size_t>(p)]; }
  /// The lists of a lane in the last finished step.
  const RecallBuffers& recalled(std::int64_t p) const {
    return recall_[static_cast<std::size_t>(p)];
  }
  /// Takes a forgotten event out of a lane's lists.
  void drop(std::int64_t p, EventId event) { recall_[static_cast<std::size_t>(p)].drop(event); }
  std::int64_t bytes() const;
  /// What bytes() of such a layer will be.
  static std::int64_t bytes_needed(const MemoryConfig& config, const MemoryShape& shape,
                                   std::int64_t capacity);

  std::vector<Lane> lanes;

 private:
  std::int64_t slot(std::int64_t token) const { return token % capacity_; }
  /// The rotated keys of all tokens of the window, from the others. \return whether all are finite
  bool rotate_window(std::int64_t tokens);
  /// One head's key and value of a token into the window. \param row of the step's angles \param
  /// rotated scratch [d] \return false, and nothing is written, if they do not fit the dtype
  bool append_row(const RotateRow& rotate, std::int64_t token, std::int64_t g, std::int64_t row,
                  const float* key, const float* value, float* rotated);
  /// What append_row did not take. \throws DataError
  void refuse(std::int64_t layer, std::int64_t first, const TensorView& k,
              const TensorView& v) const;

  enum Part : std::int64_t { kKeys, kRotated, kValues, kParts };
  std::int64_t head_stride() const { return capacity_ * head_dim_; }
  std::int64_t ring_size() const { return n_kv_heads_ * head_stride(); }  // elements of a ring
  std::size_t bytes_of(std::int64_t elements) const {
    return static_cast<std::size_t>(elements * size_of(dtype_));
  }
  const std::byte* ring(Part part, std::int64_t element) const {
    return rings_.data() + bytes_of(part * ring_size() + element);
  }
  std::byte* ring(Part part, std::int64_t element) {
    return rings_.data() + bytes_of(part * ring_size() + element);
  }
  std::span<const std::byte> ring(Part part) const {
    return {ring(part, 0), bytes_of(ring_size())};
  }
  std::span<std::byte> ring(Part part) { return {ring(part, 0), bytes_of(ring_size())}; }
  /// The sinks are about to change.
  Sinks& change_sinks() {
    saved_sinks_ = nullptr;
    return sinks_;
  }
  void push_ring(Part keys, std::int64_t first, std::int64_t end, Position position,
                 std::vector<KvSegment>& out) const;

  const Rotation* rotation_;
  std::int64_t n_init_, n_local_, n_heads_, n_kv_heads_, head_dim_, n_repr_, capacity_;
  DType dtype_;       // of rings and sinks
  bool unit_length_;  // reweighting ranks by cosine
  bool keeps_each_;   // best-of-k scoring needs the single representatives
  // Rings over tokens, place = token % capacity: keys before rotary embedding, keys rotated by the
  // token's position, values; [G, capacity, d] each. Nothing in them is infinite or NaN.
  Pages rings_;
  std::vector<float> relevance_;  // [capacity, H]
  Sinks sinks_;
  mutable std::shared_ptr<const Sinks> saved_sinks_;  // a copy for snapshots, while it is one
  std::vector<RecallBuffers> recall_;                 // of each lane in the last finished step
  std::vector<float> sums_;                           // [local tokens, H] of the step that is open
  std::int64_t sums_first_ = 0;                       // token of their first row
  std::int64_t sums_rows_ = 0;
  std::vector<std::byte> event_keys_;                 // scratch of add_event
  std::vector<float> event_relevance_, mean_, each_;  // the same
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/layer_state.hpp"
#endif
