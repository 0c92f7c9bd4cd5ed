// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model's rotary embedding as a GGUF file has words for it.

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/strict_json.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic {

/// What config.json says of the rope of the layers that see all, in either generation.
struct RopeSettings {
  double theta = 10000.0;
  bool yarn = false;
  double factor = 1, original = 0;  ///< of yarn; original 0: not said
  double mscale_all_dim = 0;
};

inline RopeSettings rope_settings(const OpenModel& model) {
  const nlohmann::json config = parse_strict(model.config_json, model.path.string(), {});
  const auto object = [](const nlohmann::json& in, const char* key) {
    const auto it = in.find(key);
    return it != in.end() && it->is_object() ? *it : nlohmann::json::object();
  };
  nlohmann::json rope = object(config, "rope_parameters");
  if (rope.contains("full_attention")) rope = object(rope, "full_attention");
  const nlohmann::json scaling = rope.empty() ? object(config, "rope_scaling") : rope;
  const auto number = [](const nlohmann::json& in, const char* key, double otherwise) {
    const auto it = in.find(key);
    return it != in.end() && it->is_number() ? it->get<double>() : otherwise;
  };
  RopeSettings r;
  r.theta = number(rope, "rope_theta", number(config, "rope_theta", r.theta));
  const auto kind = scaling.find(scaling.contains("rope_type") ? "rope_type" : "type");
  r.yarn = kind != scaling.end() && *kind == "yarn";
  r.factor = number(scaling, "factor", 1);
  r.mscale_all_dim = number(scaling, "mscale_all_dim", 0);
  r.original = number(scaling, "original_max_position_embeddings",
                      number(config, "original_max_position_embeddings", 0));
  return r;
}

/// By what the plain frequencies are divided; empty: by nothing.
inline std::vector<float> rope_factors(const std::vector<double>& plain,
                                       const std::vector<double>& frequencies) {
  std::vector<float> factors;
  bool any = false;
  for (std::size_t c = 0; c < plain.size(); ++c) {
    factors.push_back(static_cast<float>(plain[c] / frequencies[c]));
    any = any || std::abs(factors.back() - 1.0f) > 1e-6f;
  }
  return any ? factors : std::vector<float>();
}

}  // namespace episodic
