// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// LLaMA-shaped decoders on a CUDA device, with an episodic memory for attention. Torch-free: the
/// products are cuBLAS's, all else are this project's kernels. In builds with CUDA.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "episodic/device/device_memory.hpp"
#include "episodic/model/language_model.hpp"

namespace episodic {

/// Checks that a device can run this build. \throws DeviceError: no device; compute capability
/// below 8.0; a driver older than the CUDA this was built with; no machine code for the device in
/// this build, nor any that its driver could compile
void require_device(int device = 0);

/// Whether require_device would return.
bool has_device(int device = 0);

/// Of the current device, in bytes. \throws DeviceError
std::int64_t free_device_bytes();

/// Device memory that a decoder takes beside its memory, in bytes.
struct DeviceModelBytes {
  DType dtype = DType::bfloat16;
  std::int64_t weights = 0;      ///< and the products' workspace
  std::int64_t activations = 0;  ///< of a step
  std::int64_t total() const { return weights + activations; }
};

/// A decoder on a device. Weights and activations are of one dtype, sums and the residual stream
/// float32. Every step enqueues work and returns; the host waits in `logits` alone. The stream is
/// the model's own. One thread at a time.
///
/// While a step of one token is captured into a graph (Options::graphs; once per kind of step),
/// this thread makes no other call of CUDA; other threads may.
class DeviceLlama final : public LanguageModel {
 public:
  struct Options {
    /// Of weights and activations: float32, float16, bfloat16; absent: as the weights are stored.
    std::optional<DType> dtype;
    int device = 0;
    /// Launch a step of one token as one CUDA graph, from the second step of its kind on
    /// (DeviceMemory::step_kind): the host then spends microseconds on it, whatever the number of
    /// layers. Results are the same to the bit.
    bool graphs = true;
  };

  /// Reads config.json and the safetensors of a Hugging Face directory into device memory.
  /// \throws FileError, DataError naming the file, tensor or key; DeviceError; BudgetError where
  ///         the device has no room for the weights
  static DeviceLlama load(const std::filesystem::path& model_dir, const Options& options);
  static DeviceLlama load(const std::filesystem::path& model_dir);

  /// What such a model will take with steps of `chunk` tokens. Needs no device.
  /// \throws FileError, DataError
  static DeviceModelBytes bytes_needed(const std::filesystem::path& model_dir,
                                       const Options& options, std::int64_t chunk);

  /// Gives the model a fresh, empty memory in place of the one it has.
  /// \param max_tokens most tokens that the sequence may come to. \param given boundaries, only for
  /// segmenter `given`. \throws as DeviceMemory: the model is then without a memory
  DeviceMemory& remember(const MemoryConfig& config, std::int64_t max_tokens,
                         std::vector<std::int64_t> given = {});

  /// Gives the model a memory that goes on where a memory of the host is, with the budgets of that
  /// one for its own tiers (a kept one's folder is the disk tier's). \throws as DeviceMemory::load
  DeviceMemory& remember(const EpisodicMemory& from, std::int64_t max_tokens);
  /// Brings that memory up to the model's steps since (DeviceMemory::save).
  void save(EpisodicMemory& to);

  /// \throws DataError before `remember`
  DeviceMemory& memory();

  /// The memory's state and the logits after its last token, to come back to. Waits.
  class Snapshot;
  std::shared_ptr<const Snapshot> snapshot();
  /// \throws as DeviceMemory::restore
  void restore(const Snapshot& snapshot);

  /// A step that also gives the logits of all its rows. Waits. \param logits [n, vocab], written
  void step(std::span<const std::int64_t> ids, std::span<float> logits);

  const ModelConfig& config() const override;
  std::int64_t chunk() const override;
  std::int64_t tokens() const override;
  using LanguageModel::step;
  void step(std::span<const std::int64_t> ids, StepKind kind) override;
  /// Also throws what the memory found wrong on the device (DeviceMemory::check).
  std::span<const float> logits() override;

  DType dtype() const;
  /// As asked in the options, until a graph could not be made: steps are enqueued one kernel at a
  /// time from then on.
  bool graphs() const;
  DeviceModelBytes bytes() const;

  DeviceLlama(DeviceLlama&&) noexcept;
  DeviceLlama& operator=(DeviceLlama&&) noexcept;
  ~DeviceLlama() override;

 private:
  DeviceLlama();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
