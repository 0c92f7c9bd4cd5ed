// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// config.json and generation_config.json of a Hugging Face model directory. Torch-free.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/attention/rotary.hpp"

namespace episodic {

/// A decoder as data. Both generations of config.json are read (rope_theta / rope_parameters).
struct ModelConfig {
  std::string model_type;
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::int64_t max_positions = 0;  ///< window the model was trained for; 0 if not said
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false, mlp_bias = false;
  RotaryTable rotary;
  std::int64_t bos_token = -1;
  std::vector<std::int64_t> eos_tokens;  ///< generation_config.json overrides config.json
};

/// \throws FileError naming the file, the key and what is expected there
ModelConfig load_model_config(const std::filesystem::path& model_dir);

/// The same from the texts of the two files.
/// \param generation_json text of generation_config.json, empty if there is none
/// \param label of the directory, for messages
/// \throws FileError as load_model_config
ModelConfig parse_model_config(std::string_view config_json, std::string_view generation_json,
                               std::string_view label);

}  // namespace episodic
