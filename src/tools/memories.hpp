// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kept memories side by side in one folder, known by the names of theirs.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace episodic::tools {

/// What the manifest of a memory says of it at its last commit.
struct NamedMemory {
  std::string name;  ///< of its folder
  std::int64_t tokens = 0, events = 0;
  std::int64_t bytes = 0;      ///< of all its files; forks share some of theirs
  bool being_written = false;  ///< by some program
  std::string damage;          ///< why it cannot be read; empty if it can
};

/// The memories in a folder, by name. \throws FileError if there is no such folder
std::vector<NamedMemory> memories_in(const std::filesystem::path& folder);

/// The folder of a memory by its name, be it there or not. \throws ConfigError for what is no name
std::filesystem::path named_memory(const std::filesystem::path& folder, const std::string& name);

}  // namespace episodic::tools
