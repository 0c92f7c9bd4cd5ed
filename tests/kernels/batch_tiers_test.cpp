// SPDX-License-Identifier: Apache-2.0
// Batches of what tiers and forgetting ask for: residency, copies of runs, and forgotten events.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/batches.hpp"
#include "kernels/copies.hpp"
#include "kernels/forgetting.hpp"
#include "kernels/residency.hpp"

namespace batch_tiers_test {

using episodic_test::Arena;
using episodic_test::batch_sizes;
using episodic_test::check_batches;
using episodic_test::check_shared;
using episodic_test::launches_of;
using namespace episodic::kernels;

/// A pointer for parameters that are looked at and never read through.
alignas(256) unsigned char memory[256];
template <class T>
T* somewhere() {
  return reinterpret_cast<T*>(memory);
}

/// Launches of batches whose calls are all but every fifth of one kind.
std::int64_t but_every_fifth(std::int64_t n) { return launches_of(n - n / 5); }
std::int64_t of_all(std::int64_t n) { return launches_of(n); }

/// Sizes of sequence i: one to three lanes; no slot, one, and more than a block has threads.
struct Sizes {
  std::int64_t lanes, of_lane, slots, most;  // most: events that a lane recalls
  explicit Sizes(std::int64_t i)
      : lanes(1 + i % 3),
        of_lane(i == 2 ? 300 : 5 + 3 * i),
        slots(i % 5 == 0 ? 1
              : i == 2   ? 270
                         : 3 + i),
        most(i % 5 == 4 ? 0
             : i == 2   ? 280
                        : 1 + i % of_lane) {}
  std::int64_t events() const { return lanes * of_lane; }
};

template <class T>
std::vector<T> shuffled(std::int64_t n, std::mt19937& random) {
  std::vector<T> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), T{0});
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

/// Some events in slots, some slots free. Of every third sequence all are free.
ResidencyMap map_of(std::int64_t i, const Sizes& sizes, std::mt19937& random, Arena& arena) {
  std::vector<std::int32_t> slot_of_event(static_cast<std::size_t>(sizes.events()), kNoSlot);
  std::vector<DeviceEventId> event_of_slot(static_cast<std::size_t>(sizes.slots), kNoEvent);
  const auto events = shuffled<DeviceEventId>(sizes.events(), random);
  for (std::size_t s = 0; s < event_of_slot.size() && s < events.size(); ++s) {
    if (i % 3 == 1 || s % 4 == 3) continue;
    event_of_slot[s] = events[s];
    slot_of_event[static_cast<std::size_t>(events[s])] = static_cast<std::int32_t>(s);
  }
  std::vector<std::int64_t> stamps;
  for (std::int64_t e = 0; e < sizes.events(); ++e)
    stamps.push_back(static_cast<std::int64_t>(random() % 40));
  ResidencyMap map;
  map.slot_of_event = arena.out(slot_of_event);
  map.last_recalled = arena.out(stamps);
  map.event_of_slot = arena.out(event_of_slot);
  map.newest = arena.out(std::vector<std::int64_t>{38});
  map.max_events = sizes.events();
  map.n_slots = sizes.slots;
  map.n_lanes = sizes.lanes;
  return map;
}

/// What each lane recalls, and how many that are, as recall leaves it.
struct Recalled {
  const DeviceEventId* events;
  const std::int32_t* count;
};
Recalled recalled_of(const Sizes& sizes, std::mt19937& random, Arena& arena) {
  std::vector<DeviceEventId> events;
  std::vector<std::int32_t> counts;
  for (std::int64_t lane = 0; lane < sizes.lanes; ++lane) {
    auto own = shuffled<DeviceEventId>(sizes.of_lane, random);
    own.resize(static_cast<std::size_t>(sizes.most), kNoEvent);
    std::sort(own.begin(), own.end());
    events.insert(events.end(), own.begin(), own.end());
    counts.insert(counts.end(), {static_cast<std::int32_t>(std::max<std::int64_t>(
                                     0, sizes.most - (lane == 1 ? sizes.most : lane))),
                                 -1, -1});
  }
  return {arena.in(events), arena.in(counts)};
}

TEST_CASE("a batch of touched events has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    std::mt19937 random(static_cast<unsigned>(i));
    const Sizes sizes(i);
    TouchParams p;
    p.map = map_of(i, sizes, random, arena);
    const Recalled recalled = recalled_of(sizes, random, arena);
    p.step = arena.in(std::vector<std::int64_t>{40 + i});
    p.events = recalled.events;
    p.count = recalled.count;
    p.max_count = sizes.most;
    p.missing = arena.out<DeviceEventId>(sizes.lanes * sizes.most + 1);
    p.n_missing = arena.out<std::int32_t>(2);
    p.is_recall = i % 4 != 3;
    if (i % 3 == 2) {
      std::vector<std::int64_t> n_events;
      for (std::int64_t lane = 0; lane < sizes.lanes; ++lane)
        n_events.push_back(lane % 2 == 0 ? sizes.of_lane / 2 : sizes.of_lane);
      p.maybe_n_events = arena.in(n_events);
      p.count_stride = 1;
    }
    return p;
  };
  check_batches<TouchParams>(make, touch_events, touch_events_batch, of_all);
}

TEST_CASE("a batch of victims has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    std::mt19937 random(static_cast<unsigned>(i));
    const Sizes sizes(i);
    VictimParams p;
    p.map = map_of(i, sizes, random, arena);
    p.since = arena.in(std::vector<std::int64_t>{20 + i % 20});
    p.max_needed = sizes.lanes * sizes.most;
    p.n_needed = arena.in(
        std::vector<std::int32_t>{static_cast<std::int32_t>(i % 7 == 6 ? 0 : p.max_needed)});
    p.slots = arena.out<std::int32_t>(p.max_needed + 1);
    p.n_given = arena.out<std::int32_t>(2);
    p.victims = arena.out<DeviceEventId>(p.max_needed + 1);
    p.n_victims = arena.out<std::int32_t>(2);
    if (i % 2 == 1) {
      const Recalled kept = recalled_of(sizes, random, arena);
      p.maybe_kept = kept.events;
      p.n_kept = kept.count;
      p.kept_capacity = sizes.most;
    }
    if (i % 3 != 0) {
      std::vector<std::uint8_t> pins;
      for (std::int64_t e = 0; e < sizes.events(); ++e) pins.push_back(random() % 3 == 0);
      p.maybe_pinned = arena.in(pins);
      p.pin_stride = sizes.of_lane;
    }
    return p;
  };
  check_batches<VictimParams>(make, choose_victims, choose_victims_batch, of_all);
}

TEST_CASE("a batch of occupied slots has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    std::mt19937 random(static_cast<unsigned>(i));
    const Sizes sizes(i);
    OccupyParams p;
    p.map = map_of(i, sizes, random, arena);
    p.max_needed = std::min(sizes.most, std::min(sizes.slots, sizes.events() / 2));
    const std::int64_t given = i % 7 == 6 ? 0 : p.max_needed, leaving = given / 2;
    const auto events = shuffled<DeviceEventId>(sizes.events(), random);
    p.missing = arena.in(events);
    p.victims = arena.in(std::vector<DeviceEventId>(events.rbegin(), events.rend()));
    p.slots = arena.in(shuffled<std::int32_t>(sizes.slots, random));
    p.n_given = arena.in(std::vector<std::int32_t>{static_cast<std::int32_t>(given)});
    p.n_victims = arena.in(std::vector<std::int32_t>{static_cast<std::int32_t>(leaving)});
    p.n_init = 2 + i % 3;
    std::vector<EventRange> ranges;
    std::int64_t at = p.n_init;
    for (std::int64_t e = 0; e < sizes.events(); ++e) {
      ranges.push_back({at, at + 1 + (e + i) % 3});
      at = ranges.back().end;
    }
    p.events = arena.in(ranges);
    p.table_stride = i % 2 == 0 ? sizes.of_lane : 0;
    // Addresses are made up: nothing is read there.
    p.home = reinterpret_cast<unsigned char*>(std::uintptr_t{1} << 20);
    p.token_bytes = 16 + i;
    p.lane_bytes = at * p.token_bytes;
    p.slot_memory = reinterpret_cast<unsigned char*>(std::uintptr_t{1} << 40);
    p.slot_bytes = 3 * p.token_bytes;
    p.blocks = arena.out<void*>(sizes.events());
    p.runs = arena.out<CopyRun>(p.max_needed + 1);
    return p;
  };
  check_batches<OccupyParams>(make, occupy_slots, occupy_slots_batch, but_every_fifth);
}

TEST_CASE("a batch of copied runs has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const std::int64_t max_blocks : {0, 1, 5}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      // Of one byte, of none, across a tile; at odd addresses.
      std::vector<std::int64_t> lengths = {1, 0, 40 + i};
      if (i == 1) lengths.insert(lengths.end(), {4097, 15});
      std::vector<unsigned char> from(5000), to(5000, 0xa5);
      for (unsigned char& b : from) b = static_cast<unsigned char>(random());
      const unsigned char* const source = arena.in(from);
      unsigned char* const target = arena.out(to);
      std::vector<CopyRun> runs;
      std::int64_t at = i % 3;
      for (const std::int64_t bytes : lengths) {
        runs.push_back({source + at % 800, target + at, bytes});
        at += bytes + 3;
      }
      runs.push_back({source, target + 4900, 50});  // beyond the count
      CopyRunsParams p;
      p.runs = arena.in(runs);
      p.count = arena.in(std::vector<std::int32_t>{
          static_cast<std::int32_t>(i % 4 == 3 ? 0 : static_cast<std::int64_t>(lengths.size()))});
      p.max_runs = i % 5 == 4 ? 0 : static_cast<std::int64_t>(runs.size());
      p.max_blocks = max_blocks;
      return p;
    };
    const std::vector<std::int64_t> some{3, 5};
    check_batches<CopyRunsParams>(make, copy_runs, copy_runs_batch, but_every_fifth,
                                  max_blocks == 5 ? batch_sizes(kMostInLaunch) : some);
  }
}

TEST_CASE("a batch of forgotten events has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    std::mt19937 random(static_cast<unsigned>(i));
    const std::int64_t n_events = i == 1 ? 300 : 4 + i;
    std::vector<DeviceEventId> gone;
    for (DeviceEventId e = 0; e < n_events; ++e)
      if (i == 0 ? e == 2 : (e + i) % 3 == 0) gone.push_back(e);
    ForgetParams p;
    p.events = arena.in(gone);
    p.n_events = i % 5 == 4 ? 0 : static_cast<std::int64_t>(gone.size());
    p.marks = arena.out(std::vector<std::uint8_t>(static_cast<std::size_t>(n_events), 7));
    p.n_lanes = 1 + i % 3;
    std::vector<LaneLists> lanes;
    for (std::int64_t lane = 0; lane < p.n_lanes; ++lane) {
      DeviceEventId* lists[3];
      std::vector<std::int32_t> sizes;
      for (DeviceEventId*& list : lists) {
        list = arena.out(shuffled<DeviceEventId>(n_events, random));
        sizes.push_back(static_cast<std::int32_t>(
            random() % static_cast<unsigned>(lane == 2 ? 1 : n_events + 1)));
      }
      lanes.push_back({lists[0], lists[1], lists[2], arena.out(sizes)});
    }
    p.lanes = arena.in(lanes);
    return p;
  };
  check_batches<ForgetParams>(make, forget_events, forget_events_batch, but_every_fifth);
}

TEST_CASE("batches of tiers and forgetting name the field that is wrong") {
  ResidencyMap map;
  map.slot_of_event = map.event_of_slot = somewhere<std::int32_t>();
  map.last_recalled = map.newest = somewhere<std::int64_t>();
  map.max_events = map.n_slots = 4;
  TouchParams touch;
  touch.map = map;
  touch.step = map.newest;
  touch.count = touch.n_missing = map.slot_of_event;
  const auto of_touch = [&](const char* field, void (*change)(TouchParams&)) {
    check_shared<TouchParams>(touch, touch_events_batch, field, change);
  };
  of_touch("map.n_lanes", [](TouchParams& p) { p.map.n_lanes = 3; });
  of_touch("events", [](TouchParams& p) { p.max_count = 1; });
  VictimParams victims;
  victims.map = map;
  victims.since = map.newest;
  victims.n_needed = victims.n_given = victims.n_victims = map.slot_of_event;
  const auto of_victims = [&](const char* field, void (*change)(VictimParams&)) {
    check_shared<VictimParams>(victims, choose_victims_batch, field, change);
  };
  of_victims("map.n_slots", [](VictimParams& p) { p.map.n_slots = 0; });
  of_victims("pin_stride", [](VictimParams& p) { p.pin_stride = -1; });
  OccupyParams occupy;
  occupy.map = map;
  occupy.token_bytes = occupy.slot_bytes = 1;
  const auto of_occupy = [&](const char* field, void (*change)(OccupyParams&)) {
    check_shared<OccupyParams>(occupy, occupy_slots_batch, field, change);
  };
  of_occupy("slot_bytes", [](OccupyParams& p) { p.slot_bytes = 0; });
  of_occupy("missing", [](OccupyParams& p) { p.max_needed = 1; });
  const auto of_runs = [&](const char* field, void (*change)(CopyRunsParams&)) {
    check_shared<CopyRunsParams>({}, copy_runs_batch, field, change);
  };
  of_runs("max_blocks", [](CopyRunsParams& p) { p.max_blocks = 3; });
  of_runs("runs", [](CopyRunsParams& p) { p.max_runs = 1; });
  const auto of_forgotten = [&](const char* field, void (*change)(ForgetParams&)) {
    check_shared<ForgetParams>({}, forget_events_batch, field, change);
  };
  of_forgotten("n_lanes", [](ForgetParams& p) { p.n_lanes = -1; });
  of_forgotten("events", [](ForgetParams& p) { p.n_lanes = p.n_events = 1; });
}

}  // namespace batch_tiers_test
