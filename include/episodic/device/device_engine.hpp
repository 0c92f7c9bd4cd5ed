// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Models and engines on a CUDA device (session/model.hpp, session/engine.hpp), and what they would
/// take. In builds with CUDA.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "episodic/device/device_decoder.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/engine.hpp"

namespace episodic {

/// The model of a directory on a CUDA device, in the dtype of the stored weights unless the options
/// say otherwise. Its sequences' `attach` needs max_tokens; they share one stream, so that threads
/// wait for each other. A kept memory belongs to the host: the device goes
/// on with a copy, and `save` and `commit` hand back what it closed.
/// \param changes adapters and rounding of the weights. The device has one matrix for each product:
/// adapters are merged into it, and values of blocks are rounded once more, to bfloat16 unless the
/// options name a dtype
/// \throws DeviceError; FileError, DataError naming the file, tensor or key; BudgetError
std::shared_ptr<const Model> load_device_model(const std::filesystem::path& model_dir,
                                               const DeviceDecoder::Options& options = {},
                                               const ModelOptions& changes = {});

/// The same with a sequence.
std::unique_ptr<Engine> load_device_engine(const std::filesystem::path& model_dir,
                                           const DeviceDecoder::Options& options = {},
                                           const ModelOptions& changes = {});

/// Bytes of a run on a CUDA device, before it is started.
struct DevicePlan {
  struct Device {
    std::int64_t weights = 0, activations = 0, windows = 0, events = 0, representatives = 0,
                 step = 0;
    std::int64_t total() const {
      return weights + activations + windows + events + representatives + step;
    }
  } device;
  /// Of total(), taken before the first token: the rest comes as the text grows, on devices that
  /// can map memory behind addresses (DeviceMemoryBytes).
  std::int64_t at_start = 0;
  std::int64_t host_events = 0;  ///< page-locked, where device_bytes leaves them no room
  std::int64_t available = -1;   ///< of device memory; -1 if there is no device to ask
};

/// Needs no device. \param tokens that the sequence will come to
/// \param event_tokens of its memory, as DeviceMemoryOptions has them
/// \throws FileError, DataError; ConfigError for settings that a device does not have; BudgetError
/// where device_bytes or host_bytes are too small
DevicePlan plan_on_device(const std::filesystem::path& model_dir, const MemoryConfig& config,
                          std::int64_t tokens, const ModelOptions& changes = {},
                          std::int64_t event_tokens = 0);

}  // namespace episodic
