// SPDX-License-Identifier: Apache-2.0
#pragma once
// What Hugging Face's tensors are called in GGUF files, for those who read and who write them.

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
inline constexpr GgufName kFusedAttention[] = {{"attn_qkv", "self_attn.qkv_proj"},
                                               gguf_name(WeightRole::o)};
inline constexpr GgufName kHeadNorms[] = {gguf_name(WeightRole::q_norm),
                                          gguf_name(WeightRole::k_norm)};
inline constexpr GgufName kMlp[] = {gguf_name(WeightRole::gate), gguf_name(WeightRole::up),
                                    gguf_name(WeightRole::down)};
inline constexpr GgufName kFusedMlp[] = {{"ffn_up", "mlp.gate_up_proj"},
                                         gguf_name(WeightRole::down)};
inline constexpr GgufName kNormsBefore[] = {
    gguf_name(WeightRole::input_norm), gguf_name(WeightRole::feed_norm, WeightRole::attended_norm)};
inline constexpr GgufName kNormsAfter[] = {gguf_name(WeightRole::attended_norm),
                                           gguf_name(WeightRole::fed_norm)};
inline constexpr GgufName kNormsAround[] = {
    gguf_name(WeightRole::input_norm), gguf_name(WeightRole::attended_norm),
    gguf_name(WeightRole::feed_norm), gguf_name(WeightRole::fed_norm)};

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

/// What a file of an architecture says otherwise than llama's, or leaves out.
struct GgufTraits {
  bool one_plus = false;             ///< norms hold 1 + w
  bool layer_norm = false;           ///< eps is that of LayerNorms
  bool parallel = false;             ///< logits are multiplied by logit_scale
  bool scales_queries = false;       ///< by their position
  bool xielu = false;                ///< lists of its parameters
  bool partial = false;              ///< heads turn in part where config.json says nothing
  const char* activation = nullptr;  ///< other than llama's
};

struct GgufArchitecture {
  const char* gguf;
  const char* model_type;  ///< Hugging Face's
  std::span<const GgufName> attention, mlp, norms, head_norms;
  bool interleaved = false;  ///< rows of q and k were put in order for interleaved rotary embedding
  bool gemma = false;        ///< window layers alternate, scores and logits have caps
  GgufTraits traits = {};
};

inline constexpr GgufTraits kCohere = {.layer_norm = true, .parallel = true};

inline constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "llama", kAttention, kMlp, kNormsBefore, {}, true},
    {"qwen2", "qwen2", kAttention, kMlp, kNormsBefore, {}},
    {"qwen3", "qwen3", kAttention, kMlp, kNormsBefore, kHeadNorms},
    {"phi3", "phi3", kFusedAttention, kFusedMlp, kNormsBefore, {}},
    {"gemma2", "gemma2", kAttention, kMlp, kNormsAround, {}, false, true, {.one_plus = true}},
    {"gemma3",
     "gemma3_text",
     kAttention,
     kMlp,
     kNormsAround,
     kHeadNorms,
     false,
     true,
     {.one_plus = true}},
    {"olmo2", "olmo2", kAttention, kMlp, kNormsAfter, kHeadNorms},
    {"granite", "granite", kAttention, kMlp, kNormsBefore, {}, true},
    {"smollm3", "smollm3", kAttention, kMlp, kNormsBefore, {}, true},
    {"mistral3",
     "ministral3",
     kAttention,
     kMlp,
     kNormsBefore,
     {},
     true,
     false,
     {.scales_queries = true}},
    {"exaone4", "exaone4", kAttention, kMlp, kNormsAfter, kHeadNorms},
    {"cohere2", "cohere2", kAttention, kMlp, kOneNorm, {}, false, false, kCohere},
    {"command-r", "cohere", kAttention, kMlp, kOneNorm, {}, false, false, kCohere},
    {"glm4", "glm4", kAttention, kFusedMlp, kGlm4Norms, {}, false, false, {.partial = true}},
    {"chatglm", "glm", kAttention, kFusedMlp, kNormsBefore, {}, false, false, {.partial = true}},
    {"seed_oss", "seed_oss", kAttention, kMlp, kSeedNorms, {}},
    {"apertus",
     "apertus",
     kAttention,
     kUpDown,
     kApertusNorms,
     kHeadNorms,
     false,
     false,
     {.xielu = true, .activation = "xielu"}},
    {"arcee", "arcee", kAttention, kUpDown, kNormsBefore, {}, true, false, {.activation = "relu2"}},
    {"ernie4_5", "ernie4_5", kAttention, kMlp, kNormsBefore, {}},
    {"nemotron",
     "nemotron",
     kAttention,
     kUpDown,
     kNormsBefore,
     {},
     false,
     false,
     {.one_plus = true, .layer_norm = true, .partial = true, .activation = "relu2"}},
    {"starcoder2",
     "starcoder2",
     kAttention,
     kStarcoder2Mlp,
     kNormsBefore,
     {},
     false,
     false,
     {.layer_norm = true, .activation = "gelu_pytorch_tanh"}},
    {"stablelm",
     "stablelm",
     kAttention,
     kMlp,
     kNormsBefore,
     {},
     false,
     false,
     {.layer_norm = true, .partial = true}},
};

inline std::span<const GgufArchitecture> gguf_architectures() { return kArchitectures; }
inline std::span<const GgufName> gguf_top_names() { return kTop; }

}  // namespace episodic
