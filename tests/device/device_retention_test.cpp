// SPDX-License-Identifier: Apache-2.0
// Memoria's forgetting (section 3) on a device, beside the host's memory: the same graph after
// every step, and the same events forgotten, wherever they lie and whatever is recalled how.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "beside_host.hpp"
#include "episodic/base/error.hpp"
#include "episodic/retention/memoria.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_retention_test {

using namespace device_steps;

constexpr std::int64_t kLength = 420;

MemoryConfig retaining() {
  MemoryConfig c = driver::small_config();
  c.retention.emplace();
  c.retention->memoria.n_short = 3;
  c.retention->memoria.n_long = 2;
  c.retention->memoria.short_term_capacity = 6;
  c.retention->memoria.depth = 3;
  c.retention->memoria.initial_lifespan = 4;
  c.retention->memoria.alpha = 1;
  return c;
}

/// Numbers are of random floats: no two lives or correlations come near a tie.
void require_same_graph(const EpisodicMemory& host, const DeviceMemory& device) {
  const Memoria &a = *host.retention(), &b = *device.retention();
  REQUIRE(b.total() == a.total());
  REQUIRE(b.steps() == a.steps());
  REQUIRE(b.short_term() == a.short_term());
  REQUIRE(b.long_term() == a.long_term());
  double apart = 0.0;
  for (EventId e = 0; e < host.events().size(); ++e) {
    REQUIRE(b.count(e, e) == a.count(e, e));
    apart = worse_of(apart, std::abs(b.lifespan(e) - a.lifespan(e)));
  }
  REQUIRE(apart < 1e-4);
}

void step_alike(EpisodicMemory& host, DeviceMemory& device, const std::vector<Token>& tokens,
                std::int64_t n) {
  step_both(host, device, tokens, n);
  require_same_graph(host, device);
}

TEST_CASE("a device's memory with retention forgets the events that the host's does") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kTokens = 300;
  const TempDir dir;
  for (const int settings : {0, 1, 2, 3, 4, 5, 6}) {
    const MemoryShape shape = shape_of(settings == 1 ? 3 : 2);
    MemoryConfig plain = retaining();
    DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
    if (settings == 1) plain.retention->layer = 2;
    if (settings == 2) plain.recall_groups = 2;
    if (settings == 3) plain.recall_every = 3;
    if (settings == 4) {
      plain.reweight = Reweighting::broad;
      plain.contiguity = 0;
    }
    if (settings == 5) {
      plain.reweight = Reweighting::exact;
      plain.recall_layers = {{1}};
    }
    if (settings == 6) {  // slabs of codes
      plain.min_block = plain.max_block = 1;
      plain.retention->memoria.alpha = 1;
      options.codes_from = 64;
    }
    std::vector<MemoryConfig> configs = tiers(plain, shape, options, dir.path());
    if (settings > 2) configs.resize(1);
    for (const MemoryConfig& config :
         episodic_test::in_turn(configs, static_cast<std::size_t>(settings))) {
      INFO("settings " << settings << ", device_bytes " << config.device_bytes << ", files "
                       << !config.disk_dir.empty());
      EpisodicMemory host(plain, shape);
      DeviceMemory device(config, shape, options, nullptr);
      std::mt19937 random(static_cast<std::uint32_t>(7 + settings));
      const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 34);
      std::shared_ptr<const MemorySnapshot> of_host, of_device;
      while (host.tokens() < kTokens) {
        const auto what = random() % 16;
        if (what == 0 && !of_host) of_host = host.snapshot(), of_device = device.snapshot();
        if (what == 1 && of_host) {
          host.restore(*of_host);
          device.restore(*of_device);
          of_host = of_device = nullptr;
          require_same_graph(host, device);
        }
        if (what == 2 && host.retention()->size() > 2) {  // someone else forgets one of the graph's
          const EventId e = host.retention()->short_term().front();
          host.forget(e);
          device.forget(e);
          require_same_graph(host, device);
        }
        if (what == 3 && host.tokens() + 2 <= kTokens) {  // a step that is begun anew counts once
          device.begin_step(1);
          device.begin_step(2);
        }
        const std::int64_t n =
            std::min<std::int64_t>(kTokens - host.tokens(), random() % 3 == 0 ? 1 : plain.chunk);
        step_alike(host, device, tokens, n);
      }
      // Most of what came is gone, and something that was recalled again and again is not.
      REQUIRE(host.events().size() > 20);
      REQUIRE(device.forgotten().size() > static_cast<std::size_t>(host.events().size() / 2));
      REQUIRE(device.retention()->size() > 2);
      device.reset();
      REQUIRE(device.retention()->total() == 0);
      REQUIRE(device.forgotten().empty());
    }
  }
}

TEST_CASE("what a step that is begun anew has attended is not received") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, 300, 36);
  const DeviceMemoryOptions options{DType::float32, 300, DType::float32, 0};
  DeviceMemory plain(retaining(), shape, options, nullptr),
      disturbed(retaining(), shape, options, nullptr);
  for (int i = 0; i < 25; ++i) {
    disturbed.begin_step(12);
    std::vector<float> q = rows_of(tokens, &Token::v, 0, 12 * i, 12);  // others, in one layer
    q.resize(static_cast<std::size_t>(12 * shape.n_heads * shape.head_dim), 0.5f);
    const DeviceArray<float> rows(q), out(q.size());
    disturbed.attend(0, layer_step(disturbed, rows.data(), rows.data(), rows.data(), out.data()));
    REQUIRE(step(disturbed, tokens, 12 * i, 12) == step(plain, tokens, 12 * i, 12));
  }
  REQUIRE(plain.forgotten().size() > 3);
  REQUIRE(disturbed.forgotten() == plain.forgotten());
  for (EventId e = 0; e < plain.events().size(); ++e)
    REQUIRE(disturbed.retention()->lifespan(e) == plain.retention()->lifespan(e));
}

TEST_CASE("a kept memory with retention goes to a device and back, and goes on the same") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const TempDir dir;
  const std::vector<Token> tokens = driver::random_tokens(shape, kLength, 35);
  const DeviceMemoryOptions options{DType::float32, kLength, DType::float32, 0};
  int tier = 0;
  for (const int groups : {1, 2})
    for (MemoryConfig config : tiers(retaining(), shape, options, dir.path())) {
      MemoryConfig plain = retaining();
      plain.recall_groups = config.recall_groups = groups;
      KeepOptions keep;
      keep.dir = dir / std::to_string(tier++);
      EpisodicMemory reference(plain, shape);
      const auto on_host = [&](EpisodicMemory& memory, std::int64_t to) {
        while (memory.tokens() < to) driver::step(memory, tokens, memory.tokens(), 12);
      };
      {
        EpisodicMemory kept = EpisodicMemory::create(keep, plain, shape);
        on_host(kept, 180);
        kept.commit();
        // What is due at a step's end is forgotten when the next begins, or at a commit.
        on_host(reference, 180);
        DeviceMemory device(config, shape, options, nullptr);
        device.load(kept);
        require_same_graph(kept, device);
        while (device.tokens() < 330) {
          // Between the steps that close something, too: what was received goes along.
          const std::int64_t n = device.tokens() % 24 == 0 ? 1 : 12 - device.tokens() % 12;
          step_alike(reference, device, tokens, n);
          if (device.tokens() % 100 > 2) continue;
          device.save(kept, {}, {});
          require_same_graph(kept, device);
          device.load(kept);
          require_same(reference, device);
          require_same_graph(reference, device);
        }
        device.save(kept, {}, {});
        kept.commit();
        REQUIRE(verify_memory(keep.dir).damages.empty());
      }
      EpisodicMemory kept = EpisodicMemory::open(keep, OpenMode::write, &shape);
      while (reference.tokens() < kLength) {
        on_host(reference, reference.tokens() + 12);
        on_host(kept, kept.tokens() + 12);
        REQUIRE(kept.forgotten() == reference.forgotten());
        REQUIRE(kept.retention()->short_term() == reference.retention()->short_term());
        REQUIRE(kept.retention()->long_term() == reference.retention()->long_term());
        for (std::int64_t l = 0; l < kept.lanes(); ++l)
          REQUIRE(kept.recall_lists(l).similarity == reference.recall_lists(l).similarity);
      }
      REQUIRE(kept.forgotten().size() > static_cast<std::size_t>(kept.events().size() / 2));
      // The device opens what the host went on with.
      DeviceMemory device(config, shape, options, nullptr);
      device.load(kept);
      require_same_graph(kept, device);
      REQUIRE(device.forgotten() == kept.forgotten());
    }
}

TEST_CASE("a pinned event stays on a device whatever retention says") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kLength, 37);
  const DeviceMemoryOptions options{DType::float32, kLength, DType::float32, 0};
  DeviceMemory device(retaining(), shape, options, nullptr);
  while (device.retention()->size() < 4) step(device, tokens, device.tokens(), 12);
  const EventId pinned = device.retention()->short_term().front();
  device.pin(pinned);
  while (device.tokens() < kLength) step(device, tokens, device.tokens(), 12);
  REQUIRE_FALSE(device.retention()->holds(pinned));
  const auto& gone = device.forgotten();
  REQUIRE_FALSE(std::binary_search(gone.begin(), gone.end(), pinned));
  REQUIRE(gone.size() > 10);
}

TEST_CASE("retention waits before a step that follows the end of a chunk, nowhere else") {
  EPISODIC_NEEDS_DEVICE();
#if defined(EPISODIC_EMULATED_CUDA)
  const MemoryShape shape = shape_of();
  const std::int64_t q_row = shape.n_heads * shape.head_dim;
  const std::vector<Token> tokens = driver::random_tokens(shape, 300, 38);
  const DeviceMemoryOptions options{DType::bfloat16, 300};
  const DeviceArray<unsigned char> rows(
      std::vector<unsigned char>(static_cast<std::size_t>(12 * q_row * 2), 0)),
      out(static_cast<std::size_t>(12 * q_row * 2));
  const DeviceArray<float> surprise(std::vector<float>(12, 1.0f));
  MemoryConfig plain = retaining();
  plain.retention.reset();
  DeviceMemory with(retaining(), shape, options, nullptr), without(plain, shape, options, nullptr);
  const auto launches = [&](DeviceMemory& memory, std::int64_t n, bool may_wait) {
    emulator::reset_calls();
    memory.begin_step(n);
    if (!may_wait) REQUIRE(emulator::calls().synchronisations == 0);
    const std::int64_t waits = emulator::calls().synchronisations;
    for (std::int64_t l = 0; l < shape.n_layers; ++l)
      memory.attend(l, layer_step(memory, rows.data(), rows.data(), rows.data(), out.data()));
    memory.end_step(surprise.data());
    REQUIRE(emulator::calls().synchronisations == waits);
    REQUIRE(emulator::calls().allocations == 0);
    return emulator::calls().launches;
  };
  const std::int64_t in_window = retaining().n_local / 12;
  for (std::int64_t i = 0; i < in_window; ++i)
    REQUIRE(launches(with, 12, false) == launches(without, 12, false));
  // Two a layer, and one that adds them up. Behind a step within a chunk there is no wait.
  for (const auto& [n, may_wait] : {std::pair<std::int64_t, bool>{12, true},
                                    {12, true},
                                    {12, true},
                                    {1, true},
                                    {1, false},
                                    {9, false}})
    REQUIRE(launches(with, n, may_wait) == launches(without, n, false) + 2 * shape.n_layers + 1);
  // After a look at the graph, which has waited, no token can have left the window since.
  REQUIRE(with.retention()->total() > 0);
  REQUIRE(launches(with, 1, false) > 0);
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("retention that cannot serve is refused for a device as for the host") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, 300};
  MemoryConfig config = retaining();
  config.retention->layer = 7;
  REQUIRE(mentions(refusal<ConfigError>([&] { DeviceMemory(config, shape, options, nullptr); }),
                   "layer 7"));
  config = retaining();
  config.recall_layers = std::vector<std::int64_t>{};
  REQUIRE(mentions(refusal<ConfigError>([&] { DeviceMemory(config, shape, options, nullptr); }),
                   "recall_layers"));
  config = retaining();
  config.scope = EventScope::head;
  REQUIRE(mentions(refusal<ConfigError>([&] { DeviceMemory(config, shape, options, nullptr); }),
                   "one table"));
}

}  // namespace device_retention_test
