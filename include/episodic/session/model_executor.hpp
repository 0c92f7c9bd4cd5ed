// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `ModelExecutor`: the weights of a model where they are computed with, and the seam that another
/// place to compute (a second device, a group of them) implements. Programs use `Model` and
/// `Sequence`, which stand on it. Torch-free.

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/sequence_memory.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/keys_hook.hpp"
#include "episodic/timeline/step_kind.hpp"

namespace episodic {

/// What a memory holds and takes, in bytes. -1: it has no such thing.
struct MemoryUsage {
  std::int64_t tokens = 0, events = 0;
  DType kv_dtype = DType::float32;   ///< of keys and values in events
  std::int64_t recalled_events = 0;  ///< over all layers and steps
  std::int64_t store_bytes = 0;      ///< keys and values of events
  std::int64_t host_bytes = 0;       ///< host memory taken for them
  std::int64_t disk_bytes = 0;
  std::int64_t index_bytes = 0;  ///< representatives in memory
  std::int64_t window_bytes = 0;
  std::optional<double> index_recall;  ///< of an approximate index: share of the exact list
  std::int64_t device_bytes = -1;      ///< that the memory has taken there
  std::int64_t step_bytes = -1;        ///< on a device: workspace of a step
  std::int64_t weight_bytes = -1;      ///< on a device
};

/// One sequence on an executor: its attention, and what its steps leave behind. A call that throws
/// leaves it as it was, unless it says otherwise. One thread at a time.
class SequenceExecution {
 public:
  virtual ~SequenceExecution() = default;

  /// Largest step.
  virtual std::int64_t chunk() const = 0;
  virtual std::int64_t tokens() const = 0;

  // -- attention. Each call replaces what was there; one that throws leaves full attention over no
  // -- tokens, or none
  // -----------------------------------------------------------------------------

  virtual void attach(const MemoryConfig& config, std::int64_t max_tokens,
                      std::vector<std::int64_t> given) = 0;
  virtual void attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens) = 0;
  virtual void attach_full_attention(std::int64_t max_tokens) = 0;
  /// Null with full attention.
  virtual SequenceMemory* memory() = 0;
  /// With a memory only. \param kept the memory that was attached, null if it made its own
  virtual MemoryUsage usage(const EpisodicMemory* kept) const = 0;
  /// Of the model's channels: [H / P * d].
  virtual std::vector<float> representative(std::int64_t lane, EventId event) const = 0;
  virtual void set_keys_hook(KeysHook hook) = 0;

  // -- steps
  // ---------------------------------------------------------------------------------------

  /// One step of n >= 1 tokens; a device may still be at work when it returns.
  virtual void step(std::span<const std::int64_t> ids, StepKind kind) = 0;
  /// The same, and the logits of all its rows. \param logits [n, vocab], written
  virtual void step_all(std::span<const std::int64_t> ids, std::span<float> logits) = 0;
  /// \see Sequence::score
  virtual void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
                     std::span<float> nll) = 0;
  /// [vocab] that follow the last token; waits. \throws DataError before the first step
  virtual std::span<const float> logits() = 0;
  /// \see LanguageModel::explain_not_finite
  virtual void explain_not_finite() const = 0;

  // -- states
  // --------------------------------------------------------------------------------------

  /// What `snapshot` gives, the executor's own.
  struct State {
    virtual ~State() = default;
  };
  virtual std::shared_ptr<const State> snapshot() = 0;
  virtual void restore(const State& state) = 0;
  /// Brings the attached memory up to the steps since. Nothing to do where that one computes.
  virtual void save(EpisodicMemory& kept) = 0;
  /// A further sequence that goes on from here. \see Sequence::fork
  virtual std::unique_ptr<SequenceExecution> fork() = 0;
  /// \see Sequence::bytes_for
  virtual std::int64_t bytes_for(std::int64_t tokens) const = 0;

 protected:
  SequenceExecution() = default;
};

/// A sequence's part of a step.
struct ExecutionStep {
  SequenceExecution* sequence = nullptr;
  std::span<const std::int64_t> ids;
  StepKind kind = StepKind::decode;
};

/// A model's weights in one place. Immutable: any number of threads, each with sequences of its
/// own.
class ModelExecutor {
 public:
  virtual ~ModelExecutor() = default;
  /// "cpu" or "cuda".
  virtual const char* device() const = 0;
  virtual const ModelConfig& config() const = 0;
  /// An empty sequence.
  virtual std::unique_ptr<SequenceExecution> new_sequence() const = 0;
  /// One step of several of its sequences, no two of them the same. \return of each what kept it
  /// from its step, null where it has made it. \throws only what is none's fault (std::bad_alloc)
  virtual std::vector<std::exception_ptr> run(std::span<const ExecutionStep> steps) const = 0;

 protected:
  ModelExecutor() = default;
};

}  // namespace episodic
