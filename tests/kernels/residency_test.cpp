// SPDX-License-Identifier: Apache-2.0
#include "kernels/residency.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/device.hpp"

namespace {

using episodic_test::DeviceArray;
using namespace episodic::kernels;

using Events = std::vector<DeviceEventId>;
using Stamps = std::vector<std::int64_t>;
using Slots = std::vector<std::int32_t>;

/// What one step decides.
struct Decision {
  Events missing, victims;
  Slots slots;
  bool operator==(const Decision&) const = default;
};

struct State {
  Slots slot_of_event;
  Stamps last_recalled;
  Events event_of_slot;
  std::int64_t newest = -1;
  bool operator==(const State&) const = default;
};

/// A plain reference of one step: sorts instead of counting. \param ahead of the layer's own recall
/// \param pinned not 0 of pinned events; empty: none is
Decision reference_step(State& s, std::int64_t step, const Events& recalled, bool ahead = false,
                        const std::vector<std::uint8_t>& pinned = {}) {
  Decision d;
  if (!ahead) s.newest = step;
  for (const DeviceEventId e : recalled) {
    if (!ahead) s.last_recalled[static_cast<std::size_t>(e)] = step;
    if (s.slot_of_event[static_cast<std::size_t>(e)] == kNoSlot) d.missing.push_back(e);
  }
  std::vector<std::tuple<bool, std::int64_t, DeviceEventId, std::int32_t>> leaving;
  for (std::size_t slot = 0; slot < s.event_of_slot.size(); ++slot) {
    const DeviceEventId e = s.event_of_slot[slot];
    const auto number = static_cast<std::int32_t>(slot);
    if (e == kNoEvent)
      d.slots.push_back(number);
    else if (s.last_recalled[static_cast<std::size_t>(e)] < s.newest &&
             !(ahead && std::count(recalled.begin(), recalled.end(), e) > 0))
      leaving.emplace_back(!pinned.empty() && pinned[static_cast<std::size_t>(e)] != 0,
                           s.last_recalled[static_cast<std::size_t>(e)], e, number);
  }
  std::sort(leaving.begin(), leaving.end());
  d.slots.resize(std::min(d.slots.size(), d.missing.size()));
  for (const auto& [is_pinned, stamp, event, slot] : leaving) {
    if (d.slots.size() == d.missing.size()) break;
    d.slots.push_back(slot);
    d.victims.push_back(event);
  }
  for (const DeviceEventId e : d.victims) s.slot_of_event[static_cast<std::size_t>(e)] = kNoSlot;
  for (std::size_t i = 0; i < d.slots.size(); ++i) {
    s.slot_of_event[static_cast<std::size_t>(d.missing[i])] = d.slots[i];
    s.event_of_slot[static_cast<std::size_t>(d.slots[i])] = d.missing[i];
  }
  return d;
}

/// Events of 3 tokens of 16 bytes each from token 5 on, each in a block at home; addresses are made
/// up, for the kernels compute with them and read none.
constexpr std::int64_t kFirst = 5, kTokens = 3, kTokenBytes = 16, kSlotBytes = 64;
unsigned char* const kHome = reinterpret_cast<unsigned char*>(1 << 20);
unsigned char* const kSlots = reinterpret_cast<unsigned char*>(2 << 20);

std::vector<EventRange> ranges_of(std::size_t n_events) {
  std::vector<EventRange> ranges;
  for (std::size_t e = 0; e < n_events; ++e) {
    const std::int64_t start = kFirst + kTokens * static_cast<std::int64_t>(e);
    ranges.push_back({start, start + kTokens});
  }
  return ranges;
}

unsigned char* home_of(DeviceEventId e) { return kHome + e * kTokens * kTokenBytes; }

struct Residency {
  DeviceArray<std::int32_t> slot_of_event;
  DeviceArray<std::int64_t> last_recalled;
  DeviceArray<DeviceEventId> event_of_slot;
  DeviceArray<std::int64_t> newest;
  DeviceArray<EventRange> events;
  DeviceArray<void*> blocks;
  explicit Residency(const State& s)
      : slot_of_event(s.slot_of_event),
        last_recalled(s.last_recalled),
        event_of_slot(s.event_of_slot),
        newest(Stamps{s.newest}),
        events(ranges_of(s.slot_of_event.size())),
        blocks([&] {
          std::vector<void*> all;
          for (std::size_t e = 0; e < s.slot_of_event.size(); ++e)
            all.push_back(home_of(static_cast<DeviceEventId>(e)));
          return all;
        }()) {}
  /// Attention finds every event in its slot, if it has one, else at home.
  void check_blocks() const {
    const Slots slots = slot_of_event.host();
    const std::vector<void*> found = blocks.host();
    for (std::size_t e = 0; e < slots.size(); ++e)
      REQUIRE(found[e] == (slots[e] == kNoSlot ? home_of(static_cast<DeviceEventId>(e))
                                               : kSlots + slots[e] * kSlotBytes));
  }
  ResidencyMap map() const {
    return {slot_of_event.data(),
            last_recalled.data(),
            event_of_slot.data(),
            newest.data(),
            static_cast<std::int64_t>(slot_of_event.size()),
            static_cast<std::int64_t>(event_of_slot.size())};
  }
  State state() const {
    return {slot_of_event.host(), last_recalled.host(), event_of_slot.host(), newest.host()[0]};
  }
};

template <class T>
std::vector<T> first_of(const DeviceArray<T>& list, const DeviceArray<std::int32_t>& count) {
  std::vector<T> all = list.host();
  const std::int32_t n = count.host()[0];
  REQUIRE(n >= 0);
  REQUIRE(static_cast<std::size_t>(n) <= all.size());
  all.resize(static_cast<std::size_t>(n));
  return all;
}

/// One step on the device; the recalled events fill a list that has room for `max_count`.
Decision device_step(const Residency& residency, std::int64_t step, Events recalled,
                     std::size_t max_count, bool ahead = false,
                     const std::vector<std::uint8_t>& pinned = {}) {
  const DeviceArray<std::uint8_t> pins(pinned);
  const DeviceArray<std::int32_t> count(Slots{static_cast<std::int32_t>(recalled.size())}),
      n_missing(1), n_given(1), n_victims(1), slots(max_count);
  recalled.resize(max_count, 0);
  const DeviceArray<std::int64_t> d_step(Stamps{step});
  const DeviceArray<DeviceEventId> events(recalled), missing(max_count), victims(max_count);
  const DeviceArray<CopyRun> runs(max_count);
  const auto n = static_cast<std::int64_t>(max_count);
  const ResidencyMap map = residency.map();
  REQUIRE(touch_events({map, d_step.data(), events.data(), count.data(), n, missing.data(),
                        n_missing.data(), !ahead},
                       nullptr) == cudaSuccess);
  REQUIRE(choose_victims({map, ahead ? residency.newest.data() : d_step.data(), n_missing.data(), n,
                          slots.data(), n_given.data(), victims.data(), n_victims.data(),
                          ahead ? events.data() : nullptr, ahead ? count.data() : nullptr, 0,
                          pinned.empty() ? nullptr : pins.data()},
                         nullptr) == cudaSuccess);
  const State before = residency.state();
  const Decision d = {first_of(missing, n_missing), first_of(victims, n_victims),
                      first_of(slots, n_given)};
  OccupyParams p;
  p.map = map;
  p.missing = missing.data();
  p.slots = slots.data();
  p.n_given = n_given.data();
  p.victims = victims.data();
  p.n_victims = n_victims.data();
  p.max_needed = n;
  p.events = residency.events.data();
  p.n_init = kFirst;
  p.home = kHome;
  p.token_bytes = kTokenBytes;
  p.slot_memory = kSlots;
  p.slot_bytes = kSlotBytes;
  p.blocks = residency.blocks.data();
  p.runs = runs.data();
  REQUIRE(occupy_slots(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE((before.slot_of_event != residency.slot_of_event.host()) == !d.slots.empty());
  residency.check_blocks();
  const std::vector<CopyRun> made = first_of(runs, n_given);
  for (std::size_t i = 0; i < made.size(); ++i) {
    REQUIRE(made[i].from == home_of(d.missing[i]));
    REQUIRE(made[i].to == kSlots + d.slots[i] * kSlotBytes);
    REQUIRE(made[i].bytes == kTokens * kTokenBytes);
  }
  return d;
}

State empty_state(std::size_t n_events, std::size_t n_slots) {
  return {Slots(n_events, kNoSlot), Stamps(n_events, -1), Events(n_slots, kNoEvent), -1};
}

}  // namespace

TEST_CASE("residency follows a plain least-recently-recalled reference over many steps") {
  EPISODIC_NEEDS_DEVICE();
  struct Case {
    std::size_t n_events, n_slots, max_count;
    int steps;
  };
  std::size_t fetched_ahead = 0;
  // one slot; more recalled than there are slots; several blocks of slots and lists
  for (const Case& c : {Case{5, 1, 3, 20}, Case{40, 12, 16, 40}, Case{2000, 600, 300, 6}})
    episodic_test::in_every_order([&] {
      std::mt19937 random(21);
      State expected = empty_state(c.n_events, c.n_slots);
      const Residency residency(expected);
      for (int step = 0; step < c.steps; ++step) {
        std::set<DeviceEventId> drawn;
        const std::size_t wanted = random() % (c.max_count + 1);
        while (drawn.size() < std::min(wanted, c.n_events))
          drawn.insert(static_cast<DeviceEventId>(random() % c.n_events));
        Events recalled(drawn.begin(), drawn.end());
        // Before most recalls those of another layer, which has some of them in common, by time.
        if (step % 4 != 0) {
          Events guess;
          for (const DeviceEventId e : recalled)
            guess.push_back(random() % 2 == 0 ? e
                                              : static_cast<DeviceEventId>(random() % c.n_events));
          std::sort(guess.begin(), guess.end());
          guess.erase(std::unique(guess.begin(), guess.end()), guess.end());
          const Decision fetched = device_step(residency, step, guess, c.max_count, true);
          REQUIRE(fetched == reference_step(expected, step, guess, true));
          REQUIRE(residency.state() == expected);
          fetched_ahead += fetched.slots.size();
        }
        std::shuffle(recalled.begin(), recalled.end(), random);
        const Decision decision = device_step(residency, step, recalled, c.max_count);
        REQUIRE(decision == reference_step(expected, step, recalled));
        REQUIRE(residency.state() == expected);
      }
    });
  REQUIRE(fetched_ahead > 20);
}

TEST_CASE("pinned events leave their slots last") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  for (const std::size_t n_slots : {3u, 17u, 300u}) {
    const std::size_t n_events = 3 * n_slots;
    State state = empty_state(n_events, n_slots);
    const Residency residency(state);
    std::vector<std::uint8_t> pinned(n_events);
    std::int64_t unpinned_left = 0;
    for (std::int64_t step = 0; step < 24; ++step) {
      for (std::uint8_t& p : pinned) p = random() % 3 == 0 ? static_cast<std::uint8_t>(7) : 0;
      Events recalled;
      for (std::size_t e = 0; e < n_events; ++e)
        if (random() % n_events < n_slots / 2 + 1) recalled.push_back(static_cast<int>(e));
      const bool ahead = step % 4 == 3;
      const Decision expected = reference_step(state, step, recalled, ahead, pinned);
      REQUIRE(device_step(residency, step, recalled, n_events, ahead, pinned) == expected);
      REQUIRE(residency.state() == state);
      for (const DeviceEventId e : expected.victims)
        unpinned_left += pinned[static_cast<std::size_t>(e)] == 0 ? 1 : 0;
    }
    REQUIRE(unpinned_left > 0);
  }
}

TEST_CASE("an event of this step is never a victim, and room is found as far as there is any") {
  EPISODIC_NEEDS_DEVICE();
  State state = empty_state(8, 3);
  const Residency residency(state);
  REQUIRE(device_step(residency, 0, {0, 1, 2}, 4) == Decision{{0, 1, 2}, {}, {0, 1, 2}});
  // 1 stays, being recalled; 0 and 2 are tied and the earlier goes first; 5 finds no room
  REQUIRE(device_step(residency, 7, {3, 1, 4, 5}, 4) == Decision{{3, 4, 5}, {0, 2}, {0, 2}});
  REQUIRE(residency.state().slot_of_event == Slots{-1, 1, -1, 0, 2, -1, -1, -1});
  REQUIRE(device_step(residency, 8, {}, 4) == Decision{});
}

TEST_CASE("a fetch ahead is no recall, and takes nothing that is likely to be recalled") {
  EPISODIC_NEEDS_DEVICE();
  const Residency residency(empty_state(9, 4));
  // nothing was ever recalled: free slots only
  REQUIRE(device_step(residency, 3, {1}, 4, true) == Decision{{1}, {}, {0}});
  REQUIRE(residency.state().newest == -1);
  REQUIRE(device_step(residency, 3, {2, 3, 4}, 4) == Decision{{2, 3, 4}, {}, {1, 2, 3}});
  // 1 was never recalled, but is wanted; the others were recalled in the newest step
  REQUIRE(device_step(residency, 5, {1, 5}, 4, true) == Decision{{5}, {}, {}});
  REQUIRE(device_step(residency, 5, {4, 6}, 4) == Decision{{6}, {1}, {0}});
  // 2 and 3 are older than the newest recall; 3 is wanted
  REQUIRE(device_step(residency, 6, {3, 7, 8}, 4, true) == Decision{{7, 8}, {2}, {1}});
  REQUIRE(residency.state().last_recalled == Stamps{-1, -1, 3, 3, 5, -1, 5, -1, -1});
}

TEST_CASE("touch_events passes over what is no event, choose_victims gives no more than asked") {
  EPISODIC_NEEDS_DEVICE();
  const Residency residency(empty_state(4, 4));
  const DeviceArray<std::int64_t> step(Stamps{3});
  const DeviceArray<DeviceEventId> events(Events{-1, 2, 4, 0}), missing(4);
  const DeviceArray<std::int32_t> count(Slots{9}), n_missing(1);
  TouchParams t{residency.map(), step.data(),     events.data(), count.data(), 4,
                missing.data(),  n_missing.data()};
  REQUIRE(touch_events(t, nullptr) == cudaSuccess);
  REQUIRE(first_of(missing, n_missing) == Events{2, 0});
  REQUIRE(residency.state().last_recalled == Stamps{3, -1, 3, -1});
  const DeviceArray<std::int64_t> n_events(Stamps{2});
  t.maybe_n_events = n_events.data();
  REQUIRE(touch_events(t, nullptr) == cudaSuccess);
  REQUIRE(first_of(missing, n_missing) == Events{0});

  const DeviceArray<std::int32_t> needed(Slots{4}), slots(2), n_given(1), n_victims(1);
  const DeviceArray<DeviceEventId> victims(2);
  REQUIRE(choose_victims({residency.map(), step.data(), needed.data(), 2, slots.data(),
                          n_given.data(), victims.data(), n_victims.data()},
                         nullptr) == cudaSuccess);
  REQUIRE(first_of(slots, n_given) == Slots{0, 1});
  REQUIRE(first_of(victims, n_victims).empty());
}

TEST_CASE("residency kernels refuse what makes no sense, before any launch") {
  std::int64_t number = 0;
  std::int32_t count = 0;
  DeviceEventId event = 0;
  const ResidencyMap map{&count, &number, &event, &number, 1, 1};
  const TouchParams touch{map, &number, &event, &count, 1, &event, &count};
  const auto touch_refused = [&](auto change, cudaError_t error = cudaErrorInvalidValue) {
    TouchParams p = touch;
    change(p);
    return touch_events(p, nullptr) == error;
  };
  REQUIRE(touch_refused(
      [](auto& p) {
        p.step = reinterpret_cast<const std::int64_t*>(reinterpret_cast<const char*>(p.step) + 4);
      },
      cudaErrorMisalignedAddress));
  REQUIRE(touch_refused([](auto& p) { p.map.last_recalled = nullptr; }));
  REQUIRE(touch_refused([](auto& p) { p.map.newest = nullptr; }));
  REQUIRE(touch_refused([](auto& p) { p.map.n_slots = std::int64_t{1} << 31; }));
  REQUIRE(touch_refused([](auto& p) { p.max_count = -1; }));
  REQUIRE(touch_refused([](auto& p) { p.events = nullptr; }));
  REQUIRE(touch_refused([](auto& p) { p.n_missing = nullptr; }));
  const VictimParams choose{map, &number, &count, 1, &count, &count, &event, &count};
  const auto choose_refused = [&](auto change) {
    VictimParams p = choose;
    change(p);
    return choose_victims(p, nullptr) == cudaErrorInvalidValue;
  };
  REQUIRE(choose_refused([](auto& p) { p.map.n_slots = 0; }));
  REQUIRE(choose_refused([](auto& p) { p.max_needed = -1; }));
  REQUIRE(choose_refused([](auto& p) { p.slots = nullptr; }));
  REQUIRE(choose_refused([](auto& p) { p.n_needed = nullptr; }));
  REQUIRE(choose_refused([](auto& p) { p.maybe_kept = p.victims; }));  // of how many
  OccupyParams occupy;
  REQUIRE(occupy_slots(occupy, nullptr) == cudaErrorInvalidValue);
  occupy.map = map;
  occupy.token_bytes = occupy.slot_bytes = 16;
  REQUIRE(occupy_slots(occupy, nullptr) == cudaSuccess);  // a list of nothing
  occupy.max_needed = 1;
  REQUIRE(occupy_slots(occupy, nullptr) == cudaErrorInvalidValue);  // null pointers
  occupy.slot_bytes = 8;
  occupy.max_needed = 0;
  REQUIRE(occupy_slots(occupy, nullptr) == cudaErrorInvalidValue);  // no event fits a slot
}
