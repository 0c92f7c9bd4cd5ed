// SPDX-License-Identifier: Apache-2.0
// Forgetting and pinning on a device, beside the host's: the same events are recalled, and none
// that was forgotten, whatever is recalled how and wherever events lie.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "beside_host.hpp"
#include "episodic/base/error.hpp"
#include "kernels/codes.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

namespace device_forgetting_test {

using namespace device_steps;

constexpr std::int64_t kLength = 420;

MemoryConfig forgetting_config() {
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 12;
  return config;
}

/// Events or ranges, drawn alike for both.
void forget_some(EpisodicMemory& host, DeviceMemory& device, std::mt19937& random) {
  const std::int64_t events = host.events().size();
  if (events < 2) return;
  const auto draw = [&](std::int64_t below) { return static_cast<std::int64_t>(random()) % below; };
  if (random() % 2 == 0) {
    const EventId e = draw(events);
    host.forget(e);
    device.forget(e);
    return;
  }
  const std::int64_t closed = host.events().pending_start(), n_init = host.config().n_init;
  const std::int64_t start = n_init + draw(closed - n_init);
  const TokenRange range{start, std::min(closed, start + 1 + draw(30))};
  REQUIRE(device.forget(range) == host.forget(range));
}

TEST_CASE("a device's memory forgets as the host's does") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const TempDir dir;
  for (const int settings : {0, 1, 2, 3, 4, 5, 6}) {
    MemoryConfig plain = forgetting_config();
    DeviceMemoryOptions options{DType::float32, kLength, DType::float32, 0};
    if (settings == 1) {  // slabs of codes
      plain.min_block = plain.max_block = 1;
      options.codes_from = 64;
    } else if (settings == 2) {
      plain.reweight = Reweighting::broad;
      plain.contiguity = 0;
    } else if (settings == 3) {
      plain.reweight = Reweighting::narrow;
      plain.reweight_top = 40;  // more than are left
      plain.contiguity = 0;
    } else if (settings == 4) {
      plain.recall_every = 3;  // lists of the step before are attended once more
    } else if (settings > 4) {
      plain.recall_groups = 2;  // which share what is forgotten and pinned
    }
    if (settings == 4) plain.kv_dtype = DType::int8;
    if (settings == 6) {
      plain.min_block = plain.max_block = 1;
      options.codes_from = 64;
    }
    for (const MemoryConfig& config : tiers(plain, shape, options, dir.path())) {
      if (settings > 0 && settings != 5 && !config.disk_dir.empty()) continue;
      if (settings == 6 && config.device_bytes > 0) continue;
      EpisodicMemory host(plain, shape);
      DeviceMemory device(config, shape, options, nullptr);
      std::mt19937 random(static_cast<std::uint32_t>(31 + settings));
      const std::vector<Token> tokens = driver::random_tokens(shape, kLength, 12);
      std::shared_ptr<const MemorySnapshot> of_host, of_device;
      std::vector<EventId> pinned;
      const auto unpin = [&] {
        for (const EventId e : pinned)
          if (e < device.events().size()) device.pin(e, false);
        pinned.clear();
      };
      while (host.tokens() < kLength) {
        const auto what = random() % 12;
        if (what < 4) unpin();
        if (what < 4) forget_some(host, device, random);
        if (what > 9 && host.events().size() > 0) {  // what is recalled does not change
          const auto e = static_cast<std::int64_t>(random()) % host.events().size();
          const auto& gone = device.forgotten();
          if (!std::binary_search(gone.begin(), gone.end(), e)) {
            device.pin(e);
            pinned.push_back(e);
          }
        }
        if (what == 4) of_host = host.snapshot(), of_device = device.snapshot();
        if (what == 5 && of_host) {
          host.restore(*of_host);
          device.restore(*of_device);
          of_host = of_device = nullptr;
        }
        require_same(host, device);
        const std::int64_t n = std::min<std::int64_t>(
            kLength - host.tokens(),
            random() % 3 == 0 ? 1 : 1 + static_cast<std::int64_t>(random()) % config.chunk);
        step_both(host, device, tokens, n);
      }
      REQUIRE(host.forgotten().size() > 5);
      REQUIRE_THROWS_AS(device.representative(1, host.forgotten().front()), DataError);
      unpin();
      // All of them: nothing but sinks and window is attended then.
      const TokenRange all{config.n_init, host.events().pending_start()};
      REQUIRE(device.forget(all) == host.forget(all));
      require_same(host, device);
      REQUIRE(device.recalled(0).empty());
      device.reset();
      REQUIRE(device.forgotten().empty());
    }
  }
}

TEST_CASE("a memory with forgotten events goes to a device and back") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const TempDir dir;
  const std::vector<Token> tokens = driver::random_tokens(shape, kLength, 14);
  int number = 0;
  struct Settings {
    int codes, groups;
    DType kept;
  };
  for (const auto& [codes, groups, dtype] :
       {Settings{0, 1, DType::float32}, Settings{64, 1, DType::float32},
        Settings{0, 2, DType::float32}, Settings{0, 1, DType::int8}, Settings{0, 1, DType::fp8}}) {
    MemoryConfig plain = forgetting_config();
    plain.kv_dtype = dtype;
    if (codes > 0) plain.min_block = plain.max_block = 1;
    plain.recall_groups = groups;
    const DeviceMemoryOptions options{DType::float32, kLength, DType::float32, codes};
    for (const MemoryConfig& config : tiers(plain, shape, options, dir.path())) {
      if (codes > 0 && !config.disk_dir.empty()) continue;
      EpisodicMemory reference(plain, shape);
      KeepOptions keep;
      keep.dir = dir / std::to_string(number++);
      EpisodicMemory kept = EpisodicMemory::create(keep, plain, shape);
      for (EpisodicMemory* memory : {&reference, &kept}) {
        while (memory->tokens() < 180) driver::step(*memory, tokens, memory->tokens(), 12);
        memory->forget(2);
        memory->forget(TokenRange{60, 90});
      }
      DeviceMemory device(config, shape, options, nullptr);
      device.load(kept);
      require_same(reference, device);
      while (device.tokens() < 300) step_both(reference, device, tokens, 12);
      // Of what came from the host, and of what only the device has.
      for (const EventId e : {EventId{5}, reference.events().size() - 3}) {
        reference.forget(e);
        device.forget(e);
      }
      device.save(kept, std::vector<std::int64_t>(120, 3), {});
      REQUIRE(kept.forgotten() == reference.forgotten());
      REQUIRE(kept.events().all() == reference.events().all());
      device.forget(7);
      reference.forget(7);
      device.save(kept, {}, {});
      REQUIRE(kept.forgotten() == reference.forgotten());
      kept.commit();
      // The host's memory and the device's go on alike.
      while (device.tokens() < 360) step_both(reference, device, tokens, 12);
      while (kept.tokens() < 360) driver::step(kept, tokens, kept.tokens(), 12);
      for (std::int64_t l = 0; l < kept.lanes(); ++l)
        REQUIRE(kept.recall_lists(l).similarity == reference.recall_lists(l).similarity);
    }
  }
}

TEST_CASE("what cannot be forgotten on a device is refused as on the host") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, 200, 15);
  const DeviceMemoryOptions options{DType::float32, 200};
  EpisodicMemory host(forgetting_config(), shape);
  DeviceMemory device(forgetting_config(), shape, options, nullptr);
  for (int i = 0; i < 12; ++i) step_both(host, device, tokens, 12);
  const auto both = [&](const auto& call) {
    const std::string said = refusal<DataError>([&] { call(device); });
    REQUIRE(said == refusal<DataError>([&] { call(host); }));
  };
  const std::int64_t closed = host.events().pending_start();
  both([](auto& m) { m.forget(EventId{-1}); });
  both([](auto& m) { m.forget(m.events().size()); });
  both([](auto& m) { m.forget(TokenRange{0, 10}); });
  both([&](auto& m) { m.forget(TokenRange{20, closed + 1}); });
  both([](auto& m) { m.forget(TokenRange{20, 20}); });
  both([](auto& m) { m.forget(TokenRange{20, 1000}); });
  REQUIRE_THROWS_AS(device.forget(1, 1), DataError);
  REQUIRE(device.forgotten().empty());
  device.begin_step(1);
  REQUIRE(mentions(refusal<DataError>([&] { device.forget(1); }), "a step is open"));
  const auto before = device.step_kind();
  step(device, tokens, 144, 1);
  driver::step(host, tokens, 144, 1);
  device.forget(1);
  host.forget(1);
  device.forget(1);  // once more says nothing
  require_same(host, device);
  device.begin_step(1);
  REQUIRE(before);
  REQUIRE(device.step_kind() != before);  // a graph of before would recall it

  // Pins come with the memory, hold here, and go back.
  const TempDir dir;
  KeepOptions keep;
  keep.dir = dir / "kept";
  EpisodicMemory kept = EpisodicMemory::create(keep, forgetting_config(), shape);
  for (int i = 0; i < 10; ++i) driver::step(kept, tokens, kept.tokens(), 12);
  kept.pin(3);
  device.load(kept);
  step(device, tokens, 120, 12);
  const std::string pinned = refusal<DataError>([&] { device.forget(3); });
  REQUIRE(pinned == refusal<DataError>([&] { kept.forget(3); }));
  REQUIRE(mentions(refusal<DataError>([&] { device.forget(TokenRange{4, 90}); }), "pinned"));
  REQUIRE(device.forgotten().empty());
  device.pin(3, false);
  device.forget(3);
  REQUIRE(mentions(refusal<DataError>([&] { device.pin(3); }), "was forgotten"));
  device.pin(5);
  device.pin(6);
  device.pin(6, false);
  device.save(kept, {}, {});
  REQUIRE((kept.forgotten() == std::vector<EventId>{3}));
  REQUIRE(kept.disk_store()->pinned(5));
  REQUIRE_FALSE(kept.disk_store()->pinned(6));
  // What the host's memory has pinned meanwhile by itself, it keeps, and says so.
  kept.pin(7);
  device.forget(7);
  REQUIRE(mentions(refusal<DataError>([&] { device.save(kept, {}, {}); }), "event 7 is pinned"));
  kept.pin(7, false);
  device.save(kept, {}, {});
  REQUIRE((kept.forgotten() == std::vector<EventId>{3, 7}));
}

TEST_CASE("heads' own events are neither forgotten nor pinned on a device, which says so") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, 200, 16);
  MemoryConfig config = forgetting_config();
  config.scope = EventScope::head;
  const DeviceMemoryOptions options{DType::float32, 200};
  DeviceMemory device(config, shape, options, nullptr);
  for (int i = 0; i < 10; ++i) step(device, tokens, device.tokens(), 12);
  REQUIRE(device.events(1).size() > 4);
  REQUIRE_FALSE(device.can(Capability::forget));
  REQUIRE_FALSE(device.can(Capability::pin));
  const auto is_refused = [&](const auto& call) {
    const std::string said = refusal<ConfigError>([&] { call(device); });
    return mentions(said, "scope = head") && mentions(said, "use the host's memory");
  };
  REQUIRE(is_refused([](auto& m) { m.forget(EventId{1}, 1); }));
  REQUIRE(is_refused([](auto& m) { m.forget(TokenRange{10, 20}); }));
  REQUIRE(is_refused([](auto& m) { m.pin(2, true, 1); }));
  REQUIRE(device.forgotten().empty());

  // Nor does a memory of the host with such events come here; this one stays as it was.
  const TempDir dir;
  KeepOptions keep;
  for (const bool forgets : {true, false}) {
    keep.dir = dir / (forgets ? "forgets" : "pins");
    EpisodicMemory kept = EpisodicMemory::create(keep, config, shape);
    while (kept.tokens() < 120) driver::step(kept, tokens, kept.tokens(), 12);
    if (forgets)
      kept.forget(2, 1);
    else
      kept.pin(2, true, 1);
    REQUIRE(is_refused([&](auto& m) { m.load(kept); }));
    REQUIRE(device.tokens() == 120);
    if (forgets) continue;
    kept.pin(2, false, 1);
    device.load(kept);
    REQUIRE(device.events(1).all() == kept.events(1).all());
  }
}

}  // namespace device_forgetting_test
