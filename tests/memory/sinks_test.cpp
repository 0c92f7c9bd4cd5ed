// SPDX-License-Identifier: Apache-2.0
// Attention sinks of a layer: a score of each head beside all its keys, wherever those lie.
#include "driver.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

using namespace episodic;
using driver::random_tokens;
using driver::small_config;
using driver::small_shape;
using driver::step;

TEST_CASE("sinks count once, whatever a query sees, and keys receive what they leave", "[memory]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 130, 91);
  const driver::Sinks sinks = driver::random_sinks(s, 92);
  const auto everything = [](std::int64_t) { return true; };
  for (const std::int64_t chunk : {1, 12}) {
    MemoryConfig c = small_config();
    c.chunk = chunk;
    c.n_mem = 4096;  // all events are recalled
    c.contiguity = 0;
    EpisodicMemory memory(c, s);
    double masses = 0;  // of a step's events, over layers
    memory.set_attention_hook([&](const AttendedEvents& seen) {
      masses = std::accumulate(seen.mass.begin(), seen.mass.end(), masses);
    });
    for (std::int64_t at = 0; at + chunk <= 130; at += chunk) {
      masses = 0;
      const std::int64_t closed = memory.events().pending_start();
      const auto out = step(memory, tokens, at, chunk, StepKind::decode, sinks);
      double of_events = 0;
      for (std::int64_t l = 0; l < s.n_layers; ++l)
        for (std::int64_t i = 0; i < chunk; ++i) {
          const std::int64_t p = at + i;
          const auto expected = driver::reference(tokens, s, l, p, c.n_local, everything, sinks);
          const float* got = out[static_cast<std::size_t>(l)].data() + i * s.n_heads * s.head_dim;
          double worst = 0;
          for (std::size_t k = 0; k < expected.size(); ++k)
            worst = std::max(worst, std::abs(got[k] - expected[k]));
          INFO("chunk " << chunk << " position " << p << " layer " << l);
          REQUIRE(worst < 2e-5);
          const auto weights =
              driver::attention_weights(tokens, s, l, p, c.n_local, everything, sinks);
          for (const auto& of_head : weights)
            for (std::int64_t t = c.n_init; t < std::min(p - c.n_local + 1, closed); ++t)
              of_events += of_head[static_cast<std::size_t>(t)];
        }
      REQUIRE(std::abs(masses - of_events) < 1e-4 * (1 + of_events));
    }
    REQUIRE(masses > 0.1);
    // what the last token received is its own share of its own query
    const std::int64_t last = 130 / chunk * chunk - 1;
    const std::vector<float> received = memory.relevance(1, last, 1);
    const auto weights =
        driver::attention_weights(tokens, s, 1, last, c.n_local, everything, sinks);
    for (std::size_t h = 0; h < received.size(); ++h)
      REQUIRE(std::abs(received[h] - weights[h][static_cast<std::size_t>(last)]) < 1e-6);
  }
}
