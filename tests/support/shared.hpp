// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a checkout does not hold: test material beside it, and the real model; if they are there.
#include <cstdlib>
#include <filesystem>
#include <optional>

inline std::optional<std::filesystem::path> shared_dir() {
  if (const char* env = std::getenv("EPISODIC_SHARED")) return std::filesystem::path(env);
  const std::filesystem::path beside = std::filesystem::path(EPISODIC_SOURCE_DIR) / ".." / "shared";
  std::error_code error;
  if (std::filesystem::is_directory(beside, error)) return beside;
  return std::nullopt;
}

/// Gemma 3 270M in Hugging Face layout, the package's GGUF file beside it: EPISODIC_REAL_MODEL, or
/// what scripts/real_model fetched.
inline std::optional<std::filesystem::path> real_model_dir() {
  const char* dir = std::getenv("EPISODIC_REAL_MODEL");
  const char* cache = std::getenv("EPISODIC_CACHE");
  const std::filesystem::path at =
      dir     ? std::filesystem::path(dir)
      : cache ? std::filesystem::path(cache) / "gemma3-270m"
              : std::filesystem::path(EPISODIC_SOURCE_DIR) / ".cache/gemma3-270m";
  if (!std::filesystem::exists(at / "config.json")) return std::nullopt;
  return at;
}
