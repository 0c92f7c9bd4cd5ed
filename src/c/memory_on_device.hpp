// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A memory on a CUDA device, for a caller whose queries, keys and values lie there.

#include <cstdint>
#include <memory>
#include <span>

#include "episodic/base/config.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/memory/sequence_memory.hpp"

namespace episodic::c {

class MemoryOnDevice {
 public:
  virtual ~MemoryOnDevice() = default;

  virtual SequenceMemory& memory() = 0;
  virtual std::int64_t lanes() const = 0;
  /// Waits. \throws DataError for what the device found wrong
  virtual void check() const = 0;
  virtual void use_stream(void* stream) = 0;
  /// \param ids in host memory \param logits in device memory
  virtual void end_step(std::span<const std::int64_t> ids, const float* logits, std::int64_t vocab,
                        std::int64_t row_stride) = 0;
  virtual std::unique_ptr<MemoryOnDevice> fork() = 0;

  /// The logits behind the last token, a snapshot's part.
  struct Logits {
    virtual ~Logits() = default;
  };
  virtual std::shared_ptr<const Logits> logits() const = 0;
  virtual void restore(const std::shared_ptr<const Logits>& maybe_logits) = 0;
};

struct DeviceMemorySettings {
  MemoryConfig config;
  MemoryShape shape;
  DType dtype = DType::float32;
  int device = 0;
  std::int64_t max_tokens = 0;
  bool rotated = false;
  void* stream = nullptr;
};

/// \throws NotBuiltError in builds without CUDA; DeviceError; as DeviceMemory
std::unique_ptr<MemoryOnDevice> memory_on_device(const DeviceMemorySettings& settings);

}  // namespace episodic::c
