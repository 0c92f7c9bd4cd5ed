// SPDX-License-Identifier: Apache-2.0
// A transformer as one may have it: torch::nn modules with typed members, queries, keys and values
// out of one projection, rotary embedding of neighbouring channels, fewer key/value heads than
// query heads. The two lines that let a memory take the place of its attention say PATCH.
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

#include "episodic/model/patch.hpp"
#include "episodic/torch_slots/torch_slots.hpp"

namespace yours {

struct Sizes {
  std::int64_t layers = 2, heads = 4, kv_heads = 2, head_dim = 32, hidden = 128, vocab = 96;
  double rope_theta = 10000;
};

/// Turns channels 2c and 2c + 1 of each head by position * theta^(-2c / d). \param x [n, H, d]
inline torch::Tensor turned(const torch::Tensor& x, double theta) {
  const std::int64_t n = x.size(0), d = x.size(2);
  const auto frequency = torch::pow(theta, -torch::arange(0, d, 2, torch::kDouble) / d);
  const auto angle = torch::outer(torch::arange(n, torch::kDouble), frequency).unsqueeze(1);
  const auto c = angle.cos().to(x.scalar_type()), s = angle.sin().to(x.scalar_type());
  const auto pairs = x.reshape({n, x.size(1), d / 2, 2}).unbind(-1);
  return torch::stack({pairs[0] * c - pairs[1] * s, pairs[1] * c + pairs[0] * s}, -1).flatten(2);
}

struct AttentionImpl : torch::nn::Module, episodic::SlottedAttention {  // PATCH: the second base
  explicit AttentionImpl(const Sizes& sizes) : s(sizes) {
    const std::int64_t rows = (s.heads + 2 * s.kv_heads) * s.head_dim;
    qkv = register_module("qkv", torch::nn::Linear(s.hidden, rows));
    out = register_module("out", torch::nn::Linear(s.heads * s.head_dim, s.hidden));
  }

  /// \param x [n, hidden] \return [n, hidden]
  torch::Tensor forward(const torch::Tensor& x) {
    const std::int64_t n = x.size(0), d = s.head_dim;
    const auto parts = qkv->forward(x).split_with_sizes(
        {s.heads * d, s.kv_heads * d, s.kv_heads * d}, -1);  // views, not copies
    const auto q = parts[0].view({n, s.heads, d});
    const auto k = parts[1].view({n, s.kv_heads, d}), v = parts[2].view({n, s.kv_heads, d});
    // PATCH: who is in the slot gets queries and keys before their rotation
    return out->forward(slot ? episodic::attend(*slot, q, k, v) : attend(q, k, v));
  }

  /// Causal attention among the tokens of one call. \return [n, heads * d]
  torch::Tensor attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
    const auto heads_first = [&](const torch::Tensor& x) {  // [1, heads, n, d]
      return x.repeat_interleave(s.heads / x.size(1), 1).transpose(0, 1).unsqueeze(0);
    };
    const auto attended = at::scaled_dot_product_attention(
        heads_first(turned(q, s.rope_theta)), heads_first(turned(k, s.rope_theta)), heads_first(v),
        {}, 0.0, /*is_causal=*/true);
    return attended[0].transpose(0, 1).flatten(1);
  }

  Sizes s;
  torch::nn::Linear qkv{nullptr}, out{nullptr};
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Sizes& s) {
    const torch::nn::LayerNormOptions norm({s.hidden});
    attention_norm = register_module("attention_norm", torch::nn::LayerNorm(norm));
    attention = register_module("attention", Attention(s));
    mlp_norm = register_module("mlp_norm", torch::nn::LayerNorm(norm));
    up = register_module("up", torch::nn::Linear(s.hidden, 2 * s.hidden));
    down = register_module("down", torch::nn::Linear(2 * s.hidden, s.hidden));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = x + attention->forward(attention_norm->forward(x));
    return y + down->forward(torch::gelu(up->forward(mlp_norm->forward(y))));
  }
  torch::nn::LayerNorm attention_norm{nullptr}, mlp_norm{nullptr};
  Attention attention{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const Sizes& s) : sizes(s) {
    embedding = register_module("embedding", torch::nn::Embedding(s.vocab, s.hidden));
    for (std::int64_t l = 0; l < s.layers; ++l)
      blocks.push_back(register_module("block" + std::to_string(l), Block(s)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.hidden})));
  }
  /// \param ids [n] int64 \return logits [n, vocab]
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = embedding->forward(ids);
    for (auto& block : blocks) x = block->forward(x);
    return norm->forward(x).matmul(embedding->weight.t());
  }
  Sizes sizes;
  torch::nn::Embedding embedding{nullptr};
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Model);

/// The model as the library patches it (episodic::PatchableDecoder): its slots, and the state that
/// hears of every step.
class Sequence {
 public:
  explicit Sequence(Model model) : model_(std::move(model)), slots_(episodic::slots_in(*model_)) {}

  std::int64_t n_layers() const { return static_cast<std::int64_t>(slots_.size()); }
  std::shared_ptr<episodic::AttentionSlot>& attention(std::int64_t layer) {
    return *slots_.at(static_cast<std::size_t>(layer));
  }
  std::shared_ptr<episodic::SequenceState>& state() { return state_; }

  /// One step; the memory, if there is one, remembers the earlier ones. \return logits [n, vocab]
  torch::Tensor step(const torch::Tensor& tokens) {
    const torch::NoGradGuard no_grad;
    const std::span<const std::int64_t> ids(tokens.const_data_ptr<std::int64_t>(),
                                            static_cast<std::size_t>(tokens.numel()));
    if (state_) state_->begin_step(ids);
    torch::Tensor logits = model_->forward(tokens);
    if (state_) episodic::end_step(*state_, ids, logits);
    return logits;
  }

  /// A memory of the model's shape for some of its layers.
  episodic::MemoryShape shape(std::int64_t layers) const {
    const Sizes& s = model_->sizes;
    episodic::RotaryTable rotary = episodic::plain_rotary(s.head_dim, s.rope_theta);
    rotary.pairs = episodic::RotaryPairs::interleaved;
    return {layers, s.heads, s.kv_heads, s.head_dim, rotary};
  }

 private:
  Model model_;
  std::vector<std::shared_ptr<episodic::AttentionSlot>*> slots_;
  std::shared_ptr<episodic::SequenceState> state_;
};

/// Random weights, but that a key is what the query of its token is: what comes again finds where
/// it was before, as in a trained model.
inline Model random_model(const Sizes& s = {}) {
  Model model(s);
  const torch::NoGradGuard no_grad;
  const std::int64_t d = s.head_dim, group = s.heads / s.kv_heads;
  for (auto& block : model->blocks)
    for (torch::Tensor rows : {block->attention->qkv->weight, block->attention->qkv->bias})
      for (std::int64_t g = 0; g < s.kv_heads; ++g)
        rows.narrow(0, (s.heads + g) * d, d).copy_(rows.narrow(0, g * group * d, d));
  return model;
}

}  // namespace yours
