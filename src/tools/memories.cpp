// SPDX-License-Identifier: Apache-2.0
#include "memories.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "common.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "kept.hpp"

namespace episodic::tools {

std::vector<NamedMemory> memories_in(const std::filesystem::path& folder) {
  std::vector<NamedMemory> all;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& dir = entry->path();
    std::error_code ignored;
    if (!entry->is_directory(ignored) || !holds_memory(dir)) continue;
    NamedMemory memory;
    memory.name = dir.filename().string();
    memory.being_written = is_being_written(dir);
    try {
      const MemoryManifest manifest = MemoryManifest::read(dir);
      memory.tokens = manifest.state.tokens;
      memory.events = manifest.state.events;
      memory.bytes = manifest.state.bytes;
      for (const MemoryManifest::State& state : manifest.checkpoints) memory.bytes += state.bytes;
      for (const MemoryManifest::FileEntry& file : manifest.files) memory.bytes += file.bytes;
    } catch (const Error& e) {
      memory.damage = e.what();
    }
    all.push_back(std::move(memory));
  }
  if (error)
    throw FileError(fmt::format("{}: cannot be read ({})", folder.string(), error.message()));
  std::sort(all.begin(), all.end(),
            [](const NamedMemory& a, const NamedMemory& b) { return a.name < b.name; });
  return all;
}

std::filesystem::path named_memory(const std::filesystem::path& folder, const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return c != '/' && static_cast<unsigned char>(c) >= 0x20 && c != 0x7F;
  });
  constexpr std::size_t kLongest = 128;
  if (name.empty() || name.size() > kLongest || name.front() == '.' || !plain)
    throw ConfigError(fmt::format(
        "'{}' is no name of a memory: at most {} bytes without a slash or control characters, and "
        "no dot first",
        on_one_line(name), kLongest));
  return folder / name;
}

}  // namespace episodic::tools
