// SPDX-License-Identifier: Apache-2.0
#pragma once
// The attention that a model was made with, on a device: layers of full attention and of sliding
// windows, beside a memory (which serves the full ones) or without one; and what layers without
// attention carry. The twin of the host's CausalState.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda.hpp"
#include "episodic/device/device_memory.hpp"
#include "episodic/model/hf_config.hpp"
#include "head_layout.hpp"
#include "head_place.hpp"
#include "kept_rows.hpp"
#include "kernels/attention.hpp"
#include "kernels/window.hpp"
#include "recurrences.hpp"
#include "short_convolutions.hpp"
#include "sliding_windows.hpp"

namespace episodic::device {

/// Keys and values of some layers, in rings that hold what a step's queries see: of a sliding layer
/// its window, of the others all tokens. Every call enqueues its work on the stream.
class CausalLayers {
 public:
  CausalLayers() = default;
  /// Plans them; nothing is allocated. \param layers of the model, in order
  /// \param max_tokens that the sequence may come to: rotary tables that depend on the length of
  ///        the context are those of so many
  CausalLayers(const ModelConfig& config, const HeadLayout& heads, std::vector<std::int64_t> layers,
               DType dtype, std::int64_t chunk, std::int64_t max_tokens);

  bool empty() const { return layers_.empty() && convolutions_.empty() && recurrences_.empty(); }
  bool serves(std::int64_t layer) const;
  /// Device memory that they take: rings, angles and a step's workspace.
  std::int64_t bytes() const { return bytes_; }
  /// Takes it. \throws BudgetError
  void allocate(cudaStream_t stream);

  /// A step of n tokens. \param position of its first token, in device memory
  void begin_step(std::int64_t n, const std::int64_t* position);
  /// The angles of that step, of several sequences.
  static void enqueue_angles(std::span<const CausalLayers* const> sequences, cudaStream_t stream);
  /// A layer's part of that step of several sequences of one model, as DeviceMemory::attend_batch;
  /// step.scale must be given.
  struct SequenceStep {
    const CausalLayers* layers = nullptr;
    DeviceMemory::LayerStep step;
  };
  static void attend(std::int64_t layer, std::span<const SequenceStep> steps, cudaStream_t stream);

  /// Where a layer of that step, of one token, takes its heads, as DeviceMemory::head_place.
  HeadPlace head_place(std::int64_t layer) const;

  /// A short convolution of that step, as ShortConvolutions::params.
  kernels::ShortConvolutionParams convolution(std::int64_t layer) const {
    return convolutions_.params(layer, n_, position_);
  }

  /// A recurrence of that step, as Recurrences::params.
  kernels::LinearRecurrenceParams recurrence(std::int64_t layer) const {
    return recurrences_.params(layer, n_, position_);
  }
  const Recurrences& recurrences() const { return recurrences_; }

  /// What snapshots need of the rings, beside a memory.
  KeptRows& kept_rows() { return kept_rows_; }
  /// The rings of other layers of this plan, on the stream: what they carry behind their steps.
  void copy(const CausalLayers& from, cudaStream_t stream);
  /// The rings as they are. Waits.
  std::vector<std::byte> read(cudaStream_t stream) const;
  void write(const std::vector<std::byte>& rings, cudaStream_t stream);
  /// What the next token's queries see of the sliding layers that `like` lists, behind `tokens`
  /// tokens. Waits.
  std::vector<SlidingWindows::Layer> read_windows(std::vector<SlidingWindows::Layer> like,
                                                  std::int64_t tokens, cudaStream_t stream) const;
  /// What layers without attention carry behind `tokens` tokens. Waits.
  RecurrentState read_recurrent(const ModelConfig& config, std::int64_t tokens,
                                cudaStream_t stream) const;
  /// The reverse; rounded to the rings' dtype. Waits.
  void write_windows(const SlidingWindows& from, cudaStream_t stream);

 private:
  struct Layer {
    std::int64_t number = 0, window = 0;
    std::int64_t capacity = 0;  // of the rings, in tokens
    std::int64_t n_heads = 0, n_kv_heads = 0;
    int rotary = -1;  // of rotaries_, or none
    float soft_cap = 0;
    std::byte *key = nullptr, *value = nullptr;  // [G, capacity, d], keys rotated
  };
  struct Rotary {
    RotaryTable table;
    double* inverse_frequency = nullptr;
    float *cos = nullptr, *sin = nullptr;  // [chunk, rotary_dim / 2]
  };

  void lay_out(Layout& layout);
  const Rotary& rotary(const Layer& layer) const;
  template <class F>
  void for_rows(const SlidingWindows::Layer& of, std::int64_t tokens, F&& f) const;
  kernels::AppendParams append_params(const Layer& layer,
                                      const DeviceMemory::LayerStep& step) const;
  kernels::AttentionParams attention_params(const Layer& layer,
                                            const DeviceMemory::LayerStep& step) const;
  const Layer& at(std::int64_t layer) const;

  std::int64_t head_dim_ = 0, chunk_ = 0;
  DType dtype_ = DType::bfloat16;
  std::vector<Layer> layers_;
  ShortConvolutions convolutions_;
  Recurrences recurrences_;
  std::vector<Rotary> rotaries_;
  std::int64_t bytes_ = 0;
  std::int64_t ring_bytes_ = 0;       // of all layers, from the buffer's start
  std::uint32_t* arrived_ = nullptr;  // of attention
  std::int64_t n_arrived_ = 0;
  std::byte* workspace_ = nullptr;
  std::int64_t workspace_bytes_ = 0;
  DeviceBuffer buffer_;
  KeptRows kept_rows_;
  // the open step
  std::int64_t n_ = 0;
  const std::int64_t* position_ = nullptr;
};

}  // namespace episodic::device
