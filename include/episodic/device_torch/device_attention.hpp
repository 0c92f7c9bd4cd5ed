// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Between a torch decoder on a CUDA device and a `DeviceMemory`: the twins of EpisodicAttention
/// and EpisodicState for CUDA tensors (examples/patch_your_cuda_layer.cpp). In builds with CUDA.
///
/// Links neither torch_cuda nor c10_cuda: torch's CUDA is reached through what it registers with
/// c10, by a program that loads it.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "episodic/device/device_memory.hpp"
#include "episodic/model/attention_slot.hpp"
#include "episodic/torch_slots/torch_slots.hpp"

namespace episodic {

/// The cudaStream_t behind a stream of torch. An empty one asks c10::Stream::native_handle, which
/// libtorch has from 2.11 on; before, it knows torch's default stream alone, and a decoder that
/// runs on others gives
///
///     [](const c10::Stream& s) { return c10::cuda::CUDAStream(s).stream(); }
using NativeStream = std::function<CUstream_st*(const c10::Stream&)>;

/// One sequence's memory (EM 3) on one of torch's CUDA devices. Every call makes that device
/// current while it lasts and enqueues on torch's current stream of it, behind what the memory
/// enqueued before, on whatever stream; the host does not wait but where DeviceMemory's does.
/// Tensors are taken as torch's own operators take them: ready on the current stream, of the right
/// lifetime on it.
///
/// The memory's bytes are cudaMalloc's, beside those that torch's allocator holds
/// (DeviceMemory::bytes_needed says how many). One thread at a time. Not while torch captures a
/// graph.
class TorchDeviceMemory final : public SequenceMemory {
 public:
  /// \param device a CUDA device; without an index, torch's current one
  /// \param given boundaries, only for segmenter `given`
  /// \throws ConfigError where `device` is no CUDA device; NotBuiltError where this program's
  ///         libtorch has no CUDA; whatever require_device and DeviceMemory throw
  TorchDeviceMemory(const MemoryConfig& config, const MemoryShape& shape,
                    const DeviceMemoryOptions& options, c10::Device device,
                    std::vector<std::int64_t> given = {}, NativeStream native_stream = {});
  ~TorchDeviceMemory() override;
  TorchDeviceMemory(const TorchDeviceMemory&) = delete;
  TorchDeviceMemory& operator=(const TorchDeviceMemory&) = delete;

  MemoryKind memory_kind() const override { return MemoryKind::cuda; }
  /// As DeviceMemory::begin_step.
  void begin_step(std::int64_t n, StepKind kind = StepKind::decode) override;
  void abandon_step() noexcept override;

  /// One layer of the step, in order, each layer once.
  /// \param q [n, H, d], k, v [n, G, d] of the memory's dtype on its device, before rotary
  ///        embedding.
  ///        Read where they lie if rows begin at multiples of 8 elements and of 16 bytes, the heads
  ///        of each side by side (parts of one projection do); anything else is copied first
  ///
  /// \return [n, H * d] of the memory's dtype, from torch's allocator
  /// \throws DataError naming the tensor that is of another shape, dtype or device
  at::Tensor attend(std::int64_t layer, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v);
  /// As DeviceMemory::attend: views of the device's memory, such as a tensor's, read where they
  /// lie.
  void attend(std::int64_t layer, const TensorView& q, const TensorView& k, const TensorView& v,
              const MutableTensorView& out) override;

  /// Ends the step (EM 3.2): surprise in float32, boundaries, events.
  /// \param ids [n] the step's tokens, on the host or int64 on the memory's device; one that is not
  ///        in the vocabulary is found by the device (DeviceMemory::check)
  /// \param logits [n, vocab] of float32, float16 or bfloat16 on the memory's device, elements of a
  ///        row side by side; row i follows token i. Of one vocabulary and dtype in all steps
  ///
  /// \throws DataError naming what is of another shape, dtype or device; what DeviceMemory throws
  void end_step(std::span<const std::int64_t> ids, const at::Tensor& logits);
  void end_step(const at::Tensor& ids, const at::Tensor& logits);
  /// The same by a surprise on the memory's device. Every step of a sequence ends so, or every one
  /// by its logits.
  void end_step(const SurpriseView& surprise) override;

  /// After `run` has restored or loaded the memory: the logits that follow its last token, from
  /// which the next step's first surprise comes.
  /// \param row [vocab], contiguous, of a dtype as above, on the memory's device
  void set_last_logits(const at::Tensor& row);

  /// Back to the empty sequence. Waits for the device.
  void reset() override;

  // As DeviceMemory's, on torch's current stream. A snapshot has the last logits too, so that
  // restore needs no set_last_logits.
  const EventTable& events(std::int64_t scope = 0) const override;
  const StepRecord& last_step(std::int64_t scope = 0) const override;
  LaneRecall recall_lists(std::int64_t lane) const override;
  std::vector<float> representative(std::int64_t lane, EventId event) const override;
  std::vector<float> relevance(std::int64_t layer, std::int64_t first,
                               std::int64_t n) const override;
  std::shared_ptr<const MemorySnapshot> snapshot() const override;
  void restore(const MemorySnapshot& snapshot) override;
  void forget(EventId event, std::int64_t scope = 0) override;
  std::vector<EventId> forget(TokenRange tokens) override;
  const std::vector<EventId>& forgotten(std::int64_t scope = 0) const override;
  void pin(EventId event, bool pinned = true, std::int64_t scope = 0) override;
  std::string refusal(Capability capability) const override;

  /// f(DeviceMemory&), the memory's device current, on torch's current stream: for all else, such
  /// as run([](DeviceMemory& m) { return m.events(); }).
  template <class F>
  decltype(auto) run(F&& f) {
    const c10::DeviceGuard guard(device());
    return std::forward<F>(f)(on_current_stream());
  }

  c10::Device device() const;
  const MemoryConfig& config() const override;
  const MemoryShape& shape() const override;
  const DeviceMemoryOptions& options() const;
  std::int64_t tokens() const override;
  std::int64_t open_tokens() const override;

 private:
  class Snapshot;
  struct Impl;
  DeviceMemory& on_current_stream() const;
  template <class F>
  decltype(auto) look(F&& f) const {
    const c10::DeviceGuard guard(device());
    return std::forward<F>(f)(on_current_stream());
  }

  std::unique_ptr<Impl> impl_;
};

/// Attention of one layer through a shared memory on a device, as TorchDeviceMemory::attend.
class DeviceAttention final : public TorchSlot {
 public:
  /// \param layer number of the layer in the memory
  DeviceAttention(std::shared_ptr<TorchDeviceMemory> memory, std::int64_t layer);

  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    return memory_->attend(layer_, q, k, v);
  }
  c10::Device device() const override { return memory_->device(); }

 private:
  std::shared_ptr<TorchDeviceMemory> memory_;
  std::int64_t layer_;
};

/// The memory as the sequence state of a decoder. A decoder whose ids are on the device calls
/// TorchDeviceMemory itself.
class DeviceState final : public SequenceState {
 public:
  explicit DeviceState(std::shared_ptr<TorchDeviceMemory> memory) : memory_(std::move(memory)) {}

  using SequenceState::begin_step;
  void begin_step(std::span<const std::int64_t> ids, StepKind kind) override {
    memory_->begin_step(static_cast<std::int64_t>(ids.size()), kind);
  }
  void abandon_step() noexcept override { memory_->abandon_step(); }
  /// Takes logits on the memory's device.
  void end_step(std::span<const std::int64_t> ids, const LogitsView& logits) override {
    memory_->end_step(ids, tensor_of(logits, memory_->device()));
  }
  bool wants_all_logits() const override { return true; }
  std::int64_t tokens() const override { return memory_->tokens(); }
  std::int64_t chunk() const override { return memory_->config().chunk; }
  void reset() override { memory_->reset(); }
  std::shared_ptr<const SequenceSnapshot> snapshot() const override;
  void restore(const SequenceSnapshot& snapshot) override;

  const std::shared_ptr<TorchDeviceMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<TorchDeviceMemory> memory_;
};

}  // namespace episodic
