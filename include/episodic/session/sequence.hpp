// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Sequence`: one text in front of a model, with the memory that its attention reads. Torch-free.
///
/// \code
/// const auto model = episodic::load_model("models/recall-2m6");
/// episodic::Sequence talk(model);
/// talk.attach();                       // an empty memory with the settings of memory.json
/// episodic::Session(talk, &model->tokenizer()).prefill(model->tokenizer().encode(book));
/// episodic::Sequence other = talk.fork();  // goes on from here; the book is there once
/// \endcode

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/base/config.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/sequence_memory.hpp"
#include "episodic/model/language_model.hpp"
#include "episodic/model/token_history.hpp"
#include "episodic/session/kept_folder.hpp"
#include "episodic/session/model.hpp"
#include "episodic/session/model_executor.hpp"

namespace episodic {

/// The state of one sequence: its memory or full attention, the logits of its last token, the ids
/// that it was fed. It may be moved, also to another thread; one thread at a time. Sequences of one
/// model share its weights and nothing else; `run` (session/run.hpp) makes a step of many at once.
///
/// `logits` always belong to the last token of the sequence, whatever was restored or attached
/// since the last step. A step that fails may be made again.
class Sequence : public LanguageModel {
 public:
  /// Empty, with full attention. \throws ConfigError for a null model
  explicit Sequence(std::shared_ptr<const Model> model);
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence() override;

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }

  // -- what attention reads -------------------------------------------------------------------
  // Each of these calls replaces what was there; at first it is full attention over no tokens.
  // `max_tokens` bounds the tokens that the sequence may come to: a device takes its room for them
  // when it attaches and needs the number; the host does not.

  /// An empty memory with the settings of the model's directory (memory_config_of).
  void attach(std::int64_t max_tokens = 0);
  /// An empty memory. \param given boundaries, only for segmenter `given`
  /// \throws ConfigError; BudgetError where the machine has no room for the windows
  void attach(const MemoryConfig& config, std::int64_t max_tokens = 0,
              std::vector<std::int64_t> given = {});
  /// A memory that is there already goes on. A device computes with a copy: see `save`.
  /// \throws ConfigError for another model's memory, or for what a device does not have
  void attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens = 0);
  /// The memory in a folder; made there, with the settings of the model's directory, if the folder
  /// holds none. \return it
  std::shared_ptr<EpisodicMemory> attach(const KeptFolder& folder, std::int64_t max_tokens = 0);
  /// Every token before every other, as the model was made; from the empty sequence.
  void attach_full_attention(std::int64_t max_tokens = 0);

  /// True if there is a memory, false with full attention.
  bool has_memory() const { return has_memory_; }
  /// The memory that attention reads, on the host or the device; null with full attention.
  SequenceMemory* memory();
  const SequenceMemory* memory() const { return const_cast<Sequence*>(this)->memory(); }
  /// The memory that was handed to `attach`, null if it made its own.
  const std::shared_ptr<EpisodicMemory>& kept() const { return kept_; }

  // -- what it can do -------------------------------------------------------------------------

  bool can(Capability capability) const { return refusal(capability).empty(); }
  /// Why it cannot, and what to do instead; empty if it can. What the calls below throw as
  /// ConfigError.
  std::string refusal(Capability capability) const;

  // -- steps ----------------------------------------------------------------------------------

  const ModelConfig& config() const override { return model_->config(); }
  std::int64_t chunk() const override;
  std::int64_t tokens() const override;
  using LanguageModel::step;
  void step(std::span<const std::int64_t> ids, StepKind kind) override;
  std::span<const float> logits() override;
  void explain_not_finite() const override;
  std::vector<std::int64_t> known_ids() override;

  /// One step. \param logits [n, vocab] of all its rows, written \throws DataError for other sizes
  void step(std::span<const std::int64_t> ids, std::span<float> logits);
  /// Reads ids[first, first + n) in one step and sets the negative log-likelihood, in nats, of the
  /// tokens of `ids` that are known by then: nll[t] of token t; that of ids[0] is 0.
  /// \param nll as long as ids \throws DataError for others, and where [first, first + n) is empty
  ///        or not within ids; nothing is read then
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll);

  // -- states ---------------------------------------------------------------------------------

  /// The state now, logits included; shares the events with the memory.
  struct Snapshot {
    std::int64_t tokens = 0;
    std::uint64_t attachment = 0;  ///< of the sequence, counted by `attach`
    std::shared_ptr<const SequenceExecution::State> state;
  };
  std::shared_ptr<const Snapshot> snapshot();
  /// Back to it, any number of times. \throws ConfigError for a snapshot of what is no longer
  /// attached, or of a branch that a restore to an earlier one gave up
  void restore(const Snapshot& snapshot);

  /// A further sequence that goes on from here. What was read so far is there once: the memory
  /// becomes a base of both (EpisodicMemory::share, on a device DeviceMemory::fork), which neither
  /// can go back behind; on the host neither can forget from it. Snapshots that were taken before
  /// are good for nothing. Full attention is copied.
  /// \throws ConfigError with a memory that is kept in a folder and may be written (commit, and
  ///         fork the folder: fork_memory), and with one that cannot be shared; BudgetError where a
  ///         device has no room for another one: the sequence is then as it was
  Sequence fork();
  /// Memory that a fork takes to go on for so many tokens, where the model computes: windows, the
  /// events that they close, by plan_memory, and a step on a device; keys and values of all layers
  /// with full attention. About: events are taken to be short.
  std::int64_t bytes_for(std::int64_t tokens) const;

  /// Back to the state after the first `tokens` tokens: a kept memory starts again from its newest
  /// state before them and reads what lies between once more. What was forgotten or pinned since
  /// the last commit is undone with it. Nothing is durable until `commit`. \throws ConfigError
  /// beyond the end; DataError where tokens were forgotten that it would have
  ///         to read: nothing has changed then; FileError: there is then no memory
  void rewind(std::int64_t tokens, const ProgressCallback& progress = {});

  /// Brings the memory that was handed to `attach` up to what was read since. Nothing to do on the
  /// host, where that memory computes.
  void save();
  /// Makes all that was read durable (EpisodicMemory::commit); saves first.
  void commit();

  /// Never recalls these again. \throws ConfigError where `can` says no, DataError as
  /// EpisodicMemory
  void forget(EventId event, std::int64_t scope = 0);
  std::vector<EventId> forget(TokenRange tokens);
  void pin(EventId event, bool pinned = true, std::int64_t scope = 0);

  // -- what the memory made of the steps. \throws ConfigError with full attention ---------------

  // Scopes and lanes are the memory's (EpisodicMemory::scopes, lanes).

  StepRecord last_step(std::int64_t scope = 0) const { return inspected().last_step(scope); }
  EventTable events(std::int64_t scope = 0) const { return inspected().events(scope); }
  /// Closed events; 0 with full attention.
  std::int64_t n_events() const;
  /// Recall lists of a lane in the last step; a lane is a layer where each layer has one.
  LaneRecall recalled(std::int64_t lane) const { return inspected().recall_lists(lane); }
  std::vector<float> representative(std::int64_t lane, EventId event) const;
  std::vector<float> relevance(std::int64_t layer, std::int64_t first, std::int64_t n) const {
    return inspected().relevance(layer, first, n);
  }
  MemoryUsage usage() const;

  /// For analyses: what the layers give attention to keep, from the next step on, whatever is
  /// attached. An empty hook ends it. On a device the host then waits for every layer.
  void set_keys_hook(KeysHook hook);

 private:
  friend std::vector<struct StepResult> run(const Model&, std::span<const struct SequenceInput>);

  struct Attaching;
  Sequence(std::shared_ptr<const Model> model, std::unique_ptr<SequenceExecution> execution);
  void require(Capability capability) const;
  /// \throws ConfigError with full attention
  const SequenceMemory& inspected() const;
  /// The step of these ids was made.
  void stepped(std::span<const std::int64_t> ids);

  std::shared_ptr<const Model> model_;
  std::unique_ptr<SequenceExecution> execution_;
  TokenHistory history_;
  std::shared_ptr<EpisodicMemory> kept_;
  KeptFolder folder_;  // of kept_, if it is kept
  std::int64_t max_tokens_ = 0;
  std::uint64_t attachment_ = 0;
  bool has_memory_ = false;
};

}  // namespace episodic
