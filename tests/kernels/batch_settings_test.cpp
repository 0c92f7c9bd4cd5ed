// SPDX-License-Identifier: Apache-2.0
// Batches of what some settings ask for: reweighted recall, what recalled events receive, and
// boundaries from keys.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/batches.hpp"
#include "kernels/event_mass.hpp"
#include "kernels/key_segmenter.hpp"
#include "kernels/reweight.hpp"

namespace batch_settings_test {

using episodic::DType;
using episodic_test::Arena;
using episodic_test::check_batches;
using episodic_test::check_shared;
using episodic_test::launches_of;
using episodic_test::normal_floats;
using episodic_test::random_elements;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

alignas(256) unsigned char memory[4096];

TEST_CASE("a batch of scores has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const auto& [of_dtype, of_packs, of_listed] : episodic_test::combined<DType, bool, bool>(
           {std::begin(kDTypes), std::end(kDTypes)}, {true, false}, {false, true})) {
    const DType dtype = of_dtype;
    const bool packs = of_packs, listed = of_listed;
    const std::int64_t lanes = listed ? 1 : 2;
    // Every fifth has no event, every third of the others a width that is no multiple of packs.
    const auto is_single = [&](std::int64_t i) { return !packs && i % 3 == 1; };
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      EventScoreParams p;
      p.dtype = dtype;
      p.width = is_single(i) ? 33 + 2 * i : 8 * (3 + i);
      p.n_lanes = lanes;
      p.max_events = i % 5 == 4 ? 0 : 5 + 9 * i;
      p.query = arena.in(normal_floats(static_cast<std::size_t>(lanes * p.width), random));
      p.representative =
          arena.in(random_elements(lanes * p.max_events * p.width + 1, dtype, random));
      p.n_events = arena.in(std::vector<std::int64_t>{p.max_events - i % 3});
      p.score = arena.out<float>(lanes * p.max_events);
      if (listed && i % 2 == 0 && p.max_events > 0) {
        p.maybe_listed = arena.in(std::vector<DeviceEventId>{0, 1, 3});
        p.n_listed = arena.in(std::vector<std::int32_t>{2});
        p.max_listed = 3;
      }
      return p;
    };
    check_batches<EventScoreParams>(make, score_events, score_events_batch, [&](std::int64_t n) {
      std::int64_t single = 0;
      for (std::int64_t i = 0; i < n; ++i) single += i % 5 != 4 && is_single(i);
      return launches_of(n - n / 5 - single) + launches_of(single);
    });
  }
}

TEST_CASE("a batch of recalls by score has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const std::int64_t lanes : {1, 3}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      RecallTopParams p;
      p.top_k = 1 + i % 4;
      p.neighbours = i % 2 == 1;
      p.n_lanes = lanes;
      p.max_events = i % 5 == 4 ? 0 : 3 + 13 * i;
      std::vector<float> scores =
          normal_floats(static_cast<std::size_t>(lanes * p.max_events), random);
      for (float& s : scores) s = std::round(4.0f * s);  // some alike
      p.score = arena.in(scores);
      p.n_events = arena.in(std::vector<std::int64_t>{p.max_events - i % 3});
      if (i % 3 == 2) {
        std::vector<std::uint8_t> gone;
        for (std::int64_t e = 0; e < lanes * p.max_events; ++e) gone.push_back(random() % 3 == 0);
        p.maybe_forgotten = arena.in(gone);
        p.mark_stride = p.max_events;
      }
      p.is_top = arena.out<std::uint8_t>(lanes * p.max_events);
      p.list_capacity = 3 * p.top_k + i % 2;
      p.similarity = arena.out<DeviceEventId>(lanes * p.list_capacity);
      p.contiguity_list = arena.out<DeviceEventId>(lanes * p.list_capacity);
      p.recalled = arena.out<DeviceEventId>(lanes * p.list_capacity);
      p.sizes = arena.out(std::vector<std::int32_t>(static_cast<std::size_t>(3 * lanes), -1));
      return p;
    };
    check_batches<RecallTopParams>(make, recall_top, recall_top_batch, [](std::int64_t n) {
      return launches_of(n);  // without events sizes are still written
    });
  }
}

TEST_CASE("batches of reweighted recall name the field that their sequences do not share") {
  EventScoreParams score;
  score.width = 8;
  check_shared<EventScoreParams>(score, score_events_batch, "dtype",
                                 [](EventScoreParams& p) { p.dtype = DType::float16; });
  check_shared<EventScoreParams>(score, score_events_batch, "n_lanes",
                                 [](EventScoreParams& p) { p.n_lanes = 2; });
  check_shared<EventScoreParams>(score, score_events_batch, "width",
                                 [](EventScoreParams& p) { p.width = 0; });
  RecallTopParams top;
  top.top_k = 1;
  top.n_events = reinterpret_cast<const std::int64_t*>(memory);
  top.sizes = reinterpret_cast<std::int32_t*>(memory);
  check_shared<RecallTopParams>(top, recall_top_batch, "n_lanes",
                                [](RecallTopParams& p) { p.n_lanes = 2; });
  check_shared<RecallTopParams>(top, recall_top_batch, "top_k",
                                [](RecallTopParams& p) { p.top_k = 0; });
}

constexpr std::int64_t kKvHeads = 2, kDim = 16;

/// What attention of a sequence with some far rows was asked for. Its log-sum-exp is made up, and
/// what only attention itself reads is not there.
AttentionParams attention_of(std::int64_t i, std::int64_t n_queries, std::int64_t lists,
                             std::int64_t max_rows, DType dtype, std::mt19937& random,
                             Arena& arena) {
  AttentionParams p;
  p.dtype = dtype;
  p.n_queries = n_queries;
  p.n_heads = kKvHeads * (1 + i % 3);
  p.n_kv_heads = kKvHeads;
  p.head_dim = kDim;
  p.n_local = 10 + i;
  p.soft_cap = i % 3 == 1 ? 5.0f : 0.0f;
  p.q_row_stride = p.n_heads * kDim + 8;
  p.q = arena.in(random_elements(n_queries * p.q_row_stride, dtype, random));
  p.first_position = arena.in(std::vector<std::int64_t>{1000 + i});
  p.rotary_dim = i % 2 == 0 ? 16 : 0;
  const float* const angles =
      arena.in(normal_floats(static_cast<std::size_t>(n_queries * 8), random));
  p.query_cos = p.query_sin = p.fixed_cos = p.fixed_sin = angles;
  const std::int64_t row = kKvHeads / lists * kDim;
  const auto* const keys = arena.in(random_elements(lists * max_rows * row, dtype, random));
  std::vector<KvRow> rows;
  std::vector<std::int32_t> counts;
  for (std::int64_t l = 0; l < lists; ++l) {
    for (std::int64_t r = 0; r < max_rows; ++r)
      rows.push_back({keys + (l * max_rows + r) * row * episodic::size_of(dtype), nullptr,
                      (7 * r + i) % 980, kDim, 1.0f});
    counts.push_back(static_cast<std::int32_t>(max_rows - (max_rows > 0 ? l : 0)));
  }
  p.rows = arena.in(rows);
  p.n_rows = arena.in(counts);
  p.max_rows = max_rows;
  p.n_lists = lists;
  p.local_key = p.local_value = p.out = memory;
  p.ring_capacity = p.n_local + n_queries;
  p.ring_head_stride = p.ring_capacity * kDim;
  p.maybe_lse = arena.in(std::vector<float>(static_cast<std::size_t>(n_queries * p.n_heads), 4.0f));
  p.workspace = memory;
  p.workspace_bytes = attention_workspace_bytes(p);  // which nobody writes
  return p;
}

TEST_CASE("a batch of event masses has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const bool some_long : {false, true}) {
      if (dtype == DType::float32 && some_long) continue;  // never on the tensor cores
      const std::int64_t lists = some_long ? 1 : 2;
      // Of many rows, on the tensor cores; every fifth has recalled nothing.
      const auto is_long = [&](std::int64_t i) { return some_long && i % 2 == 1; };
      const auto make = [&](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<unsigned>(i));
        const std::int64_t max_rows = i % 5 == 4 ? 0 : 20 + 4 * i;
        EventMassParams p;
        p.attention =
            attention_of(i, is_long(i) ? 40 : 1 + i % 3, lists, max_rows, dtype, random, arena);
        std::vector<EventRange> events;
        for (std::int64_t e = 0; e < 9; ++e) events.push_back({20 * e, 20 * e + 1 + (e + i) % 4});
        p.events = arena.in(events);
        p.list_capacity = 4 + i % 3;
        std::vector<DeviceEventId> recalled;
        std::vector<std::int32_t> counts;
        for (std::int64_t l = 0; l < lists; ++l) {
          for (std::int64_t k = 0; k < p.list_capacity; ++k)
            recalled.push_back(static_cast<DeviceEventId>((2 * k + l) % 9));
          counts.insert(counts.end(), {static_cast<std::int32_t>(3 + (i + l) % 2), -1, -1});
        }
        p.recalled = arena.in(recalled);
        p.n_recalled = arena.in(counts);
        p.mass = arena.out<double>(lists * p.list_capacity);
        p.workspace_bytes = event_mass_workspace_bytes(p);
        p.workspace = arena.in(std::vector<unsigned char>(p.workspace_bytes, 0xff));
        return p;
      };
      const auto launches = [&](std::int64_t n) {
        std::int64_t of_long = 0;
        for (std::int64_t i = 0; i < n; ++i) of_long += i % 5 != 4 && is_long(i);
        const std::int64_t all = n - n / 5;
        return of_long + launches_of(all - of_long) + launches_of(all);
      };
      check_batches<EventMassParams>(make, event_masses, event_masses_batch, launches,
                                     {some_long ? 8 : 5});
    }
}

TEST_CASE("a batch of received masses has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    std::mt19937 random(static_cast<unsigned>(i));
    ReceiveParams p;
    p.n_layers = i % 5 == 4 ? 0 : 1 + i % 3;
    p.n_lists = 1 + i % 2;
    p.list_capacity = 5 + 40 * i;
    std::vector<LayerMasses> layers;
    for (std::int64_t l = 0; l < p.n_layers; ++l) {
      std::vector<DeviceEventId> recalled;
      std::vector<std::int32_t> counts;
      std::vector<double> mass;
      for (std::int64_t list = 0; list < p.n_lists; ++list) {
        for (std::int64_t k = 0; k < p.list_capacity; ++k) {
          recalled.push_back(static_cast<DeviceEventId>(p.list_capacity - 1 - k));
          mass.push_back(0.1 * static_cast<double>(random() % 100));
        }
        counts.insert(counts.end(), {static_cast<std::int32_t>(p.list_capacity - l), -1, -1});
      }
      layers.push_back({arena.in(recalled), arena.in(counts), arena.in(mass)});
    }
    p.layers = arena.in(layers);
    p.received = arena.out(
        std::vector<double>(static_cast<std::size_t>(p.list_capacity), static_cast<double>(i)));
    return p;
  };
  check_batches<ReceiveParams>(make, receive_masses, receive_masses_batch,
                               [](std::int64_t n) { return launches_of(n - n / 5); });
}

TEST_CASE("batches of masses name the field that their sequences do not share") {
  EventMassParams mass;
  mass.attention.n_queries = 1;
  mass.attention.n_heads = mass.attention.n_kv_heads = 2;
  mass.attention.head_dim = 16;
  mass.attention.n_local = 4;
  mass.attention.q = mass.attention.local_key = mass.attention.local_value = memory;
  mass.attention.q_row_stride = 64;
  mass.attention.first_position = reinterpret_cast<const std::int64_t*>(memory);
  mass.attention.ring_capacity = 4;
  mass.attention.ring_head_stride = 128;
  mass.attention.out = mass.attention.workspace = memory;
  mass.attention.maybe_lse = reinterpret_cast<float*>(memory);
  mass.attention.workspace_bytes = sizeof(memory) << 20;
  const auto of_mass = [&](const char* field, void (*change)(EventMassParams&)) {
    check_shared<EventMassParams>(mass, event_masses_batch, field, change);
  };
  of_mass("dtype", [](EventMassParams& p) { p.attention.dtype = DType::float16; });
  of_mass("n_kv_heads", [](EventMassParams& p) { p.attention.n_kv_heads = 1; });
  of_mass("head_dim", [](EventMassParams& p) { p.attention.head_dim = 8; });
  of_mass("n_lists", [](EventMassParams& p) { p.attention.n_lists = 2; });
  of_mass("maybe_lse", [](EventMassParams& p) { p.attention.maybe_lse = nullptr; });
  check_shared<ReceiveParams>({}, receive_masses_batch, "n_lists",
                              [](ReceiveParams& p) { p.n_lists = 0; });
}

TEST_CASE("a batch of segmenters that read keys has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  // Of heads, a block each; of the sequence, one block, and two that take a launch for each round.
  struct Kind {
    bool per_head;
    std::int64_t dim;
    DType dtype;
    bool mixed;  // of both signals
    std::int64_t sequences;
  };
  for (const auto& [per_head, dim, dtype, mixed, sequences] :
       {Kind{true, 8, DType::float16, true, 3}, Kind{false, 8, DType::float32, false, 11},
        Kind{false, 80, DType::bfloat16, true, 5}, Kind{false, 80, DType::float16, false, 3}}) {
    const bool in_one_block = per_head || dim == 8;
    const auto is_gaussian = [&](std::int64_t i) { return mixed && i % 2 == 1; };
    const auto length = [&](std::int64_t i) {
      return i % 5 == 4 ? 0 : i == 3 ? 34 : 1 + 3 * (i % 4);
    };
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      constexpr std::int64_t kLayers = 2, kFirst = 30;
      KeySegmenterParams p;
      p.signal = is_gaussian(i) ? KeySignal::gaussian : KeySignal::similarity;
      p.per_head = per_head;
      p.gamma = 0.3;
      p.min_count = 1 + i % 2;
      p.var_floor = 0.1;
      p.n = length(i);
      p.dtype = dtype;
      p.n_layers = kLayers;
      p.n_kv_heads = kKvHeads;
      p.head_dim = dim;
      const std::int64_t channels = kLayers * kKvHeads * dim;
      const std::size_t timelines = per_head ? kLayers * kKvHeads : 1;
      TimelineState state = initial_timeline(3);
      state.tokens = kFirst;
      p.state = arena.in(std::vector<TimelineState>(timelines, state));
      KeySegmenterState segmenter = initial_key_segmenter(3);
      segmenter.next = kFirst;
      segmenter.count = i % 3 == 0 ? 0 : 4;
      p.segmenter = arena.out(std::vector<KeySegmenterState>(timelines, segmenter));
      p.mean = arena.out(std::vector<double>(static_cast<std::size_t>(channels), 0.5));
      p.variance = arena.out(std::vector<double>(static_cast<std::size_t>(channels), 0.8));
      p.key_capacity = 50 + i;
      p.key_row_stride = dim;
      p.key_head_stride = p.key_capacity * dim;
      std::vector<const void*> keys;
      for (std::int64_t l = 0; l < kLayers; ++l)
        keys.push_back(arena.in(random_elements(kKvHeads * p.key_head_stride, dtype, random)));
      p.keys = arena.in(keys);
      const auto values = static_cast<std::int64_t>(timelines) * p.n;
      p.raw = arena.out<std::uint8_t>(values);
      p.maybe_signal = i % 2 == 0 ? nullptr : arena.out<float>(values);
      p.maybe_threshold = i % 3 == 0 ? nullptr : arena.out<float>(values);
      p.workspace_bytes = key_segmenter_workspace_bytes(p);
      p.workspace = arena.in(std::vector<unsigned char>(p.workspace_bytes, 0xff));
      return p;
    };
    // A launch makes as many rounds as its sequence that needs most.
    const auto launches = [&](std::int64_t n, bool gaussian) {
      std::int64_t all = 0, in_launch = 0, rounds = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        if (length(i) == 0 || is_gaussian(i) != gaussian) continue;
        const std::int64_t own =
            in_one_block ? 1 : 2 + (length(i) - 1) / (3 + i % 2) + length(i) / 32;
        rounds = std::max(rounds, own);
        if (++in_launch < kMostInLongLaunch) continue;
        all += rounds;
        in_launch = rounds = 0;
      }
      return all + rounds;
    };
    check_batches<KeySegmenterParams>(
        make, segment_by_keys, segment_by_keys_batch,
        [&](std::int64_t n) { return launches(n, false) + launches(n, true); }, {sequences});
  }
}

TEST_CASE("batches of segmenters that read keys name the field that they do not share") {
  KeySegmenterParams keys;
  keys.n_layers = keys.n_kv_heads = 1;
  keys.head_dim = 4;
  const auto of_keys = [&](const char* field, void (*change)(KeySegmenterParams&)) {
    check_shared<KeySegmenterParams>(keys, segment_by_keys_batch, field, change);
  };
  of_keys("per_head", [](KeySegmenterParams& p) { p.per_head = true; });
  of_keys("dtype", [](KeySegmenterParams& p) { p.dtype = DType::float16; });
  of_keys("n_layers", [](KeySegmenterParams& p) { p.n_layers = 2; });
  of_keys("n_kv_heads", [](KeySegmenterParams& p) { p.n_kv_heads = 2; });
  of_keys("head_dim", [](KeySegmenterParams& p) { p.head_dim = 8; });
  of_keys("min_count", [](KeySegmenterParams& p) { p.min_count = -1; });
}

}  // namespace batch_settings_test
