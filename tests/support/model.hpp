// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shipped model: the fixture of every end-to-end test.
#include <filesystem>

inline std::filesystem::path shipped_model_dir() {
  return std::filesystem::path(EPISODIC_SOURCE_DIR) / "models" / "recall-2m6";
}

inline bool no_model() {
  return !std::filesystem::exists(shipped_model_dir() / "model.safetensors");
}
