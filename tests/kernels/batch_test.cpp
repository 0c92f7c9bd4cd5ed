// SPDX-License-Identifier: Apache-2.0
// Batches of what has one kernel: windows, angles, mean queries, surprise, thresholds, rows.
// Attention and recall: attention_test.cpp and recall_test.cpp.
#include "kernels/batch.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/batches.hpp"
#include "kernels/rows.hpp"
#include "kernels/surprise.hpp"
#include "kernels/threshold.hpp"
#include "kernels/window.hpp"

namespace batch_test {

using episodic::DType;
using episodic_test::Arena;
using episodic_test::check_batches;
using episodic_test::check_shared;
using episodic_test::launches_of;
using episodic_test::random_elements;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

/// Launches of batches whose every call is of one kind.
auto in_launches(std::int64_t each = 1) {
  return [each](std::int64_t n) { return each * launches_of(n); };
}

/// Of those that have work: all but every fifth, the first of which is call 4.
std::int64_t working(std::int64_t n) { return n - n / 5; }

TEST_CASE("a batch of windows has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t value_dim : {0, 16, 48}) {
      const bool packs = value_dim != 0;
      const auto make = [&](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<unsigned>(i));
        AppendParams p;
        const std::int64_t e = value_dim > 0 ? value_dim : 32;
        p.dtype = dtype;
        p.n = i % 5 == 4 ? 0 : 1 + i % 3;
        p.n_kv_heads = 2;
        p.head_dim = 32;
        p.value_dim = value_dim;
        p.rotary_dim = i % 2 == 0 ? 32 : 16;
        p.interleaved = i % 3 == 1;
        p.first_position = arena.in(std::vector<std::int64_t>{i % 4 == 3 ? 0 : 7 * i});
        p.k_row_stride = 64 + (packs || i != 1 ? 8 : 1);
        p.v_row_stride = 2 * e + 8;
        p.k = arena.in(random_elements(p.n * p.k_row_stride + 1, dtype, random));
        p.v = arena.in(random_elements(p.n * p.v_row_stride + 1, dtype, random));
        p.cos = arena.in(episodic_test::normal_floats(64, random));
        p.sin = arena.in(episodic_test::normal_floats(64, random));
        p.ring_capacity = 5 + i;
        p.ring_head_stride = p.ring_capacity * 32 + 8;
        p.value_head_stride = value_dim > 0 ? p.ring_capacity * e + 16 : 0;
        const std::int64_t bytes = 2 * p.ring_head_stride * episodic::size_of(dtype);
        p.ring_key = i % 3 == 0 ? nullptr : arena.out<unsigned char>(bytes);
        p.ring_rotated_key = arena.out<unsigned char>(bytes);
        p.ring_value = arena.out<unsigned char>(
            value_dim > 0 ? 2 * p.value_head_stride * episodic::size_of(dtype) : bytes);
        p.n_init = i % 3;
        if (p.n_init > 0) {
          p.sink_key = arena.out<unsigned char>(2 * p.n_init * 32 * episodic::size_of(dtype));
          p.sink_value = arena.out<unsigned char>(2 * p.n_init * e * episodic::size_of(dtype));
        }
        return p;
      };
      check_batches<AppendParams>(make, append_window, append_window_batch,
                                  [](std::int64_t n) { return launches_of(working(n)); });
    }
}

TEST_CASE("a batch of rotary angles has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    RotaryAnglesParams p;
    p.n = i % 5 == 4 ? 0 : 1 + 40 * (i % 3);
    p.n_frequencies = 3 + i;
    p.first_position = arena.in(std::vector<std::int64_t>{i * i * i * 9'999});
    std::vector<double> frequency;
    for (std::int64_t c = 0; c < p.n_frequencies; ++c)
      frequency.push_back(1.0 / static_cast<double>(1 + c * c));
    p.inverse_frequency = arena.in(frequency);
    p.attention_factor = 1.0 + 0.1 * static_cast<double>(i);
    p.cos = arena.out<float>(p.n * p.n_frequencies);
    p.sin = arena.out<float>(p.n * p.n_frequencies);
    return p;
  };
  check_batches<RotaryAnglesParams>(make, rotary_angles, rotary_angles_batch,
                                    [](std::int64_t n) { return launches_of(working(n)); });
}

TEST_CASE("a batch of mean queries has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const bool long_ones : {false, true}) {
      const auto make = [&](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<unsigned>(i));
        MeanQueryParams p;
        p.dtype = dtype;
        p.n = long_ones && i % 2 == 1 ? 33 + 40 * i : 1 + i % 32;
        p.n_heads = 3;
        p.head_dim = 16;
        p.rotary_dim = i % 4 == 3 ? 0 : 16;
        p.q_row_stride = 48 + (i == 3 ? 1 : 8);
        p.q = arena.in(random_elements(p.n * p.q_row_stride, dtype, random));
        p.fixed_cos = arena.in(episodic_test::normal_floats(8, random));
        p.fixed_sin = arena.in(episodic_test::normal_floats(8, random));
        p.mean = arena.out<float>(48);
        p.workspace_bytes = mean_query_workspace_bytes(p);
        p.workspace = arena.in(std::vector<double>(p.workspace_bytes / sizeof(double) + 1, 0.0));
        if (i % 4 == 1) p.maybe_arrived = arena.in(std::vector<std::uint32_t>(3, 0));
        return p;
      };
      // Of long ones two launches, or one with counters, beside the one of the others.
      check_batches<MeanQueryParams>(
          make, mean_fixed_query, mean_fixed_query_batch, [&](std::int64_t n) {
            const std::int64_t longer = long_ones ? n / 2 : 0, counted = (longer + 1) / 2;
            return launches_of(n - longer) + launches_of(counted) +
                   2 * launches_of(longer - counted);
          });
    }
}

TEST_CASE("a batch of surprise has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      SurpriseParams p;
      p.dtype = dtype;
      p.n = i % 5 == 4 ? 0 : 1 + i % 3;
      p.vocab = 11 + 300 * i;
      p.row_stride = p.vocab + i % 2;
      p.logits = arena.in(random_elements(p.n * p.row_stride, dtype, random));
      std::vector<std::int64_t> targets;
      for (std::int64_t r = 0; r < p.n; ++r) targets.push_back((7 * r + i) % p.vocab);
      p.targets = arena.in(targets);
      p.surprise = arena.out<float>(p.n);
      p.maybe_log_sum_exp = i % 2 == 0 ? nullptr : arena.out<float>(p.n);
      if (i % 3 == 2 && p.n > 0) {
        const auto rows = static_cast<std::size_t>(p.n);
        p.maybe_parts = arena.out<OnlineSoftmax>(p.n * kSurpriseParts);
        p.maybe_arrived = arena.in(std::vector<std::uint32_t>(rows, 0));
      }
      return p;
    };
    check_batches<SurpriseParams>(make, token_surprise, token_surprise_batch,
                                  [](std::int64_t n) { return launches_of(working(n)); });
  }
}

TEST_CASE("a batch of pieces of logits has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool first : {true, false}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      SurprisePieceParams p;
      p.n = i % 5 == 4 ? 0 : 1 + i % 4;
      p.vocab = 900 + i;
      p.first = first ? 0 : 400;
      p.cols = first ? 400 : p.vocab - 400;
      p.row_stride = p.cols + i;
      p.multiplier = i % 2 == 0 ? 1.0f : 0.5f;
      p.soft_cap = i % 3 == 0 ? 0.0f : 5.0f;
      p.write_back = i % 2 == 1;
      p.logits = arena.out(
          episodic_test::normal_floats(static_cast<std::size_t>(p.n * p.row_stride), random));
      std::vector<std::int64_t> targets;
      for (std::int64_t r = 1; r < p.n; ++r) targets.push_back(401 * r % p.vocab);
      p.targets = arena.in(targets);
      SurpriseState seen;
      add(seen.softmax, 1.5f);
      p.state = arena.out(std::vector<SurpriseState>(static_cast<std::size_t>(p.n), seen));
      p.surprise = arena.out<float>(p.n);
      p.last = arena.out<float>(p.vocab);
      return p;
    };
    check_batches<SurprisePieceParams>(make, surprise_piece, surprise_piece_batch,
                                       [](std::int64_t n) { return launches_of(working(n)); });
  }
}

TEST_CASE("a batch of thresholds has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const auto make = [](std::int64_t i, Arena& arena) {
    std::mt19937 random(static_cast<unsigned>(i));
    ThresholdParams p;
    p.window = i % 2 == 0 ? ThresholdWindow::moving : ThresholdWindow::chunked;
    p.tau = 20 + 30 * (i % 4);
    p.n_init = i % 3;
    p.gamma = 0.1 * static_cast<double>(i);
    p.n = i % 5 == 4 ? 0 : 1 + 20 * (i % 3);
    TimelineState state = initial_timeline(p.n_init);
    state.tokens = 13 * i;
    p.state = arena.out(std::vector<TimelineState>{state});
    std::vector<float> surprise =
        episodic_test::normal_floats(static_cast<std::size_t>(p.n), random);
    if (i == 3) surprise[0] = NAN;
    p.surprise = arena.in(surprise);
    p.recent_capacity = p.tau + p.n + i;
    p.recent = arena.out(
        episodic_test::normal_floats(static_cast<std::size_t>(p.recent_capacity), random));
    p.threshold = arena.out<float>(p.n);
    p.raw = arena.out<std::uint8_t>(p.n);
    return p;
  };
  check_batches<ThresholdParams>(make, surprise_threshold, surprise_threshold_batch,
                                 [](std::int64_t n) { return launches_of(working(n)); });
}

TEST_CASE("a batch of far rows has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  // Addresses are made up: rows are computed, and what they point to is not read.
  const auto made_up = [](std::int64_t at) { return reinterpret_cast<const void*>(at << 20); };
  for (const std::int64_t lanes : {1, 2}) {
    const std::int64_t value_dim = lanes == 1 ? 24 : 0;
    const auto make = [&](std::int64_t i, Arena& arena) {
      const std::int64_t n_events = i % 4 == 1 ? 0 : 5 + i;
      RowsParams p;
      p.dtype = DType::float16;
      p.n_kv_heads = 2;
      p.head_dim = 8;
      p.value_dim = value_dim;
      p.n_lanes = lanes;
      p.n = 1 + i;
      p.n_init = 2 + i % 3;
      p.n_local = 10 + i;
      p.max_events = n_events + 1;
      std::vector<EventRange> ranges;
      std::int64_t end = p.n_init;
      for (std::int64_t e = 0; e < n_events; ++e) {
        ranges.push_back({end, end + 3 + (e + i) % 4});
        end = ranges.back().end;
      }
      ranges.push_back({-1, -1});
      p.tokens = arena.in(std::vector<std::int64_t>{i % 4 == 1 ? i % 8 : end + 12});
      p.n_events = arena.in(std::vector<std::int64_t>{n_events});
      p.events = arena.in(ranges);
      p.sink_key = made_up(1);
      p.sink_value = made_up(2);
      p.ring_key = made_up(3);
      p.ring_value = made_up(4);
      p.ring_capacity = 60 + i;
      p.ring_head_stride = p.ring_capacity * 8 + 8;
      p.value_head_stride = (p.ring_capacity + 1) * value_dim;
      p.list_capacity = n_events + 2;
      std::vector<DeviceEventId> recalled;
      std::vector<std::int32_t> counts;
      std::vector<const void*> blocks;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        for (std::int64_t e = 0; e < p.list_capacity; ++e)
          recalled.push_back(static_cast<DeviceEventId>((2 * e + lane) % (n_events + 1)));
        const auto listed = static_cast<std::int32_t>(n_events > 0 ? (n_events + lane) / 2 : 0);
        counts.insert(counts.end(), {listed, -1, -1});
        for (std::int64_t e = 0; e < p.max_events; ++e)
          blocks.push_back(made_up(10 + lane * p.max_events + e));
      }
      p.recalled = arena.in(recalled);
      p.n_recalled = arena.in(counts);
      p.event_block = arena.in(blocks);
      if (i % 3 == 2)
        p.maybe_event_scales = static_cast<const float*>(made_up(9));  // their addresses alone
      p.max_rows = i == 2 ? 7 : 80;
      p.rows = arena.out<KvRow>(lanes * p.max_rows);
      p.row_scales = arena.out<const float*>(lanes * p.max_rows);
      p.n_rows = arena.out<std::int32_t>(lanes);
      p.overflow = arena.out<std::int32_t>(1);
      return p;
    };
    check_batches<RowsParams>(make, far_rows, far_rows_batch, in_launches());
  }
}

alignas(256) unsigned char memory[4096];

TEST_CASE("batches name the field that their sequences do not share") {
  AppendParams append;
  append.n = 1;
  append.n_kv_heads = 2;
  append.head_dim = 8;
  append.k_row_stride = append.v_row_stride = 32;
  append.first_position = reinterpret_cast<const std::int64_t*>(memory);
  append.k = append.v = append.ring_rotated_key = append.ring_value = memory;
  append.ring_capacity = 4;
  append.ring_head_stride = 64;
  check_shared<AppendParams>(append, append_window_batch, "dtype",
                             [](AppendParams& p) { p.dtype = DType::float16; });
  check_shared<AppendParams>(append, append_window_batch, "n_kv_heads",
                             [](AppendParams& p) { p.n_kv_heads = 1; });
  check_shared<AppendParams>(append, append_window_batch, "head_dim",
                             [](AppendParams& p) { p.head_dim = 4; });
  check_shared<AppendParams>(append, append_window_batch, "value_dim",
                             [](AppendParams& p) { p.value_dim = 4; });
  check_shared<AppendParams>(append, append_window_batch, "k",
                             [](AppendParams& p) { p.k = nullptr; });

  MeanQueryParams mean;
  mean.n = 1;
  mean.n_heads = 2;
  mean.head_dim = 8;
  mean.q = memory;
  mean.q_row_stride = 32;
  mean.mean = reinterpret_cast<float*>(memory);
  check_shared<MeanQueryParams>(mean, mean_fixed_query_batch, "dtype",
                                [](MeanQueryParams& p) { p.dtype = DType::float32; });
  check_shared<MeanQueryParams>(mean, mean_fixed_query_batch, "n_heads",
                                [](MeanQueryParams& p) { p.n_heads = 3; });
  check_shared<MeanQueryParams>(mean, mean_fixed_query_batch, "head_dim",
                                [](MeanQueryParams& p) { p.head_dim = 4; });

  RotaryAnglesParams angles;
  check_shared<RotaryAnglesParams>(angles, rotary_angles_batch, "n",
                                   [](RotaryAnglesParams& p) { p.n = -1; });

  SurpriseParams surprise;
  surprise.vocab = surprise.row_stride = 5;
  check_shared<SurpriseParams>(surprise, token_surprise_batch, "dtype",
                               [](SurpriseParams& p) { p.dtype = DType::float16; });
  SurprisePieceParams piece;
  piece.vocab = piece.row_stride = piece.cols = 5;
  check_shared<SurprisePieceParams>(piece, surprise_piece_batch, "vocab",
                                    [](SurprisePieceParams& p) { p.vocab = 4; });
  ThresholdParams threshold;
  threshold.tau = 3;
  check_shared<ThresholdParams>(threshold, surprise_threshold_batch, "tau",
                                [](ThresholdParams& p) { p.tau = 0; });

  RowsParams rows;
  rows.n_kv_heads = 2;
  rows.head_dim = 8;
  rows.n = rows.n_local = rows.max_rows = 1;
  rows.ring_capacity = 4;
  rows.ring_head_stride = 64;
  rows.sink_key = rows.sink_value = rows.ring_key = rows.ring_value = memory;
  rows.tokens = rows.n_events = reinterpret_cast<const std::int64_t*>(memory);
  rows.events = reinterpret_cast<const EventRange*>(memory);
  rows.rows = reinterpret_cast<KvRow*>(memory);
  rows.n_rows = rows.overflow = reinterpret_cast<std::int32_t*>(memory);
  check_shared<RowsParams>(rows, far_rows_batch, "dtype",
                           [](RowsParams& p) { p.dtype = DType::float32; });
  check_shared<RowsParams>(rows, far_rows_batch, "n_kv_heads",
                           [](RowsParams& p) { p.n_kv_heads = 4; });
  check_shared<RowsParams>(rows, far_rows_batch, "head_dim",
                           [](RowsParams& p) { p.head_dim = 16; });
  check_shared<RowsParams>(rows, far_rows_batch, "value_dim", [](RowsParams& p) {
    p.value_dim = 4;
    p.value_head_stride = 32;
  });
  check_shared<RowsParams>(rows, far_rows_batch, "n_lanes", [](RowsParams& p) { p.n_lanes = 2; });
}

}  // namespace batch_test
