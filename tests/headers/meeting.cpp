// SPDX-License-Identifier: Apache-2.0
// Compiled twice into one program, from headers alone and against the library (-DPART says which):
// both run, and neither takes the other's code for its own.
#include "meeting.hpp"

#include <random>
#include <typeinfo>

#include "episodic/core.hpp"

Outcome PART() {
  episodic::MemoryConfig config;
  config.n_init = 2;
  config.n_local = 16;
  config.n_mem = 16;
  config.chunk = 8;
  config.min_block = 2;
  config.max_block = 8;
  episodic::MemoryShape shape;
  shape.n_layers = 1;
  shape.n_heads = 2;
  shape.n_kv_heads = 1;
  shape.head_dim = 8;
  shape.rotary = episodic::plain_rotary(shape.head_dim, 10000.0);
  episodic::HostMemory memory(config, shape);
  std::mt19937 random(7);
  const auto numbers = [&](std::int64_t n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& value : x) value = static_cast<float>(random() % 2000) / 1000.0f - 1.0f;
    return x;
  };
  Outcome outcome;
  for (int step = 0; step < 24; ++step) {
    memory.begin_step(8);
    const std::vector<float> q = numbers(8 * 16), k = numbers(8 * 8), v = numbers(8 * 8);
    outcome.last.resize(q.size());
    const episodic::TensorSizes queries{8, 2, 8}, keys{8, 1, 8};
    memory.attend(0, {q.data(), queries}, {k.data(), keys}, {v.data(), keys},
                  {outcome.last.data(), queries});
    std::vector<float> surprise(8);
    for (float& s : surprise) s = static_cast<float>(random() % 5 == 0 ? 9 : 1);
    memory.end_step(surprise.data());
  }
  outcome.events = memory.events().size();
  outcome.name = typeid(episodic::HostMemory).name();
  return outcome;
}
