// SPDX-License-Identifier: Apache-2.0
// Snapshots that share the window with the memory that goes on: whatever was done since, going back
// gives the state of then, to the bit.
#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "support/test.hpp"

using namespace episodic;
using driver::small_config;
using driver::small_shape;

namespace {

/// A moment that can be gone back to, and what must be found there.
struct Moment {
  std::shared_ptr<const MemorySnapshot> snapshot;
  std::int64_t tokens = 0;
  std::uint64_t digest = 0;
  std::vector<std::vector<float>> next;  // outputs of the next step, which see the rotated keys
};

}  // namespace

TEST_CASE("going back to any of many snapshots, in any order, gives the state of then",
          "[memory][snapshot]") {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    MemoryConfig config = small_config();
    config.n_local = 16;
    config.contiguity = seed % 2 ? 0.3 : 0.0;
    if (seed % 3 == 1) config.n_init = 20;  // sinks that still fill up
    config.kv_dtype = seed % 5 == 0   ? DType::bfloat16
                      : seed % 5 == 1 ? DType::float16
                                      : DType::float32;
    const MemoryShape shape = small_shape(2, 4, 2, 6);
    std::mt19937 rng(seed);
    EpisodicMemory memory(config, shape);
    if (seed % 4 == 3) {  // over a base, whose pages the window begins with
      const auto tokens = driver::random_tokens(shape, 70, seed);
      for (std::int64_t at = 0; at < 70; at += 10) driver::step(memory, tokens, at, 10);
      memory = EpisodicMemory(memory.share());
    }
    std::vector<Moment> moments;
    const auto read = [&](std::int64_t n) {
      // Other tokens each time: the rows of a branch that was given up are no other's.
      const auto tokens = driver::random_tokens(shape, n, rng());
      std::vector<driver::Token> at_place(static_cast<std::size_t>(memory.tokens()));
      at_place.insert(at_place.end(), tokens.begin(), tokens.end());
      return driver::step(memory, at_place, memory.tokens(), n);
    };
    const auto probe = [&] {  // a step that does not end leaves no trace
      const auto token = driver::random_tokens(shape, 1, 4242);
      std::vector<std::vector<float>> out;
      memory.begin_step(1);
      for (std::size_t l = 0; l < 2; ++l) {
        out.emplace_back(token[0].q[l].size());
        memory.attend(static_cast<std::int64_t>(l), token[0].q[l].data(), token[0].k[l].data(),
                      token[0].v[l].data(), out.back().data());
      }
      CHECK_THROWS_AS(memory.end_step(std::vector<float>{NAN}.data()), DataError);
      return out;
    };
    std::int64_t restored = 0;
    for (int op = 0; op < 120; ++op) {
      const auto dice = rng() % 10;
      if (dice < 5) {
        read(1 + static_cast<std::int64_t>(rng() % 12));
      } else if (dice == 5) {  // past all that the rings hold
        for (int i = 0; i < 8; ++i) read(12);
      } else if (dice < 8) {
        Moment m;
        if (rng() % 2) m.next = probe();  // the failed step is no part of it
        memory.begin_step(1), read(1);    // what was begun is begun anew
        m.snapshot = memory.snapshot();
        m.tokens = memory.tokens();
        m.next = probe();
        memory.restore(*m.snapshot);
        m.digest = memory.digest();
        moments.push_back(std::move(m));
      } else if (!moments.empty() && dice == 8) {  // on another thread, as whoever holds it may
        const auto which = static_cast<std::ptrdiff_t>(rng() % moments.size());
        std::thread([gone =
                         std::move(moments[static_cast<std::size_t>(which)].snapshot)]() mutable {
          gone = nullptr;
        }).join();
        moments.erase(moments.begin() + which);
      } else if (!moments.empty()) {
        const Moment to = moments[rng() % moments.size()];
        memory.restore(*to.snapshot);
        ++restored;
        INFO("seed " << seed << ", op " << op << ", token " << to.tokens);
        REQUIRE(memory.tokens() == to.tokens);
        REQUIRE(memory.digest() == to.digest);
        REQUIRE(probe() == to.next);
        memory.restore(*to.snapshot);
        REQUIRE(memory.digest() == to.digest);
        // Later ones are given up.
        for (const Moment& m : moments)
          if (m.tokens > to.tokens) REQUIRE_THROWS_AS(memory.restore(*m.snapshot), ConfigError);
        std::erase_if(moments, [&](const Moment& m) { return m.tokens > to.tokens; });
      }
    }
    REQUIRE(restored > 5);
  }
}

TEST_CASE("a long chain of snapshots goes at once", "[memory][snapshot]") {
  MemoryConfig config = small_config();
  config.n_local = config.chunk = 4;
  config.n_init = config.n_mem = 2;
  config.min_block = config.max_block = 2;
  config.recall = false;
  const MemoryShape shape = small_shape(1, 1, 1, 2);
  EpisodicMemory memory(config, shape);
  const auto token = driver::random_tokens(shape, 1, 1);
  const auto step = [&] {
    float out[2];
    memory.begin_step(1);
    memory.attend(0, token[0].q[0].data(), token[0].k[0].data(), token[0].v[0].data(), out);
    memory.end_step(&token[0].surprise);
  };
  step();
  std::shared_ptr<const MemorySnapshot> first = memory.snapshot(), last;
  const std::uint64_t digest = memory.digest();
  for (int i = 0; i < 2000; ++i) step(), last = memory.snapshot();
  memory.restore(*first);
  CHECK(memory.digest() == digest);
  for (int i = 0; i < 100000; ++i) step(), last = memory.snapshot();
  last = nullptr;
  first = nullptr;  // the only one that holds the chain
  step();
  CHECK(memory.tokens() == 2 + 100000);
}
