// SPDX-License-Identifier: Apache-2.0
// The input is what a state file holds behind its header; the rest of the memory is a good one.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "folder.hpp"

using namespace episodic;

namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kHeader = 24;  // of a state file: magic, version, bytes, checksum

std::string hex(std::uint64_t x) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(x));
  return digits;
}

struct Memory {
  fuzz::Folder folder;
  Json manifest;
  std::string state_name, state;
  std::uint64_t segment = 0, tokens = 0;  // ids of the files

  Memory() {
    fuzz::make_memory(folder);
    const std::string text = folder.read("m/manifest.json");
    manifest = Json::parse(text.substr(0, text.rfind("checksum: ")));
    manifest["checkpoints"] = Json::array();
    state_name = manifest["state"]["file"].get<std::string>();
    state = folder.read("m/" + state_name);
    for (const Json& f : manifest["files"]) {
      const auto name = f["name"].get<std::string>();
      if (name.starts_with("kv-")) segment = std::stoull(name.substr(3, 16), nullptr, 16);
      if (name.starts_with("tokens-")) tokens = std::stoull(name.substr(7, 16), nullptr, 16);
    }
  }
  void put(std::string_view payload) {
    const auto generation = manifest["generation"].get<std::uint64_t>();
    const std::uint64_t sum =
        checksum(std::as_bytes(std::span(payload.data(), payload.size())), generation);
    ByteWriter tail;
    tail.put(static_cast<std::uint64_t>(payload.size()));
    tail.put(sum);
    std::string file = state.substr(0, kHeader - tail.bytes().size());
    file.append(reinterpret_cast<const char*>(tail.bytes().data()), tail.bytes().size());
    file += payload;
    folder.write("m/" + state_name, file);
    manifest["state"]["bytes"] = file.size();
    manifest["state"]["checksum"] = hex(sum);
    std::string text = manifest.dump() + "\n";
    text += "checksum: " + hex(checksum_of(std::span<const char>(text))) + "\n";
    folder.write("m/manifest.json", text);
  }
};

Memory& memory() {
  static Memory memory;
  return memory;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Memory& m = memory();
  const std::string input(reinterpret_cast<const char*>(data), size);
  m.put(
      fuzz::with_id(fuzz::with_id(input, fuzz::kSegmentId, m.segment), fuzz::kTokensId, m.tokens));
  KeepOptions keep;
  keep.dir = m.folder.path() / "m";
  const MemoryShape shape = fuzz::small_shape();
  try {
    EpisodicMemory opened = EpisodicMemory::open(keep, OpenMode::read, &shape);
    fuzz::require(opened.tokens() >= 0, "tokens are counted from 0");
    fuzz::step(opened, 4);
    fuzz::step(opened, 1);
    opened.digest();
  } catch (const Error& e) {
    fuzz::require(std::string_view(e.what()).size() < 2000, "a message is short");
  }
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  const Memory& m = memory();
  return {with_id(with_id(m.state.substr(kHeader), m.segment, kSegmentId), m.tokens, kTokensId)};
}
void repair(std::string&) {}

}  // namespace fuzz
