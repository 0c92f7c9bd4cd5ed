// SPDX-License-Identifier: Apache-2.0
#include "kernels/place_events.hpp"

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"

namespace place_events_test {

using episodic_test::DeviceArray;
using namespace episodic::kernels;

struct Lists {
  std::vector<void*> blocks, step_blocks;
  std::vector<std::int64_t> start, end, first_id;
  std::vector<std::int32_t> count;
};

/// Three layers with room for 20 tokens of 8 bytes each, n_init = 4.
Lists place(const std::vector<EventRange>& table, std::int64_t n_closed, std::int64_t max_count) {
  TimelineState state = initial_timeline(4);
  state.n_events = static_cast<std::int64_t>(table.size());
  state.n_closed = n_closed;
  std::vector<EventRange> padded = table;
  padded.resize(10, {-1, -1});
  const auto room = static_cast<std::size_t>(max_count);
  const DeviceArray<TimelineState> d_state(std::vector<TimelineState>{state});
  const DeviceArray<EventRange> events(padded);
  const DeviceArray<void*> blocks(std::vector<void*>(30, nullptr)),
      step_blocks(std::vector<void*>(3 * room, nullptr));
  const DeviceArray<std::int64_t> start(room), end(room), first_id(1);
  const DeviceArray<std::int32_t> count(1);
  PlaceEventsParams p;
  p.state = d_state.data();
  p.events = events.data();
  p.max_events = 10;
  p.n_init = 4;
  p.home = reinterpret_cast<unsigned char*>(1 << 20);
  p.n_lanes = 3;
  p.lane_bytes = 160;
  p.token_bytes = 8;
  p.blocks = blocks.data();
  p.max_count = max_count;
  p.start = start.data();
  p.end = end.data();
  p.count = count.data();
  p.first_id = first_id.data();
  p.step_blocks = step_blocks.data();
  REQUIRE(place_events(p, nullptr) == cudaSuccess);
  return {blocks.host(), step_blocks.host(), start.host(),
          end.host(),    first_id.host(),    count.host()};
}

TEST_CASE("closed events are placed by their tokens, one after the other in each layer") {
  EPISODIC_NEEDS_DEVICE();
  const std::vector<EventRange> table{{4, 9}, {9, 11}, {11, 20}, {20, 24}, {24, 30}};
  episodic_test::in_every_order([&] {
    const Lists lists = place(table, 3, 4);
    REQUIRE(lists.count[0] == 3);
    REQUIRE(lists.first_id[0] == 2);
    for (std::size_t i = 0; i < 3; ++i) {
      const EventRange e = table[2 + i];
      REQUIRE(lists.start[i] == e.start);
      REQUIRE(lists.end[i] == e.end);
      for (std::size_t l = 0; l < 3; ++l) {
        const std::size_t at = (1 << 20) + 160 * l + static_cast<std::size_t>(e.start - 4) * 8;
        void* const block =
            e.end > 24 ? nullptr : reinterpret_cast<void*>(at);  // the last: no room
        REQUIRE(lists.blocks[10 * l + 2 + i] == block);
        REQUIRE(lists.step_blocks[4 * l + i] == block);
      }
    }
    for (const std::size_t untouched : {0, 1, 5, 9}) REQUIRE(lists.blocks[untouched] == nullptr);
    REQUIRE(place(table, 0, 4).count[0] == 0);
  });
}

TEST_CASE("lanes with events of their own have lists and places of their own") {
  EPISODIC_NEEDS_DEVICE();
  // Three timelines, of which the second lane and the first one have the last and the first.
  const std::vector<std::vector<EventRange>> tables{
      {{4, 9}, {9, 11}, {11, 20}}, {{4, 30}}, {{4, 12}, {12, 15}}};
  const std::vector<std::int64_t> closed{2, 1, 0};
  const std::vector<std::int32_t> timeline{0, 2};
  for (const bool staged : {false, true})
    episodic_test::in_every_order([&] {
      std::vector<TimelineState> states;
      std::vector<EventRange> events;
      for (std::size_t t = 0; t < tables.size(); ++t) {
        states.push_back(initial_timeline(4));
        states.back().n_events = static_cast<std::int64_t>(tables[t].size());
        states.back().n_closed = closed[t];
        events.insert(events.end(), tables[t].begin(), tables[t].end());
        events.resize(10 * (t + 1), {-1, -1});
      }
      const DeviceArray<TimelineState> d_state(states);
      const DeviceArray<EventRange> d_events(events);
      const DeviceArray<std::int32_t> d_timeline(timeline), count(2);
      const DeviceArray<void*> blocks(std::vector<void*>(20, nullptr)),
          step_blocks(std::vector<void*>(8, nullptr));
      const DeviceArray<std::int64_t> start(8), end(8), first_id(2);
      PlaceEventsParams p;
      p.state = d_state.data();
      p.events = d_events.data();
      p.max_events = 10;
      p.n_init = 4;
      p.of_each = true;
      p.maybe_timeline = d_timeline.data();
      p.home = reinterpret_cast<unsigned char*>(1 << 20);
      p.n_lanes = 2;
      p.lane_bytes = 160;
      p.token_bytes = 8;
      p.staged = staged;
      p.blocks = blocks.data();
      p.max_count = 4;
      p.start = start.data();
      p.end = end.data();
      p.count = count.data();
      p.first_id = first_id.data();
      p.step_blocks = step_blocks.data();
      REQUIRE(place_events(p, nullptr) == cudaSuccess);
      REQUIRE((count.host() == std::vector<std::int32_t>{2, 0}));
      REQUIRE((first_id.host() == std::vector<std::int64_t>{1, 2}));
      REQUIRE((start.host()[0] == 9 && start.host()[1] == 11));
      REQUIRE((end.host()[0] == 11 && end.host()[1] == 20));
      const std::int64_t origin = staged ? 9 : 4;  // what is staged begins with the step's first
      for (std::size_t i = 0; i < 2; ++i) {
        const auto at = static_cast<std::size_t>((1 << 20) + (tables[0][1 + i].start - origin) * 8);
        REQUIRE(step_blocks.host()[i] == reinterpret_cast<void*>(at));
        REQUIRE(blocks.host()[1 + i] == reinterpret_cast<void*>(at));
      }
      for (std::size_t i = 4; i < 8; ++i) REQUIRE(step_blocks.host()[i] == nullptr);
    });
}

TEST_CASE("placing events refuses parameters that make no sense, without a device") {
  PlaceEventsParams p;
  REQUIRE(place_events(p, nullptr) == cudaErrorInvalidValue);
  p.max_events = p.n_lanes = p.token_bytes = p.max_count = 1;
  REQUIRE(place_events(p, nullptr) == cudaErrorInvalidValue);  // null pointers
}

}  // namespace place_events_test
