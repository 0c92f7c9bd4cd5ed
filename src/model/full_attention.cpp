// SPDX-License-Identifier: Apache-2.0
// Full causal attention with a growing cache: what a model's slots hold when it is loaded.

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "episodic/attention/attend.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/llama.hpp"

namespace episodic {
namespace {

constexpr std::int64_t kWholeSequence = std::int64_t{1} << 40;  // a window that nothing leaves
constexpr std::int64_t kChunk = 512;
constexpr std::int64_t kFirstCapacity = 256;

/// Keys, rotated by their position, and values of one layer: [G, capacity, d] each.
struct LayerCache {
  at::Tensor keys, values;
  std::int64_t capacity = 0;
};

class FullAttentionState final : public SequenceState {
 public:
  explicit FullAttentionState(const ModelConfig& config)
      : heads_(config.n_heads),
        groups_(config.n_kv_heads),
        dim_(config.head_dim),
        rotary_(config.rotary),
        layers_(static_cast<std::size_t>(config.n_layers)) {}

  void begin_step(std::span<const std::int64_t> ids) override {
    step_ = 0;
    const auto n = static_cast<std::int64_t>(ids.size());
    angles_.compute(rotary_, tokens_, n);
    step_ = n;
  }

  /// Only here do the tokens of the step count, so a step that throws leaves no trace.
  void end_step(std::span<const std::int64_t>, const at::Tensor&) override {
    tokens_ += step_;
    step_ = 0;
  }

  bool wants_all_logits() const override { return false; }
  std::int64_t tokens() const override { return tokens_; }
  std::int64_t chunk() const override { return kChunk; }

  void reset() override {
    tokens_ = 0;
    step_ = 0;
  }

  at::Tensor attend_layer(std::size_t layer, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v) {
    check("q", q, heads_);
    check("k", k, groups_);
    check("v", v, groups_);
    LayerCache& cache = layers_[layer];
    reserve(cache, tokens_ + step_);
    append(cache, k.const_data_ptr<float>(), v.const_data_ptr<float>());

    if (!rotated_.defined() || rotated_.size(0) < step_) {
      rotated_ = at::empty({step_, heads_, dim_}, at::kFloat);
      out_ = at::empty({step_, heads_ * dim_}, at::kFloat);
    }
    rotate(rotary_, angles_, step_, heads_, dim_, q.const_data_ptr<float>(), heads_ * dim_, dim_,
           rotated_.mutable_data_ptr<float>(), heads_ * dim_, dim_);

    KvSegment segment;
    segment.key = cache.keys.const_data_ptr<float>();
    segment.value = cache.values.const_data_ptr<float>();
    segment.length = tokens_ + step_;
    segment.head_stride = cache.capacity * dim_;
    segment.row_stride = dim_;
    segment.position = Position::relative;
    const std::span<const KvSegment> list(&segment, 1);
    const AttendShape shape{.n_queries = step_,
                            .n_heads = heads_,
                            .n_kv_heads = groups_,
                            .head_dim = dim_,
                            .first_position = tokens_,
                            .n_local = kWholeSequence};
    AttendInput input;
    input.q_relative = rotated_.const_data_ptr<float>();
    input.segments = {&list, 1};
    AttendOutput output;
    output.out = out_.mutable_data_ptr<float>();
    attend(shape, input, output, workspace_);
    return out_.size(0) == step_ ? out_ : out_.narrow(0, 0, step_);
  }

 private:
  void check(const char* name, const at::Tensor& t, std::int64_t heads) const {
    if (t.dim() != 3 || t.size(0) != step_ || t.size(1) != heads || t.size(2) != dim_ ||
        t.scalar_type() != at::kFloat || !t.is_contiguous() || !t.device().is_cpu())
      throw DataError(
          fmt::format("full attention: {} must be a contiguous float32 tensor [{}, {}, {}] "
                      "on the CPU, within begin_step and end_step",
                      name, step_, heads, dim_));
  }

  void reserve(LayerCache& cache, std::int64_t need) const {
    if (need <= cache.capacity) return;
    const std::int64_t capacity = std::max({need, 2 * cache.capacity, kFirstCapacity});
    LayerCache grown{at::empty({groups_, capacity, dim_}, at::kFloat),
                     at::empty({groups_, capacity, dim_}, at::kFloat), capacity};
    const auto bytes = static_cast<std::size_t>(tokens_ * dim_) * sizeof(float);
    for (std::int64_t g = 0; g < groups_ && tokens_ > 0; ++g) {
      std::memcpy(grown.keys.mutable_data_ptr<float>() + g * capacity * dim_,
                  cache.keys.const_data_ptr<float>() + g * cache.capacity * dim_, bytes);
      std::memcpy(grown.values.mutable_data_ptr<float>() + g * capacity * dim_,
                  cache.values.const_data_ptr<float>() + g * cache.capacity * dim_, bytes);
    }
    cache = std::move(grown);
  }

  void append(LayerCache& cache, const float* k, const float* v) const {
    const std::int64_t head_stride = cache.capacity * dim_;
    rotate(rotary_, angles_, step_, groups_, dim_, k, groups_ * dim_, dim_,
           cache.keys.mutable_data_ptr<float>() + tokens_ * dim_, dim_, head_stride);
    float* values = cache.values.mutable_data_ptr<float>() + tokens_ * dim_;
    for (std::int64_t i = 0; i < step_; ++i)
      for (std::int64_t g = 0; g < groups_; ++g)
        std::memcpy(values + g * head_stride + i * dim_, v + (i * groups_ + g) * dim_,
                    static_cast<std::size_t>(dim_) * sizeof(float));
  }

  const std::int64_t heads_, groups_, dim_;
  const RotaryTable rotary_;
  std::vector<LayerCache> layers_;
  RotaryAngles angles_;       // of the step's positions
  at::Tensor rotated_, out_;  // [longest step so far, H, d] and [.., H * d], reused by all layers
  AttendWorkspace workspace_;
  std::int64_t tokens_ = 0;
  std::int64_t step_ = 0;  // tokens between begin_step and end_step
};

class FullAttention final : public AttentionSlot {
 public:
  FullAttention(std::shared_ptr<FullAttentionState> state, std::size_t layer)
      : state_(std::move(state)), layer_(layer) {}

  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    return state_->attend_layer(layer_, q, k, v);
  }

 private:
  std::shared_ptr<FullAttentionState> state_;
  std::size_t layer_;
};

}  // namespace

void use_full_attention(LlamaModel& model) {
  auto state = std::make_shared<FullAttentionState>(model.config());
  for (std::int64_t l = 0; l < model.config().n_layers; ++l)
    model.attention(l) = std::make_shared<FullAttention>(state, static_cast<std::size_t>(l));
  model.state() = std::move(state);
}

}  // namespace episodic
