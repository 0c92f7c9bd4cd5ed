// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `HostMemory`: one sequence's timeline, layers and store in host memory (EM 3), on plain
/// pointers. Header-only: any engine that can hand over q, k, v and logits can drive it.

#include <cstdint>
#include <memory>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_view.hpp"
#include "episodic/group/group.hpp"
#include "episodic/memory/counters.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/memory/sequence_memory.hpp"
#include "episodic/recall/buffers.hpp"
#include "episodic/recall/recall_hook.hpp"
#include "episodic/timeline/timeline.hpp"

namespace EPISODIC_NAMESPACE {

class Memoria;
namespace detail {
struct MemoryCore;
}

/// One sequence's memory. Drive it step by step:
///
///     memory.begin_step(n);
///     for (layer ...) memory.attend(layer, q, k, v, out);   // in order, each layer once
///     memory.end_step(ids, logits, vocab, vocab);
///
/// One thread at a time: any call but config and shape made while another thread is inside one is
/// refused with an Error, getters too; what a getter refers to must not be read while another
/// thread may change it. Two memories on two threads do not meet. Until end_step returns nothing of
/// the step counts, whatever it fails with: begin_step after a failed step starts it anew from the
/// same state.
///
/// EpisodicMemory is this with a folder, a disk tier, a base for many, and the way to a device;
/// where the compiled library is linked, it is the one to use. What is said here of folder and base
/// is its.
class HostMemory : public SequenceMemory {
 public:
  /// Events lie in host memory, within host_bytes. \param given boundaries, only for segmenter
  /// `given` \throws ConfigError, also for a disk_dir; BudgetError
  HostMemory(const MemoryConfig& config, const MemoryShape& shape,
             std::vector<std::int64_t> given = {});
  ~HostMemory() override;
  HostMemory(HostMemory&&) noexcept;

  /// Opens a step of n tokens, 1 <= n <= chunk. A step of several tokens always recalls, whatever
  /// `recall_every` says. \param kind of a step of one token: `decode` recalls every `recall_every`
  /// such steps, counted from the last longer one; `prompt` recalls and starts the count anew. The
  /// last token of a prompt decides what the answer recalls (EM 3.4): feed it as `prompt`.
  void begin_step(std::int64_t n, StepKind kind = StepKind::decode) override;

  MemoryKind memory_kind() const override { return MemoryKind::host; }

  /// Of a memory whose heads are a rank's (MemoryShape::ranks): the other ranks, which make the
  /// same calls. Before its first step. A step then ends on all ranks or on none (Group::agree): a
  /// caller who gives up a step before end_step calls Group::agree with the reason (as_one).
  /// \throws ConfigError for a group of another rank or size
  void join(std::shared_ptr<Group> group);

  /// One layer of the step. Each of the four is float32, bfloat16 or float16 where it lies, with
  /// strides: the parts of a fused projection. Rows of 16 bits give what the same numbers in
  /// float32 give. \param q [n, H, d], k, v [n, G, d]; q and k before rotary embedding, or after it
  /// and marked so:
  ///        they are then turned back, in float32, by angles in float64
  /// \param out [n, H, d], written; its rows may be those of q
  /// \throws DataError naming the parameter for a view that SequenceMemory refuses; naming layer
  /// and
  ///         token for a NaN or an infinity in q, k or v; FileError for a damaged event. The step
  ///         may then be begun anew
  void attend(std::int64_t layer, const TensorView& q, const TensorView& k, const TensorView& v,
              const MutableTensorView& out) override;
  /// The same with what the layer's attention has besides.
  struct LayerStep {
    TensorView q, k, v;
    MutableTensorView out;
    /// Null, or [H] as AttendInput::sink_logits: the layer's, in every step.
    const float* sink_logits = nullptr;
  };
  void attend(std::int64_t layer, const LayerStep& step);
  /// Once more a layer that has attended in this step, with the queries of a layer of the model
  /// that has no keys of its own and uses those (Gemma 4). It sees the same window and the events
  /// that the layer recalled by its own queries. What keys and events receive here counts for
  /// nothing: relevance, representatives and retention are of the layer's own queries, and the
  /// attention hook is not called; the recall hook is, for the weights of these queries. \throws
  /// DataError as attend, and for a layer that has not attended yet
  void attend_again(std::int64_t layer, const TensorView& q, const MutableTensorView& out,
                    const float* maybe_sink_logits = nullptr);
  /// The same of packed rows of float32 before rotary embedding, whose sizes follow from the step
  /// that is open.
  void attend(std::int64_t layer, const float* q, const float* k, const float* v, float* out);

  /// Ends the step: surprise, boundaries, refinement, closing of events.
  /// \param ids [n] tokens of the step
  /// \param logits [n, vocab], `row_stride` elements between rows; row i follows token i
  /// \throws DataError for NaN logits or ids out of range, BudgetError if the events that close do
  ///         not fit; the memory then is as before begin_step
  void end_step(const std::int64_t* ids, const float* logits, std::int64_t vocab,
                std::int64_t row_stride);

  /// The same where nobody needs a row of logits but the last (SurpriseInPieces makes the rest).
  /// \throws DataError also for lengths that do not fit the step
  void end_step(const std::int64_t* ids, const StepSurprise& step);

  /// The same with the surprise given by the caller, on the host; that of token 0 is ignored.
  void end_step(const SurpriseView& surprise) override;
  /// \param surprise [n] nats
  void end_step(const float* surprise);

  /// Calls `hook` in every layer that recalls events, between recall and attention, from the next
  /// step on; empty: no more. It is no part of a snapshot or of what is kept.
  /// \throws ConfigError where ranks recall together (MemoryShape::recall_together)
  void set_recall_hook(RecallHook hook);

  /// Asks `hook` for the ranking of a layer's events wherever its index would be searched, from the
  /// next step on; empty: no more. \see set_recall_hook
  void set_rank_hook(RankHook hook);

  /// Calls `hook` in every layer that recalled events, after attention, from the next step on;
  /// empty: no more. \see set_recall_hook
  void set_attention_hook(AttentionHook hook);

  void abandon_step() override;

  const MemoryConfig& config() const override;
  const MemoryShape& shape() const override;
  /// Tokens of the finished steps.
  std::int64_t tokens() const override;
  /// Tokens of the step that is open, 0 if none is.
  std::int64_t open_tokens() const override;
  /// Whose events there are: 1, the sequence's; with scope `head` n_layers * G, scope l * G + g
  /// being key/value head g of layer l.
  std::int64_t scopes() const;
  const EventTable& events(std::int64_t scope = 0) const override;
  const StepRecord& last_step(std::int64_t scope = 0) const override;
  /// What recalls for itself: n_layers * P, lane l * P + p being the p-th group of key/value heads
  /// of layer l; where a layer has one lane, its number is the layer's.
  std::int64_t lanes() const;
  /// Recall lists of one lane in the last step.
  const RecallBuffers& recalled(std::int64_t lane) const;
  LaneRecall recall_lists(std::int64_t lane) const override;
  /// Representative vector [H / P * d] of an event in a lane, a copy.
  /// \throws DataError for an event that is not there or forgotten; FileError for a damaged one
  std::vector<float> representative(std::int64_t lane, EventId event) const override;
  /// r(i) of a recent token: [H]; null once its place was given away. Final as soon as the token
  /// has left the window, and still there then for at least one step.
  const float* relevance(std::int64_t layer, std::int64_t token) const;
  std::vector<float> relevance(std::int64_t layer, std::int64_t first,
                               std::int64_t n) const override;
  MemoryCounters counters() const;

  /// The state of now, to come back to: queues and thresholds are copied, and of the windows is
  /// kept what later steps overwrite, as they do. Cheap, however long the window.
  std::shared_ptr<const MemorySnapshot> snapshot() const override;
  /// Back to a snapshot of this memory: later events are forgotten, earlier ones were never copied.
  /// Going back gives up what came later for good, snapshots of it included.
  /// \throws ConfigError for a snapshot of another memory, or one taken before the memory went back
  ///         to fewer tokens than it has (restore, reset, advance); all is then as before
  void restore(const MemorySnapshot& snapshot) override;

  /// Back to the empty sequence. A kept memory's folder changes with the next commit; a base is
  /// left to others.
  void reset() override;

  /// It has no folder and no tiers: EpisodicMemory has.
  std::string refusal(Capability capability) const override;

  // -- forgetting
  // ----------------------------------------------------------------------

  /// Association and lifespans of the events, which are its engrams; null without `retention`.
  /// What it has forgotten is given up with the next step or commit.
  const Memoria* retention() const;

  /// Never recalls this event again and gives its room back (a kept memory's files shrink with
  /// compact). \throws DataError if there is no such event, it is pinned, or a step is open
  void forget(EventId event, std::int64_t scope = 0) override;
  /// All events, of every scope, that share a token with the range, which must lie in closed
  /// events. \return those of scope 0
  std::vector<EventId> forget(TokenRange tokens) override;
  const std::vector<EventId>& forgotten(std::int64_t scope = 0) const override;

 protected:
  class Snapshot;
  /// \param core that a kind of memory makes by itself
  explicit HostMemory(std::unique_ptr<detail::MemoryCore> core);
  /// Not for everyone: behind a HostMemory& there may be an EpisodicMemory.
  HostMemory& operator=(HostMemory&&) noexcept;

  std::unique_ptr<detail::MemoryCore> core_;
};

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/host_memory.hpp"
#endif
