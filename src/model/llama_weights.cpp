// SPDX-License-Identifier: Apache-2.0
#include "llama_weights.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "elementwise.hpp"
#include "model_tensors.hpp"

namespace episodic {
namespace {

class Loader {
 public:
  explicit Loader(const std::filesystem::path& dir) : tensors_(dir) {}

  at::Tensor tensor(const std::string& name, const std::vector<std::int64_t>& shape) const {
    at::Tensor out = at::empty(shape, at::kFloat);
    widen(tensors_.at(name, shape), out.mutable_data_ptr<float>());
    return out;
  }

  Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias) const {
    Linear result{tensor(name + ".weight", {out, in}), {}, out, in};
    if (bias) result.bias = tensor(name + ".bias", {out});
    return result;
  }

 private:
  ModelTensors tensors_;
};

}  // namespace

std::shared_ptr<const LlamaWeights> load_llama_weights(const std::filesystem::path& dir) {
  auto w = std::make_shared<LlamaWeights>();
  w->config = load_model_config(dir);
  const ModelConfig& c = w->config;
  const Loader load(dir);
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const std::int64_t q_width = c.n_heads * c.head_dim, kv_width = c.n_kv_heads * c.head_dim;

  w->embedding = load.tensor("model.embed_tokens.weight", {c.vocab_size, hidden});
  for (std::int64_t i = 0; i < c.n_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    LlamaLayer layer;
    layer.input_norm = load.tensor(at + "input_layernorm.weight", {hidden});
    layer.post_norm = load.tensor(at + "post_attention_layernorm.weight", {hidden});
    layer.q = load.linear(at + "self_attn.q_proj", q_width, hidden, c.attention_bias);
    layer.k = load.linear(at + "self_attn.k_proj", kv_width, hidden, c.attention_bias);
    layer.v = load.linear(at + "self_attn.v_proj", kv_width, hidden, c.attention_bias);
    layer.o = load.linear(at + "self_attn.o_proj", hidden, q_width, c.attention_bias);
    layer.gate = load.linear(at + "mlp.gate_proj", inner, hidden, c.mlp_bias);
    layer.up = load.linear(at + "mlp.up_proj", inner, hidden, c.mlp_bias);
    layer.down = load.linear(at + "mlp.down_proj", hidden, inner, c.mlp_bias);
    w->layers.push_back(std::move(layer));
  }
  w->final_norm = load.tensor("model.norm.weight", {hidden});
  if (c.tie_word_embeddings)
    w->head = {w->embedding, {}, c.vocab_size, hidden};
  else
    w->head = load.linear("lm_head", c.vocab_size, hidden, false);
  return w;
}

}  // namespace episodic
