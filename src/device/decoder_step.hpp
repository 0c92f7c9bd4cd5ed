// SPDX-License-Identifier: Apache-2.0
#pragma once
// One step of a decoder on the device, for one sequence or for several that share its weights: what
// it enqueues, in order.

#include <cublas_v2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "causal_layers.hpp"
#include "cuda.hpp"
#include "device_weights.hpp"
#include "episodic/device/device_memory.hpp"
#include "episodic/model/keys_hook.hpp"
#include "kernels/decoder.hpp"
#include "kernels/product.hpp"
#include "kernels/surprise.hpp"

namespace episodic::device {

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Cublas {
 public:
  explicit Cublas(cudaStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  /// y [n, out] of `to` = x [n, in] of `from` times W^T, or added to what y holds. No bias.
  /// \pre w is plain \param y_stride elements between rows of y; 0: out
  void multiply(const DeviceLinear& w, DType from, const void* x, std::int64_t n, DType to, void* y,
                bool add, std::int64_t y_stride = 0) const;

  /// dx [n, in] = dy [n, out] times W, all of one dtype: the way back of a gradient.
  void multiply_back(const DeviceLinear& w, DType dtype, const void* dy, std::int64_t n,
                     void* dx) const;

  static constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // what it recommends for sm_90

 private:
  cublasHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
};

class DecoderSteps;

/// What a sequence has of its own.
struct DecoderSequence {
  std::shared_ptr<DecoderSteps> steps;  // shared; its stream outlives the memory
  // what attention reads: a memory and the layers that it leaves, or those alone
  std::optional<DeviceMemory> memory;
  CausalLayers causal;
  std::vector<std::int64_t> memory_layer;   // its number in the memory, -1: a causal layer
  float* last_logits = nullptr;             // [vocab], of its last row
  float* surprise = nullptr;                // [chunk], of its last step
  kernels::OnlineSoftmax* parts = nullptr;  // [kSurpriseParts], of its first token's surprise
  std::uint32_t* parts_arrived = nullptr;   // one, 0 between the launches
  bool stepped = false;                     // last_logits follow the sequence's last token
  KeysHook keys_hook;                       // may be empty
};

/// Graphs of steps of one token of each of some sequences, the same pointers in each.
class StepGraphs {
 public:
  /// The sequences in their order, and what their parts of the step depend on but for what is read
  /// on the device (DeviceMemory::step_kind).
  using Key = std::vector<std::pair<const DecoderSequence*, std::uint32_t>>;

  /// Launches the graph of what `enqueue` enqueues, made at the second step of its kind: at the
  /// first its kernels are loaded and cuBLAS sets itself up, which a capture need not permit.
  /// \return false: nothing is enqueued, as at the first step of a kind \throws DeviceError
  template <class Enqueue>
  bool launch(const Key& key, cudaStream_t stream, const Enqueue& enqueue) {
    const auto at = std::find_if(graphs_.begin(), graphs_.end(),
                                 [&](const Kept& kept) { return kept.key == key; });
    if (at == graphs_.end()) {
      if (graphs_.size() == kMost) drop_oldest(stream);
      graphs_.push_back({key, std::nullopt});
      return false;
    }
    std::rotate(at, at + 1, graphs_.end());
    std::optional<Graph>& graph = graphs_.back().graph;
    if (!graph) graph = Graph::capture(stream, enqueue);
    graph->launch(stream);
    return true;
  }
  /// What they launched must have ended.
  void clear() { graphs_.clear(); }
  /// The same of those that the sequence has a part in.
  void forget(const DecoderSequence& sequence) {
    std::erase_if(graphs_, [&](const Kept& kept) {
      return std::any_of(kept.key.begin(), kept.key.end(),
                         [&](const auto& part) { return part.first == &sequence; });
    });
  }

 private:
  /// Of one sequence there are fewer kinds; of several those used last are kept.
  static constexpr std::size_t kMost = 16;
  struct Kept {
    Key key;
    std::optional<Graph> graph;  // absent after the first such step
  };
  void drop_oldest(cudaStream_t stream) {
    if (graphs_.front().graph) check(cudaStreamSynchronize(stream), "the model's steps");
    graphs_.erase(graphs_.begin());
  }
  std::vector<Kept> graphs_;
};

/// A sequence's part of a step: rows [first, first + n) of the activations.
struct DecoderPart {
  DecoderSequence* of = nullptr;
  std::int64_t first = 0, n = 0;
  const std::int64_t* position = nullptr;  // of its first token, in device memory
};

/// What a step leaves in device memory between its launches.
struct Activations {
  std::int64_t* positions = nullptr;          // [sequences] of their first tokens, and behind them:
  std::int64_t* ids = nullptr;                // [rows]
  float *hidden = nullptr, *added = nullptr;  // [rows, hidden]
  // gate_up: before it is the network's, what attention's result is gated by
  std::byte *normed = nullptr, *qkv = nullptr, *attended = nullptr, *gate_up = nullptr,
            *inner = nullptr;
  float *mix_inputs = nullptr, *mix_weights = nullptr, *mix_y = nullptr;  // of a recurrence
  // of a mixture of experts: each row's, their weights, what the shared one is multiplied by, and
  // what their gates let through
  std::int32_t* expert = nullptr;
  float *expert_weight = nullptr, *shared_factor = nullptr;
  std::byte* expert_inner = nullptr;
  float* tile = nullptr;
  kernels::SurpriseState* surprise_state = nullptr;  // [rows]

  void lay_out(Layout& c, const ModelConfig& config, std::int64_t head_dim, DType dtype,
               std::int64_t rows, std::int64_t sequences);
  static std::int64_t bytes(const ModelConfig& config, std::int64_t head_dim, DType dtype,
                            std::int64_t rows, std::int64_t sequences);
};

/// A model's weights, and how they are applied to the rows of a step. Shared by its sequences,
/// whose work is on its stream.
class DecoderSteps {
 public:
  /// Nothing is in device memory yet but the products' workspace: load the weights.
  DecoderSteps(ModelConfig config, DType dtype, int device, const PlannedWeights& planned,
               const WeightChanges& changes);

  const ModelConfig config;
  const DType dtype;
  const int device;
  std::filesystem::path path;  // of the model's files
  bool early_launches = false;
  DeviceWeights weights;
  Stream stream;

  /// Enqueues a step of these rows: a.ids and a.positions are there, every memory's step is open.
  /// Ends with the parts' last_logits and surprise; the memories' steps are still to be ended.
  ///
  /// Rows of several sequences share the products, and their attention and surprise the launches.
  /// Products of at most kMostProductRows sequences of
  /// one token each are the library's own kernels (kernels/product.hpp), with all that stands
  /// between them in the same launches; others are cuBLAS's.
  /// \param maybe_logits [n, vocab] in host memory, written, only of a single part; null: not
  /// wanted
  void enqueue(std::span<const DecoderPart> parts, const Activations& a, float* maybe_logits);

  /// The same of a step of one token of each part while the stream captures, and the ends of the
  /// memories' steps. What waits for no layer runs beside the first ones (surprise and thresholds),
  /// what waits for attention alone beside the rest of the last layer and the head: a branch of the
  /// graph, which ends joined. With early launches all is one chain: none may follow a join.
  void capture(std::span<const DecoderPart> parts, const Activations& a);

  /// Room for steps of several sequences, which they share.
  struct BatchRoom {
    Activations of;
    StagingRing staging;
  };
  /// Waits where there was less. \throws BudgetError: there is then none
  BatchRoom& batch_room(std::int64_t rows, std::int64_t sequences);
  StepGraphs batch_graphs;  // of steps in that room
  std::int64_t batch_bytes() const { return batch_buffer_.bytes(); }

 private:
  struct Step {
    std::span<const DecoderPart> parts;
    const Activations& a;
    std::int64_t n = 0;     // rows
    bool few = false;       // the library's own products
    bool normed = false;    // a.normed holds the next product's rows; else they are still hidden
    DeviceNorm norm{};      // then: the norm before that product, or none
    bool branches = false;  // some of it runs beside the stream: capture
    std::vector<DeviceMemory::EndOfStep> ends{};  // then: of the parts with a memory
  };

  bool takes_few(std::span<const DecoderPart> parts) const;
  void multiply(const DeviceLinear& w, const void* x, std::int64_t n, DType to, void* y,
                bool add = false);
  void embed_rows(const kernels::EmbedParams& p);
  void add_norm(Step& step, kernels::AddNormParams p, const DeviceNorm& norm);
  kernels::ProductParams product_of(const Step& step, const DeviceLinear& w) const;
  kernels::ProductParams product_of(const Step& step, const DeviceLinear& w,
                                    const std::byte* x) const;
  void finish_block(Step& step, const DeviceLinear& w, const std::byte* x,
                    const float* maybe_norm_of_added, const DeviceNorm& next_norm);
  void add_beside(Step& step, const DeviceLinear& w, const std::byte* x);
  void make_heads(Step& step, std::int64_t l);
  void convolve(Step& step, std::int64_t l);
  void recur(Step& step, std::int64_t l);
  void first_product(Step& step, const DeviceLinear& w, std::byte* to, const char* what);
  void gate_attended(const Step& step, std::int64_t l);
  void show_keys(const DecoderPart& part, std::int64_t l, const DeviceMemory::LayerStep& of) const;
  void scale_queries(const Step& step, std::int64_t l) const;
  void attend(const Step& step, std::int64_t l, bool appended);
  void feed_forward(Step& step, std::int64_t l);
  void feed_mixture(Step& step, std::int64_t l, const DeviceNorm& next_norm);
  void run_layer(Step& step, std::int64_t l);
  void enqueue_angles(const Step& step);
  void fork_surprise(const Step& step);
  void fork_ends(const Step& step, std::int64_t l);
  void enqueue_step(Step& step, float* maybe_logits);
  void first_surprise(const Step& step, cudaStream_t on);
  void run_head(Step& step, float* maybe_logits);
  void head_of_few(Step& step, float* maybe_logits);
  void copy_logits(const float* from, std::int64_t cols, std::int64_t n, float* to) const;

  Cublas cublas_{stream.get()};
  // Of steps that are captured. Who waits for whom: capture.
  SideStream beside_ = SideStream::create();
  Event surprise_made_ = Event::create();
  std::int64_t last_served_ = -1;   // the last layer that a memory serves
  std::int64_t most_few_rows_ = 0;  // that all products of a step take
  // Rows are normed before a product, not within it: it would take RMS norms alone, and of rows
  // that no other product reads.
  bool needs_normed_ = false;
  DeviceBuffer batch_buffer_;
  BatchRoom batch_;
  std::int64_t batch_rows_ = 0, batch_sequences_ = 0;
};

}  // namespace episodic::device
