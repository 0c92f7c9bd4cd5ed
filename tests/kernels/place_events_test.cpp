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
  p.n_layers = 3;
  p.layer_bytes = 160;
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

TEST_CASE("placing events refuses parameters that make no sense, without a device") {
  PlaceEventsParams p;
  REQUIRE(place_events(p, nullptr) == cudaErrorInvalidValue);
  p.max_events = p.n_layers = p.token_bytes = p.max_count = 1;
  REQUIRE(place_events(p, nullptr) == cudaErrorInvalidValue);  // null pointers
}

}  // namespace place_events_test
