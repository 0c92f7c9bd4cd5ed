// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a LLaMA-shaped decoder in float32, shared by all models made from them.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "episodic/model/hf_config.hpp"
#include "linear.hpp"

namespace episodic {

struct LlamaLayer {
  at::Tensor input_norm, post_norm;  ///< [hidden]
  Linear q, k, v, o;
  Linear gate, up, down;
};

struct LlamaWeights {
  ModelConfig config;
  at::Tensor embedding;  ///< [vocab, hidden]
  std::vector<LlamaLayer> layers;
  at::Tensor final_norm;  ///< [hidden]
  Linear head;            ///< shares the embedding's storage if the model is tied
};

/// \throws FileError naming the tensor and its file
std::shared_ptr<const LlamaWeights> load_llama_weights(const std::filesystem::path& model_dir);

}  // namespace episodic
