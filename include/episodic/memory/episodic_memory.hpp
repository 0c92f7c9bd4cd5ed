// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `EpisodicMemory`: one sequence's timeline, layers and store (EM 3), on plain pointers,
/// with all tiers. Torch-free: any engine that can hand over q, k, v and logits can drive it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/memory/host_memory.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/memory/memory_base.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/memory/memory_state.hpp"
#include "episodic/store/disk_store.hpp"

namespace EPISODIC_NAMESPACE {

/// A HostMemory, whose steps and getters it has, that can be kept in a folder, put its events on
/// disk, become a base for many (share), and go on as a memory on a device (state, advance).
///
/// HostMemory says what happens when two threads meet: only config, shape and folder may be asked
/// while another thread is inside a call. Two memories over one base do not meet either.
class EpisodicMemory final : public HostMemory {
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

  // -- for many to read ---------------------------------------------------------------------------

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

  // -- going on elsewhere, on a device say (DeviceMemory::load and save) --------------------------

  /// What a twin needs beside the closed events. \throws DataError if a step is open
  MemoryState state() const;
  /// Copies one lane (counted among those that recall) of events [first, end) of its scope as the
  /// store keeps them, in kv_dtype (store/codec.hpp). Not a recall.
  /// \param block_of where event e goes
  /// \throws DataError, FileError for a damaged block
  void read_events(EventId first, EventId end, std::int64_t lane,
                   const std::function<std::byte*(EventId)>& block_of) const;
  /// With score `max`: the individual representatives [min(n_repr, tokens), H / P * d] of an event
  /// in a lane of all layers, in order of time; else none.
  /// \throws DataError if there is no such event, or it was forgotten
  std::vector<float> individual_representatives(std::int64_t lane, EventId event) const;
  /// [vocab] that follow the last token; empty if none are known.
  const std::vector<float>& last_logits() const;
  /// The boundaries that it was made with (segmenter `given`).
  const std::vector<std::int64_t>& given_boundaries() const;
  /// Takes over what a twin that was loaded from here has made of the sequence since.
  /// \throws DataError for a state that cannot follow; BudgetError, DiskFullError, FileError (also
  ///         for a retention of other events): the memory is then as it was, but for events that
  ///         the twin had gone back behind
  void advance(const MemoryAdvance& advance);

  // -- keeping it in a folder ---------------------------------------------------------------------

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

  /// From now on this belongs to the sequence: commits keep it, a base hands it on. If the memory
  /// holds tokens it first takes over what belonged to them until now, read from the folder or from
  /// the one that was given before. Null: nobody carries it on, and a commit is refused once there
  /// are more tokens. `patch` gives it the sliding layers of a model that mixes them with full
  /// ones. \throws DataError for a memory that holds tokens beside which nothing was kept;
  /// FileError as
  ///         BesideMemory::load: all is then as before
  void keep_beside(std::shared_ptr<BesideMemory> beside);

  /// Makes all finished steps durable: after this returns, no crash loses them. Atomic. A step that
  /// is open is abandoned, as after a failure in it.
  /// \throws FileError, DiskFullError: what was committed before still is, the memory goes on, and
  ///         commit may be called again; ConfigError if the memory is not kept or only read;
  ///         DataError if what is kept beside it has seen other tokens
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
  /// How often each event of a scope was recalled, where a memory with a disk tier counts it: 0
  /// otherwise.
  std::vector<EventRecalls> recall_counts(std::int64_t scope = 0) const;
  /// The store of a memory with a disk tier: recalls, tiers and pins of events. Null otherwise.
  const DiskStore* disk_store() const;
  /// Checksum of all that the memory will ever answer from; equal memories have equal digests,
  /// however their bytes lie in files and tiers. Reads everything. \throws FileError;
  /// DataError where commit would, for what is kept beside it
  std::uint64_t digest();

  // -- editing ------------------------------------------------------------------------------------

  /// A pinned event is the last to leave host memory and cannot be forgotten. What is recalled does
  /// not change. \throws ConfigError without a disk tier
  void pin(EventId event, bool pinned = true, std::int64_t scope = 0) override;
  /// Whether an event is. \throws DataError if there is no such event
  bool pinned(EventId event, std::int64_t scope = 0) const;

  /// Gives back to the file system what forgotten events and dropped steps still take, and commits.
  /// Nothing that was forgotten is left in any file of the folder. \throws as commit
  void compact();

 private:
  struct Impl;
  explicit EpisodicMemory(std::unique_ptr<Impl> impl);
  Impl& impl();
  const Impl& impl() const;
};

}  // namespace EPISODIC_NAMESPACE
