// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Decoders on a CUDA device, of every family that the host's `Decoder` computes (docs/models.md),
/// with an episodic memory for attention. Torch-free: the products are cuBLAS's, all else are this
/// project's kernels. In builds with CUDA.

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "episodic/device/device_memory.hpp"
#include "episodic/model/keys_hook.hpp"
#include "episodic/model/language_model.hpp"

namespace episodic {

struct OpenModel;     // model/open_model.hpp
struct ModelOptions;  // the same

/// Checks that a device can run this build. \throws DeviceError: no device; compute capability
/// below 8.0; a driver older than the CUDA this was built with; no machine code for the device in
/// this build, nor any that its driver could compile
void require_device(int device = 0);

/// Whether require_device would return.
bool has_device(int device = 0);

/// As its maker calls it: "NVIDIA H200". \throws DeviceError
std::string device_name(int device = 0);

/// Of the current device, in bytes. \throws DeviceError
std::int64_t free_device_bytes();

/// Device memory that a decoder takes beside its memory, in bytes.
struct DeviceModelBytes {
  DType dtype = DType::bfloat16;
  std::int64_t weights = 0;      ///< and the products' workspace
  std::int64_t activations = 0;  ///< of a step
  /// Keys and values of layers that no memory serves: those with a sliding window in a model that
  /// mixes them with full attention; all layers without a memory.
  std::int64_t caches = 0;
  std::int64_t total() const { return weights + activations + caches; }
};

/// A decoder on a device, the twin of `Decoder`: what differs between families it reads off the
/// configuration's LayerSpecs and the weight plan. Weights and activations are of one dtype, sums
/// and the residual stream float32. Every step enqueues work and returns; the host waits in
/// `logits` alone (but as DeviceMemory says of files and `retention`). The stream is the model's
/// own. One thread at a time.
///
/// The logits of a step's rows are made a piece of the vocabulary at a time and become surprise
/// there; but for the last row's none are kept. The head's weights are read once a step.
///
/// While a step of one token is captured into a graph (Options::graphs; once per kind of step),
/// this thread makes no other call of CUDA; other threads may.
class DeviceDecoder final : public LanguageModel {
 public:
  struct Options {
    /// Of weights and activations: float32, float16, bfloat16; absent: as the weights are stored.
    std::optional<DType> dtype;
    int device = 0;
    /// Launch a step of one token as one CUDA graph, from the second step of its kind on
    /// (DeviceMemory::step_kind): the host then spends microseconds on it, whatever the number of
    /// layers. Results are the same to the bit.
    bool graphs = true;
    /// Let kernels of a token's layers begin while the ones before them end, where the device can
    /// (compute capability 9.0): their blocks then wait on the multiprocessors. On an H200 that
    /// cost an 8B 0.6 to 0.9 ms a token (docs/kernels.md). Surprise and the ends of memories' steps
    /// then run in turn with the layers, not beside them.
    bool early_launches = false;
    /// Of the memories that it is given: DeviceMemoryOptions::event_tokens.
    std::int64_t event_tokens = 0;
    /// The same: DeviceMemoryOptions::representatives and codes_from.
    DType representatives = DType::float32;
    std::int64_t codes_from = DeviceMemoryOptions::kCodesWherePaid;
    /// Rounds the plain matrices of the layers to E4M3 with a scale a row, the row's largest number
    /// over 448: half of 16 bits. Checkpoints of FP8 with such scales get their codes back.
    bool fp8_weights = false;
  };

  /// Reads a Hugging Face directory or a GGUF file into device memory. Weights in blocks stay as
  /// they are stored where the kernels have their type, else they become bfloat16 or what the
  /// options say.
  /// \throws FileError, DataError naming the file, tensor or key; ConfigError for heads that no
  ///         kernel has; DeviceError; BudgetError where the device has no room for the weights
  static DeviceDecoder load(const std::filesystem::path& model_dir, const Options& options);
  static DeviceDecoder load(const std::filesystem::path& model_dir);
  /// Of an open model, with what its options did to it: weights that were rounded to blocks, and
  /// adapters, which are merged here if they are not yet.
  /// \throws as above; ConfigError for adapters beside block-quantised weights (merge_lora)
  static DeviceDecoder load(const OpenModel& model, const Options& options);

  /// A further sequence of this model, empty and without attention yet: the same weights and the
  /// same stream, all else its own. The weights live as long as one of their sequences. One thread
  /// at a time for all of them.
  DeviceDecoder share_weights() const;

  /// A further sequence of this model that goes on from here, with the memory forked
  /// (DeviceMemory::fork), or full attention's keys and values copied. A memory of the host that
  /// this one came from stays this one's: a fork is not saved to it. One thread at a time for both.
  /// \throws as DeviceMemory::fork; BudgetError where the device has no room for another sequence
  DeviceDecoder fork();
  /// Device memory that a fork takes to go on for so many tokens, about.
  std::int64_t fork_bytes(std::int64_t tokens) const;

  /// What such a model will take with a memory and steps of `chunk` tokens. Needs no device.
  /// \throws FileError, DataError, ConfigError
  static DeviceModelBytes bytes_needed(const std::filesystem::path& model_dir,
                                       const Options& options, std::int64_t chunk);
  /// The same of a model that will be opened with changes. Nothing is rounded for that; with
  /// adapters all matrices are counted as widened.
  static DeviceModelBytes bytes_needed(const std::filesystem::path& model_dir,
                                       const Options& options, std::int64_t chunk,
                                       const ModelOptions& changes);

  /// Gives the model a fresh, empty memory in place of the one it has.
  /// \param max_tokens most tokens that the sequence may come to. \param given boundaries, only for
  /// segmenter `given`. \throws as DeviceMemory: the model is then without a memory; ConfigError
  /// for an n_local beyond the sliding window of layers that the memory is to serve
  DeviceMemory& attach_memory(const MemoryConfig& config, std::int64_t max_tokens,
                              std::vector<std::int64_t> given = {});

  /// Gives the model a memory that goes on where a memory of the host is, with the budgets of that
  /// one for its own tiers (a kept one's folder is the disk tier's). The windows of a model's
  /// sliding layers go with it (EpisodicMemory::keep_beside). \throws as DeviceMemory::load and
  /// keep_beside; ConfigError for heads that are padded on the device (docs/kernels.md), which no
  /// other memory has, and for sliding layers whose rotary table follows the length of the context
  DeviceMemory& attach_memory(EpisodicMemory& from, std::int64_t max_tokens);
  /// Brings that memory up to the model's steps since (DeviceMemory::save).
  void save(EpisodicMemory& to);

  /// \throws DataError before `attach_memory`
  DeviceMemory& memory();

  /// Gives the model the attention that it was made with in place of a memory: every token, or the
  /// last ones of a sliding layer. Rotary tables that depend on the length of the context are those
  /// of max_tokens. \param chunk largest step, >= 1
  /// \throws ConfigError, BudgetError: the model is then without attention
  void attend_fully(std::int64_t max_tokens, std::int64_t chunk = 512);

  /// Surprise of the last step's tokens, in nats; 0 for the sequence's first. Waits.
  /// \throws DataError where one is NaN; FileError instead where a weight is, naming it
  std::vector<float> surprise();

  /// The sequence's state and the logits after its last token, to come back to. Waits.
  class Snapshot;
  std::shared_ptr<const Snapshot> snapshot();
  /// \throws as DeviceMemory::restore; ConfigError for a snapshot of another attention
  void restore(const Snapshot& snapshot);

  /// A sequence's part of a step.
  struct SequenceStep {
    DeviceDecoder* sequence = nullptr;
    std::span<const std::int64_t> ids;
    StepKind kind = StepKind::decode;
  };
  /// One step of several sequences that share their weights (share_weights): the weights are
  /// read once for the rows of all. Memories and attention are each sequence's own, and so is
  /// whatever comes of it. Lengths and kinds of attention may differ.
  ///
  /// Steps of at most 4 sequences of one token each give the same bits as each alone (fewer where 4
  /// rows of the residual stream are more than 64 KiB; not with a keys hook). Other steps go by
  /// cuBLAS, whose order of sums depends on the rows of all. One token beside longer steps is also
  /// rounded to 16 bits in more places than alone (docs/kernels.md).
  ///
  /// Steps of one token each are one graph from the second step of these sequences and their kinds
  /// on (Options::graphs), of which the 16 used last are kept. The first such step, and each with
  /// more rows or sequences than all before, takes room for its activations and waits.
  ///
  /// A sequence that cannot begin its step (ids, length, attention, room), or whose events files
  /// cannot give or keep, fails alone: it is as it was, and the others make the step without it.
  /// Where a file cannot be read, or a keys hook throws, that shows in the middle of the step: each
  /// sequence then begins it anew, alone. What the device finds wrong with one (NaN) is thrown by
  /// that one's own calls, `logits` the first, as after `step`: nothing here waits for it.
  /// \return of each sequence what its own step would have thrown; null: it has made its step
  /// \throws DataError for a sequence named twice or with other weights; BudgetError where there is
  ///         no room for the activations of all; DeviceError. None has then made the step
  static std::vector<std::exception_ptr> try_step_batch(std::span<const SequenceStep> batch);
  /// The same. \throws also what the first sequence failed with, when the others have made their
  /// steps. An Error's message then ends in "(sequence I of the batch)"
  static void step_batch(std::span<const SequenceStep> batch);

  /// From the next step on, and with every attention that the model is given; none: an empty hook.
  /// In steps with one the host waits for each layer, and one token is no graph.
  void set_keys_hook(KeysHook hook);

  /// A step that also gives the logits of all its rows. Waits. \param logits [n, vocab], written
  void step(std::span<const std::int64_t> ids, std::span<float> logits);

  const ModelConfig& config() const override;
  std::int64_t chunk() const override;
  std::int64_t tokens() const override;
  using LanguageModel::step;
  void step(std::span<const std::int64_t> ids, StepKind kind) override;
  /// Also throws what the memory found wrong on the device (DeviceMemory::check), DataError where
  /// a logit is NaN, or FileError naming the weight that is at fault.
  std::span<const float> logits() override;
  void explain_not_finite() const override;

  DType dtype() const;
  /// As asked in the options, until a graph could not be made: steps are enqueued one kernel at a
  /// time from then on.
  bool graphs() const;
  DeviceModelBytes bytes() const;

  DeviceDecoder(DeviceDecoder&&) noexcept;
  DeviceDecoder& operator=(DeviceDecoder&&) noexcept;
  ~DeviceDecoder() override;

 private:
  DeviceDecoder();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
