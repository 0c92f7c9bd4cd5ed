// SPDX-License-Identifier: Apache-2.0
// Models and memories on a CUDA device, in builds with CUDA.
#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/device/device_engine.hpp"
#include "episodic/device/device_memory.hpp"
#include "episodic/device/device_surprise.hpp"
#include "memory_on_device.hpp"
#include "objects.hpp"

namespace episodic::c {
namespace {

using Stream = CUstream_st*;

/// A device that is current while this lives: for what is made on it.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    require_ok(cudaGetDevice(&before_));
    require_ok(cudaSetDevice(device));
  }
  ~OnDevice() { static_cast<void>(cudaSetDevice(before_)); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  static void require_ok(cudaError_t error) {
    if (error != cudaSuccess)
      throw DeviceError(std::string("CUDA: choosing the device: ") + cudaGetErrorString(error));
  }
  int before_ = 0;
};

class DeviceSide final : public MemoryOnDevice {
 public:
  DeviceSide(DeviceMemory memory, Stream stream, int device)
      : stream_(stream), device_(device), memory_(std::move(memory)) {}

  SequenceMemory& memory() override { return memory_; }
  std::int64_t lanes() const override { return memory_.lanes(); }
  void check() const override { memory_.check(); }
  void use_stream(void* stream) override {
    memory_.use_stream(static_cast<Stream>(stream));
    stream_ = static_cast<Stream>(stream);
  }
  void end_step(std::span<const std::int64_t> ids, const float* logits, std::int64_t vocab,
                std::int64_t row_stride) override {
    if (surprise_ && surprise_->vocab() != vocab)
      throw DataError("end_step: vocab = " + std::to_string(vocab) + ", the steps before had " +
                      std::to_string(surprise_->vocab()));
    if (!surprise_) {
      const OnDevice there(device_);
      surprise_.emplace(vocab, memory_.config().chunk);
    }
    memory_.end_step(surprise_->step(ids, logits, row_stride, memory_.tokens(), stream_));
  }
  std::unique_ptr<MemoryOnDevice> fork() override {
    auto other = std::make_unique<DeviceSide>(memory_.fork(), stream_, device_);
    if (surprise_) other->surprise_.emplace(surprise_->fork(stream_));
    return other;
  }

  std::shared_ptr<const Logits> logits() const override {
    if (!surprise_) return nullptr;
    auto kept = std::make_shared<Kept>();
    kept->state = surprise_->snapshot(stream_);
    return kept;
  }
  void restore(const std::shared_ptr<const Logits>& maybe_logits) override {
    if (!maybe_logits) return surprise_.reset();
    surprise_->restore(*static_cast<const Kept&>(*maybe_logits).state, stream_);
  }

 private:
  struct Kept final : Logits {
    std::shared_ptr<const DeviceSurprise::State> state;
  };

  Stream stream_;
  int device_;
  DeviceMemory memory_;
  std::optional<DeviceSurprise> surprise_;  // once a step ended by logits
};

}  // namespace

std::shared_ptr<const Model> load_on_device(const std::filesystem::path& path, int device) {
  DeviceDecoder::Options options;
  options.device = device;
  return load_device_model(path, options);
}

std::unique_ptr<MemoryOnDevice> memory_on_device(const DeviceMemorySettings& settings) {
  require_device(settings.device);
  const OnDevice there(settings.device);
  DeviceMemoryOptions options;
  options.dtype = settings.dtype;
  options.max_tokens = settings.max_tokens;
  options.turns_back = settings.rotated;
  const auto stream = static_cast<Stream>(settings.stream);
  return std::make_unique<DeviceSide>(
      DeviceMemory(settings.config, settings.shape, options, stream), stream, settings.device);
}

}  // namespace episodic::c
