// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string_view>

#include "episodic/base/error.hpp"
#include "episodic/model/hf_config.hpp"
#include "target.hpp"

using namespace episodic;

// Input: config.json, then after a zero byte generation_config.json.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto zero = text.find('\0');
  const auto generation = zero == std::string_view::npos ? "" : text.substr(zero + 1);
  try {
    const ModelConfig c = parse_model_config(text.substr(0, zero), generation, "fuzz");
    fuzz::require(
        c.vocab_size > 0 && c.hidden_size > 0 && c.intermediate_size > 0 && c.n_layers > 0,
        "sizes are positive");
    fuzz::require(c.n_heads > 0 && c.n_kv_heads > 0 && c.n_heads % c.n_kv_heads == 0,
                  "kv heads divide heads");
    fuzz::require(static_cast<std::int64_t>(c.layers.size()) == c.n_layers, "all layers are there");
    fuzz::require(!c.memory_layers().empty(), "a memory has layers to serve");
    for (const LayerSpec& layer : c.layers)
      fuzz::require(layer.rope < static_cast<int>(c.ropes.size()) && layer.window >= 0 &&
                        std::isfinite(layer.scale) && layer.soft_cap >= 0,
                    "layers are sound");
    for (const Rope& rope : c.ropes) {
      fuzz::require(rope.table.rotary_dim() >= 2 && rope.table.rotary_dim() <= c.head_dim,
                    "the rotation fits a head");
      for (const double f : rope.table.inverse_frequency)
        fuzz::require(std::isfinite(f) && f >= 0, "frequencies are finite");
    }
    fuzz::require(c.rms_norm_eps > 0, "eps is positive");
  } catch (const Error&) {
  }
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  const std::string sizes =
      R"({"model_type":"llama","vocab_size":50,"hidden_size":24,"intermediate_size":40,)"
      R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,)"
      R"("rms_norm_eps":1e-5,"tie_word_embeddings":true,"hidden_act":"silu","eos_token_id":[2,3],)";
  const std::string generation = std::string(1, '\0') + R"({"eos_token_id":7,"bos_token_id":1})";
  return {
      sizes + R"("rope_theta":10000.0,"rope_scaling":null})",
      sizes + R"("rope_theta":10000.0,"rope_scaling":{"type":"linear","factor":2.0}})" + generation,
      sizes + R"("rope_parameters":{"rope_type":"llama3","rope_theta":5e5,"factor":8.0,)"
              R"("low_freq_factor":1.0,"high_freq_factor":4.0,)"
              R"("original_max_position_embeddings":8192,"partial_rotary_factor":0.5}})",
  };
}

void repair(std::string&) {}

}  // namespace fuzz
