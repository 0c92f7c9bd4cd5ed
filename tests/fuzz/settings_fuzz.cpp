// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "target.hpp"

using namespace episodic;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const MemoryConfig c = parse_memory_config(text);
    fuzz::require(parse_memory_config(to_json(c)) == c, "settings come back from their text");
    fuzz::require(c.chunk >= 1 && c.n_local >= 1 && c.min_block <= c.max_block, "ranges hold");
  } catch (const Error& e) {
    const std::string_view said = e.what();
    fuzz::require(said.size() < 2000, "a message is short");
    for (const char c : said)
      fuzz::require(static_cast<unsigned char>(c) >= 0x20, "a message is one line");
  }
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  return {"{}",
          to_json(MemoryConfig{}),
          R"({"n_init":4,"n_local":256,"gamma":1.5,"refine":"modularity","recall_layers":[0,2,3]})",
          R"({"segmenter":"fixed","window":"chunked","kv_dtype":"int8","index":"faiss","seed":7})",
          R"({"disk_dir":"/tmp/x","disk_bytes":1000000,"repr_bytes":4096,"contiguity":0.25})",
          R"({"kv_dtype":"fp8","n_local":4096})"};
}

void repair(std::string&) {}

}  // namespace fuzz
