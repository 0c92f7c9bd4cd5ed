// SPDX-License-Identifier: Apache-2.0
#pragma once
// What Hugging Face's tensors are called in GGUF files, for those who read and who write them.

#include <span>
#include <string_view>

namespace episodic {

/// The text of tokenizer.json as it is: GGUF's own key for it. And, beside it, that of
/// tokenizer_config.json, which says what stands around a text.
inline constexpr const char* kGgufTokenizerJson = "tokenizer.huggingface.json";
inline constexpr const char* kGgufTokenizerConfig = "tokenizer.huggingface.config_json";

struct GgufName {
  const char* gguf;
  const char* hugging_face;
};

inline constexpr GgufName kTop[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
inline constexpr GgufName kAttention[] = {{"attn_q", "self_attn.q_proj"},
                                          {"attn_k", "self_attn.k_proj"},
                                          {"attn_v", "self_attn.v_proj"},
                                          {"attn_output", "self_attn.o_proj"}};
inline constexpr GgufName kFusedAttention[] = {{"attn_qkv", "self_attn.qkv_proj"},
                                               {"attn_output", "self_attn.o_proj"}};
inline constexpr GgufName kHeadNorms[] = {{"attn_q_norm", "self_attn.q_norm"},
                                          {"attn_k_norm", "self_attn.k_norm"}};
inline constexpr GgufName kMlp[] = {
    {"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"}};
inline constexpr GgufName kFusedMlp[] = {{"ffn_up", "mlp.gate_up_proj"},
                                         {"ffn_down", "mlp.down_proj"}};
inline constexpr GgufName kNormsBefore[] = {{"attn_norm", "input_layernorm"},
                                            {"ffn_norm", "post_attention_layernorm"}};
inline constexpr GgufName kNormsAfter[] = {{"post_attention_norm", "post_attention_layernorm"},
                                           {"post_ffw_norm", "post_feedforward_layernorm"}};
inline constexpr GgufName kNormsAround[] = {{"attn_norm", "input_layernorm"},
                                            {"post_attention_norm", "post_attention_layernorm"},
                                            {"ffn_norm", "pre_feedforward_layernorm"},
                                            {"post_ffw_norm", "post_feedforward_layernorm"}};

struct GgufArchitecture {
  const char* gguf;
  const char* model_type;  ///< Hugging Face's
  std::span<const GgufName> attention, mlp, norms, head_norms;
  bool interleaved = false;  ///< rows of q and k were put in order for interleaved rotary embedding
  bool gemma = false;        ///< norms hold 1 + w; window layers alternate
};

inline constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "llama", kAttention, kMlp, kNormsBefore, {}, true},
    {"qwen2", "qwen2", kAttention, kMlp, kNormsBefore, {}},
    {"qwen3", "qwen3", kAttention, kMlp, kNormsBefore, kHeadNorms},
    {"phi3", "phi3", kFusedAttention, kFusedMlp, kNormsBefore, {}},
    {"gemma2", "gemma2", kAttention, kMlp, kNormsAround, {}, false, true},
    {"gemma3", "gemma3_text", kAttention, kMlp, kNormsAround, kHeadNorms, false, true},
    {"olmo2", "olmo2", kAttention, kMlp, kNormsAfter, kHeadNorms},
    {"granite", "granite", kAttention, kMlp, kNormsBefore, {}, true},
    {"smollm3", "smollm3", kAttention, kMlp, kNormsBefore, {}, true},
};

inline std::span<const GgufArchitecture> gguf_architectures() { return kArchitectures; }
inline std::span<const GgufName> gguf_top_names() { return kTop; }

}  // namespace episodic
