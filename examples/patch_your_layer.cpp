// SPDX-License-Identifier: Apache-2.0
// A decoder of your own (random weights, no feed-forward) with a slot where its attention was:
// inside the window the memory equals full attention to rounding, and it goes on far past the
// window.
#include <ATen/ATen.h>

#include <cstdio>

#include "episodic/model/episodic_attention.hpp"
#include "episodic/torch_slots/torch_slots.hpp"

constexpr std::int64_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 32, kHidden = 128, kVocab = 64;

struct YourDecoder {
  at::Tensor embedding = at::randn({kVocab, kHidden});
  at::Tensor q = at::randn({kLayers, kHidden, kHeads* kDim}) / 16;
  at::Tensor k = at::randn({kLayers, kHidden, kKvHeads*kDim}) / 16, v = at::randn_like(k) / 16;
  at::Tensor o = at::randn({kLayers, kHeads* kDim, kHidden}) / 16;
  std::vector<std::shared_ptr<episodic::AttentionSlot>> slots{kLayers};  // the seam, one a layer
  std::shared_ptr<episodic::SequenceState> state;  // told of every step, if there is one

  at::Tensor forward(const at::Tensor& tokens) {
    const auto n = tokens.numel();
    const std::span<const std::int64_t> ids(tokens.const_data_ptr<std::int64_t>(), n);
    if (state) state->begin_step(ids);
    at::Tensor x = embedding.index_select(0, tokens);
    for (std::int64_t l = 0; l < kLayers; ++l) {
      const at::Tensor y = at::layer_norm(x, {kHidden});
      const at::Tensor queries = y.matmul(q[l]).view({n, kHeads, kDim});
      const at::Tensor keys = y.matmul(k[l]).view({n, kKvHeads, kDim});
      const at::Tensor values = y.matmul(v[l]).view({n, kKvHeads, kDim});
      x = x + episodic::attend(*slots[l], queries, keys, values).matmul(o[l]);
    }
    const at::Tensor logits = at::layer_norm(x, {kHidden}).matmul(embedding.t());
    if (state) episodic::end_step(*state, ids, logits);
    return logits;
  }
};

/// What your decoder did before: causal attention over one step (its cache is left out here).
struct YourAttention final : episodic::TorchSlot {
  static at::Tensor turned(const at::Tensor& x) {  // rotary embedding in the rotate-half layout
    const auto frequency = at::pow(10000.0, -at::arange(0, kDim, 2, at::kDouble) / kDim);
    const auto angle = at::outer(at::arange(x.size(0), at::kDouble), frequency).unsqueeze(1);
    const auto c = angle.cos().to(at::kFloat), s = angle.sin().to(at::kFloat);
    const auto half = x.chunk(2, -1);
    return at::cat({half[0] * c - half[1] * s, half[1] * c + half[0] * s}, -1);
  }
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    const auto each = [](const at::Tensor& x) {  // [1, H, n, d]
      return x.repeat_interleave(kHeads / x.size(1), 1).transpose(0, 1).unsqueeze(0);
    };
    const auto out = at::scaled_dot_product_attention(each(turned(q)), each(turned(k)), each(v), {},
                                                      0.0, /*is_causal=*/true);
    return out[0].transpose(0, 1).reshape({q.size(0), kHeads * kDim});
  }
};

int main() {
  at::manual_seed(1);
  YourDecoder decoder;
  const at::Tensor tokens = at::randint(kVocab, {64}, at::kLong);
  for (auto& slot : decoder.slots) slot = std::make_shared<YourAttention>();
  const at::Tensor before = decoder.forward(tokens);

  const episodic::MemoryConfig config{.n_init = 4, .n_local = 128, .n_mem = 64, .chunk = 64};
  const auto rotary = episodic::plain_rotary(kDim, 10000.0);
  const auto memory = std::make_shared<episodic::EpisodicMemory>(
      config, episodic::MemoryShape{kLayers, kHeads, kKvHeads, kDim, rotary});
  for (std::int64_t l = 0; l < kLayers; ++l)
    decoder.slots[l] = std::make_shared<episodic::EpisodicAttention>(memory, l);
  decoder.state = std::make_shared<episodic::EpisodicState>(memory);
  const double difference = (decoder.forward(tokens) - before).abs().max().item<double>();
  for (int i = 0; i < 100; ++i) decoder.forward(at::randint(kVocab, {64}, at::kLong));
  std::printf("largest difference inside the window %.1e; read on to %ld tokens, %ld events\n",
              difference, long{memory->tokens()}, long{memory->events().size()});
  return difference < 1e-3 && memory->events().size() > 0 ? 0 : 1;
}
