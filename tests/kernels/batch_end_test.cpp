// SPDX-License-Identifier: Apache-2.0
// Batches of what ends a step: refinement, relevance, closing, places, representatives, codes and
// blocks of events.
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/batches.hpp"
#include "kernels/close_events.hpp"
#include "kernels/codes.hpp"
#include "kernels/copies.hpp"
#include "kernels/place_events.hpp"
#include "kernels/recall_counts.hpp"
#include "kernels/refine.hpp"
#include "kernels/relevance.hpp"

namespace batch_end_test {

using episodic::DType;
using episodic_test::Arena;
using episodic_test::check_batches;
using episodic_test::check_shared;
using episodic_test::launches_of;
using episodic_test::normal_floats;
using episodic_test::random_elements;
using namespace episodic::kernels;

constexpr std::int64_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 16;

/// Launches of batches whose calls are all but every fifth of one kind.
auto in_launches(std::int64_t each = 1) {
  return [each](std::int64_t n) { return each * launches_of(n - n / 5); };
}

std::vector<std::uint8_t> random_flags(std::int64_t n, std::mt19937& random) {
  std::vector<std::uint8_t> flags;
  for (std::int64_t i = 0; i < n; ++i) flags.push_back(random() % 4 == 0);
  return flags;
}

/// What closed_events hold of sequence i: none of every third, else up to 4 of some tokens.
ClosedEvents closed_of(std::int64_t i, Arena& arena, std::int64_t first_id) {
  ClosedEvents events;
  events.max_count = i % 5 == 4 ? 0 : 4;
  const std::int64_t count = i % 3 == 1 ? 0 : 1 + i % 4;
  std::vector<std::int64_t> start, end;
  std::int64_t at = 5 + 7 * i;
  for (std::int64_t e = 0; e < 4; ++e) {
    start.push_back(at);
    end.push_back(at += 2 + (e + i) % 5);
  }
  events.start = arena.in(start);
  events.end = arena.in(end);
  events.count = arena.in(std::vector<std::int32_t>{static_cast<std::int32_t>(count)});
  events.first_id = arena.in(std::vector<std::int64_t>{first_id});
  return events;
}

TEST_CASE("a batch of refinements has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  // Of one token, of several, and without an objective.
  for (const int kind : {0, 1, 2, 3}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      RefineParams p;
      const bool none = kind == 2 || (kind == 3 && i % 3 == 1);
      p.objective = none         ? RefineObjective::none
                    : i % 2 == 0 ? RefineObjective::modularity
                                 : RefineObjective::conductance;
      const bool several = kind == 1 || (kind == 3 && i % 3 == 2) || kind == 2;
      p.n = i % 5 == 4 ? 0 : several ? 9 + i : 1;
      p.n_init = i % 3;
      p.min_block = 1 + i % 2;
      p.max_previous = 20;
      if (none) p.n_timelines = 1 + i % 3;
      std::vector<TimelineState> states;
      for (std::int64_t t = 0; t < p.n_timelines; ++t) {
        TimelineState state = initial_timeline(p.n_init);
        state.tokens = 30 + i;
        state.last_boundary = state.last_in_previous = i % 4 == 0 ? -1 : 24 + i;
        states.push_back(state);
      }
      p.state = arena.out(states);
      p.raw = arena.in(random_flags(p.n_timelines * (p.n + 1), random));
      p.flag_capacity = 64 + i;
      p.flags = arena.out(random_flags(p.n_timelines * p.flag_capacity, random));
      p.dtype = i % 2 == 0 ? DType::float32 : DType::float16;
      p.n_layers = kLayers;
      p.n_kv_heads = kKvHeads;
      p.head_dim = kDim;
      p.key_capacity = 64;
      p.key_row_stride = kDim;
      p.key_head_stride = 64 * kDim;
      std::vector<const void*> keys;
      for (std::int64_t l = 0; l < kLayers; ++l)
        keys.push_back(arena.in(random_elements(kKvHeads * 64 * kDim, p.dtype, random)));
      p.keys = arena.in(keys);
      if (!none && p.n > 0) {
        p.workspace_bytes = refine_workspace_bytes(p);
        p.workspace = arena.in(std::vector<unsigned char>(p.workspace_bytes, 0xff));
      }
      return p;
    };
    check_batches<RefineParams>(
        make, refine_boundaries, refine_boundaries_batch, [&](std::int64_t n) {
          std::int64_t of_one = 0, of_several = 0, kept = 0;
          for (std::int64_t i = 0; i < n; ++i) {
            if (i % 5 == 4) continue;
            const bool none = kind == 2 || (kind == 3 && i % 3 == 1);
            const bool several = kind == 1 || (kind == 3 && i % 3 == 2);
            ++(none ? kept : several ? of_several : of_one);
          }
          // graphs and sums for each, one choice for all
          return launches_of(kept) + 2 * of_several + launches_of(of_one + of_several);
        });
  }
}

TEST_CASE("a batch of relevance has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool deferred : {false, true})
    for (const std::int64_t heads : {4, 3}) {
      const auto make = [&](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<unsigned>(i));
        RelevanceParams p;
        p.n = i % 5 == 4 ? 0 : deferred ? 1 : 1 + i % 4;
        p.n_heads = heads;
        p.n_local = 10 + 9 * i;
        p.first_position = arena.in(std::vector<std::int64_t>{i % 3 == 1 ? 0 : 40 + i});
        p.capacity = p.n_local + p.n + 3;
        p.deferred = deferred && p.n > 0;
        std::vector<RelevanceLayer> layers;
        for (std::int64_t l = 0; l < kLayers; ++l) {
          std::vector<float> stats = normal_floats(static_cast<std::size_t>(3 * heads), random);
          std::vector<ColumnStats> of_heads;
          for (std::int64_t h = 0; h < heads; ++h)
            of_heads.push_back({1.0f, stats[static_cast<std::size_t>(3 * h)], 0.5f});
          layers.push_back(
              {arena.in(normal_floats(static_cast<std::size_t>((p.n_local + p.n) * heads), random)),
               arena.out(normal_floats(static_cast<std::size_t>(p.capacity * heads), random)),
               arena.in(of_heads)});
        }
        p.layers = arena.in(layers);
        p.n_layers = kLayers;
        return p;
      };
      check_batches<RelevanceParams>(make, commit_relevance, commit_relevance_batch, in_launches());
    }
}

TEST_CASE("a batch of closings has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    std::mt19937 random(static_cast<unsigned>(i));
    CloseEventsParams p;
    p.n_local = 12 + i;
    p.min_block = 2;
    p.max_block = 5 + i % 4;
    p.n = i % 5 == 4 ? 0 : 1 + 10 * (i % 3);
    p.n_timelines = 1 + i % 3;
    std::vector<TimelineState> states;
    for (std::int64_t t = 0; t < p.n_timelines; ++t) {
      TimelineState state = initial_timeline(4);
      state.tokens = i % 4 == 1 ? 0 : 40 + i;  // one remembers nothing
      states.push_back(state);
    }
    p.state = arena.out(states);
    p.flag_capacity = p.n_local + p.max_block + p.n + 30;
    p.flags = arena.in(random_flags(p.n_timelines * p.flag_capacity, random));
    p.event_capacity = i == 2 ? 2 : 40;
    p.events = arena.out<EventRange>(p.n_timelines * p.event_capacity);
    return p;
  };
  check_batches<CloseEventsParams>(make, close_events, close_events_batch, in_launches());
}

TEST_CASE("a batch of places has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  // Addresses are made up: nothing is read there.
  for (const bool of_each : {false, true}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      PlaceEventsParams p;
      p.n_lanes = 3;
      p.of_each = of_each;
      const std::int64_t tables = of_each ? 3 : 1;
      p.max_events = 20 + i;
      p.n_init = 2 + i % 3;
      std::vector<TimelineState> states;
      std::vector<EventRange> events;
      for (std::int64_t t = 0; t < tables; ++t) {
        TimelineState state;
        state.n_events = 10 + t;
        state.n_closed = (i + t) % 4;
        states.push_back(state);
        for (std::int64_t e = 0; e < p.max_events; ++e)
          events.push_back({p.n_init + 5 * e, p.n_init + 5 * e + 5});
      }
      p.state = arena.in(states);
      p.events = arena.in(events);
      p.home = reinterpret_cast<unsigned char*>(std::uintptr_t{1} << 20);
      p.token_bytes = 64;
      p.lane_bytes = i == 3 ? 40 * 64 : 4096 * 64;
      p.staged = i % 3 == 2;
      p.blocks = arena.out<void*>(p.n_lanes * p.max_events);
      p.max_count = 2 + i % 3;
      p.start = arena.out<std::int64_t>(tables * p.max_count);
      p.end = arena.out<std::int64_t>(tables * p.max_count);
      p.count = arena.out<std::int32_t>(tables);
      p.first_id = arena.out<std::int64_t>(tables);
      p.step_blocks = arena.out<void*>(p.n_lanes * p.max_count);
      return p;
    };
    check_batches<PlaceEventsParams>(make, place_events, place_events_batch,
                                     [](std::int64_t n) { return launches_of(n); });
  }
}

TEST_CASE("a batch of counts of recalls has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [&](std::int64_t i, Arena& arena) {
    RecallCountsParams p;
    p.n_lanes = 3;
    p.max_events = 9 + i;
    std::vector<LaneLists> lanes;
    for (std::int64_t lane = 0; lane < p.n_lanes; ++lane) {
      std::vector<DeviceEventId> recalled;
      for (std::int64_t e = 0; e < (i + 2 * lane) % 6; ++e)
        recalled.push_back(static_cast<DeviceEventId>((3 * e + i) % p.max_events));
      std::vector<std::int32_t> sizes(3, 0);
      sizes[2] = static_cast<std::int32_t>(recalled.size());
      LaneLists lists{};
      lists.recalled = arena.in(recalled);
      lists.sizes = arena.in(sizes);
      lanes.push_back(lists);
    }
    p.lanes = arena.in(lanes);
    if (i % 2 == 1) p.maybe_timeline = arena.in(std::vector<std::int32_t>{1, 0, 1});
    p.steps = arena.in(std::vector<std::uint32_t>{static_cast<std::uint32_t>(40 + i)});
    p.counts = arena.out<RecallCount>(2 * p.max_events);
    p.total = arena.out<unsigned long long>(1);
    return p;
  };
  check_batches<RecallCountsParams>(make, count_recalls, count_recalls_batch,
                                    [](std::int64_t n) { return launches_of(n); });
}

TEST_CASE("a batch of representatives has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const bool unit_length : {false, true}) {
      const auto make = [&](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<unsigned>(i));
        RepresentativeParams p;
        p.events = closed_of(i, arena, 1 + i % 2);
        p.key_dtype = dtype;
        p.repr_dtype = DType::float32;
        p.n_heads = kHeads;
        p.n_kv_heads = kKvHeads;
        p.head_dim = kDim;
        p.n_repr = 3;
        p.ring_capacity = 40 + i;
        p.ring_head_stride = p.ring_capacity * kDim;
        p.capacity = i == 3 ? 2 : 8;
        p.unit_length = unit_length;
        std::vector<RepresentativeLayer> layers;
        for (std::int64_t l = 0; l < kLayers; ++l)
          layers.push_back(
              {arena.in(random_elements(kKvHeads * p.ring_head_stride, dtype, random)),
               arena.in(normal_floats(static_cast<std::size_t>(p.ring_capacity * kHeads), random)),
               arena.out<float>(p.capacity * kHeads * kDim), nullptr});
        p.layers = arena.in(layers);
        p.n_layers = kLayers;
        p.full = arena.out<std::int32_t>(1);
        return p;
      };
      check_batches<RepresentativeParams>(make, select_representatives,
                                          select_representatives_batch,
                                          in_launches(unit_length ? 2 : 1));
    }
}

TEST_CASE("a batch of codes has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : {DType::float32, DType::float16}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      CodeParams p;
      p.events = closed_of(i, arena, i % 2 == 0 ? kCodeSlab - 1 : 3);
      p.dtype = dtype;
      p.width = 24;
      p.capacity = 2 * kCodeSlab;
      std::vector<CodeLayer> layers;
      for (std::int64_t l = 0; l < kLayers; ++l)
        layers.push_back({arena.in(random_elements(p.capacity * p.width, dtype, random)),
                          arena.out<std::int8_t>(p.capacity * code_stride(p.width)),
                          arena.out<float>(p.capacity * code_floats(p.width))});
      p.layers = arena.in(layers);
      p.n_layers = kLayers;
      return p;
    };
    check_batches<CodeParams>(make, encode_representatives, encode_representatives_batch,
                              in_launches());
  }
}

TEST_CASE("a batch of blocks of events has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool codes : {false, true})
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const std::int64_t value_dim = dtype == DType::float32 ? 0 : kDim + 8;
      const std::int64_t value_row = value_dim > 0 ? value_dim : kDim;
      const auto make = [&](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<unsigned>(i));
        EventBlockParams p;
        p.events = closed_of(i, arena, i);
        p.dtype = dtype;
        p.block_dtype = codes ? DType::int8 : dtype;
        p.n_kv_heads = kKvHeads;
        p.head_dim = kDim;
        p.value_dim = value_dim;
        p.ring_capacity = 30 + i;
        p.ring_head_stride = p.ring_capacity * kDim + (i == 3 ? 1 : 0);
        p.value_head_stride = value_dim > 0 ? p.ring_capacity * value_row + 8 : p.ring_head_stride;
        std::vector<EventBlockLayer> layers;
        std::vector<void*> blocks;
        for (std::int64_t l = 0; l < kLayers; ++l) {
          layers.push_back(
              {arena.in(random_elements(kKvHeads * p.ring_head_stride, dtype, random)),
               arena.in(random_elements(kKvHeads * p.value_head_stride, dtype, random)),
               arena.out<float>((i + 5) * 2 * kKvHeads)});
          for (std::int64_t e = 0; e < 4; ++e)
            blocks.push_back(e == 2 && i == 2
                                 ? nullptr
                                 : arena.out<unsigned char>(kKvHeads * 8 * (kDim + value_row) *
                                                            episodic::size_of(dtype)));
        }
        p.layers = arena.in(layers);
        p.n_layers = kLayers;
        p.block = arena.in(blocks);
        p.not_finite = arena.out<std::int32_t>(1);
        return p;
      };
      check_batches<EventBlockParams>(make, event_to_block, event_to_block_batch, in_launches());
    }
}

TEST_CASE("batches of a step's end name the field that their sequences do not share") {
  RefineParams refine;
  check_shared<RefineParams>(refine, refine_boundaries_batch, "min_block",
                             [](RefineParams& p) { p.min_block = 0; });
  RelevanceParams relevance;
  relevance.n_heads = relevance.n_local = relevance.capacity = 4;
  const auto of_relevance = [&](const char* field, void (*change)(RelevanceParams&)) {
    check_shared<RelevanceParams>(relevance, commit_relevance_batch, field, change);
  };
  of_relevance("n_heads", [](RelevanceParams& p) { p.n_heads = 2; });
  of_relevance("n_layers", [](RelevanceParams& p) { p.n_layers = 1; });
  CloseEventsParams close;
  close.n_local = close.event_capacity = 1;
  check_shared<CloseEventsParams>(close, close_events_batch, "min_block",
                                  [](CloseEventsParams& p) { p.min_block = 0; });
  RepresentativeParams chosen;
  chosen.n_heads = chosen.n_kv_heads = 2;
  chosen.head_dim = 4;
  chosen.n_repr = chosen.ring_capacity = 1;
  chosen.ring_head_stride = 8;
  const auto of_chosen = [&](const char* field, void (*change)(RepresentativeParams&)) {
    check_shared<RepresentativeParams>(chosen, select_representatives_batch, field, change);
  };
  of_chosen("key_dtype", [](RepresentativeParams& p) { p.key_dtype = DType::float32; });
  of_chosen("repr_dtype", [](RepresentativeParams& p) { p.repr_dtype = DType::float16; });
  of_chosen("n_heads", [](RepresentativeParams& p) { p.n_heads = 4; });
  of_chosen("n_kv_heads", [](RepresentativeParams& p) { p.n_kv_heads = 1; });
  of_chosen("head_dim", [](RepresentativeParams& p) { p.head_dim = 2; });
  of_chosen("n_repr", [](RepresentativeParams& p) { p.n_repr = 2; });
  of_chosen("n_layers", [](RepresentativeParams& p) { p.n_layers = 1; });
  of_chosen("unit_length", [](RepresentativeParams& p) { p.unit_length = true; });
  CodeParams codes;
  codes.width = 8;
  const auto of_codes = [&](const char* field, void (*change)(CodeParams&)) {
    check_shared<CodeParams>(codes, encode_representatives_batch, field, change);
  };
  of_codes("dtype", [](CodeParams& p) { p.dtype = DType::float16; });
  of_codes("width", [](CodeParams& p) { p.width = 16; });
  of_codes("n_layers", [](CodeParams& p) { p.n_layers = 1; });
  EventBlockParams block;
  block.n_kv_heads = 2;
  block.head_dim = 4;
  block.ring_capacity = 1;
  block.ring_head_stride = 8;
  const auto of_block = [&](const char* field, void (*change)(EventBlockParams&)) {
    check_shared<EventBlockParams>(block, event_to_block_batch, field, change);
  };
  of_block("dtype", [](EventBlockParams& p) { p.dtype = p.block_dtype = DType::float32; });
  of_block("block_dtype", [](EventBlockParams& p) { p.block_dtype = DType::int8; });
  of_block("n_kv_heads", [](EventBlockParams& p) { p.n_kv_heads = 1; });
  of_block("head_dim", [](EventBlockParams& p) { p.head_dim = 2; });
  of_block("value_dim", [](EventBlockParams& p) { p.value_dim = 2; });
  of_block("n_layers", [](EventBlockParams& p) { p.n_layers = 1; });
  of_block("max_blocks", [](EventBlockParams& p) { p.max_blocks = 3; });
  alignas(8) static unsigned char memory[64];
  PlaceEventsParams place;
  place.max_events = place.n_lanes = place.token_bytes = place.max_count = 1;
  place.state = reinterpret_cast<const TimelineState*>(memory);
  place.events = reinterpret_cast<const EventRange*>(memory);
  place.home = memory;
  place.blocks = place.step_blocks = reinterpret_cast<void**>(memory);
  place.start = place.end = place.first_id = reinterpret_cast<std::int64_t*>(memory);
  place.count = reinterpret_cast<std::int32_t*>(memory);
  const auto of_place = [&](const char* field, void (*change)(PlaceEventsParams&)) {
    check_shared<PlaceEventsParams>(place, place_events_batch, field, change);
  };
  of_place("n_lanes", [](PlaceEventsParams& p) { p.n_lanes = 2; });
  of_place("of_each", [](PlaceEventsParams& p) { p.of_each = true; });
  RecallCountsParams counts;
  counts.n_lanes = counts.max_events = 1;
  counts.lanes = reinterpret_cast<const LaneLists*>(memory);
  counts.steps = reinterpret_cast<const std::uint32_t*>(memory);
  counts.counts = reinterpret_cast<RecallCount*>(memory);
  counts.total = reinterpret_cast<unsigned long long*>(memory);
  check_shared<RecallCountsParams>(counts, count_recalls_batch, "n_lanes",
                                   [](RecallCountsParams& p) { p.n_lanes = 2; });
}

}  // namespace batch_end_test
