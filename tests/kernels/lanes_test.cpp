// SPDX-License-Identifier: Apache-2.0
// Lanes: heads of a layer that recall by themselves, all in one launch. Each must get the bits that
// a launch for it alone gives it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/codes.hpp"
#include "kernels/copies.hpp"
#include "kernels/device.hpp"
#include "kernels/recall.hpp"
#include "kernels/recall_state.hpp"
#include "kernels/refine.hpp"
#include "kernels/relevance.hpp"
#include "kernels/residency.hpp"
#include "kernels/reweight.hpp"
#include "kernels/rows.hpp"

namespace lanes_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr std::int64_t kLanes = 3, kMaxEvents = 200;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// A table of n events of 1 to `longest` tokens from `n_init` on.
std::vector<EventRange> random_table(std::mt19937& random, std::int64_t n_init, std::int64_t n,
                                     std::int64_t longest = 5) {
  std::vector<EventRange> table;
  std::int64_t at = n_init;
  for (std::int64_t e = 0; e < n; ++e) {
    const std::int64_t end = at + 1 + static_cast<std::int64_t>(random() % size(longest));
    table.push_back({at, end});
    at = end;
  }
  return table;
}

std::vector<std::int32_t> of_lane(const std::vector<DeviceEventId>& lists, std::int64_t lane,
                                  std::int64_t room, std::int32_t count) {
  const auto begin = lists.begin() + lane * room;
  return {begin, begin + count};
}

/// \param own_tables a table of events for each lane, of another length; else one for all
/// \param codes_from 0: no codes \param n_repr individual representatives; 0: there are none
void check_recall(DType dtype, bool own_tables, std::int64_t codes_from, std::int64_t n_repr,
                  unsigned seed) {
  constexpr std::int64_t kWidth = 40, kInit = 4, kHeads = 2, kDim = 8;
  std::mt19937 random(seed);
  const std::int64_t counts[kLanes] = {190, 75, 0};  // the last one has closed none
  std::vector<EventRange> tables;
  std::vector<TimelineState> states;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    const std::int64_t n = own_tables ? counts[lane] : counts[0];
    std::vector<EventRange> table =
        own_tables || lane == 0
            ? random_table(random, kInit, n, lane == 1 ? 14 : 5)  // to about the same token
            : std::vector<EventRange>(tables.begin(), tables.begin() + kMaxEvents);
    table.resize(size(kMaxEvents), {-1, -1});
    tables.insert(tables.end(), table.begin(), table.end());
    states.push_back(initial_timeline(kInit));
    states.back().n_events = n;
  }
  std::vector<float> vectors =
      episodic_test::normal_floats(size(kLanes * kMaxEvents * kWidth), random);
  std::vector<float> each =
      episodic_test::normal_floats(size(kLanes * kMaxEvents * n_repr * kWidth), random);
  const std::vector<float> queries = episodic_test::normal_floats(size(kLanes * kWidth), random);
  const DeviceArray<unsigned char> d_vectors(episodic_test::stored(vectors, dtype)),
      d_each(episodic_test::stored(each, dtype));
  const DeviceArray<EventRange> d_tables(tables);
  const DeviceArray<TimelineState> d_states(states);
  const DeviceArray<float> d_queries(queries);
  const DeviceArray<std::int64_t> tokens(std::vector<std::int64_t>{tables[189].end + 40});
  const DeviceArray<std::int8_t> codes(size(kLanes * kMaxEvents * code_stride(kWidth)));
  const DeviceArray<float> bounds(size(kLanes * kMaxEvents * code_floats(kWidth)));
  constexpr auto kStateNumbers = std::int64_t{sizeof(TimelineState) / sizeof(std::int64_t)};

  RecallParams p;
  p.n_lanes = kLanes;
  p.n_events = &d_states.data()->n_events;
  p.events = d_tables.data();
  p.count_stride = own_tables ? kStateNumbers : 0;
  p.table_stride = own_tables ? kMaxEvents : 0;
  p.max_events = kMaxEvents;
  p.n_init = kInit;
  p.tokens = tokens.data();
  p.n = 3;
  p.representatives = d_vectors.data();
  p.dtype = dtype;
  p.width = kWidth;
  p.query = d_queries.data();
  if (n_repr > 0) p.maybe_each = d_each.data();
  p.n_repr = n_repr;
  p.n_heads = 5;
  p.codes_from = codes_from;
  p.codes = codes.data();
  p.code_bounds = bounds.data();
  p.n_local = 32;
  p.n_mem = 200;
  p.chunk = 16;
  p.min_block = 1;
  p.contiguity = 0.4;
  p.neighbours = 1;
  const std::int64_t room = recall_room(p);
  if (codes_from > 0) {
    std::vector<CodeLayer> layers;
    std::vector<std::int32_t> closed;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      layers.push_back({d_vectors.data() + lane * kMaxEvents * kWidth * episodic::size_of(dtype),
                        codes.data() + lane * kMaxEvents * code_stride(kWidth),
                        bounds.data() + lane * kMaxEvents * code_floats(kWidth)});
      closed.push_back(static_cast<std::int32_t>(states[size(lane)].n_events));
    }
    const DeviceArray<CodeLayer> d_layers(layers);
    const DeviceArray<std::int32_t> d_closed(closed);
    const DeviceArray<std::int64_t> first(std::vector<std::int64_t>(size(kLanes), 0));
    const DeviceArray<std::int64_t> unread(size(kLanes * kMaxEvents));
    CodeParams c;
    c.events = {unread.data(), unread.data(), d_closed.data(), first.data(), kMaxEvents, true};
    c.dtype = dtype;
    c.width = kWidth;
    c.capacity = kMaxEvents;
    c.layers = d_layers.data();
    c.n_layers = kLanes;
    REQUIRE(encode_representatives(c, nullptr) == cudaSuccess);
  }
  // The queue that an earlier step left, other events in each lane.
  std::vector<DeviceEventId> queue(size(kLanes * room), 0);
  std::vector<std::int32_t> queue_sizes(size(3 * kLanes), 0);
  for (std::int64_t lane = 0; lane < kLanes; ++lane)
    if (states[size(lane)].n_events > 0) {
      queue_sizes[size(3 * lane + 1)] = 5;
      for (std::int64_t i = 0; i < 5; ++i)
        queue[size(lane * room + i)] = static_cast<DeviceEventId>(
            (7 * i + 3 * lane) % std::min<std::int64_t>(60, states[size(lane)].n_events));
    }
  const DeviceArray<DeviceEventId> d_queue(queue);
  const DeviceArray<std::int32_t> d_queue_sizes(queue_sizes);
  p.queue = d_queue.data();
  p.queue_size = d_queue_sizes.data() + 1;

  RowsParams rows;
  rows.dtype = dtype;
  rows.n_kv_heads = kHeads * kLanes;
  rows.head_dim = kDim;
  rows.n_lanes = kLanes;
  rows.tokens = tokens.data();
  rows.n = p.n;
  rows.n_init = kInit;
  rows.n_local = p.n_local;
  rows.ring_capacity = 90;
  rows.ring_head_stride = 90 * kDim + 8;
  const auto made_up = [](std::int64_t at) { return reinterpret_cast<const unsigned char*>(at); };
  rows.sink_key = made_up(1 << 20);
  rows.sink_value = made_up(2 << 20);
  rows.ring_key = made_up(3 << 20);
  rows.ring_value = made_up(4 << 20);
  std::vector<const void*> blocks;
  for (std::int64_t i = 0; i < kLanes * kMaxEvents; ++i)
    blocks.push_back(made_up((5 << 20) + 4096 * i));
  const DeviceArray<const void*> d_blocks(blocks);
  const DeviceArray<float> weights(episodic_test::normal_floats(size(kLanes * kMaxEvents), random));
  constexpr std::int64_t kMaxRows = 900;

  struct Found {
    std::vector<DeviceEventId> similarity, contiguity, recalled;
    std::vector<std::int32_t> sizes, n_rows;
    std::vector<KvRow> rows;
  };
  const auto run = [&](RecallParams q, RowsParams r, std::int64_t lanes) {
    const DeviceArray<DeviceEventId> similarity(size(lanes * room)), contiguity(size(lanes * room)),
        recalled(size(lanes * room));
    const DeviceArray<std::int32_t> sizes(size(3 * lanes)), n_rows(size(lanes)),
        overflow(std::vector<std::int32_t>{0});
    const episodic_test::RecallState state(lanes);
    const DeviceArray<KvRow> found(size(lanes * kMaxRows));
    q.n_lanes = lanes;
    const DeviceArray<unsigned char> workspace(recall_workspace_bytes(q));
    q.similarity = similarity.data();
    q.contiguity_list = contiguity.data();
    q.recalled = recalled.data();
    q.sizes = sizes.data();
    state.give(q);
    q.workspace = workspace.data();
    q.workspace_bytes = workspace.size();
    r.n_lanes = lanes;
    r.n_kv_heads = kHeads * lanes;
    r.n_events = q.n_events;
    r.events = q.events;
    r.count_stride = q.count_stride;
    r.table_stride = q.table_stride;
    r.max_events = kMaxEvents;
    r.recalled = q.recalled;
    r.n_recalled = q.sizes + 2;
    r.list_capacity = room;
    r.rows = found.data();
    r.n_rows = n_rows.data();
    r.max_rows = kMaxRows;
    r.overflow = overflow.data();
    REQUIRE(recall_rows(q, r, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(overflow.host()[0] == 0);
    REQUIRE(state.is_clear());
    return Found{similarity.host(), contiguity.host(), recalled.host(),
                 sizes.host(),      n_rows.host(),     found.host()};
  };
  // What is forgotten is marked in the one table, or in each lane's.
  std::vector<std::uint8_t> gone(size((own_tables ? kLanes : 1) * kMaxEvents), 0);
  for (std::size_t e = 0; e < gone.size(); e += 1 + random() % 5) gone[e] = 1;
  const DeviceArray<std::uint8_t> d_gone(gone);
  p.maybe_forgotten = d_gone.data();
  rows.event_block = d_blocks.data();
  rows.maybe_event_weight = weights.data();
  const std::int64_t element = episodic::size_of(dtype);
  episodic_test::in_every_order([&] {
    const Found all = run(p, rows, kLanes);
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      RecallParams q = p;
      const std::int64_t table = own_tables ? lane : 0;
      q.n_events = &d_states.data()[table].n_events;
      q.events = d_tables.data() + table * kMaxEvents;
      q.representatives = d_vectors.data() + lane * kMaxEvents * kWidth * element;
      if (n_repr > 0) q.maybe_each = d_each.data() + lane * kMaxEvents * n_repr * kWidth * element;
      q.query = d_queries.data() + lane * kWidth;
      q.maybe_forgotten = d_gone.data() + table * kMaxEvents;
      q.codes = codes.data() + lane * kMaxEvents * code_stride(kWidth);
      q.code_bounds = bounds.data() + lane * kMaxEvents * code_floats(kWidth);
      q.queue = d_queue.data() + lane * room;
      q.queue_size = d_queue_sizes.data() + 3 * lane + 1;
      RowsParams r = rows;
      const auto moved = [&](const void* base, std::int64_t elements) -> const void* {
        return static_cast<const unsigned char*>(base) + elements * element;
      };
      r.sink_key = moved(rows.sink_key, lane * kHeads * kInit * kDim);
      r.sink_value = moved(rows.sink_value, lane * kHeads * kInit * kDim);
      r.ring_key = moved(rows.ring_key, lane * kHeads * rows.ring_head_stride);
      r.ring_value = moved(rows.ring_value, lane * kHeads * rows.ring_head_stride);
      r.event_block = d_blocks.data() + lane * kMaxEvents;
      r.maybe_event_weight = weights.data() + lane * kMaxEvents;
      const Found one = run(q, r, 1);
      const auto lane_sizes =
          std::vector<std::int32_t>(all.sizes.begin() + 3 * lane, all.sizes.begin() + 3 * lane + 3);
      REQUIRE(lane_sizes == one.sizes);
      if (states[size(table)].n_events > 0) REQUIRE(lane_sizes[2] > 5);
      REQUIRE(of_lane(all.similarity, lane, room, one.sizes[0]) ==
              of_lane(one.similarity, 0, room, one.sizes[0]));
      REQUIRE(of_lane(all.contiguity, lane, room, one.sizes[1]) ==
              of_lane(one.contiguity, 0, room, one.sizes[1]));
      REQUIRE(of_lane(all.recalled, lane, room, one.sizes[2]) ==
              of_lane(one.recalled, 0, room, one.sizes[2]));
      for (const DeviceEventId e : of_lane(all.recalled, lane, room, one.sizes[2]))
        REQUIRE(gone[size(table * kMaxEvents + e)] == 0);
      REQUIRE(all.n_rows[size(lane)] == one.n_rows[0]);
      REQUIRE(one.n_rows[0] > kInit);
      for (std::int64_t i = 0; i < one.n_rows[0]; ++i) {
        const KvRow &x = all.rows[size(lane * kMaxRows + i)], &y = one.rows[size(i)];
        REQUIRE(x.key == y.key);
        REQUIRE(x.value == y.value);
        REQUIRE(x.token == y.token);
        REQUIRE(x.head_stride == y.head_stride);
        REQUIRE(x.value_weight == y.value_weight);
      }
    }
  });
}

TEST_CASE("lanes recall in one launch what each recalls in one of its own, rows and all") {
  EPISODIC_NEEDS_DEVICE();
  check_recall(DType::float32, true, 0, 0, 1);
  check_recall(DType::bfloat16, false, 0, 0, 2);
  check_recall(DType::float32, true, 70, 0, 3);  // of 190 events by codes, of 75 too, of none not
  check_recall(DType::float16, false, 70, 0, 4);
  check_recall(DType::float32, true, 0, 3, 5);
  check_recall(DType::bfloat16, false, 0, 6, 6);
}

TEST_CASE("recall refuses lanes that make no sense") {
  RecallParams p;
  p.max_events = 10;
  p.n = p.n_local = p.chunk = p.min_block = 1;
  REQUIRE(recall_room(p) > 0);
  RecallParams bad = p;
  bad.n_lanes = 0;
  REQUIRE(recall_room(bad) == 0);
  bad = p, bad.n_lanes = 65'536;
  REQUIRE(recall_room(bad) == 0);
  bad = p, bad.table_stride = 9;
  REQUIRE(recall_room(bad) == 0);
  bad = p, bad.count_stride = -1;
  REQUIRE(recall_room(bad) == 0);
  bad = p, bad.n_lanes = 4;
  REQUIRE(recall_workspace_bytes(bad) == 4 * recall_workspace_bytes(p));
}

/// Closed events of each lane's own table, as place_events leaves them, and all that is made of
/// them: representatives, codes and blocks.
TEST_CASE("what lanes have closed is represented, coded and copied as each lane's alone") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kMost = 70, kHeads = 2, kKv = 1, kDim = 8, kCapacity = 400, kWidth = 16;
  constexpr std::int64_t kAllHeads = kHeads * kLanes;
  std::mt19937 random(11);
  for (const DType dtype : {DType::float32, DType::float16}) {
    const std::int64_t element = episodic::size_of(dtype);
    std::vector<std::int64_t> start(size(kLanes * kMost), -1), end(size(kLanes * kMost), -1),
        first_id;
    std::vector<std::int32_t> count;
    const std::int64_t counts[kLanes] = {kMost, 0, 9}, firsts[kLanes] = {5, 30, 60};
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const std::vector<EventRange> closed = random_table(random, 300 + 50 * lane, counts[lane]);
      for (std::size_t i = 0; i < closed.size(); ++i) {
        start[size(lane * kMost) + i] = closed[i].start;
        end[size(lane * kMost) + i] = closed[i].end;
      }
      count.push_back(static_cast<std::int32_t>(counts[lane]));
      first_id.push_back(firsts[lane]);
    }
    std::vector<float> keys =
        episodic_test::normal_floats(size(kLanes * kKv * kCapacity * kDim), random);
    const DeviceArray<unsigned char> ring(episodic_test::stored(keys, dtype));
    std::vector<float> received(size(kCapacity * kAllHeads));
    for (float& x : received) x = static_cast<float>(random() % 7);
    const DeviceArray<float> relevance(received);
    const DeviceArray<std::int64_t> d_start(start), d_end(end), d_first(first_id);
    const DeviceArray<std::int32_t> d_count(count), full(std::vector<std::int32_t>{0});

    const auto run = [&](ClosedEvents events, std::int64_t first_lane, std::int64_t lanes,
                         std::vector<unsigned char>& blocks_out,
                         std::vector<std::int8_t>& codes_out, std::vector<float>& bounds_out) {
      const DeviceArray<float> means(std::vector<float>(size(lanes * kMaxEvents * kWidth), -7.0f));
      const DeviceArray<std::int8_t> codes(
          std::vector<std::int8_t>(size(lanes * kMaxEvents * code_stride(kWidth)), -7));
      const DeviceArray<float> bounds(
          std::vector<float>(size(lanes * kMaxEvents * code_floats(kWidth)), -7.0f));
      constexpr std::int64_t kBlockBytes = 2 * 5 * kDim * 4;
      const DeviceArray<unsigned char> blocks(
          std::vector<unsigned char>(size(lanes * kMost * kBlockBytes), 0xee));
      std::vector<RepresentativeLayer> layers;
      std::vector<CodeLayer> code_layers;
      std::vector<EventBlockLayer> rings;
      std::vector<void*> to;
      for (std::int64_t i = 0; i < lanes; ++i) {
        const std::int64_t lane = first_lane + i;
        const unsigned char* const own = ring.data() + lane * kKv * kCapacity * kDim * element;
        layers.push_back({own, relevance.data() + lane * kHeads,
                          means.data() + i * kMaxEvents * kWidth, nullptr});
        code_layers.push_back({means.data() + i * kMaxEvents * kWidth,
                               codes.data() + i * kMaxEvents * code_stride(kWidth),
                               bounds.data() + i * kMaxEvents * code_floats(kWidth)});
        rings.push_back({own, own});
        for (std::int64_t e = 0; e < kMost; ++e)
          to.push_back(blocks.data() + (i * kMost + e) * kBlockBytes);
      }
      const DeviceArray<RepresentativeLayer> d_layers(layers);
      const DeviceArray<CodeLayer> d_codes(code_layers);
      const DeviceArray<EventBlockLayer> d_rings(rings);
      const DeviceArray<void*> d_to(to);
      RepresentativeParams p;
      p.events = events;
      p.key_dtype = dtype;
      p.n_heads = kHeads;
      p.n_kv_heads = kKv;
      p.head_dim = kDim;
      p.n_repr = 2;
      p.ring_capacity = kCapacity;
      p.ring_head_stride = kCapacity * kDim;
      p.relevance_stride = kAllHeads;
      p.capacity = kMaxEvents;
      p.layers = d_layers.data();
      p.n_layers = lanes;
      p.unit_length = true;
      p.full = full.data();
      REQUIRE(select_representatives(p, nullptr) == cudaSuccess);
      CodeParams c;
      c.events = events;
      c.dtype = DType::float32;
      c.width = kWidth;
      c.capacity = kMaxEvents;
      c.layers = d_codes.data();
      c.n_layers = lanes;
      REQUIRE(encode_representatives(c, nullptr) == cudaSuccess);
      EventBlockParams b;
      b.events = events;
      b.dtype = b.block_dtype = dtype;
      b.n_kv_heads = kKv;
      b.head_dim = kDim;
      b.layers = d_rings.data();
      b.n_layers = lanes;
      b.ring_capacity = kCapacity;
      b.ring_head_stride = kCapacity * kDim;
      b.block = d_to.data();
      b.max_blocks = 2;  // fewer than lanes
      REQUIRE(event_to_block(b, nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      blocks_out = blocks.host();
      codes_out = codes.host();
      bounds_out = bounds.host();
      return means.host();
    };
    episodic_test::in_every_order([&] {
      std::vector<unsigned char> blocks, one_blocks;
      std::vector<std::int8_t> codes, one_codes;
      std::vector<float> bounds, one_bounds;
      const std::vector<float> means =
          run({d_start.data(), d_end.data(), d_count.data(), d_first.data(), kMost, true}, 0,
              kLanes, blocks, codes, bounds);
      std::vector<unsigned char> all_blocks;
      std::vector<std::int8_t> all_codes;
      std::vector<float> all_means, all_bounds;
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const std::vector<float> one =
            run({d_start.data() + lane * kMost, d_end.data() + lane * kMost, d_count.data() + lane,
                 d_first.data() + lane, kMost},
                lane, 1, one_blocks, one_codes, one_bounds);
        all_means.insert(all_means.end(), one.begin(), one.end());
        all_blocks.insert(all_blocks.end(), one_blocks.begin(), one_blocks.end());
        all_codes.insert(all_codes.end(), one_codes.begin(), one_codes.end());
        all_bounds.insert(all_bounds.end(), one_bounds.begin(), one_bounds.end());
      }
      REQUIRE(means == all_means);
      REQUIRE(blocks == all_blocks);
      REQUIRE(codes == all_codes);
      REQUIRE(bounds == all_bounds);
      REQUIRE(std::count(means.begin(), means.end(), -7.0f) ==
              (kLanes * kMaxEvents - kMost - 9) * kWidth);
    });
    REQUIRE(full.host()[0] == 0);
  }
}

TEST_CASE("heads are refined together as each is by its own keys alone") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kLayers = 2, kHeads = 3, kHeadsOfAll = kLayers * kHeads, kDim = 16;
  constexpr std::int64_t kCapacity = 160, kFlags = 331, kInit = 3;
  std::mt19937 random(21);
  int moved = 0;
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const bool shared_raw : {false, true}) {
      std::vector<std::unique_ptr<DeviceArray<unsigned char>>> rings;
      std::vector<const void*> pointers;
      for (std::int64_t l = 0; l < kLayers; ++l) {
        std::vector<float> keys =
            episodic_test::normal_floats(size(kHeads * kCapacity * kDim), random);
        rings.push_back(
            std::make_unique<DeviceArray<unsigned char>>(episodic_test::stored(keys, dtype)));
        pointers.push_back(rings.back()->data());
      }
      const DeviceArray<const void*> keys(pointers);
      for (const std::int64_t n : {70, 1}) {
        std::vector<TimelineState> states;
        std::vector<std::uint8_t> raw;
        for (std::int64_t s = 0; s < kHeadsOfAll; ++s) {
          states.push_back(initial_timeline(kInit));
          states.back().tokens = 80;
          states.back().last_boundary = 60 + s;
          states.back().last_in_previous = s == 4 ? -1 : 60 + s;
          for (std::int64_t i = 0; i < n && (!shared_raw || s == 0); ++i)
            raw.push_back(random() % 12 == 0 && s != 5 ? 1 : 0);  // a head without a flag
        }
        const DeviceArray<std::uint8_t> d_raw(raw);
        RefineParams p;
        p.objective = RefineObjective::modularity;
        p.n_init = kInit;
        p.min_block = 2;
        p.n = n;
        p.max_previous = 80;
        p.shared_raw = shared_raw;
        p.flag_capacity = kFlags;
        p.dtype = dtype;
        p.n_layers = kLayers;
        p.n_kv_heads = kHeads;
        p.head_dim = kDim;
        p.key_capacity = kCapacity;
        p.key_head_stride = kCapacity * kDim;
        p.key_row_stride = kDim;
        const auto run = [&](RefineParams q, const std::vector<TimelineState>& from,
                             const std::uint8_t* raw_at, const void* const* keys_at) {
          const DeviceArray<TimelineState> state(from);
          const DeviceArray<std::uint8_t> flags(
              std::vector<std::uint8_t>(size(q.n_timelines * kFlags), 9));
          q.state = state.data();
          q.raw = raw_at;
          q.flags = flags.data();
          q.keys = keys_at;
          const DeviceArray<unsigned char> workspace(refine_workspace_bytes(q));
          REQUIRE(cudaMemset(workspace.data(), 0xff, workspace.size()) == cudaSuccess);
          q.workspace = workspace.data();
          q.workspace_bytes = workspace.size();
          REQUIRE(refine_boundaries(q, nullptr) == cudaSuccess);
          REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
          return std::pair(flags.host(), state.host());
        };
        episodic_test::in_every_order([&] {
          RefineParams all = p;
          all.n_timelines = kHeadsOfAll;
          const auto [flags, after] = run(all, states, d_raw.data(), keys.data());
          for (std::int64_t s = 0; s < kHeadsOfAll; ++s) {
            RefineParams one = p;
            one.n_layers = one.n_kv_heads = 1;
            const unsigned char* const own =
                rings[size(s / kHeads)]->data() +
                s % kHeads * kCapacity * kDim * episodic::size_of(dtype);
            const DeviceArray<const void*> own_keys(std::vector<const void*>{own});
            const auto [own_flags, own_after] = run(
                one, {states[size(s)]}, d_raw.data() + (shared_raw ? 0 : s * n), own_keys.data());
            REQUIRE(std::equal(own_flags.begin(), own_flags.end(), flags.begin() + s * kFlags));
            REQUIRE(own_after[0].last_boundary == after[size(s)].last_boundary);
            REQUIRE(own_after[0].last_in_previous == after[size(s)].last_in_previous);
            REQUIRE(own_after[0].errors == after[size(s)].errors);
            for (std::int64_t i = 0; i < n; ++i)
              moved +=
                  own_flags[size((80 + i) % kFlags)] != raw[size((shared_raw ? 0 : s * n) + i)];
          }
        });
      }
    }
  REQUIRE(moved > 20);
}

TEST_CASE("lanes share a layer's slots, each with events of its own") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kEvents = 10, kTwo = 2, kSlots = 3, kRoom = 4, kInit = 4, kBytes = 8,
                         kLaneBytes = 4096;
  std::vector<EventRange> tables;
  for (std::int64_t lane = 0; lane < kTwo; ++lane)  // of 1 and of 2 tokens
    for (std::int64_t e = 0; e < kEvents; ++e)
      tables.push_back({kInit + (lane + 1) * e, kInit + (lane + 1) * (e + 1)});
  unsigned char* const home = reinterpret_cast<unsigned char*>(1 << 20);
  unsigned char* const slot_memory = reinterpret_cast<unsigned char*>(2 << 20);
  unsigned char* const base = reinterpret_cast<unsigned char*>(3 << 20);
  constexpr std::int64_t kBaseEnd = kInit + 2;  // events 0 and 1 of the first lane, 0 of the second
  const auto at_home = [&](std::int64_t number) -> void* {
    const std::int64_t start = tables[size(number)].start;
    return (start < kBaseEnd ? base : home) + number / kEvents * kLaneBytes +
           (start - kInit) * kBytes;
  };
  episodic_test::in_every_order([&] {
    const DeviceArray<std::int32_t> slot_of(std::vector<std::int32_t>(20, kNoSlot));
    const DeviceArray<std::int64_t> last(std::vector<std::int64_t>(20, kNoEvent)),
        newest(std::vector<std::int64_t>{-1});
    const DeviceArray<DeviceEventId> event_of(std::vector<DeviceEventId>(size(kSlots), kNoEvent));
    const ResidencyMap map{
        slot_of.data(), last.data(), event_of.data(), newest.data(), kTwo * kEvents, kSlots, kTwo};
    const DeviceArray<EventRange> events(tables);
    const DeviceArray<void*> blocks(std::vector<void*>(20, nullptr));
    const DeviceArray<DeviceEventId> missing(size(kTwo * kRoom)), victims(size(kTwo * kRoom));
    const DeviceArray<std::int32_t> slots(size(kTwo * kRoom)), n_missing(1), n_given(1),
        n_victims(1);
    const DeviceArray<CopyRun> runs(size(kTwo * kRoom));
    std::vector<std::uint8_t> pinned(size(kTwo * kEvents), 0);
    std::int64_t pin_stride = 0;
    const auto exchange = [&](std::int64_t step, const std::vector<DeviceEventId>& of_first,
                              const std::vector<DeviceEventId>& of_second, bool ahead) {
      std::vector<DeviceEventId> lists(size(kTwo * kRoom), -1);
      std::copy(of_first.begin(), of_first.end(), lists.begin());
      std::copy(of_second.begin(), of_second.end(), lists.begin() + kRoom);
      const DeviceArray<DeviceEventId> d_lists(lists);
      const DeviceArray<std::int32_t> sizes(
          std::vector<std::int32_t>{0, 0, static_cast<std::int32_t>(of_first.size()), 0, 0,
                                    static_cast<std::int32_t>(of_second.size())});
      const DeviceArray<std::int64_t> now(std::vector<std::int64_t>{step});
      const TouchParams touch{map,   now.data(),     d_lists.data(),   sizes.data() + 2,
                              kRoom, missing.data(), n_missing.data(), !ahead};
      REQUIRE(touch_events(touch, nullptr) == cudaSuccess);
      VictimParams choose;
      choose.map = map;
      choose.since = ahead ? newest.data() : now.data();
      choose.n_needed = n_missing.data();
      choose.max_needed = kTwo * kRoom;
      choose.slots = slots.data();
      choose.n_given = n_given.data();
      choose.victims = victims.data();
      choose.n_victims = n_victims.data();
      const DeviceArray<std::uint8_t> pins(pinned);
      choose.maybe_pinned = pins.data();
      choose.pin_stride = pin_stride;
      if (ahead) {
        choose.maybe_kept = d_lists.data();
        choose.n_kept = sizes.data() + 2;
        choose.kept_capacity = kRoom;
      }
      REQUIRE(choose_victims(choose, nullptr) == cudaSuccess);
      OccupyParams occupy;
      occupy.map = map;
      occupy.missing = missing.data();
      occupy.slots = slots.data();
      occupy.n_given = n_given.data();
      occupy.victims = victims.data();
      occupy.n_victims = n_victims.data();
      occupy.max_needed = kTwo * kRoom;
      occupy.events = events.data();
      occupy.table_stride = kEvents;
      occupy.n_init = kInit;
      occupy.home = home;
      occupy.lane_bytes = kLaneBytes;
      occupy.base_home = base;
      occupy.base_end = kBaseEnd;
      occupy.token_bytes = kBytes;
      occupy.slot_memory = slot_memory;
      occupy.slot_bytes = 16;
      occupy.blocks = blocks.data();
      occupy.runs = runs.data();
      REQUIRE(occupy_slots(occupy, nullptr) == cudaSuccess);
      const std::vector<DeviceEventId> all = missing.host();
      return std::vector<DeviceEventId>(all.begin(), all.begin() + n_missing.host()[0]);
    };
    using Ids = std::vector<DeviceEventId>;
    REQUIRE((exchange(1, {0, 2}, {1}, false) == Ids{0, 2, 11}));
    REQUIRE(n_given.host()[0] == 3);
    REQUIRE((event_of.host() == Ids{0, 2, 11}));
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t number = event_of.host()[i];
      const CopyRun run = runs.host()[i];
      REQUIRE(run.from == at_home(number));
      REQUIRE(run.to == slot_memory + 16 * i);
      REQUIRE(run.bytes == (number < 10 ? 1 : 2) * kBytes);
      REQUIRE(blocks.host()[size(number)] == run.to);
    }
    // Nothing of the same lists is missing; what was recalled longest ago makes room.
    REQUIRE(exchange(2, {2}, {1}, false).empty());
    REQUIRE((exchange(3, {2}, {0, 1}, false) == Ids{10}));
    REQUIRE((event_of.host() == Ids{10, 2, 11}));
    REQUIRE(blocks.host()[0] == at_home(0));
    // Event 1 of the first lane is not that of the second. A guess leaves what its lists hold.
    REQUIRE(exchange(4, {}, {0}, false).empty());
    REQUIRE((exchange(5, {1}, {1}, true) == Ids{1}));
    REQUIRE((event_of.host() == Ids{10, 1, 11}));
    REQUIRE(blocks.host()[2] == at_home(2));
    REQUIRE(newest.host()[0] == 4);
    // Events 1 of both lanes were recalled longer ago than 0 of the second; pinned they leave last.
    pinned[1] = 1;
    REQUIRE((exchange(6, {3, 4}, {}, false) == Ids{3, 4}));
    REQUIRE((event_of.host() == Ids{3, 4, 11}));
    // Of tables of their own each lane has marks of its own.
    pinned[1] = 0;
    pinned[2] = 1;                  // of the first lane, not of the second
    pinned[size(kEvents + 1)] = 1;  // the other way round
    pin_stride = kEvents;
    REQUIRE((exchange(7, {5}, {2}, false) == Ids{5, 12}));
    REQUIRE((event_of.host() == Ids{5, 12, 11}));
    REQUIRE(exchange(8, {5}, {}, false).empty());
    REQUIRE((exchange(9, {6}, {}, false) == Ids{6}));
    REQUIRE((event_of.host() == Ids{5, 6, 11}));
  });
}

TEST_CASE("lanes are reweighted together as each alone") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kWidth = 24, kTop = 3, kRoom = 3 * kTop;
  std::mt19937 random(31);
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const bool own_tables : {false, true}) {
      const std::vector<std::int64_t> counts =
          own_tables ? std::vector<std::int64_t>{190, 75, 0} : std::vector<std::int64_t>{150};
      std::vector<float> vectors =
          episodic_test::normal_floats(size(kLanes * kMaxEvents * kWidth), random);
      const DeviceArray<unsigned char> d_vectors(episodic_test::stored(vectors, dtype));
      const DeviceArray<float> queries(episodic_test::normal_floats(size(kLanes * kWidth), random));
      const DeviceArray<std::int64_t> n_events(counts);
      const std::vector<float> unscored(size(kLanes * kMaxEvents), -5.0f);
      const DeviceArray<std::uint8_t> is_top(size(kLanes * kMaxEvents));
      std::vector<std::uint8_t> gone(size((own_tables ? kLanes : 1) * kMaxEvents), 0);
      for (std::uint8_t& mark : gone) mark = random() % 3 == 0;
      const DeviceArray<std::uint8_t> d_gone(gone);
      /// Of `n` lanes from `lane` on: scores of all, the lists, and scores of the lists' alone.
      struct Lists {
        std::vector<float> all, listed;
        std::vector<DeviceEventId> similarity, contiguity, recalled;
        std::vector<std::int32_t> sizes;
      };
      const auto run = [&](std::int64_t lane, std::int64_t n) {
        const DeviceArray<float> all(unscored), listed(unscored);
        const std::vector<DeviceEventId> none(size(kLanes * kRoom), -3);
        const DeviceArray<DeviceEventId> similarity(none), contiguity(none), recalled(none);
        const DeviceArray<std::int32_t> sizes(std::vector<std::int32_t>(size(3 * kLanes), -3));
        EventScoreParams s;
        s.query = queries.data() + lane * kWidth;
        s.width = kWidth;
        s.dtype = dtype;
        s.representative = d_vectors.data() + lane * kMaxEvents * kWidth * episodic::size_of(dtype);
        s.count_stride = own_tables;
        s.n_events = n_events.data() + lane * s.count_stride;
        s.max_events = kMaxEvents;
        s.score = all.data() + lane * kMaxEvents;
        s.n_lanes = n;
        REQUIRE(score_events(s, nullptr) == cudaSuccess);
        RecallTopParams t;
        t.top_k = kTop;
        t.neighbours = true;
        t.score = s.score;
        t.n_events = s.n_events;
        t.count_stride = s.count_stride;
        t.mark_stride = own_tables ? kMaxEvents : 0;
        t.maybe_forgotten = d_gone.data() + lane * t.mark_stride;
        t.max_events = kMaxEvents;
        t.is_top = is_top.data() + lane * kMaxEvents;
        t.similarity = similarity.data() + lane * kRoom;
        t.contiguity_list = contiguity.data() + lane * kRoom;
        t.recalled = recalled.data() + lane * kRoom;
        t.list_capacity = kRoom;
        t.sizes = sizes.data() + 3 * lane;
        t.n_lanes = n;
        REQUIRE(recall_top(t, nullptr) == cudaSuccess);
        s.score = listed.data() + lane * kMaxEvents;
        s.maybe_listed = t.recalled;
        s.n_listed = t.sizes + 2;
        s.listed_stride = 3;
        s.max_listed = kRoom;
        REQUIRE(score_events(s, nullptr) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        return Lists{all.host(),        listed.host(),   similarity.host(),
                     contiguity.host(), recalled.host(), sizes.host()};
      };
      const auto part = [](const auto& all, std::int64_t lane, std::int64_t each) {
        return std::vector(all.begin() + lane * each, all.begin() + (lane + 1) * each);
      };
      episodic_test::in_every_order([&] {
        const Lists together = run(0, kLanes);
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
          const Lists alone = run(lane, 1);
          const auto same = [&](auto Lists::*of, std::int64_t each) {
            return part(together.*of, lane, each) == part(alone.*of, lane, each);
          };
          REQUIRE(same(&Lists::all, kMaxEvents));
          REQUIRE(same(&Lists::listed, kMaxEvents));
          REQUIRE(same(&Lists::similarity, kRoom));
          REQUIRE(same(&Lists::contiguity, kRoom));
          REQUIRE(same(&Lists::recalled, kRoom));
          REQUIRE(same(&Lists::sizes, 3));
          for (const DeviceEventId e :
               of_lane(alone.recalled, lane, kRoom, alone.sizes[size(3 * lane + 2)]))
            REQUIRE(gone[size((own_tables ? lane * kMaxEvents : 0) + e)] == 0);
          const bool empty = own_tables && lane == 2;
          REQUIRE(alone.sizes[size(3 * lane)] == (empty ? 0 : kTop));
        }
      });
    }
}

}  // namespace lanes_test
