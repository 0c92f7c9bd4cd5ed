// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model and what its attention reads, on the host or on a CUDA device, as the programs use them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/language_model.hpp"

namespace episodic::tools {

class Engine {
 public:
  virtual ~Engine() = default;

  virtual LanguageModel& model() = 0;

  // -- what attention reads. Each call replaces what was there; none is there at first.
  // `max_tokens` bounds the tokens that the sequence may come to, and takes a device's room for
  // them.

  /// An empty memory. \param given boundaries, only for segmenter `given`
  /// \throws ConfigError, BudgetError
  virtual void remember(const MemoryConfig& config, std::int64_t max_tokens,
                        std::vector<std::int64_t> given) = 0;
  void remember(const MemoryConfig& config, std::int64_t max_tokens) {
    remember(config, max_tokens, {});
  }
  /// A kept memory goes on. A device computes with a copy: see `save`.
  /// \throws ConfigError for what a device does not have, BudgetError
  virtual void remember(std::shared_ptr<EpisodicMemory> kept, std::int64_t max_tokens) = 0;
  /// Every token before every other, as the model was made; from the empty sequence.
  virtual void attend_fully(std::int64_t max_tokens) = 0;

  /// Brings the kept memory up to what was read since, to be committed.
  virtual void save() = 0;

  /// The state there is now. \return comes back to it, any number of times, until attention is
  /// given something else to read
  virtual std::function<void()> snapshot() = 0;

  // -- what the memory made of the steps. \throws ConfigError with full attention

  virtual StepRecord last_step() const = 0;
  virtual EventTable events() const = 0;
  /// A layer's recall lists in the last step, best first.
  struct Recall {
    std::vector<EventId> similarity, contiguity;
  };
  virtual Recall recalled(std::int64_t layer) const = 0;
  /// Representative vector [H * d].
  virtual std::vector<float> representative(std::int64_t layer, EventId event) const = 0;
  /// r(i) of tokens [first, first + n) in a layer: [n, H]. \throws DataError for tokens that left
  /// the window before the last step
  virtual std::vector<float> relevance(std::int64_t layer, std::int64_t first,
                                       std::int64_t n) const = 0;

  /// Closed events; 0 with full attention.
  virtual std::int64_t n_events() const = 0;
  /// What the memory takes and holds (docs/programs.md); null with full attention.
  virtual Json memory_json() const = 0;

  // -- steps beside those of `model`

  /// One step. \param logits [n, vocab] of all its rows, written
  virtual void step(std::span<const std::int64_t> ids, std::span<float> logits) = 0;
  /// Reads ids[first, first + n) in one step and sets the negative log-likelihood, in nats, of the
  /// tokens of `ids` that are known by then: nll[t] of token t.
  virtual void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
                     std::span<float> nll) = 0;
};

/// The model where --device says: `auto` takes a device if this build has a CUDA path and there is
/// one. \throws NotBuiltError for cuda in a build without it, DeviceError, FileError, DataError
std::unique_ptr<Engine> load_engine(const CommonFlags& common, const std::filesystem::path& model);

/// The same with an empty memory, or --full-attention.
std::unique_ptr<Engine> make_engine(const CommonFlags& common, const ModelFlags& flags,
                                    const MemoryConfig& config, std::int64_t max_tokens);

/// Bytes of a run on a CUDA device, before it is started.
struct DevicePlan {
  struct {
    std::int64_t weights = 0, activations = 0, windows = 0, events = 0, representatives = 0,
                 step = 0;
    std::int64_t total() const {
      return weights + activations + windows + events + representatives + step;
    }
  } device;
  std::int64_t host_events = 0;  ///< page-locked, where device_bytes leaves them no room
  std::int64_t available = -1;   ///< of device memory; -1 if there is no device to ask
};

/// For --device cuda, also without a device, and for `auto` where there is one; nothing for the
/// host. \throws NotBuiltError as load_engine, ConfigError for settings that a device does not
/// have, BudgetError where device_bytes or host_bytes are too small
std::optional<DevicePlan> plan_on_device(const CommonFlags& common,
                                         const std::filesystem::path& model,
                                         const MemoryConfig& config, std::int64_t tokens);

}  // namespace episodic::tools
