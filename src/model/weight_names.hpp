// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hugging Face's names of weights where a family has others than LLaMA's.

#include <string_view>

#include "episodic/model/hf_config.hpp"
#include "episodic/model/weight_roles.hpp"

namespace episodic {

struct FamilyName {
  std::string_view model_type;
  WeightRole role;
  const char* hugging_face;
};

/// The norm before the feed-forward network is named by attended_norm, as in LLaMA.
inline constexpr FamilyName kFamilyNames[] = {
    {"lfm2", WeightRole::input_norm, "operator_norm"},
    {"lfm2", WeightRole::attended_norm, "ffn_norm"},
    {"lfm2", WeightRole::q_norm, "self_attn.q_layernorm"},
    {"lfm2", WeightRole::k_norm, "self_attn.k_layernorm"},
    {"lfm2", WeightRole::o, "self_attn.out_proj"},
    {"lfm2", WeightRole::gate, "feed_forward.w1"},
    {"lfm2", WeightRole::up, "feed_forward.w3"},
    {"lfm2", WeightRole::down, "feed_forward.w2"},
    {"lfm2", WeightRole::final_norm, "model.embedding_norm"},
};

/// As WeightRoleInfo::hugging_face, in a model of this family.
constexpr const char* hugging_face_name(std::string_view model_type, WeightRole role) {
  for (const FamilyName& n : kFamilyNames)
    if (n.role == role && n.model_type == model_type) return n.hugging_face;
  return info_of(role).hugging_face;
}

}  // namespace episodic
