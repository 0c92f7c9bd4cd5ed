// SPDX-License-Identifier: Apache-2.0
// all-MiniLM-L6-v2, as scripts/sentence_encoder fetches it, against a float64 run of
// sentence-transformers (models/reference/make_sentence_encoder.py).
#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "episodic/model/safetensors.hpp"
#include "episodic/model/sentence_encoder.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace {

/// Where scripts/sentence_encoder leaves it; nothing if it is not there.
std::optional<fs::path> real_encoder() {
  const char* dir = std::getenv("EPISODIC_ENCODER");
  const char* cache = std::getenv("EPISODIC_CACHE");
  const fs::path at = dir     ? fs::path(dir)
                      : cache ? fs::path(cache) / "all-minilm-l6-v2"
                              : fs::path(EPISODIC_SOURCE_DIR) / ".cache/all-minilm-l6-v2";
  if (!fs::exists(at / "config.json")) return std::nullopt;
  return at;
}

}  // namespace

TEST_CASE("the real encoder's vectors are sentence-transformers'") {
  const auto dir = real_encoder();
  if (!dir) EPISODIC_SKIP("the real encoder is not here: scripts/sentence_encoder");
  const fs::path folder = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder";
  std::ifstream in(folder / "texts.json");
  const auto texts = nlohmann::json::parse(in).get<std::vector<std::string>>();
  const SafetensorsFile file(folder / "expected.safetensors");
  for (const auto& [name, max_tokens] :
       {std::pair<const char*, std::int64_t>{"real", 0}, {"real_long", 512}}) {
    const auto encoder = SentenceEncoder::open(*dir, max_tokens);
    CHECK(encoder.width() == 384);
    CHECK(encoder.max_tokens() == (max_tokens ? 512 : 256));
    const StoredTensor& expected = file.at(name);
    const std::vector<float> ours = encoder.encode_all(texts);
    REQUIRE(expected.elements() == static_cast<std::int64_t>(ours.size()));
    double most = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      float theirs = 0;
      std::memcpy(&theirs, expected.data + i * sizeof(float), sizeof(float));
      REQUIRE(std::isfinite(ours[i]));
      most = std::max(most, std::abs(static_cast<double>(ours[i] - theirs)));
    }
    INFO(name);
    CHECK(most < 1e-5);
  }
}
