// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random adapters written by the tests, as PEFT writes them, to be made wrong in any way.

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "episodic/model/safetensors.hpp"
#include "tiny_llama.hpp"

/// An adapter of q_proj and down_proj of a TinyLlama, to be written right or wrong.
struct TinyAdapter {
  explicit TinyAdapter(const TinyShape& s) {
    config = {{"peft_type", "LORA"},
              {"r", 2},
              {"lora_alpha", 4},
              {"target_modules", {"q_proj", "down_proj"}}};
    std::mt19937 random(7);
    std::normal_distribution<float> draw(0.0f, 0.3f);
    for (std::int64_t l = 0; l < s.layers; ++l)
      for (const auto& [module, in, out] :
           {std::tuple{"self_attn.q_proj", s.hidden, s.heads * s.dim},
            std::tuple{"mlp.down_proj", s.inner, s.hidden}}) {
        const std::string at =
            "base_model.model.model.layers." + std::to_string(l) + "." + module + ".";
        for (const auto& [name, rows, columns] :
             {std::tuple{"lora_A.weight", std::int64_t{2}, in},
              std::tuple{"lora_B.weight", out, std::int64_t{2}}}) {
          Factor& f = factors[at + name];
          f.shape = {rows, columns};
          f.numbers.resize(static_cast<std::size_t>(rows * columns));
          for (float& x : f.numbers) x = draw(random);
        }
      }
  }
  void write(const std::filesystem::path& dir) const {
    std::filesystem::create_directories(dir);
    std::ofstream(dir / "adapter_config.json") << config.dump();
    std::vector<episodic::TensorToWrite> tensors;
    for (const auto& [name, f] : factors)
      tensors.push_back({name, episodic::TensorType::f32, f.shape, f.numbers.data()});
    episodic::write_safetensors(dir / "adapter_model.safetensors", tensors);
  }
  struct Factor {
    std::vector<std::int64_t> shape;
    std::vector<float> numbers;
  };
  nlohmann::json config;
  std::map<std::string, Factor> factors;
};
