// SPDX-License-Identifier: Apache-2.0
#pragma once
// What Hugging Face's tensors are called in GGUF files, for those who read and who write them.

#include <cstdint>
#include <span>
#include <string_view>

#include "episodic/model/weight_roles.hpp"

namespace episodic {

/// The text of tokenizer.json as it is: GGUF's own key for it. And, beside it, that of
/// tokenizer_config.json, which says what stands around a text.
inline constexpr const char* kGgufTokenizerJson = "tokenizer.huggingface.json";
inline constexpr const char* kGgufTokenizerConfig = "tokenizer.huggingface.config_json";

struct GgufName {
  const char* gguf;
  const char* hugging_face;
};

/// As the table of roles has it.
constexpr GgufName gguf_name(WeightRole role) {
  return {info_of(role).gguf, info_of(role).hugging_face};
}
/// A weight whose tensor is named as that of another role.
constexpr GgufName gguf_name(WeightRole role, WeightRole named) {
  return {info_of(role).gguf, info_of(named).hugging_face};
}

inline constexpr GgufName kTop[] = {gguf_name(WeightRole::embedding),
                                    gguf_name(WeightRole::final_norm), gguf_name(WeightRole::head)};
inline constexpr GgufName kAttention[] = {gguf_name(WeightRole::q), gguf_name(WeightRole::k),
                                          gguf_name(WeightRole::v), gguf_name(WeightRole::o)};
inline constexpr GgufName kSunkAttention[] = {gguf_name(WeightRole::q), gguf_name(WeightRole::k),
                                              gguf_name(WeightRole::v), gguf_name(WeightRole::o),
                                              gguf_name(WeightRole::sink_logits)};
inline constexpr GgufName kFusedAttention[] = {{"attn_qkv", "self_attn.qkv_proj"},
                                               gguf_name(WeightRole::o)};
inline constexpr GgufName kHeadNorms[] = {gguf_name(WeightRole::q_norm),
                                          gguf_name(WeightRole::k_norm)};
inline constexpr GgufName kMlp[] = {gguf_name(WeightRole::gate), gguf_name(WeightRole::up),
                                    gguf_name(WeightRole::down)};
inline constexpr GgufName kFusedMlp[] = {{"ffn_up", "mlp.gate_up_proj"},
                                         gguf_name(WeightRole::down)};
/// All experts in one tensor (MixtureTensors::stacked), with and without one that every token uses.
inline constexpr GgufName kSharedExperts[] = {
    gguf_name(WeightRole::router),          {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"}, {"ffn_down_exps", "mlp.experts.down_proj"},
    gguf_name(WeightRole::shared_router),   gguf_name(WeightRole::shared_gate),
    gguf_name(WeightRole::shared_up),       gguf_name(WeightRole::shared_down)};
inline constexpr std::span<const GgufName> kExperts{kSharedExperts, 4};
inline constexpr GgufName kNormsBefore[] = {
    gguf_name(WeightRole::input_norm), gguf_name(WeightRole::feed_norm, WeightRole::attended_norm)};
inline constexpr GgufName kNormsBetween[] = {gguf_name(WeightRole::input_norm),
                                             gguf_name(WeightRole::attended_norm)};
inline constexpr GgufName kNormsAfter[] = {gguf_name(WeightRole::attended_norm),
                                           gguf_name(WeightRole::fed_norm)};
inline constexpr GgufName kNormsAround[] = {
    gguf_name(WeightRole::input_norm), gguf_name(WeightRole::attended_norm),
    gguf_name(WeightRole::feed_norm), gguf_name(WeightRole::fed_norm)};

inline constexpr GgufName kLfm2Top[] = {{"token_embd", "model.embed_tokens"},
                                        {"token_embd_norm", "model.embedding_norm"},
                                        {"output_norm", "model.embedding_norm"},
                                        {"output", "lm_head"}};
inline constexpr GgufName kLfm2Mixers[] = {
    {"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.out_proj"},
    gguf_name(WeightRole::conv_in), gguf_name(WeightRole::conv),
    gguf_name(WeightRole::conv_out)};
inline constexpr GgufName kLfm2Mlp[] = {{"ffn_gate", "feed_forward.w1"},
                                        {"ffn_up", "feed_forward.w3"},
                                        {"ffn_down", "feed_forward.w2"}};
inline constexpr GgufName kLfm2Norms[] = {{"attn_norm", "operator_norm"}, {"ffn_norm", "ffn_norm"}};
inline constexpr GgufName kLfm2HeadNorms[] = {{"attn_q_norm", "self_attn.q_layernorm"},
                                              {"attn_k_norm", "self_attn.k_layernorm"}};
inline constexpr GgufName kUpDown[] = {gguf_name(WeightRole::up), gguf_name(WeightRole::down)};
inline constexpr GgufName kOneNorm[] = {gguf_name(WeightRole::input_norm)};
// of families with names of their own
inline constexpr GgufName kGlm4Norms[] = {gguf_name(WeightRole::input_norm),
                                          {"post_attention_norm", "post_self_attn_layernorm"},
                                          {"ffn_norm", "post_attention_layernorm"},
                                          {"post_ffw_norm", "post_mlp_layernorm"}};
inline constexpr GgufName kSeedNorms[] = {gguf_name(WeightRole::input_norm),
                                          gguf_name(WeightRole::attended_norm)};
inline constexpr GgufName kApertusNorms[] = {{"attn_norm", "attention_layernorm"},
                                             {"ffn_norm", "feedforward_layernorm"}};
inline constexpr GgufName kStarcoder2Mlp[] = {{"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"}};

inline constexpr GgufName kGemma4Top[] = {
    gguf_name(WeightRole::embedding),       gguf_name(WeightRole::per_layer_embedding),
    gguf_name(WeightRole::per_layer_model), gguf_name(WeightRole::per_layer_model_norm),
    gguf_name(WeightRole::final_norm),      gguf_name(WeightRole::head)};
inline constexpr GgufName kGemma4Mlp[] = {gguf_name(WeightRole::gate),
                                          gguf_name(WeightRole::up),
                                          gguf_name(WeightRole::down),
                                          {"ffn_gate_inp", "router.proj"},
                                          gguf_name(WeightRole::router_scale),
                                          gguf_name(WeightRole::expert_scale),
                                          {"ffn_gate_up_exps", "experts.gate_up_proj"},
                                          {"ffn_down_exps", "experts.down_proj"},
                                          gguf_name(WeightRole::per_layer_gate),
                                          gguf_name(WeightRole::per_layer_out),
                                          gguf_name(WeightRole::layer_scalar)};
inline constexpr GgufName kGemma4Norms[] = {
    gguf_name(WeightRole::input_norm),  gguf_name(WeightRole::attended_norm),
    gguf_name(WeightRole::feed_norm),   gguf_name(WeightRole::fed_norm),
    gguf_name(WeightRole::dense_norm),  gguf_name(WeightRole::expert_in_norm),
    gguf_name(WeightRole::expert_norm), gguf_name(WeightRole::per_layer_norm)};
/// Hugging Face's names that do not end in ".weight".
inline constexpr const char* kGgufWithoutSuffix[] = {info_of(WeightRole::sink_logits).hugging_face,
                                                     info_of(WeightRole::layer_scalar).hugging_face,
                                                     info_of(WeightRole::router_scale).hugging_face,
                                                     info_of(WeightRole::expert_scale).hugging_face,
                                                     "experts.gate_up_proj",
                                                     "experts.down_proj"};

inline constexpr GgufName kDelta[] = {gguf_name(WeightRole::q),
                                      gguf_name(WeightRole::k),
                                      gguf_name(WeightRole::v),
                                      gguf_name(WeightRole::o),
                                      gguf_name(WeightRole::mix_in),
                                      gguf_name(WeightRole::mix_gate),
                                      gguf_name(WeightRole::mix_step),
                                      gguf_name(WeightRole::mix_write),
                                      gguf_name(WeightRole::mix_conv),
                                      gguf_name(WeightRole::mix_rate),
                                      gguf_name(WeightRole::mix_norm),
                                      gguf_name(WeightRole::mix_step_bias),
                                      gguf_name(WeightRole::mix_out),
                                      {"ssm_ba", "linear_attn.in_proj_ba"},
                                      {"ssm_in", "linear_attn.in_proj_qkvz"}};
inline constexpr GgufName kMamba2[] = {
    gguf_name(WeightRole::q),   gguf_name(WeightRole::k),         gguf_name(WeightRole::v),
    gguf_name(WeightRole::o),   {"ssm_in", "mamba.in_proj"},      {"ssm_conv1d", "mamba.conv1d"},
    {"ssm_a", "mamba.A_log"},   {"ssm_dt.bias", "mamba.dt_bias"}, gguf_name(WeightRole::mix_skip),
    {"ssm_norm", "mamba.norm"}, {"ssm_out", "mamba.out_proj"}};
inline constexpr GgufName kGraniteHybridMlp[] = {{"ffn_gate", "shared_mlp.input_linear"},
                                                 {"ffn_up", "mlp.up_proj"},
                                                 {"ffn_down", "shared_mlp.output_linear"}};

/// How the layers without attention are said.
enum class GgufRecurrence : std::uint8_t { none, delta, tiled_delta, mamba2 };

/// What a file of an architecture says otherwise than llama's, or leaves out.
struct GgufTraits {
  bool one_plus = false;        ///< norms hold 1 + w
  bool layer_norm = false;      ///< eps is that of LayerNorms
  bool parallel = false;        ///< logits are multiplied by logit_scale
  bool scales_queries = false;  ///< by their position
  bool xielu = false;           ///< lists of its parameters
  bool partial = false;         ///< heads turn in part where config.json says nothing
  bool read_only = false;       ///< such files are not written
  GgufRecurrence recurrence = GgufRecurrence::none;
  const char* activation = nullptr;  ///< other than llama's
};

struct GgufArchitecture {
  const char* gguf;
  const char* model_type;  ///< Hugging Face's
  std::span<const GgufName> attention, mlp, norms, head_norms;
  bool interleaved = false;  ///< rows of q and k were put in order for interleaved rotary embedding
  bool gemma = false;        ///< window layers alternate, scores and logits have caps
  bool granite = false;      ///< multipliers of embedding, residuals, attention and logits
  /// Of a mixture of experts, whose keys of numbers of experts then are there.
  bool mixture = false;
  bool normalised = false;  ///< what llama.cpp does with the weights of the chosen experts
  GgufTraits traits = {};

  std::span<const GgufName> top = kTop;

  bool shared_expert() const { return mlp.size() == std::size(kSharedExperts); }
};

inline constexpr GgufTraits kCohere = {.layer_norm = true, .parallel = true};

inline constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "llama", kAttention, kMlp, kNormsBefore, {}, true},
    {"qwen2", "qwen2", kAttention, kMlp, kNormsBefore, {}},
    {"qwen3", "qwen3", kAttention, kMlp, kNormsBefore, kHeadNorms},
    {"phi3", "phi3", kFusedAttention, kFusedMlp, kNormsBefore, {}},
    {.gguf = "gemma2",
     .model_type = "gemma2",
     .attention = kAttention,
     .mlp = kMlp,
     .norms = kNormsAround,
     .head_norms = {},
     .gemma = true,
     .traits = {.one_plus = true}},
    {.gguf = "gemma3",
     .model_type = "gemma3_text",
     .attention = kAttention,
     .mlp = kMlp,
     .norms = kNormsAround,
     .head_norms = kHeadNorms,
     .gemma = true,
     .traits = {.one_plus = true}},
    {"olmo2", "olmo2", kAttention, kMlp, kNormsAfter, kHeadNorms},
    {"granite", "granite", kAttention, kMlp, kNormsBefore, {}, true, false, true},
    {"smollm3", "smollm3", kAttention, kMlp, kNormsBefore, {}, true},
    {.gguf = "llama",
     .model_type = "mixtral",
     .attention = kAttention,
     .mlp = kExperts,
     .norms = kNormsBefore,
     .head_norms = {},
     .interleaved = true,
     .mixture = true,
     .normalised = true},
    {.gguf = "qwen2moe",
     .model_type = "qwen2_moe",
     .attention = kAttention,
     .mlp = kSharedExperts,
     .norms = kNormsBefore,
     .head_norms = {},
     .mixture = true},
    {.gguf = "qwen3moe",
     .model_type = "qwen3_moe",
     .attention = kAttention,
     .mlp = kExperts,
     .norms = kNormsBefore,
     .head_norms = kHeadNorms,
     .mixture = true,
     .normalised = true},
    {.gguf = "olmoe",
     .model_type = "olmoe",
     .attention = kAttention,
     .mlp = kExperts,
     .norms = kNormsBefore,
     .head_norms = kHeadNorms,
     .mixture = true},
    {.gguf = "gpt-oss",
     .model_type = "gpt_oss",
     .attention = kSunkAttention,
     .mlp = kExperts,
     .norms = kNormsBetween,
     .head_norms = {},
     .mixture = true,
     .normalised = true},
    {.gguf = "granitemoe",
     .model_type = "granitemoe",
     .attention = kAttention,
     .mlp = kExperts,
     .norms = kNormsBefore,
     .head_norms = {},
     .interleaved = true,
     .granite = true,
     .mixture = true,
     .normalised = true},
    {.gguf = "granitemoe",
     .model_type = "granitemoeshared",
     .attention = kAttention,
     .mlp = kSharedExperts,
     .norms = kNormsBefore,
     .head_norms = {},
     .interleaved = true,
     .granite = true,
     .mixture = true,
     .normalised = true},
    {.gguf = "lfm2",
     .model_type = "lfm2",
     .attention = kLfm2Mixers,
     .mlp = kLfm2Mlp,
     .norms = kLfm2Norms,
     .head_norms = kLfm2HeadNorms,
     .top = kLfm2Top},
    {.gguf = "qwen35",
     .model_type = "qwen3_5_text",
     .attention = kDelta,
     .mlp = kMlp,
     .norms = kNormsBetween,
     .head_norms = kHeadNorms,
     .traits = {.one_plus = true, .partial = true, .recurrence = GgufRecurrence::tiled_delta}},
    {.gguf = "qwen35moe",
     .model_type = "qwen3_5_moe_text",
     .attention = kDelta,
     .mlp = kSharedExperts,
     .norms = kNormsBetween,
     .head_norms = kHeadNorms,
     .mixture = true,
     .normalised = true,
     .traits = {.one_plus = true, .partial = true, .recurrence = GgufRecurrence::tiled_delta}},
    {.gguf = "qwen3next",
     .model_type = "qwen3_next",
     .attention = kDelta,
     .mlp = kSharedExperts,
     .norms = kNormsBetween,
     .head_norms = kHeadNorms,
     .mixture = true,
     .normalised = true,
     .traits = {.one_plus = true, .partial = true, .recurrence = GgufRecurrence::delta}},
    {.gguf = "granitehybrid",
     .model_type = "granitemoehybrid",
     .attention = kMamba2,
     .mlp = kGraniteHybridMlp,
     .norms = kNormsBefore,
     .head_norms = {},
     .interleaved = true,
     .granite = true,
     .traits = {.recurrence = GgufRecurrence::mamba2}},
    {.gguf = "granitehybrid",
     .model_type = "granitemoehybrid",
     .attention = kMamba2,
     .mlp = kSharedExperts,
     .norms = kNormsBefore,
     .head_norms = {},
     .interleaved = true,
     .granite = true,
     .mixture = true,
     .normalised = true,
     .traits = {.recurrence = GgufRecurrence::mamba2}},
    {.gguf = "mistral3",
     .model_type = "ministral3",
     .attention = kAttention,
     .mlp = kMlp,
     .norms = kNormsBefore,
     .head_norms = {},
     .interleaved = true,
     .traits = {.scales_queries = true}},
    {"exaone4", "exaone4", kAttention, kMlp, kNormsAfter, kHeadNorms},
    {.gguf = "cohere2",
     .model_type = "cohere2",
     .attention = kAttention,
     .mlp = kMlp,
     .norms = kOneNorm,
     .head_norms = {},
     .traits = kCohere},
    {.gguf = "command-r",
     .model_type = "cohere",
     .attention = kAttention,
     .mlp = kMlp,
     .norms = kOneNorm,
     .head_norms = {},
     .traits = kCohere},
    {.gguf = "glm4",
     .model_type = "glm4",
     .attention = kAttention,
     .mlp = kFusedMlp,
     .norms = kGlm4Norms,
     .head_norms = {},
     .traits = {.partial = true}},
    {.gguf = "chatglm",
     .model_type = "glm",
     .attention = kAttention,
     .mlp = kFusedMlp,
     .norms = kNormsBefore,
     .head_norms = {},
     .traits = {.partial = true}},
    {"seed_oss", "seed_oss", kAttention, kMlp, kSeedNorms, {}},
    {.gguf = "arcee",
     .model_type = "arcee",
     .attention = kAttention,
     .mlp = kUpDown,
     .norms = kNormsBefore,
     .head_norms = {},
     .interleaved = true,
     .traits = {.activation = "relu2"}},
    {.gguf = "apertus",
     .model_type = "apertus",
     .attention = kAttention,
     .mlp = kUpDown,
     .norms = kApertusNorms,
     .head_norms = kHeadNorms,
     .traits = {.xielu = true, .activation = "xielu"}},
    {"ernie4_5", "ernie4_5", kAttention, kMlp, kNormsBefore, {}},
    {.gguf = "nemotron",
     .model_type = "nemotron",
     .attention = kAttention,
     .mlp = kUpDown,
     .norms = kNormsBefore,
     .head_norms = {},
     .traits = {.one_plus = true, .layer_norm = true, .partial = true, .activation = "relu2"}},
    {.gguf = "starcoder2",
     .model_type = "starcoder2",
     .attention = kAttention,
     .mlp = kStarcoder2Mlp,
     .norms = kNormsBefore,
     .head_norms = {},
     .traits = {.layer_norm = true, .activation = "gelu_pytorch_tanh"}},
    {.gguf = "gemma4",
     .model_type = "gemma4_text",
     .attention = kAttention,
     .mlp = kGemma4Mlp,
     .norms = kGemma4Norms,
     .head_norms = kHeadNorms,
     .traits = {.read_only = true},
     .top = kGemma4Top},
    {.gguf = "stablelm",
     .model_type = "stablelm",
     .attention = kAttention,
     .mlp = kMlp,
     .norms = kNormsBefore,
     .head_norms = {},
     .traits = {.layer_norm = true, .partial = true}},
};

inline std::span<const GgufArchitecture> gguf_architectures() { return kArchitectures; }

}  // namespace episodic
