// SPDX-License-Identifier: Apache-2.0
// How often events are recalled, as a device counts it: the host's counts, of each event and in
// all, wherever events lie, over snapshots, and in kept memories that host and device hand to each
// other.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "beside_host.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_counts_test {

using namespace device_steps;

constexpr std::int64_t kLength = 260;

void require_same_counts(const EpisodicMemory& host, const DeviceMemory& device) {
  REQUIRE(device.recalled_events() == host.counters().recalled_events);
  for (std::int64_t s = 0; s < host.scopes(); ++s)
    REQUIRE(device.recall_counts(s) == host.recall_counts(s));
}

TEST_CASE("a device counts recalls as the host does") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  int number = 0;
  for (const int settings : {0, 1, 2, 3, 4, 5}) {
    const MemoryShape shape = shape_of(settings == 3 ? 3 : 2);
    MemoryConfig plain = driver::small_config();
    plain.contiguity = 0.3;
    plain.n_mem = 12;
    if (settings == 1) plain.recall_groups = 2;
    if (settings == 2) plain.recall_every = 3;  // lists of the step before count once more
    if (settings == 3) {
      plain.scope = EventScope::head;
      plain.segmenter = SegmenterKind::k_similarity;
      plain.recall_layers = {{0, 2}};
    }
    if (settings == 4) plain.reweight = Reweighting::broad, plain.contiguity = 0;
    if (settings == 5) plain.recall = false;
    const DeviceMemoryOptions options{DType::float32, kLength, DType::float32, 0};
    std::vector<MemoryConfig> configs{plain};
    if (settings < 4) configs = tiers(plain, shape, options, dir.path());
    for (const MemoryConfig& config :
         episodic_test::in_turn(configs, static_cast<std::size_t>(settings))) {
      INFO("settings " << settings << ", device_bytes " << config.device_bytes << ", files "
                       << !config.disk_dir.empty());
      MemoryConfig counting = plain;  // only a memory with a disk tier counts by event
      if (plain.recall) counting.disk_dir = dir.path().string();
      EpisodicMemory host(counting, shape);
      DeviceMemory device(config, shape, options, nullptr);
      std::mt19937 random(static_cast<std::uint32_t>(3 + settings));
      const std::vector<Token> tokens = driver::random_tokens(shape, kLength, 22);
      std::shared_ptr<const MemorySnapshot> of_host, of_device;
      REQUIRE(device.recall_counts().empty());
      while (host.tokens() < kLength) {
        const auto what = random() % 12;
        if (what == 0) of_host = host.snapshot(), of_device = device.snapshot();
        if (what == 1 && of_host) {  // what was recalled has been
          host.restore(*of_host);
          device.restore(*of_device);
          of_host = of_device = nullptr;
        }
        if (what == 2 && host.tokens() + 2 <= kLength) {  // a step that is begun anew counts once
          device.begin_step(1);
          device.begin_step(2);
        }
        step_both(
            host, device, tokens,
            std::min<std::int64_t>(kLength - host.tokens(), random() % 3 == 0 ? 1 : plain.chunk));
        require_same_counts(host, device);
      }
      REQUIRE((device.recalled_events() > 100) == plain.recall);
      if (!plain.recall) continue;
      // To a kept memory and on, as if nothing had been elsewhere.
      KeepOptions keep;
      keep.dir = dir / std::to_string(number++);
      {
        EpisodicMemory kept = EpisodicMemory::create(keep, plain, shape);
        EpisodicMemory whole(counting, shape);
        const auto on_host = [&](EpisodicMemory& memory, std::int64_t to) {
          while (memory.tokens() < to) driver::step(memory, tokens, memory.tokens(), 12);
        };
        on_host(kept, 120);
        on_host(whole, 120);
        device.load(kept);
        require_same_counts(whole, device);
        while (device.tokens() < 204) step_both(whole, device, tokens, 12);
        device.save(kept, {}, {});
        REQUIRE(kept.counters().steps == whole.counters().steps);
        on_host(kept, 228);
        on_host(whole, 228);
        kept.commit();
      }
      EpisodicMemory whole(counting, shape);
      while (whole.tokens() < 228) driver::step(whole, tokens, whole.tokens(), 12);
      const EpisodicMemory kept = EpisodicMemory::open(keep, OpenMode::read, &shape);
      REQUIRE(kept.counters().recalled_events == whole.counters().recalled_events);
      for (std::int64_t s = 0; s < kept.scopes(); ++s)
        REQUIRE(kept.recall_counts(s) == whole.recall_counts(s));
      device.reset();
      REQUIRE(device.recalled_events() == 0);
    }
  }
}

}  // namespace device_counts_test
