// SPDX-License-Identifier: Apache-2.0
// A memory with headers alone: nothing is linked, nothing but a C++20 compiler is needed.
//   g++ -std=c++20 -O2 -I include examples/headers_only.cpp -o headers_only && ./headers_only
// The engine is made up: tokens come in topics, which their keys tell, and a query asks for the
// topic of its own token.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "episodic/core.hpp"

int main() try {
  episodic::MemoryConfig config;
  config.n_init = 4;
  config.n_local = 64;
  config.n_mem = 64;
  config.chunk = 32;
  config.min_block = 4;
  config.max_block = 32;

  episodic::MemoryShape shape;
  shape.n_layers = 2;
  shape.n_heads = 4;
  shape.n_kv_heads = 2;
  shape.head_dim = 32;
  shape.rotary = episodic::plain_rotary(shape.head_dim, 10000.0);
  episodic::HostMemory memory(config, shape);

  constexpr std::int64_t kTopics = 5, kLength = 24;  // a topic lasts so many tokens
  const auto topic = [](std::int64_t token) { return token / kLength % kTopics; };
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  // [n, heads, d] of the tokens first ..: noise, and the token's topic
  const auto project = [&](std::int64_t first, std::int64_t n, std::int64_t heads) {
    std::vector<float> x;
    for (std::int64_t i = 0; i < n * heads * shape.head_dim; ++i) {
      const std::int64_t token = first + i / (heads * shape.head_dim);
      x.push_back(normal(random) + (i % shape.head_dim % kTopics == topic(token) ? 2.0f : 0.0f));
    }
    return x;
  };
  const auto feed = [&](std::int64_t n) {  // one step of n tokens
    const std::int64_t first = memory.tokens();
    memory.begin_step(n);
    for (std::int64_t layer = 0; layer < shape.n_layers; ++layer) {
      const auto q = project(first, n, shape.n_heads), k = project(first, n, shape.n_kv_heads);
      const auto v = project(first, n, shape.n_kv_heads);
      std::vector<float> out(q.size());
      memory.attend(layer, q.data(), k.data(), v.data(), out.data());
      // ... your output projection and feed-forward, from `out` [n, H * d]
    }
    std::vector<float> surprise;  // or end_step(ids, logits, vocab, vocab)
    for (std::int64_t t = first; t < first + n; ++t)
      surprise.push_back(t % kLength == 0 ? 9.0f : std::abs(normal(random)));
    memory.end_step(surprise.data());
  };

  while (memory.tokens() < 1024) feed(config.chunk);
  const auto before = memory.snapshot();
  for (int i = 0; i < 8; ++i) feed(1);

  const std::int64_t asked = topic(memory.tokens() - 1);
  int right = 0, all = 0;
  std::printf("token %lld is of topic %lld and recalls",
              static_cast<long long>(memory.tokens() - 1), static_cast<long long>(asked));
  for (const episodic::EventId e : memory.recalled(0).recalled()) {
    const episodic::TokenRange& range = memory.events()[e];
    std::printf(" [%lld, %lld)", static_cast<long long>(range.start),
                static_cast<long long>(range.end));
    ++all, right += topic(range.start) == asked;
  }
  memory.restore(*before);
  std::printf(": %d of %d events are of that topic\n", right, all);
  return right > 0 && 2 * right > all && memory.tokens() == 1024 ? 0 : 1;
} catch (const episodic::Error& e) {
  std::fprintf(stderr, "headers_only: %s\n", e.what());
  return 1;
}
