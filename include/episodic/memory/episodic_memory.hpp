// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `EpisodicMemory`: one sequence's timeline, layers and store (spec 1 to 6), on plain pointers.
/// Torch-free: any engine that can hand over q, k, v and logits can drive it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/memory/counters.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/memory/memory_base.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/memory/memory_state.hpp"
#include "episodic/memory/sequence_memory.hpp"
#include "episodic/recall/buffers.hpp"
#include "episodic/recall/recall_hook.hpp"
#include "episodic/retention/memoria.hpp"
#include "episodic/store/disk_store.hpp"
#include "episodic/timeline/timeline.hpp"

namespace episodic {

/// One sequence's memory. Drive it step by step:
///
///     memory.begin_step(n);
///     for (layer ...) memory.attend(layer, q, k, v, out);   // in order, each layer once
///     memory.end_step(ids, logits, vocab, vocab);
///
/// One thread at a time: any call but config, shape and folder made while another thread is inside
/// one is refused with an Error, getters too; what a getter refers to must not be read while
/// another thread may change it. Two memories on two threads do not meet, over one base neither
/// (share). Until end_step returns nothing of the step counts, whatever it fails with: begin_step
/// after a failed step starts it anew from the same state.
class EpisodicMemory final : public SequenceMemory {
 public:
  /// \param given boundaries, only for segmenter `given`
  /// \throws ConfigError, BudgetError
  EpisodicMemory(const MemoryConfig& config, const MemoryShape& shape,
                 std::vector<std::int64_t> given = {});
  /// Goes on from a base, at its last token, and gives the bits that one memory of both would give.
  /// It has windows, recall queue and the events that it closes to itself; those of the base it
  /// reads where they lie, so that to make one copies no event. Any number of them read a base at
  /// once, each on a thread of its own, and none sees what another adds. What it adds is lost with
  /// it, unless it becomes a base in its turn.
  ///
  /// Refused with a ConfigError that names the base: to commit, compact, or ask for token ids; to
  /// go back behind the base (restore, advance; reset leaves the base); to forget or pin one of its
  /// events. A hook, a snapshot or a pin is nobody else's.
  /// \param budgets host_bytes, repr_bytes, disk_dir and disk_bytes of what it adds, the rest as
  ///        the base has it; null: host memory without a bound
  /// \throws ConfigError, BudgetError
  explicit EpisodicMemory(std::shared_ptr<const MemoryBase> base,
                          const MemoryConfig* budgets = nullptr);
  ~EpisodicMemory() override;
  EpisodicMemory(EpisodicMemory&&) noexcept;
  EpisodicMemory& operator=(EpisodicMemory&&) noexcept;

  /// Opens a step of n tokens, 1 <= n <= chunk. A step of several tokens always recalls, whatever
  /// `recall_every` says. \param kind of a step of one token: `decode` recalls every `recall_every`
  /// such steps, counted from the last longer one; `prompt` recalls and starts the count anew. The
  /// last token of a prompt decides what the answer recalls (spec 5): feed it as `prompt`.
  void begin_step(std::int64_t n, StepKind kind = StepKind::decode) override;

  /// One layer of the step. \param q [n, H, d], k, v [n, G, d] before rotary embedding, contiguous
  /// \param out [n, H, d], written
  /// \throws DataError naming layer and token for a NaN or an infinity in q, k or v; FileError for
  ///         a damaged event. The step may then be begun anew
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

  /// The same with the surprise given by the caller ([n] nats; that of token 0 is ignored).
  void end_step(const float* surprise);

  /// Calls `hook` in every layer that recalls events, between recall and attention, from the next
  /// step on; empty: no more. It is no part of a snapshot or of what is kept.
  void set_recall_hook(RecallHook hook);

  /// Calls `hook` in every layer that recalled events, after attention, from the next step on;
  /// empty: no more. \see set_recall_hook
  void set_attention_hook(AttentionHook hook);

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

  // -- for many to read
  // ----------------------------------------------------------------------

  /// Makes what this memory holds a base, which nobody changes any more, and goes on over it
  /// itself. A kept memory's folder, with its lock, then belongs to the base: commit before, for
  /// what was not committed lasts no longer than the base does.
  ///
  /// \throws ConfigError with `retention`, which must forget, and with index `faiss`, which is
  ///         changed by being searched; DataError if a step is open; FileError. All is then as
  ///         before
  std::shared_ptr<const MemoryBase> share();
  /// The base that it goes on from; null if there is none.
  const std::shared_ptr<const MemoryBase>& base() const;

  // -- going on elsewhere, on a device say (DeviceMemory::load and save)
  // ----------------------------------------------------------------------

  /// What a twin needs beside the closed events. Only of a memory whose layers are one lane each:
  /// others \throws ConfigError. \throws DataError if a step is open
  MemoryState state() const;
  /// Copies one layer (counted among those that recall) of events [first, end) as the store keeps
  /// them, in kv_dtype (store/codec.hpp). Not a recall. \param block_of where event e goes
  /// \throws DataError, FileError for a damaged block
  void read_events(EventId first, EventId end, std::int64_t layer,
                   const std::function<std::byte*(EventId)>& block_of) const;
  /// [vocab] that follow the last token; empty if none are known.
  const std::vector<float>& last_logits() const;
  /// The boundaries that it was made with (segmenter `given`).
  const std::vector<std::int64_t>& given_boundaries() const;
  /// Takes over what a twin that was loaded from here has made of the sequence since.
  /// \throws DataError for a state that cannot follow; BudgetError, DiskFullError, FileError: the
  ///         memory is then as it was, but for events that the twin had gone back behind
  void advance(const MemoryAdvance& advance);

  // -- keeping it in a folder
  // ----------------------------------------------------------------------

  /// A new memory that is kept, its first commit being the empty one. `config.disk_dir` is not
  /// used: the disk tier is the folder. \throws FileError if the folder holds a memory or other
  /// files, ConfigError, BudgetError
  static EpisodicMemory create(const KeepOptions& keep, const MemoryConfig& config,
                               const MemoryShape& shape, std::vector<std::int64_t> given = {});

  /// A kept memory at its last commit, or at an earlier state: what it then computes is equal to
  /// the bit to what the memory that was never closed would have computed. \param shape of the
  /// model it will serve; null: not compared (to look at it or edit it) \param budgets
  /// device_bytes, host_bytes, repr_bytes and disk_bytes for this run; null: as in the manifest
  /// \param at_token the newest state with at most this many tokens; -1: the last commit
  /// \throws FileError naming the damaged or missing file; ConfigError if it was made with another
  ///         model, other weights or another tokenizer; BudgetError
  static EpisodicMemory open(const KeepOptions& keep, OpenMode mode,
                             const MemoryShape* shape = nullptr,
                             const MemoryConfig* budgets = nullptr, std::int64_t at_token = -1);

  /// Makes all finished steps durable: after this returns, no crash loses them. Atomic. A step that
  /// is open is abandoned, as after a failure in it.
  /// \throws FileError, DiskFullError: what was committed before still is, the memory goes on, and
  ///         commit may be called again; ConfigError if the memory is not kept or only read
  void commit() override;

  std::string refusal(Capability capability) const override;

  bool kept() const;
  /// True if it is kept and was opened to be written, so that `commit` may be called.
  bool writable() const;
  /// Where it is kept; empty if it is not.
  std::filesystem::path folder() const;
  /// Tokens of the last commit; 0 if the memory is not kept.
  std::int64_t committed_tokens() const;
  /// What the folder's manifest says. \throws ConfigError if the memory is not kept
  const MemoryManifest& manifest() const;
  /// Ids of tokens [first, first + n) of a kept memory; -1 where the caller gave none or the token
  /// was forgotten (in all scopes). \throws DataError, FileError
  std::vector<std::int64_t> token_ids(std::int64_t first, std::int64_t n) const;
  /// The number by which the store knows an event of a scope; the event's own where the sequence
  /// is the only scope. \throws DataError for an event that is not there
  EventId stored_event(EventId event, std::int64_t scope = 0) const;
  /// The store of a memory with a disk tier: recalls, tiers and pins of events. Null otherwise.
  const DiskStore* disk_store() const;
  /// Checksum of all that the memory will ever answer from; equal memories have equal digests,
  /// however their bytes lie in files and tiers. Reads everything. \throws FileError
  std::uint64_t digest();

  /// Association and lifespans of the events, which are its engrams; null without `retention`.
  /// What it has forgotten is given up with the next step or commit.
  const Memoria* retention() const;

  // -- editing
  // -------------------------------------------------------------------------------------

  /// Never recalls this event again and gives its room back (a kept memory's files shrink with
  /// compact). \throws DataError if there is no such event, it is pinned, or a step is open
  void forget(EventId event, std::int64_t scope = 0) override;
  /// All events, of every scope, that share a token with the range, which must lie in closed
  /// events. \return those of scope 0
  std::vector<EventId> forget(TokenRange tokens) override;
  /// Forgotten events of a scope in order of time.
  const std::vector<EventId>& forgotten(std::int64_t scope = 0) const;

  /// A pinned event is the last to leave host memory and cannot be forgotten. What is recalled does
  /// not change. \throws ConfigError without a disk tier
  void pin(EventId event, bool pinned = true, std::int64_t scope = 0) override;

  /// Gives back to the file system what forgotten events and dropped steps still take, and commits.
  /// Nothing that was forgotten is left in any file of the folder. \throws as commit
  void compact();

 private:
  class Snapshot;
  struct Impl;
  explicit EpisodicMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
