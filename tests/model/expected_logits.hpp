// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the reference implementation computes with the random checkpoints of tests/model/families,
// which models/reference/make_checkpoints.py wrote beside them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <vector>

#include "episodic/model/activations.hpp"
#include "episodic/model/safetensors.hpp"

inline std::filesystem::path family_checkpoint(const char* name) {
  return std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/model/families" / name;
}

inline std::vector<std::filesystem::path> family_checkpoints() {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator(family_checkpoint("")))
    all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

/// While it lives, weights in blocks are multiplied with activations as they are: the reference
/// rounds none.
struct ExactActivations {
  ExactActivations() { episodic::set_activations(episodic::cpu::Activations::exact); }
  ~ExactActivations() { episodic::set_activations(before); }
  ExactActivations(const ExactActivations&) = delete;
  ExactActivations& operator=(const ExactActivations&) = delete;
  const episodic::cpu::Activations before = episodic::activations();
};

struct ExpectedLogits {
  std::vector<std::int64_t> ids, greedy;
  std::vector<float> logits, first_logits;  // of all ids in one step; of the first few alone
  std::size_t start = 0, few = 0;           // greedy tokens follow the first `start` ids

  explicit ExpectedLogits(const std::filesystem::path& dir) {
    const episodic::SafetensorsFile file(dir / "expected.safetensors");
    ids = ids_of(file.at("ids"));
    greedy = ids_of(file.at("greedy"));
    logits = elements<float>(file.at("logits"));
    first_logits = elements<float>(file.at("short"));
    start = static_cast<std::size_t>(ids_of(file.at("start")).at(0));
    few = static_cast<std::size_t>(file.at("short").shape.at(0));
  }

  std::size_t vocab() const { return logits.size() / ids.size(); }
  float largest() const {
    float most = 0;
    for (const float x : logits) most = std::max(most, std::abs(x));
    return most;
  }

 private:
  template <class T>
  static std::vector<T> elements(const episodic::StoredTensor& t) {
    std::vector<T> out(static_cast<std::size_t>(t.elements()));
    std::memcpy(out.data(), t.data, out.size() * sizeof(T));
    return out;
  }
  static std::vector<std::int64_t> ids_of(const episodic::StoredTensor& t) {
    const auto narrow = elements<std::int32_t>(t);
    return {narrow.begin(), narrow.end()};
  }
};
