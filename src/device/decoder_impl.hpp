// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a DeviceDecoder is made of, for the sources decoder_*.cpp.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "causal_layers.hpp"
#include "cuda.hpp"
#include "decoder_step.hpp"
#include "episodic/device/device_decoder.hpp"
#include "sliding_windows.hpp"

namespace episodic {

struct DeviceDecoder::Impl : device::DecoderSequence {
  explicit Impl(std::shared_ptr<device::DecoderSteps> of) { steps = std::move(of); }
  // What is enqueued still reads what is given back here.
  ~Impl() {
    static_cast<void>(cudaStreamSynchronize(stream()));
    steps->batch_graphs.forget(*this);
  }

  const ModelConfig& config() const { return steps->config; }
  cudaStream_t stream() const { return steps->stream.get(); }

  device::Activations activations;  // of steps of this sequence alone
  device::DeviceBuffer buffer;      // those, and what DecoderSequence points to
  std::int64_t chunk = 0;           // 0: there is no attention yet
  std::int64_t max_tokens = 0;      // without a memory
  std::int64_t tokens = 0;          // of the finished steps, as the causal layers saw them
  std::int64_t last_n = 0;          // of the last step
  std::int64_t generation = 0;      // of the memory that those tokens belong to
  device::StagingRing staging;
  device::PinnedBuffer host_logits;
  // Of the tokens since the host's memory that this one came from; only then.
  bool keeps_ids = false;
  // And the windows of the model's sliding layers, which that memory keeps beside it; if any.
  std::shared_ptr<device::SlidingWindows> windows;
  std::vector<std::int64_t> ids_since;

  bool use_graphs = true;
  DeviceMemoryOptions memory_options;  // of memories that it is given
  /// Over files, which may refuse a step at its end: the logits and the surprise before the open
  /// step, [vocab + chunk].
  device::DeviceBuffer before_step;
  device::StepGraphs graphs;  // of steps of one token; they hold the pointers of all the above

  void forget_attention();
  void attend_with(DeviceMemory given);
  void take_room(std::int64_t new_chunk);
  void require_attention() const;
  std::int64_t tokens_now() const { return memory ? memory->tokens() : tokens; }

  void enqueue(std::int64_t n, float* maybe_logits);
  void copy_outputs(bool back);
  void follow_memory();
  void check_step(std::span<const std::int64_t> ids) const;
  void begin_step(std::int64_t n, StepKind kind);
  /// Closes a step that does not come to its end: the memory can be edited and kept as it was.
  void abandon_step() noexcept {
    if (memory) memory->abandon_step();
  }
  void finish_step(std::span<const std::int64_t> ids);
  std::optional<std::uint32_t> graph_kind() const;
  void step(std::span<const std::int64_t> tokens, StepKind kind, float* maybe_logits);
  bool launch_step(StepKind kind);
  static void check_batch(std::span<const SequenceStep> batch);
  template <class Enqueue>
  static bool launch_batch(std::span<const SequenceStep> batch, const Enqueue& enqueue);
  static std::vector<DeviceMemory::EndOfStep> ends_of(std::span<const SequenceStep> batch);
  static device::DecoderSteps::BatchRoom& batch_room(std::span<const SequenceStep> batch);
  static void forget_due(std::span<const SequenceStep> batch);
  static bool enqueue_batch(std::span<const SequenceStep> batch);
  static std::vector<std::exception_ptr> end_batch(std::span<const SequenceStep> batch,
                                                   bool launched);
  /// Waits, and throws what the memory found wrong on the device.
  void check_device() const;
  void require_finite_weights() const;
  /// [vocab], or empty if none follow the last token
  std::vector<float> read_last_logits();
  void write_last_logits(const std::vector<float>& row);
};

/// Layers that a memory leaves to the model: sliding ones beside full ones, and those without
/// attention.
std::vector<std::int64_t> unserved_layers(const ModelConfig& config);

}  // namespace episodic
