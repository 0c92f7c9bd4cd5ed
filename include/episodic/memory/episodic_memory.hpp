// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `EpisodicMemory`: one sequence's timeline, layers and store (spec 1 to 6), on plain pointers.
/// Torch-free: any engine that can hand over q, k, v and logits can drive it.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/attention/rotary.hpp"
#include "episodic/base/config.hpp"
#include "episodic/recall/buffers.hpp"
#include "episodic/store/event_store.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

/// What the memory must know of the model it serves.
struct MemoryShape {
  std::int64_t n_layers = 0;
  std::int64_t n_heads = 0;
  std::int64_t n_kv_heads = 0;
  std::int64_t head_dim = 0;
  RotaryTable rotary;
};

/// Counters since construction or reset; seconds are wall time inside the memory.
struct MemoryCounters {
  std::int64_t tokens = 0, steps = 0, events = 0;
  std::int64_t recalled_events = 0;  ///< over all layers and steps
  std::int64_t window_bytes = 0;     ///< sinks, window and pending of all layers
  std::int64_t index_bytes = 0;      ///< representatives
  IndexQuality index_quality;        ///< of an approximate index, over all layers
  StoreCounters store;
  struct {
    double recall = 0, attend = 0, append = 0, refine = 0, close = 0, store = 0;
  } seconds;
};

/// What the last finished step decided; rows of the step's n tokens.
struct StepRecord {
  std::int64_t first = 0, n = 0;
  std::int64_t events_before = 0;  ///< closed before this step
  std::vector<float> surprise, threshold;
  std::vector<std::uint8_t> raw_boundaries, final_boundaries;
};

/// One sequence's memory. Drive it step by step:
///
///     memory.begin_step(n);
///     for (layer ...) memory.attend(layer, q, k, v, out);   // in order, each layer once
///     memory.end_step(ids, logits, vocab, vocab);
///
/// Not thread-safe; two memories on two threads do not meet. Until end_step returns nothing of the
/// step counts: begin_step after a failed step starts it anew from the same state.
class EpisodicMemory {
 public:
  /// \param given boundaries, only for segmenter `given`
  /// \throws ConfigError, BudgetError
  EpisodicMemory(const MemoryConfig& config, const MemoryShape& shape,
                 std::vector<std::int64_t> given = {});
  ~EpisodicMemory();
  EpisodicMemory(EpisodicMemory&&) noexcept;
  EpisodicMemory& operator=(EpisodicMemory&&) noexcept;

  /// Opens a step of n tokens, 1 <= n <= chunk.
  void begin_step(std::int64_t n);

  /// One layer of the step. \param q [n, H, d], k, v [n, G, d] before rotary embedding, contiguous
  /// \param out [n, H, d], written
  void attend(std::int64_t layer, const float* q, const float* k, const float* v, float* out);

  /// Ends the step: surprise, boundaries, refinement, closing of events.
  /// \param ids [n] tokens of the step
  /// \param logits [n, vocab], `row_stride` elements between rows; row i follows token i
  /// \throws DataError for NaN logits or ids out of range, BudgetError if the events that close do
  ///         not fit; the memory then is as before begin_step
  void end_step(const std::int64_t* ids, const float* logits, std::int64_t vocab,
                std::int64_t row_stride);

  /// The same with the surprise given by the caller ([n] nats; that of token 0 is ignored).
  void end_step(const float* surprise);

  const MemoryConfig& config() const;
  const MemoryShape& shape() const;
  /// Tokens of the finished steps.
  std::int64_t tokens() const;
  /// Tokens of the step that is open, 0 if none is.
  std::int64_t open_tokens() const;
  const EventTable& events() const;
  const StepRecord& last_step() const;
  /// Recall lists of one layer in the last step.
  const RecallBuffers& recalled(std::int64_t layer) const;
  /// Representative vector [H * d] of an event in a layer; valid until the next step.
  const float* representative(std::int64_t layer, EventId event) const;
  /// r(i) of a recent token: [H]; null once its place was given away. Final as soon as the token
  /// has left the window, and still there then for at least one step.
  const float* relevance(std::int64_t layer, std::int64_t token) const;
  MemoryCounters counters() const;

  /// A copy of all that is not in the event store: windows, queues, thresholds. To come back to.
  class Snapshot;
  std::shared_ptr<const Snapshot> snapshot() const;
  /// Back to a snapshot of this memory: later events are forgotten, earlier ones were never copied.
  /// \throws ConfigError for a snapshot of another memory, or one older than a restore to before it
  void restore(const Snapshot& snapshot);

  /// Back to the empty sequence.
  void reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
