// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the channels of a head lie on the device. The kernels take heads of a multiple of 8
// channels, of which a multiple of 16 rotate; the heads of real models are so already. Others are
// padded with channels that are always zero: their weights are, and so queries, keys and values.

#include <cstdint>
#include <vector>

#include "episodic/memory/memory_shape.hpp"
#include "episodic/model/hf_config.hpp"

namespace episodic::device {

class HeadLayout {
 public:
  HeadLayout() = default;
  /// \throws ConfigError for heads that no kernel has
  explicit HeadLayout(const ModelConfig& config);

  std::int64_t head_dim() const { return static_cast<std::int64_t>(channels_.size()); }
  /// Channel of the model that lies at `at`; -1: none, a zero.
  std::int64_t channel(std::int64_t at) const { return channels_[static_cast<std::size_t>(at)]; }
  bool padded() const { return padded_; }
  /// A rotary table of the model for heads that lie so.
  RotaryTable table(const RotaryTable& of_model) const;
  /// Heads side by side as the model has them, of heads that lie so.
  std::vector<float> of_model(const std::vector<float>& heads) const;
  /// The shape of a memory that keeps such heads.
  MemoryShape shape(MemoryShape of_model) const;

 private:
  std::vector<std::int64_t> channels_;
  std::int64_t rotary_dim_ = 0;  // of the padded tables
  bool padded_ = false;
};

}  // namespace episodic::device
