// SPDX-License-Identifier: Apache-2.0
#pragma once
// A decoder's weights in device memory: what the weight plan lists, each product's rows in one
// piece.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/weight_plan.hpp"
#include "head_layout.hpp"
#include "kernels/blocks.hpp"
#include "kernels/decoder.hpp"

namespace episodic::device {

/// y = x W^T + bias, W [out, in] as Hugging Face stores it.
struct DeviceLinear {
  std::byte* weight = nullptr;
  float* maybe_bias = nullptr;
  std::int64_t out = 0, in = 0;
  kernels::BlockWeights blocks;  // in place of weight
  std::int64_t first = 0;        // of their rows

  bool in_blocks() const { return blocks.n_parts > 0; }
  /// Some of its rows, without their bias. \param element bytes of a plain weight
  DeviceLinear rows(std::int64_t from, std::int64_t count, std::int64_t element) const {
    return {
        weight ? weight + from * in * element : nullptr, nullptr, count, in, blocks, first + from};
  }
};

/// A norm of rows that a product reads. Null: there is none, or it has no bias.
struct DeviceNorm {
  float *maybe_weight = nullptr, *maybe_bias = nullptr;
};

/// What a layer has of a mixture of experts beside its shared expert, whose products are the
/// layer's gate_up and down.
struct DeviceMixture {
  float* router = nullptr;                               // [experts, hidden]
  float *maybe_bias = nullptr, *maybe_choice = nullptr;  // [experts]
  float* maybe_shared_router = nullptr;                  // [hidden]
  std::byte* gate_up = nullptr;         // [experts, 2 width, hidden]: rows of gate, of up
  std::byte* down = nullptr;            // [experts, hidden, width]
  float* maybe_gate_up_bias = nullptr;  // [experts, 2 width]
  float* maybe_down_bias = nullptr;     // [experts, hidden]
  kernels::BlockMatrix gate_up_blocks, down_blocks;  // in place of either, where they have rows
};

/// Null: the layer has no such norm.
struct DeviceLayerWeights {
  DeviceNorm input_norm, feed_norm;
  float *attended_norm = nullptr, *fed_norm = nullptr;
  float *q_norm = nullptr, *k_norm = nullptr;
  float* sink_logits = nullptr;  // [n_heads]
  DeviceLinear qkv;              // rows of q, of k, of v
  DeviceLinear o;
  // of a short convolution, whose products are `qkv` (rows of B, C and x) and `o`
  float* tap = nullptr;              // [hidden, taps]
  float* maybe_conv_bias = nullptr;  // [hidden]
  // of a recurrence, whose products are `qkv` (rows of what it reads, of its gate, its steps and
  // its weights of writing) and `o`, and which has a convolution of its own
  struct {
    float *log_rate = nullptr, *step_bias = nullptr, *maybe_skip = nullptr;  // [heads]
    float* norm = nullptr;
  } recurrence;
  DeviceLinear output_gate;  // of attention, if it has one: as many rows as q
  // rows of gate, of up; of a network without a gate those of up; none in a mixture without a
  // shared expert
  DeviceLinear gate_up;
  DeviceLinear down;
  DeviceMixture mixture;  // if the layer is one
  kernels::XieluParams xielu;
};

/// How weights differ on a device from the plan's.
struct WeightChanges {
  bool fp8 = false;  ///< plain matrices of the layers become E4M3 with a scale a row
  /// For sizes alone, before weights are changed: blocks will be plain, or matrices rounded to
  /// blocks (model/quantize.hpp).
  bool plain = false;
  std::optional<TensorType> rounded;
};

class DeviceWeights {
 public:
  /// Plans them: sizes are known, nothing is in device memory. Weights are of `dtype`, or stay in
  /// blocks as they are stored (block_weights.hpp); norms and biases are float32.
  /// \throws ConfigError for heads that no kernel has
  DeviceWeights(const ModelConfig& config, DType dtype, const PlannedWeights& planned,
                const WeightChanges& changes = {});

  /// Device memory that they take.
  std::int64_t bytes() const { return bytes_; }
  /// Takes it and reads them off the files, block types too. Waits.
  /// \throws BudgetError, DeviceError
  void load(const ModelConfig& config, const PlannedWeights& planned, cudaStream_t stream);

  const HeadLayout& heads() const { return heads_; }

  DeviceLinear embedding;  ///< [vocab, hidden]
  std::vector<DeviceLayerWeights> layers;
  DeviceNorm final_norm;
  DeviceLinear head;
  /// Room for rows of blocks that are widened for a product of many rows.
  std::byte* slab = nullptr;
  std::int64_t slab_bytes = 0;

 private:
  class Loader;
  void lay_out(const ModelConfig& config, const PlannedWeights& planned, Layout& layout);

  HeadLayout heads_;
  DType dtype_;
  WeightChanges changes_;
  std::int64_t bytes_ = 0;
  DeviceBuffer buffer_;
};

}  // namespace episodic::device
