// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model and its memory, on the host or on a CUDA device, as the programs use them.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/language_model.hpp"

namespace episodic::tools {

class Engine {
 public:
  virtual ~Engine() = default;

  virtual LanguageModel& model() = 0;
  /// What the memory made of the last step. \throws ConfigError with full attention
  virtual StepRecord last_step() const = 0;
  /// Closed events; 0 with full attention.
  virtual std::int64_t events() const = 0;
  /// What the memory takes and holds; null with full attention.
  virtual Json memory_json() const = 0;
  /// Reads ids[first, first + n) in one step and sets the negative log-likelihood, in nats, of the
  /// tokens of `ids` that are known by then: nll[t] of token t.
  virtual void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
                     std::span<float> nll) = 0;
};

/// Where --device says: `auto` takes a device if this build has a CUDA path and there is one.
/// \param max_tokens most tokens that will be read and generated
/// \throws NotBuiltError for cuda in a build without it, DeviceError
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
/// host. \throws NotBuiltError as make_engine, BudgetError where device_bytes or host_bytes are too
/// small
std::optional<DevicePlan> plan_on_device(const CommonFlags& common, const ModelFlags& flags,
                                         const MemoryConfig& config, std::int64_t tokens);

}  // namespace episodic::tools
