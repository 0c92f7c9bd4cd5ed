// SPDX-License-Identifier: Apache-2.0
// The memory without torch: any engine that has q, k, v as plain arrays can drive it. Links
// episodic::core only. Here the engine is a random number generator.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"

int main() try {
  episodic::MemoryConfig config;
  config.n_init = 4;
  config.n_local = 64;
  config.n_mem = 64;
  config.chunk = 32;
  config.min_block = 4;
  config.max_block = 32;
  config.host_bytes = 64 << 20;  // an upper bound: beyond it end_step throws BudgetError

  episodic::MemoryShape shape;
  shape.n_layers = 2;
  shape.n_heads = 4;
  shape.n_kv_heads = 2;
  shape.head_dim = 32;
  shape.rotary = episodic::plain_rotary(shape.head_dim, 10000.0);
  episodic::EpisodicMemory memory(config, shape);

  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::vector<float>& x) {
    for (float& f : x) f = normal(generator);
  };
  const auto width = static_cast<std::size_t>(shape.n_heads * shape.head_dim);
  const auto kv_width = static_cast<std::size_t>(shape.n_kv_heads * shape.head_dim);

  const auto feed = [&](std::int64_t n) {  // n tokens in one step
    const auto rows = static_cast<std::size_t>(n);
    std::vector<float> q(rows * width), k(rows * kv_width), v(k.size()), out(q.size()),
        surprise(rows);
    memory.begin_step(n);
    for (std::int64_t layer = 0; layer < shape.n_layers; ++layer) {
      draw(q), draw(k), draw(v);  // your projections, before rotary embedding
      memory.attend(layer, q.data(), k.data(), v.data(), out.data());
      // ... output projection and feed-forward of your layer, from `out` [n, H * d]
    }
    // Your logits go to end_step(ids, logits, vocab, vocab); a surprise of your own will also do.
    for (float& s : surprise) s = generator() % 20 == 0 ? 9.0f : std::fabs(normal(generator));
    memory.end_step(surprise.data());
  };
  while (memory.tokens() < 2048) feed(config.chunk);  // prefill
  for (int i = 0; i < 16; ++i) feed(1);               // decoding

  const episodic::MemoryCounters c = memory.counters();
  std::printf("%lld tokens in %lld events; the last token recalled events",
              static_cast<long long>(c.tokens), static_cast<long long>(c.events));
  for (const episodic::EventId e : memory.recalled(0).recalled())
    std::printf(" %lld [%lld, %lld)", static_cast<long long>(e),
                static_cast<long long>(memory.events()[e].start),
                static_cast<long long>(memory.events()[e].end));
  std::puts(" in layer 0");
  return memory.recalled(0).recalled().empty() ? 1 : 0;
} catch (const episodic::Error& e) {
  std::fprintf(stderr, "torch_free: %s\n", e.what());
  return 1;
}
