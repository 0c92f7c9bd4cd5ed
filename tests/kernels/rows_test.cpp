// SPDX-License-Identifier: Apache-2.0
#include "kernels/rows.hpp"

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device.hpp"

namespace rows_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

/// Addresses are made up: the kernel computes with them and reads none.
const unsigned char* made_up(std::size_t at) { return reinterpret_cast<const unsigned char*>(at); }

struct Case {
  std::int64_t n_init, n_local, capacity, tokens, n, heads, d;
  DType dtype;
  std::vector<std::int64_t> event_end;
  std::vector<DeviceEventId> recalled;
  std::vector<float> weights;  // or none
  bool codes = false;          // events are of 8 bits
  std::int64_t value_d = 0;    // channels of values; 0: d

  std::int64_t e() const { return value_d > 0 ? value_d : d; }
};

RowsParams base_params(const Case& c) {
  RowsParams p;
  p.dtype = c.dtype;
  p.n_kv_heads = c.heads;
  p.head_dim = c.d;
  p.value_dim = c.value_d;
  p.n = c.n;
  p.n_init = c.n_init;
  p.n_local = c.n_local;
  p.sink_key = made_up(1 << 20);
  p.sink_value = made_up(2 << 20);
  p.ring_key = made_up(3 << 20);
  p.ring_value = made_up(4 << 20);
  p.ring_capacity = c.capacity;
  p.ring_head_stride = c.capacity * c.d + 8;
  if (c.value_d > 0) p.value_head_stride = p.ring_head_stride / c.d * c.value_d;
  return p;
}

std::vector<KvRow> reference(const Case& c, const std::vector<const void*>& blocks) {
  const RowsParams p = base_params(c);
  const std::int64_t bytes = episodic::size_of(c.dtype);
  const auto at = [bytes](const void* base, std::int64_t elements) -> const void* {
    return static_cast<const unsigned char*>(base) + elements * bytes;
  };
  std::vector<KvRow> rows;
  const std::int64_t outside = std::max<std::int64_t>(0, c.tokens + c.n - c.n_local);
  for (std::int64_t t = 0; t < std::min(c.n_init, outside); ++t)
    rows.push_back({at(p.sink_key, t * c.d), at(p.sink_value, t * c.e()), t,
                    static_cast<std::int32_t>(c.n_init * c.d), 1.0f});
  for (std::int64_t t = c.event_end.empty() ? c.n_init : c.event_end.back(); t < outside; ++t)
    rows.push_back({at(p.ring_key, t % c.capacity * c.d), at(p.ring_value, t % c.capacity * c.e()),
                    t, static_cast<std::int32_t>(p.ring_head_stride), 1.0f});
  for (const DeviceEventId e : outside > 0 ? c.recalled : std::vector<DeviceEventId>{}) {
    const auto index = static_cast<std::size_t>(e);
    const std::int64_t start = e > 0 ? c.event_end[index - 1] : c.n_init;
    const std::int64_t size = c.event_end[index] - start;
    const std::int64_t stored = c.codes ? 1 : bytes;
    const auto inside = [&](std::int64_t elements) -> const void* {
      return static_cast<const unsigned char*>(blocks[index]) + elements * stored;
    };
    for (std::int64_t i = 0; i < size; ++i)
      rows.push_back({inside(i * c.d), inside(c.heads * size * c.d + i * c.e()), start + i,
                      static_cast<std::int32_t>(size * c.d),
                      c.weights.empty() ? 1.0f : c.weights[index]});
  }
  return rows;
}

void check(const Case& c, std::int64_t max_rows) {
  std::vector<const void*> blocks;
  for (std::size_t e = 0; e < c.event_end.size(); ++e)
    blocks.push_back(made_up((5 << 20) + 4096 * e));
  std::vector<KvRow> expected = reference(c, blocks);
  const bool too_many = static_cast<std::int64_t>(expected.size()) > max_rows;
  if (too_many) expected.resize(static_cast<std::size_t>(max_rows));

  const DeviceArray<std::int64_t> tokens(std::vector<std::int64_t>{c.tokens}),
      n_events(std::vector<std::int64_t>{static_cast<std::int64_t>(c.event_end.size())});
  std::vector<EventRange> ranges;
  for (std::size_t e = 0; e < c.event_end.size(); ++e)
    ranges.push_back({e > 0 ? c.event_end[e - 1] : c.n_init, c.event_end[e]});
  const DeviceArray<EventRange> events(ranges);
  const DeviceArray<const void*> d_blocks(blocks);
  const DeviceArray<float> weights(c.weights);
  const DeviceArray<DeviceEventId> recalled(c.recalled);
  const DeviceArray<std::int32_t> n_recalled(
      std::vector<std::int32_t>{static_cast<std::int32_t>(c.recalled.size())});
  RowsParams p = base_params(c);
  p.tokens = tokens.data();
  p.n_events = n_events.data();
  p.events = events.data();
  p.event_block = d_blocks.data();
  p.maybe_event_weight = c.weights.empty() ? nullptr : weights.data();
  p.recalled = recalled.data();
  p.n_recalled = n_recalled.data();
  p.max_rows = max_rows;
  const auto* const scales =
      c.codes ? reinterpret_cast<const float*>(made_up(std::size_t{9} << 20)) : nullptr;
  p.maybe_event_scales = scales;
  episodic_test::in_every_order([&] {
    const DeviceArray<KvRow> rows(static_cast<std::size_t>(max_rows));
    const DeviceArray<std::int32_t> n_rows(1), overflow(std::vector<std::int32_t>{0});
    p.rows = rows.data();
    p.n_rows = n_rows.data();
    p.overflow = overflow.data();
    const DeviceArray<const float*> row_scales(static_cast<std::size_t>(max_rows));
    p.row_scales = row_scales.data();
    REQUIRE(far_rows(p, nullptr) == cudaSuccess);
    REQUIRE(n_rows.host()[0] == static_cast<std::int32_t>(expected.size()));
    REQUIRE(overflow.host()[0] == (too_many ? 1 : 0));
    const std::vector<KvRow> got = rows.host();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      REQUIRE(got[i].key == expected[i].key);
      REQUIRE(got[i].value == expected[i].value);
      REQUIRE(got[i].token == expected[i].token);
      REQUIRE(got[i].head_stride == expected[i].head_stride);
      REQUIRE(got[i].value_weight == expected[i].value_weight);
    }
    if (!c.codes) return;
    const std::vector<const float*> of_rows = row_scales.host();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const float* of_event = nullptr;  // what is no event's row is of dtype
      for (std::size_t e = 0; e < c.event_end.size(); ++e)
        if (expected[i].token >= ranges[e].start && expected[i].token < ranges[e].end)
          of_event = scales + static_cast<std::int64_t>(e) * 2 * c.heads;
      REQUIRE(of_rows[i] == of_event);
    }
  });
}

TEST_CASE("far rows are the sinks, the pending tokens and the recalled events where they lie") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(2);
  Case c{4, 16, 40, 0, 3, 2, 8, DType::bfloat16, {}, {}, {}};
  check(c, 100);  // nothing has left the window
  c.tokens = 14;  // one sink has
  check(c, 100);
  c.tokens = 37;  // no event: all that left is pending
  check(c, 100);
  c.event_end = {9, 17, 18, 21};
  c.tokens = 45;  // pending tokens wrap around the ring
  check(c, 100);
  c.recalled = {0, 2, 3};
  c.dtype = DType::float32;
  c.weights = {0.5f, 0.25f, 0.0f, 1.0f};
  check(c, 100);
  check(c, 12);  // room for a part of them
  c.codes = true;
  check(c, 100);
  check(c, 12);
  for (const std::int64_t value_d : {1, 7, 24}) {
    c.value_d = value_d;
    check(c, 100);
    c.codes = !c.codes;
    check(c, 12);
  }
  c.codes = false;
  c.tokens = 5;  // too early for any recall, whatever the list says
  check(c, 100);
}

TEST_CASE("far rows take more events than a block has threads, at ten million tokens") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(4);
  Case c{4, 64, 200, 10'000'100, 1, 8, 128, DType::float16, {}, {}, {}};
  std::int64_t end = 4;
  for (int e = 0; e < 2500; ++e) {
    c.event_end.push_back(end += 1 + static_cast<std::int64_t>(random() % 3));
    if (random() % 2) c.recalled.push_back(e);
  }
  c.event_end.back() = 10'000'030;
  if (c.recalled.back() == 2499) c.recalled.pop_back();  // which is long
  check(c, 10000);
  c.codes = true;
  check(c, 10000);
  c.value_d = 64;
  check(c, 10000);
}

TEST_CASE("far rows refuse parameters that make no sense, without a device") {
  RowsParams p;
  REQUIRE(far_rows(p, nullptr) == cudaErrorInvalidValue);
  p = base_params({4, 16, 40, 0, 3, 2, 8, DType::bfloat16, {}, {}, {}});
  p.max_rows = 10;
  REQUIRE(far_rows(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  p.ring_head_stride = std::int64_t{1} << 31;
  REQUIRE(far_rows(p, nullptr) == cudaErrorInvalidValue);  // does not fit a row
}

}  // namespace rows_test
