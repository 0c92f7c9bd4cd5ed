// SPDX-License-Identifier: Apache-2.0
// Forgetting and pinning on a device, beside the host's: the same events are recalled, and none
// that was forgotten, whatever is recalled how and wherever events lie.
#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "beside_host.hpp"
#include "episodic/base/error.hpp"
#include "kernels/batches.hpp"
#include "kernels/codes.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_forgetting_test {

using namespace device_steps;

constexpr std::int64_t kLength = 360;

MemoryConfig forgetting_config() {
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 12;
  return config;
}

/// Up to here tokens are in closed events, of every scope.
std::int64_t closed_tokens(const EpisodicMemory& memory) {
  std::int64_t closed = memory.tokens();
  for (std::int64_t s = 0; s < memory.scopes(); ++s)
    closed = std::min(closed, memory.events(s).pending_start());
  return closed;
}

/// Events or ranges, drawn alike for both.
void forget_some(EpisodicMemory& host, DeviceMemory& device, std::mt19937& random) {
  const auto draw = [&](std::int64_t below) { return static_cast<std::int64_t>(random()) % below; };
  const std::int64_t scope = draw(host.scopes()), events = host.events(scope).size();
  const std::int64_t closed = closed_tokens(host), n_init = host.config().n_init;
  if (events < 2 || closed <= n_init) return;
  if (random() % 2 == 0) {
    const EventId e = draw(events);
    host.forget(e, scope);
    device.forget(e, scope);
    return;
  }
  const std::int64_t start = n_init + draw(closed - n_init);
  const TokenRange range{start, std::min(closed, start + 1 + draw(30))};
  REQUIRE(device.forget(range) == host.forget(range));
}

/// Of all scopes.
std::int64_t forgotten_events(const DeviceMemory& memory) {
  std::int64_t all = 0;
  for (std::int64_t s = 0; s < memory.scopes(); ++s)
    all += static_cast<std::int64_t>(memory.forgotten(s).size());
  return all;
}

void check_forgetting(std::initializer_list<int> all_settings, std::int64_t length) {
  const TempDir dir;
  for (const int settings : all_settings) {
    const MemoryShape shape = shape_of(settings == 9 ? 3 : 2);
    MemoryConfig plain = forgetting_config();
    DeviceMemoryOptions options{DType::float32, length, DType::float32, 0};
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
    } else if (settings == 5 || settings == 6) {
      plain.recall_groups = 2;  // which share what is forgotten and pinned
    } else if (settings == 10) {
      plain.score = RepresentativeScore::max;
      plain.recall_groups = 2;
    } else if (settings > 6) {  // heads with events of their own, and marks of their own
      plain.scope = EventScope::head;
      plain.segmenter = SegmenterKind::k_similarity;
      if (settings == 8) plain.reweight = Reweighting::narrow, plain.contiguity = 0;
      if (settings == 9) plain.recall_layers = {{0, 2}};  // events of layer 1 are never recalled
    }
    if (settings == 4) plain.kv_dtype = DType::int8;
    if (settings == 6) {
      plain.min_block = plain.max_block = 1;
      options.codes_from = 64;
    }
    const bool with_files = settings == 0 || settings == 5 || settings == 7;
    const bool with_slots = settings != 6 && settings != 8 && settings != 9;
    std::vector<MemoryConfig> configs = tiers(plain, shape, options, dir.path());
    configs.resize(with_files ? 3 : with_slots ? 2 : 1);
    for (const MemoryConfig& config :
         episodic_test::in_turn(configs, static_cast<std::size_t>(settings + 2))) {
      EpisodicMemory host(plain, shape);
      DeviceMemory device(config, shape, options, nullptr);
      std::mt19937 random(static_cast<std::uint32_t>(31 + settings));
      const std::vector<Token> tokens = driver::random_tokens(shape, length, 12);
      std::shared_ptr<const MemorySnapshot> of_host, of_device;
      std::vector<std::pair<std::int64_t, EventId>> pinned;
      const auto unpin = [&] {
        for (const auto& [scope, e] : pinned)
          if (e < device.events(scope).size()) device.pin(e, false, scope);
        pinned.clear();
      };
      while (host.tokens() < length) {
        const auto what = random() % 12;
        if (what < 4) unpin();
        if (what < 4) forget_some(host, device, random);
        const auto scope = static_cast<std::int64_t>(random()) % host.scopes();
        if (what > 9 && host.events(scope).size() > 0) {  // what is recalled does not change
          const auto e = static_cast<std::int64_t>(random()) % host.events(scope).size();
          const auto& gone = device.forgotten(scope);
          if (!std::binary_search(gone.begin(), gone.end(), e)) {
            device.pin(e, true, scope);
            pinned.emplace_back(scope, e);
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
            length - host.tokens(),
            random() % 3 == 0 ? 1 : 1 + static_cast<std::int64_t>(random()) % config.chunk);
        step_both(host, device, tokens, n);
      }
      const std::int64_t scope_of_lane_1 = host.scopes() > 1 ? 1 : 0;
      const std::vector<EventId>& of_lane_1 = host.forgotten(scope_of_lane_1);
      REQUIRE(of_lane_1.size() > 5);
      if (host.scopes() > 1) REQUIRE(of_lane_1 != host.forgotten());
      REQUIRE_THROWS_AS(device.representative(1, of_lane_1.front()), DataError);
      unpin();
      // All of them: nothing but sinks and window is attended then.
      const TokenRange all{config.n_init, closed_tokens(host)};
      const std::int64_t before = forgotten_events(device);
      const std::int64_t launches =
          episodic_test::count_launches([&] { REQUIRE(device.forget(all) == host.forget(all)); });
      // A launch for as many as the list on the device has room for, of all tables.
      const std::int64_t fresh = forgotten_events(device) - before;
      REQUIRE(launches <= episodic_test::launches_of(fresh, config.chunk));
      for (std::int64_t s = 0; s < host.scopes(); ++s)
        for (EventId e = 0; e < host.events(s).size(); ++e)
          if (host.events(s)[e].end > all.end) host.forget(e, s), device.forget(e, s);
      require_same(host, device);
      for (std::int64_t l = 0; l < device.lanes(); ++l) REQUIRE(device.recalled(l).empty());
      device.reset();
      for (std::int64_t s = 0; s < host.scopes(); ++s) REQUIRE(device.forgotten(s).empty());
    }
  }
}

TEST_CASE("a device's memory forgets as the host's does") {
  EPISODIC_NEEDS_DEVICE();
  check_forgetting({0, 1, 2, 3, 4, 5, 6, 10}, 260);
}

TEST_CASE("a device's memory forgets events of each head as the host's does") {
  EPISODIC_NEEDS_DEVICE();
  check_forgetting({7, 8, 9}, 260);
}

TEST_CASE("a memory with forgotten events goes to a device and back") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const TempDir dir;
  const std::vector<Token> tokens = driver::random_tokens(shape, kLength, 14);
  int number = 0;
  std::size_t turn = 0;
  struct Settings {
    int codes, groups;
    DType kept;
    EventScope scope = EventScope::sequence;
  };
  for (const auto& [codes, groups, dtype, scope] :
       {Settings{0, 1, DType::float32}, Settings{64, 1, DType::float32},
        Settings{0, 2, DType::float32}, Settings{0, 1, DType::int8}, Settings{0, 1, DType::fp8},
        Settings{0, 1, DType::float32, EventScope::head},
        Settings{64, 1, DType::int8, EventScope::head}}) {
    MemoryConfig plain = forgetting_config();
    plain.kv_dtype = dtype;
    if (codes > 0) plain.min_block = plain.max_block = 1;
    plain.recall_groups = groups;
    plain.scope = scope;
    if (scope == EventScope::head && codes == 0) plain.segmenter = SegmenterKind::k_similarity;
    const DeviceMemoryOptions options{DType::float32, kLength, DType::float32, codes};
    std::vector<MemoryConfig> configs = tiers(plain, shape, options, dir.path());
    if (codes > 0) configs.pop_back();  // none over files
    for (const MemoryConfig& config : episodic_test::in_turn(configs, turn++)) {
      EpisodicMemory reference(plain, shape);
      KeepOptions keep;
      keep.dir = dir / std::to_string(number++);
      EpisodicMemory kept = EpisodicMemory::create(keep, plain, shape);
      for (EpisodicMemory* memory : {&reference, &kept}) {
        while (memory->tokens() < 180) driver::step(*memory, tokens, memory->tokens(), 12);
        const std::int64_t last = memory->scopes() - 1;
        memory->forget(2, last);
        memory->forget(TokenRange{60, 90});
      }
      kept.pin(1, true, kept.scopes() - 1);
      DeviceMemory device(config, shape, options, nullptr);
      device.load(kept);
      require_same(reference, device);
      while (device.tokens() < 300) step_both(reference, device, tokens, 12);
      // Of what came from the host, and of what only the device has.
      const std::int64_t last = device.scopes() - 1;
      for (const EventId e : {EventId{5}, reference.events(last).size() - 3}) {
        reference.forget(e, last);
        device.forget(e, last);
      }
      REQUIRE(mentions(refusal<DataError>([&] { device.forget(1, last); }), "pinned"));
      device.pin(1, false, last);
      device.pin(4, true, last);
      const auto require_kept = [&] {
        for (std::int64_t s = 0; s < kept.scopes(); ++s) {
          REQUIRE(kept.forgotten(s) == reference.forgotten(s));
          REQUIRE(kept.events(s).all() == reference.events(s).all());
          for (EventId e = 0; e < kept.events(s).size(); ++e)
            REQUIRE(kept.pinned(e, s) == (s == last && e == 4));
        }
      };
      device.save(kept, std::vector<std::int64_t>(120, 3), {});
      require_kept();
      device.forget(7);
      reference.forget(7);
      device.save(kept, {}, {});
      require_kept();
      kept.commit();
      REQUIRE(verify_memory(keep.dir).damages.empty());
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

TEST_CASE("what cannot be forgotten of heads' own events is refused as on the host") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(3);
  const std::vector<Token> tokens = driver::random_tokens(shape, 200, 16);
  MemoryConfig config = forgetting_config();
  config.scope = EventScope::head;
  config.segmenter = SegmenterKind::k_similarity;
  config.recall_layers = {{0, 2}};
  const TempDir dir;
  KeepOptions keep;
  keep.dir = dir / "kept";
  EpisodicMemory kept = EpisodicMemory::create(keep, config, shape);
  DeviceMemory device(config, shape, {DType::float32, 200}, nullptr);
  for (int i = 0; i < 12; ++i) step_both(kept, device, tokens, 12);
  REQUIRE(device.can(Capability::forget));
  REQUIRE(device.can(Capability::pin));
  const auto both = [&](const auto& call) {
    const std::string said = refusal<DataError>([&] { call(device); });
    REQUIRE(said == refusal<DataError>([&] { call(kept); }));
  };
  constexpr std::int64_t kScope = 5;
  const std::int64_t closed = closed_tokens(kept), events = kept.events(kScope).size();
  both([](auto& m) { m.forget(EventId{-1}, kScope); });
  both([&](auto& m) { m.forget(events, kScope); });
  both([](auto& m) { m.forget(0, 6); });
  both([](auto& m) { m.pin(0, true, -1); });
  both([&](auto& m) { m.pin(events, true, kScope); });
  both([&](auto& m) { m.forget(TokenRange{20, closed + 1}); });
  // A pinned event of one head keeps a range from being forgotten for all.
  for (SequenceMemory* m :
       {static_cast<SequenceMemory*>(&kept), static_cast<SequenceMemory*>(&device)})
    m->pin(2, true, kScope);
  both([](auto& m) { m.forget(2, kScope); });
  const TokenRange range = kept.events(kScope)[2];
  if (range.end <= closed) both([&](auto& m) { m.forget(range); });
  for (std::int64_t s = 0; s < device.scopes(); ++s) REQUIRE(device.forgotten(s).empty());
  // Where a layer does not recall nothing is kept that a pin could hold.
  for (SequenceMemory* m :
       {static_cast<SequenceMemory*>(&kept), static_cast<SequenceMemory*>(&device)}) {
    m->pin(1, true, 2);
    m->forget(1, 2);
  }
  step_both(kept, device, tokens, 1);
}

}  // namespace device_forgetting_test
