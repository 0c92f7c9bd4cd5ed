// SPDX-License-Identifier: Apache-2.0
// The memory under an engine of one's own: random keys and values instead of a model.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"

int main() {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 8, kVocab = 11, kChunk = 16;
  const episodic::MemoryConfig config = episodic::parse_memory_config(
      R"({"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 16, "min_block": 2, "max_block": 8, "gamma": 0.0})");
  episodic::EpisodicMemory memory(
      config, {1, kHeads, kKvHeads, kDim, episodic::plain_rotary(kDim, 10000.0)});
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& value : x) value = normal(random);
    return x;
  };
  const std::vector<std::int64_t> ids(kChunk, 3);
  for (int step = 0; step < 12; ++step) {
    const std::vector<float> q = draw(kChunk * kHeads * kDim), k = draw(kChunk * kKvHeads * kDim),
                             v = draw(kChunk * kKvHeads * kDim), logits = draw(kChunk * kVocab);
    std::vector<float> out(q.size());
    memory.begin_step(kChunk);
    memory.attend(0, q.data(), k.data(), v.data(), out.data());
    memory.end_step(ids.data(), logits.data(), kVocab, kVocab);
    for (const float x : out)
      if (!std::isfinite(x)) return 1;
  }
  return memory.tokens() == 12 * kChunk && memory.events().size() > 0 &&
                 !memory.recalled(0).recalled().empty()
             ? 0
             : 1;
}
