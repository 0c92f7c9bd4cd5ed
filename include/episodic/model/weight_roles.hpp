// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the weights of a decoder are for: one row each. Plans, messages, GGUF names, quantising,
/// adapters and training read this table; a new kind of weight is a row here, its places in a plan
/// (weight_plan.cpp) and the step that uses it. Torch-free.

#include <array>
#include <cstdint>
#include <span>

namespace episodic {

/// What a weight is for. Those from input_norm to layer_scalar are of one layer.
enum class WeightRole : std::uint8_t {
  embedding,  ///< [vocab, hidden]
  // of inputs that each layer has beside the residual stream (ModelConfig::per_layer_width):
  per_layer_embedding,   ///< [vocab, layers * width]
  per_layer_model,       ///< [layers * width, hidden], of what the embedding gives
  per_layer_model_norm,  ///< [width], on each layer's part of that
  input_norm,            ///< [hidden], on what attention reads
  attended_norm,         ///< [hidden], on what attention adds
  feed_norm,             ///< [hidden], on what the feed-forward network reads
  fed_norm,              ///< [hidden], on what it adds
  q_norm,                ///< [head_dim], or [heads * head_dim] for QkNorm::row
  k_norm,                ///< the same for keys
  sink_logits,           ///< [heads], a score of each head that every query meets beside its keys
  q,
  k,
  v,  ///< [heads * head_dim, hidden]; of q twice as many rows where attention has a gate
  o,  ///< [hidden, heads * head_dim]
  // of latent attention (LatentSpec), in place of k and v, and where queries have two, of q:
  q_down,        ///< [q_rank, hidden]
  q_down_norm,   ///< [q_rank]
  q_up,          ///< [heads * query, q_rank]
  kv_down,       ///< [rank + turning, hidden]
  kv_down_norm,  ///< [rank]
  kv_up,         ///< [heads * (still + value), rank]: of each head its keys' rows, then its values'
  conv_in,       ///< [3 * hidden, hidden]: of a short convolution, which a layer has for attention
  conv,          ///< [hidden, 1, taps]
  conv_out,      ///< [hidden, hidden]
  // of a recurrence (RecurrenceSpec), which a layer has for attention:
  mix_in,         ///< [channels, hidden]: q, k, v
  mix_gate,       ///< [values, hidden]
  mix_step,       ///< [heads, hidden]: what the decay follows from
  mix_write,      ///< [heads, hidden]: the weight by which a delta rule writes
  mix_conv,       ///< [channels, 1, taps]
  mix_rate,       ///< [heads]
  mix_step_bias,  ///< [heads]
  mix_skip,       ///< [heads], of Mamba2
  mix_norm,       ///< [value_dim], of Mamba2 [values]
  mix_out,        ///< [hidden, values]
  gate,
  up,    ///< [intermediate, hidden]
  down,  ///< [hidden, intermediate]
  // of a mixture of experts, which a layer has in place of gate, up and down:
  router,         ///< [experts, hidden]; its bias: [experts]
  expert_gate,    ///< [width, hidden], of each expert
  expert_up,      ///< the same
  expert_down,    ///< [hidden, width], of each expert
  shared_router,  ///< [hidden]: what the shared expert is multiplied by, before a sigmoid
  shared_gate,
  shared_up,    ///< [shared width, hidden], of the expert that every token uses
  shared_down,  ///< [hidden, shared width]
  xielu_alpha_p,
  xielu_alpha_n,
  xielu_beta,
  xielu_eps,  ///< one number each
  // where a dense network is beside the mixture:
  router_scale,    ///< [hidden], on what the router reads
  expert_scale,    ///< [experts], of their results
  dense_norm,      ///< [hidden], on what the dense network adds
  expert_in_norm,  ///< [hidden], on what the experts read
  expert_norm,     ///< [hidden], on what they add
  per_layer_gate,  ///< [width, hidden]: of a layer's own input
  per_layer_out,   ///< [hidden, width]
  per_layer_norm,  ///< [hidden], on what that adds
  layer_scalar,    ///< one number
  final_norm,      ///< [hidden]
  head,            ///< [vocab, hidden]; of a tied model the embedding's tensor
};

/// The parameters of xIELU: tensors of one number each, whose names end without ".weight".
inline constexpr WeightRole kXieluRoles[] = {WeightRole::xielu_alpha_p, WeightRole::xielu_alpha_n,
                                             WeightRole::xielu_beta, WeightRole::xielu_eps};

/// A weight that a family calls otherwise than the table below.
struct WeightName {
  WeightRole role;
  const char* hugging_face;
};

/// Which part of a model a weight is of.
enum class WeightBlock : std::uint8_t {
  vocabulary,
  attention,
  latent,
  convolution,
  recurrence,
  feed_forward,
  mixture,
  per_layer,
  output
};

struct WeightRoleInfo {
  WeightRole role;
  const char* name;          ///< for messages and flags
  const char* hugging_face;  ///< without ".weight"; of a layer's weights, behind "model.layers.N."
  const char* gguf;          ///< the same behind "blk.N."
  WeightBlock block;
  bool product;       ///< a matrix that activations are multiplied by; else it is read as numbers
  bool adapted;       ///< LoRA adapters are trained for it
  const char* sizes;  ///< the fields of config.json that its shape follows from
};

/// In the order of WeightRole. With norms on both sides of a block, LLaMA's name for the norm
/// before the feed-forward network is that of the norm behind attention (weight_plan.cpp). Names of
/// a mixture's tensors are those of Qwen; others are rows of kMixtureTensors (mixture_plan.cpp).
inline constexpr std::array<WeightRoleInfo, 60> kWeightRoles{{
    {WeightRole::embedding, "embedding", "model.embed_tokens", "token_embd",
     WeightBlock::vocabulary, false, false, "vocab_size and hidden_size"},
    {WeightRole::per_layer_embedding, "per_layer_embedding", "model.embed_tokens_per_layer",
     "per_layer_token_embd", WeightBlock::vocabulary, false, false,
     "vocab_size_per_layer_input, num_hidden_layers and hidden_size_per_layer_input"},
    {WeightRole::per_layer_model, "per_layer_model", "model.per_layer_model_projection",
     "per_layer_model_proj", WeightBlock::per_layer, true, false,
     "num_hidden_layers, hidden_size_per_layer_input and hidden_size"},
    {WeightRole::per_layer_model_norm, "per_layer_model_norm", "model.per_layer_projection_norm",
     "per_layer_proj_norm", WeightBlock::per_layer, false, false, "hidden_size_per_layer_input"},
    {WeightRole::input_norm, "input_norm", "input_layernorm", "attn_norm", WeightBlock::attention,
     false, false, "hidden_size"},
    {WeightRole::attended_norm, "attended_norm", "post_attention_layernorm", "post_attention_norm",
     WeightBlock::attention, false, false, "hidden_size"},
    {WeightRole::feed_norm, "feed_norm", "pre_feedforward_layernorm", "ffn_norm",
     WeightBlock::feed_forward, false, false, "hidden_size"},
    {WeightRole::fed_norm, "fed_norm", "post_feedforward_layernorm", "post_ffw_norm",
     WeightBlock::feed_forward, false, false, "hidden_size"},
    {WeightRole::q_norm, "q_norm", "self_attn.q_norm", "attn_q_norm", WeightBlock::attention, false,
     false, "head_dim"},
    {WeightRole::k_norm, "k_norm", "self_attn.k_norm", "attn_k_norm", WeightBlock::attention, false,
     false, "head_dim"},
    {WeightRole::sink_logits, "sink_logits", "self_attn.sinks", "attn_sinks",
     WeightBlock::attention, false, false, "num_attention_heads"},
    {WeightRole::q, "q", "self_attn.q_proj", "attn_q", WeightBlock::attention, true, true,
     "num_attention_heads, head_dim and hidden_size"},
    {WeightRole::k, "k", "self_attn.k_proj", "attn_k", WeightBlock::attention, true, true,
     "num_key_value_heads, head_dim and hidden_size"},
    {WeightRole::v, "v", "self_attn.v_proj", "attn_v", WeightBlock::attention, true, true,
     "num_key_value_heads, head_dim and hidden_size"},
    {WeightRole::o, "o", "self_attn.o_proj", "attn_output", WeightBlock::attention, true, true,
     "num_attention_heads, head_dim and hidden_size"},
    {WeightRole::q_down, "q_down", "self_attn.q_a_proj", "attn_q_a", WeightBlock::latent, true,
     false, "q_lora_rank and hidden_size"},
    {WeightRole::q_down_norm, "q_down_norm", "self_attn.q_a_layernorm", "attn_q_a_norm",
     WeightBlock::latent, false, false, "q_lora_rank"},
    {WeightRole::q_up, "q_up", "self_attn.q_b_proj", "attn_q_b", WeightBlock::latent, true, false,
     "num_attention_heads, qk_nope_head_dim, qk_rope_head_dim and q_lora_rank"},
    {WeightRole::kv_down, "kv_down", "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa",
     WeightBlock::latent, true, false, "kv_lora_rank, qk_rope_head_dim and hidden_size"},
    {WeightRole::kv_down_norm, "kv_down_norm", "self_attn.kv_a_layernorm", "attn_kv_a_norm",
     WeightBlock::latent, false, false, "kv_lora_rank"},
    {WeightRole::kv_up, "kv_up", "self_attn.kv_b_proj", "attn_kv_b", WeightBlock::latent, true,
     false, "num_attention_heads, qk_nope_head_dim, v_head_dim and kv_lora_rank"},
    {WeightRole::conv_in, "conv_in", "conv.in_proj", "shortconv.in_proj", WeightBlock::convolution,
     true, false, "hidden_size"},
    {WeightRole::conv, "conv", "conv.conv", "shortconv.conv", WeightBlock::convolution, false,
     false, "hidden_size and conv_L_cache"},
    {WeightRole::conv_out, "conv_out", "conv.out_proj", "shortconv.out_proj",
     WeightBlock::convolution, true, false, "hidden_size"},
    {WeightRole::mix_in, "mix_in", "linear_attn.in_proj_qkv", "attn_qkv", WeightBlock::recurrence,
     true, false, "the recurrent heads' numbers and sizes, and hidden_size"},
    {WeightRole::mix_gate, "mix_gate", "linear_attn.in_proj_z", "attn_gate",
     WeightBlock::recurrence, true, false,
     "the recurrent heads' number and value size, and hidden_size"},
    {WeightRole::mix_step, "mix_step", "linear_attn.in_proj_a", "ssm_alpha",
     WeightBlock::recurrence, true, false, "the number of recurrent heads, and hidden_size"},
    {WeightRole::mix_write, "mix_write", "linear_attn.in_proj_b", "ssm_beta",
     WeightBlock::recurrence, true, false, "the number of recurrent heads, and hidden_size"},
    {WeightRole::mix_conv, "mix_conv", "linear_attn.conv1d", "ssm_conv1d", WeightBlock::recurrence,
     false, false, "the recurrent heads' numbers and sizes, and the convolution's taps"},
    {WeightRole::mix_rate, "mix_rate", "linear_attn.A_log", "ssm_a", WeightBlock::recurrence, false,
     false, "the number of recurrent heads"},
    {WeightRole::mix_step_bias, "mix_step_bias", "linear_attn.dt_bias", "ssm_dt.bias",
     WeightBlock::recurrence, false, false, "the number of recurrent heads"},
    {WeightRole::mix_skip, "mix_skip", "mamba.D", "ssm_d", WeightBlock::recurrence, false, false,
     "the number of recurrent heads"},
    {WeightRole::mix_norm, "mix_norm", "linear_attn.norm", "ssm_norm", WeightBlock::recurrence,
     false, false, "the recurrent heads' number and value size"},
    {WeightRole::mix_out, "mix_out", "linear_attn.out_proj", "ssm_out", WeightBlock::recurrence,
     true, false, "the recurrent heads' number and value size, and hidden_size"},
    {WeightRole::gate, "gate", "mlp.gate_proj", "ffn_gate", WeightBlock::feed_forward, true, true,
     "intermediate_size and hidden_size"},
    {WeightRole::up, "up", "mlp.up_proj", "ffn_up", WeightBlock::feed_forward, true, true,
     "intermediate_size and hidden_size"},
    {WeightRole::down, "down", "mlp.down_proj", "ffn_down", WeightBlock::feed_forward, true, true,
     "intermediate_size and hidden_size"},
    {WeightRole::router, "router", "mlp.gate", "ffn_gate_inp", WeightBlock::mixture, true, false,
     "the number of experts and hidden_size"},
    {WeightRole::expert_gate, "expert_gate", "mlp.experts.{}.gate_proj", "ffn_gate_exps",
     WeightBlock::mixture, true, false, "the number of experts, their width and hidden_size"},
    {WeightRole::expert_up, "expert_up", "mlp.experts.{}.up_proj", "ffn_up_exps",
     WeightBlock::mixture, true, false, "the number of experts, their width and hidden_size"},
    {WeightRole::expert_down, "expert_down", "mlp.experts.{}.down_proj", "ffn_down_exps",
     WeightBlock::mixture, true, false, "the number of experts, their width and hidden_size"},
    {WeightRole::shared_router, "shared_router", "mlp.shared_expert_gate", "ffn_gate_inp_shexp",
     WeightBlock::mixture, true, false, "hidden_size"},
    {WeightRole::shared_gate, "shared_gate", "mlp.shared_expert.gate_proj", "ffn_gate_shexp",
     WeightBlock::mixture, true, false, "the shared expert's width and hidden_size"},
    {WeightRole::shared_up, "shared_up", "mlp.shared_expert.up_proj", "ffn_up_shexp",
     WeightBlock::mixture, true, false, "the shared expert's width and hidden_size"},
    {WeightRole::shared_down, "shared_down", "mlp.shared_expert.down_proj", "ffn_down_shexp",
     WeightBlock::mixture, true, false, "the shared expert's width and hidden_size"},
    {WeightRole::xielu_alpha_p, "xielu_alpha_p", "mlp.act_fn.alpha_p", "xielu.alpha_p",
     WeightBlock::feed_forward, false, false, "hidden_act"},
    {WeightRole::xielu_alpha_n, "xielu_alpha_n", "mlp.act_fn.alpha_n", "xielu.alpha_n",
     WeightBlock::feed_forward, false, false, "hidden_act"},
    {WeightRole::xielu_beta, "xielu_beta", "mlp.act_fn.beta", "xielu.beta",
     WeightBlock::feed_forward, false, false, "hidden_act"},
    {WeightRole::xielu_eps, "xielu_eps", "mlp.act_fn.eps", "xielu.eps", WeightBlock::feed_forward,
     false, false, "hidden_act"},
    {WeightRole::router_scale, "router_scale", "router.scale", "ffn_gate_inp.scale",
     WeightBlock::mixture, false, false, "hidden_size"},
    {WeightRole::expert_scale, "expert_scale", "router.per_expert_scale", "ffn_down_exps.scale",
     WeightBlock::mixture, false, false, "num_experts"},
    {WeightRole::dense_norm, "dense_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1",
     WeightBlock::mixture, false, false, "hidden_size"},
    {WeightRole::expert_in_norm, "expert_in_norm", "pre_feedforward_layernorm_2", "pre_ffw_norm_2",
     WeightBlock::mixture, false, false, "hidden_size"},
    {WeightRole::expert_norm, "expert_norm", "post_feedforward_layernorm_2", "post_ffw_norm_2",
     WeightBlock::mixture, false, false, "hidden_size"},
    {WeightRole::per_layer_gate, "per_layer_gate", "per_layer_input_gate", "inp_gate",
     WeightBlock::per_layer, true, false, "hidden_size_per_layer_input and hidden_size"},
    {WeightRole::per_layer_out, "per_layer_out", "per_layer_projection", "proj",
     WeightBlock::per_layer, true, false, "hidden_size_per_layer_input and hidden_size"},
    {WeightRole::per_layer_norm, "per_layer_norm", "post_per_layer_input_norm", "post_norm",
     WeightBlock::per_layer, false, false, "hidden_size"},
    {WeightRole::layer_scalar, "layer_scalar", "layer_scalar", "layer_output_scale",
     WeightBlock::per_layer, false, false, "num_hidden_layers"},
    {WeightRole::final_norm, "final_norm", "model.norm", "output_norm", WeightBlock::output, false,
     false, "hidden_size"},
    {WeightRole::head, "head", "lm_head", "output", WeightBlock::vocabulary, true, false,
     "vocab_size and hidden_size"},
}};

constexpr const WeightRoleInfo& info_of(WeightRole role) {
  return kWeightRoles[static_cast<std::size_t>(role)];
}

/// Whether quantising rounds it, if it is a matrix: not what a router decides by, nor a
/// convolution's taps or what a recurrence decays and writes by, which are small.
constexpr bool is_rounded(WeightRole role) {
  return role != WeightRole::router && role != WeightRole::shared_router &&
         role != WeightRole::conv && role != WeightRole::mix_conv && role != WeightRole::mix_step &&
         role != WeightRole::mix_write;
}

namespace detail {
constexpr bool roles_in_order() {
  for (std::size_t i = 0; i < kWeightRoles.size(); ++i)
    if (kWeightRoles[i].role != static_cast<WeightRole>(i)) return false;
  return kWeightRoles.back().role == WeightRole::head;
}
constexpr bool is_layer_product(const WeightRoleInfo& r) {
  return r.product && (r.block == WeightBlock::attention || r.block == WeightBlock::feed_forward);
}
constexpr std::size_t count_layer_products() {
  std::size_t n = 0;
  for (const WeightRoleInfo& r : kWeightRoles) n += is_layer_product(r) ? 1 : 0;
  return n;
}
}  // namespace detail
static_assert(detail::roles_in_order(), "each role has its row");

/// The products of a dense layer with attention, in the order in which a step needs them: q, k, v,
/// o, gate, up, down.
inline constexpr auto kLayerProducts = [] {
  std::array<WeightRole, detail::count_layer_products()> roles{};
  std::size_t n = 0;
  for (const WeightRoleInfo& r : kWeightRoles)
    if (detail::is_layer_product(r)) roles[n++] = r.role;
  return roles;
}();

/// Name for messages: "q", "input_norm", ...
constexpr const char* name_of(WeightRole role) { return info_of(role).name; }

}  // namespace episodic
