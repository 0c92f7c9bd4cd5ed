// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of test material beside the checkout, if it is there.
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
