// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <span>
#include <string_view>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "folder.hpp"

using namespace episodic;

namespace {

const fuzz::Folder& folder() {
  static const fuzz::Folder folder;
  return folder;
}

void read(std::string_view text) {
  folder().write("manifest.json", text);
  try {
    const MemoryManifest m = MemoryManifest::read(folder().path());
    fuzz::require(m.generation > 0 && m.config.disk_dir.empty(), "ranges hold");
    for (const auto& f : m.files)
      fuzz::require(f.bytes >= 0 && f.name.find('/') == std::string::npos && f.name.size() < 32,
                    "names stay in the folder");
    for (const auto& s : m.checkpoints)
      fuzz::require(s.file.size() == 26 && s.tokens >= 0, "names of states");
  } catch (const Error& e) {
    fuzz::require(std::string_view(e.what()).size() < 2000, "a message is short");
  }
}

}  // namespace

/// As it is, and with a right checksum.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(text);
  char line[40];
  std::snprintf(line, sizeof line, "checksum: %016llx\n",
                static_cast<unsigned long long>(checksum_of(std::span<const char>(text))));
  read(text + line);
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  const Folder temp;
  make_memory(temp);
  const std::string whole = temp.read("m/manifest.json");
  return {whole, whole.substr(0, whole.rfind("checksum: "))};
}

void repair(std::string&) {}

}  // namespace fuzz
