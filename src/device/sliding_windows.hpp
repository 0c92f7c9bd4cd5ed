// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a host's memory keeps beside it for a model with sliding layers or layers without attention:
// their windows and states, as the host's decoder writes them (CausalState), so that either goes on
// where the other was.

#include <cstdint>
#include <vector>

#include "episodic/memory/kept_memory.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/recurrent_state.hpp"

namespace episodic::device {

/// Windows in host memory, as of the last load or save; the device's rings are ahead of them.
class SlidingWindows final : public BesideMemory {
 public:
  /// Of one layer: what the next token's query sees, [G, n, d] float32, keys rotated.
  struct Layer {
    std::int64_t number = 0, window = 0, n_kv_heads = 0, head_dim = 0;
    std::vector<float> key, value;

    /// The first of the tokens that it holds once there are `tokens`.
    std::int64_t first(std::int64_t tokens) const {
      return tokens < window ? 0 : tokens - window + 1;
    }
  };

  /// Empty. \param layers of the model that no memory serves, in order
  SlidingWindows(const ModelConfig& config, const std::vector<std::int64_t>& layers);

  std::int64_t tokens() const override { return tokens_; }
  void save(ByteWriter& to) const override;
  void load(ByteReader& from) override;

  const std::vector<Layer>& layers() const { return layers_; }
  const RecurrentState& recurrent() const { return recurrent_; }
  void set(std::int64_t tokens, std::vector<Layer> layers, RecurrentState recurrent) noexcept {
    tokens_ = tokens;
    layers_ = std::move(layers);
    recurrent_ = std::move(recurrent);
  }

 private:
  std::int64_t tokens_ = 0;
  std::vector<Layer> layers_;
  RecurrentState recurrent_;
};

}  // namespace episodic::device
