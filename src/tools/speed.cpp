// SPDX-License-Identifier: Apache-2.0
#include "speed.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/model/weight_plan.hpp"

namespace episodic::tools {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of this thread alone.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// How many of the tokens meet a weight: all, but for an expert's.
double share_of(const ModelConfig& model, const WeightEntry& e) {
  if (e.expert < 0) return 1;
  const MixtureSpec& mixture = model.layers[static_cast<std::size_t>(e.layer)].mixture;
  return static_cast<double>(mixture.chosen) / static_cast<double>(mixture.experts);
}

/// Operations of a token's products: two a weight that it meets, the head's among them.
double product_operations(const ModelConfig& model) {
  double weights = 0;
  for (const WeightEntry& e : weight_plan(model))
    if (e.role != WeightRole::embedding)
      weights += share_of(model, e) * static_cast<double>(e.rows * e.columns());
  return 2 * weights;
}

/// And of its attention, for one key in each layer that the memory serves.
double attention_operations(const ModelConfig& model) {
  double channels = 0;
  for (const std::int64_t l : model.memory_layers()) {
    const LayerSpec& layer = model.layers[static_cast<std::size_t>(l)];
    channels += static_cast<double>(layer.n_heads * layer.head_dim);
  }
  return 4 * channels;
}

}  // namespace

Speed measure_speed(Engine& engine, const MemoryConfig& config, double budget, bool writing) {
  constexpr std::int64_t kLeast = 16, kOneByOne = 4;
  const Clock::time_point start = Clock::now();
  const std::int64_t vocabulary = engine.config().vocab_size;
  engine.attach(config, 4 * config.chunk + kLeast + kOneByOne);
  Speed speed;
  // Any tokens do: what a step costs does not depend on them.
  std::int64_t next = 0;
  const bool host = std::string_view(engine.device()) == "cpu";
  double alone = 0;  // of the last step
  const auto step = [&](std::int64_t n, StepKind kind) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
    for (std::int64_t& id : ids) id = (7919 * ++next + 3) % vocabulary;
    const Clock::time_point begin = Clock::now();
    const double processor = processor_seconds();
    engine.step(ids, kind);
    engine.logits();  // a device may still be at work before
    if (host) alone = processor_seconds() - processor;
    const double seconds = since(begin);
    if (!host) alone = seconds;
    return seconds;
  };
  const auto time_step = [&](std::int64_t n) {
    const double seconds = step(n, StepKind::prompt);
    speed.tokens = n;
    speed.reading = static_cast<double>(n) / std::max(seconds, 1e-9);
    speed.reading_alone = static_cast<double>(n) / std::max(alone, 1e-9);
  };
  const std::int64_t least = std::min(kLeast, config.chunk);
  step(least, StepKind::prompt);  // weights come into memory
  double used = alone;
  time_step(least);
  used += alone;
  // Then the longest step that the time allows by that: longer ones are quicker by the token.
  const auto most = static_cast<std::int64_t>(speed.reading_alone * std::max(0.0, budget - used));
  const std::int64_t n = std::clamp(most, least, config.chunk);
  if (n > least && since(start) < 3 * budget) time_step(n);  // less where the machine is crowded
  if (writing) {
    double seconds = 0;
    for (std::int64_t i = 0; i < kOneByOne; ++i) seconds += step(1, StepKind::decode);
    speed.writing = static_cast<double>(kOneByOne) / std::max(seconds, 1e-9);
  }
  engine.attach(config, 1);
  speed.seconds = since(start);
  return speed;
}

double reading_seconds(const Speed& probe, double rate, const ModelConfig& model,
                       const MemoryConfig& config, std::int64_t n) {
  const double products = product_operations(model), attention = attention_operations(model);
  const auto tokens = static_cast<double>(n);
  // Keys before a token: all that were read, up to the window and the budget of recall.
  const auto most = static_cast<double>(config.n_local + (config.recall ? config.n_mem : 0));
  const double keys = tokens <= most ? tokens / 2 : most - most * most / (2 * tokens);
  const double probed = products + attention * static_cast<double>(probe.tokens);
  // Recall, and closing events, which the probe does not come to: of three models of 0.003, 0.13
  // and 0.6 billion weights reading took 1.1 to 1.7 times what is reckoned without this.
  constexpr double kMemory = 1.4;
  return kMemory * tokens / rate * (products + attention * keys) / probed;
}

}  // namespace episodic::tools
