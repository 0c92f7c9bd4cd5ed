// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/base/rules/fp8.hpp"
#include "episodic/store/event_store.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

// What the ring of layer l holds for token t: every element its own value, exact in float32.
float element(std::int64_t layer, std::int64_t token, std::int64_t g, std::int64_t c, bool value) {
  return static_cast<float>((((layer * 977 + token) * 7 + g) * 11 + c) % 100003) *
         (value ? -0.37f : 0.61f);
}

class Rings {
 public:
  Rings(const StoreShape& shape, std::int64_t capacity) : shape_(shape), capacity_(capacity) {}

  RingView view(std::int64_t layer, const TokenRange& range) {
    const std::int64_t row = shape_.head_dim + 1, head = capacity_ * row + 3;
    for (auto* side : {&key_, &value_}) {
      side->assign(static_cast<std::size_t>(shape_.n_kv_heads * head), -1.0f);
      for (std::int64_t g = 0; g < shape_.n_kv_heads; ++g)
        for (std::int64_t t = range.start; t < range.end; ++t)
          for (std::int64_t c = 0; c < shape_.head_dim; ++c)
            (*side)[static_cast<std::size_t>(g * head + t % capacity_ * row + c)] =
                element(layer, t, g, c, side == &value_);
    }
    return {key_.data(), value_.data(), capacity_, head, row};
  }

 private:
  StoreShape shape_;
  std::int64_t capacity_;
  std::vector<float> key_, value_;
};

std::int64_t bytes_of(const StoreShape& shape, std::int64_t n) {
  return shape.n_lanes * block_bytes(shape, n);
}

// Whether an element of a segment is what `written` becomes in the segment's dtype.
bool stored_as(const KvSegment& s, bool value, std::int64_t g, std::int64_t at, float written) {
  const void* data = value ? s.value : s.key;
  switch (s.dtype) {
    case DType::float32:
      return static_cast<const float*>(data)[at] == written;
    case DType::bfloat16:
      return static_cast<const std::uint16_t*>(data)[at] == to_bfloat16(written);
    case DType::float16:
      return static_cast<const std::uint16_t*>(data)[at] == to_float16(written);
    case DType::int8:
    case DType::fp8:
      break;
  }
  const float scale = (value ? s.value_scale : s.key_scale)[g];
  if (s.dtype == DType::fp8)
    return static_cast<const std::uint8_t*>(data)[at] == rules::to_fp8(written / scale);
  return std::abs(scale * static_cast<const std::int8_t*>(data)[at] - written) <= 0.5001f * scale;
}

void check_segment(const KvSegment& s, const StoreShape& shape, std::int64_t layer,
                   const TokenRange& range) {
  REQUIRE(s.length == range.size());
  REQUIRE(s.first_token == range.start);
  REQUIRE(s.dtype == shape.dtype);
  REQUIRE(s.position == Position::fixed);
  REQUIRE(s.value_weight == 1.0f);
  for (std::int64_t g = 0; g < shape.n_kv_heads; ++g)
    for (std::int64_t i = 0; i < s.length; ++i)
      for (std::int64_t c = 0; c < shape.head_dim; ++c)
        for (const bool value : {false, true}) {
          const float written = element(layer, range.start + i, g, c, value);
          const std::int64_t at = g * s.head_stride + i * s.row_stride + c;
          if (!stored_as(s, value, g, at, written)) FAIL("wrong element");
        }
}

// Events of random sizes in order of time.
std::vector<TokenRange> random_events(std::mt19937& rng, std::int64_t n, std::int64_t max_block) {
  std::vector<TokenRange> out;
  std::int64_t at = 5;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t size =
        1 + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(max_block));
    out.push_back({at, at + size});
    at += size;
  }
  return out;
}

}  // namespace

TEST_CASE("what is written from a wrapping ring is read back, in every dtype") {
  std::mt19937 rng(61);
  constexpr DType kDTypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::int8,
                               DType::fp8};
  for (int seed = 0; seed < 24; ++seed) {
    const StoreShape shape{1 + seed % 3, 1 + seed % 5, 3 + seed, kDTypes[seed % 5]};
    const std::int64_t max_block = 9;
    const auto events = random_events(rng, 30, max_block);
    const auto store = make_host_store(shape, seed % 8 < 4 ? 0 : 1 << 20, max_block);
    Rings rings(shape, max_block + seed % 5);
    std::int64_t used = 0;
    for (std::size_t i = 0; i < events.size();) {
      const std::size_t n = std::min(events.size() - i, std::size_t{1} + rng() % 4);
      store->append(std::span(events).subspan(i, n));
      for (; n && i < events.size() && static_cast<std::int64_t>(i) < store->counters().events;
           ++i) {
        used += bytes_of(shape, events[i].size());
        for (std::int64_t l = 0; l < shape.n_lanes; ++l)
          store->write(static_cast<EventId>(i), l, rings.view(l, events[i]));
      }
    }
    REQUIRE(store->counters().bytes_used == used);
    REQUIRE(store->counters().bytes_reserved >= used);
    std::vector<EventId> order{29, 3, 4, 0, 17};
    std::vector<KvSegment> out(2);
    for (std::int64_t l = 0; l < shape.n_lanes; ++l) {
      store->acquire(l, order, out);
      REQUIRE(out.size() == order.size());
      for (std::size_t i = 0; i < order.size(); ++i)
        check_segment(out[i], shape, l, events[static_cast<std::size_t>(order[i])]);
      store->release(l);
    }
    REQUIRE(store->counters().acquires == 5 * shape.n_lanes);
    REQUIRE(store->counters().events == 30);
  }
}

TEST_CASE("the budget bounds what is reserved, and a refusal changes nothing") {
  std::mt19937 rng(62);
  const DType dtype = GENERATE(DType::float32, DType::int8, DType::fp8);
  const StoreShape shape{2, 2, 64, dtype};  // 2048 or 512 bytes a token
  const std::int64_t max_block = 128;
  const std::int64_t event_bytes = bytes_of(shape, max_block);
  for (const std::int64_t budget : {event_bytes, 3 * event_bytes + 17, std::int64_t{20} << 20}) {
    const auto store = make_host_store(shape, budget, max_block);
    Rings rings(shape, 200);
    std::vector<TokenRange> kept;
    std::int64_t refused = 0;
    for (const TokenRange& e : random_events(rng, is_code(dtype) ? 2400 : 600, max_block)) {
      const StoreCounters before = store->counters();
      try {
        store->append(std::span(&e, 1));
      } catch (const BudgetError& error) {
        ++refused;
        const StoreCounters after = store->counters();
        REQUIRE(after.events == before.events);
        REQUIRE(after.bytes_used == before.bytes_used);
        REQUIRE(after.bytes_reserved == before.bytes_reserved);
        const std::string message = error.what();
        REQUIRE(message.find("host_bytes = " + std::to_string(budget)) != std::string::npos);
        REQUIRE(message.find(std::to_string(bytes_of(shape, e.size()))) != std::string::npos);
        REQUIRE(message.find("set host_bytes to at least") != std::string::npos);
        REQUIRE((message.find("kv_dtype") == std::string::npos) == is_code(dtype));
        break;
      }
      kept.push_back(e);
      store->write(static_cast<EventId>(kept.size()) - 1, 1, rings.view(1, e));
      REQUIRE(store->counters().bytes_reserved <= budget);
    }
    REQUIRE(refused == 1);
    // little is lost: what is used at the refusal is within one event of the budget, per slab
    REQUIRE(store->counters().bytes_used > budget - (1 + budget / (8 << 20)) * event_bytes);
    std::vector<KvSegment> out;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const EventId id = static_cast<EventId>(i);
      store->acquire(1, std::span(&id, 1), out);
      check_segment(out[0], shape, 1, kept[i]);
      store->release(1);
    }
    // several at once: all or nothing
    const StoreCounters before = store->counters();
    store->truncate(before.events - 1);
    const StoreCounters one_less = store->counters();
    std::vector<TokenRange> many{kept.back()};
    for (int i = 0; i < 100; ++i) many.push_back({many.back().end, many.back().end + max_block});
    REQUIRE_THROWS_AS(store->append(many), BudgetError);
    REQUIRE(store->counters().events == one_less.events);
    REQUIRE(store->counters().bytes_used == one_less.bytes_used);
    REQUIRE(store->counters().bytes_reserved == one_less.bytes_reserved);
    store->append(std::span(many).first(1));
    REQUIRE(store->counters().bytes_used == before.bytes_used);
  }
}

TEST_CASE("a budget of exactly some events holds them all") {
  const StoreShape shape{3, 1, 7, GENERATE(DType::bfloat16, DType::int8, DType::fp8)};
  const std::int64_t bytes = bytes_of(shape, 10);
  const auto store = make_host_store(shape, 5 * bytes, 10);
  std::vector<TokenRange> events;
  for (int i = 0; i < 5; ++i) events.push_back({10 * i, 10 * i + 10});
  store->append(events);
  REQUIRE(store->counters().bytes_reserved == 5 * bytes);
  const TokenRange one{50, 51};
  REQUIRE_THROWS_AS(store->append(std::span(&one, 1)), BudgetError);
  REQUIRE_THROWS_AS(make_host_store(shape, bytes - 1, 10), BudgetError);
  REQUIRE(make_host_store(shape, bytes, 10)->counters().bytes_reserved == 0);
}

TEST_CASE("the budget a refusal names is enough") {
  const StoreShape shape{1, 1, 16, GENERATE(DType::float32, DType::int8, DType::fp8)};
  std::vector<TokenRange> events;
  for (int i = 0; i < 40; ++i) events.push_back({7 * i, 7 * i + 7});
  std::string message;
  try {
    make_host_store(shape, bytes_of(shape, 10), 10)->append(events);
  } catch (const BudgetError& error) {
    message = error.what();
  }
  const std::string mark = "at least ";
  REQUIRE(message.find(mark) != std::string::npos);
  const std::int64_t named = std::stoll(message.substr(message.find(mark) + mark.size()));
  make_host_store(shape, named, 10)->append(events);
}

TEST_CASE("truncated room is used again") {
  std::mt19937 rng(63);
  const StoreShape shape{1, 1, 64, DType::float32};
  const auto store = make_host_store(shape, 64 << 20, 4096);  // 2 MiB events
  const auto events = random_events(rng, 20, 4096);
  store->append(events);
  const StoreCounters full = store->counters();
  for (int round = 0; round < 50; ++round) {
    const auto n = static_cast<std::int64_t>(rng() % 21);
    store->truncate(n);
    REQUIRE(store->counters().events == n);
    store->append(std::span(events).subspan(static_cast<std::size_t>(n)));
    REQUIRE(store->counters().bytes_used == full.bytes_used);
    REQUIRE(store->counters().bytes_reserved == full.bytes_reserved);
  }
  store->truncate(0);
  REQUIRE(store->counters().bytes_used == 0);
}

TEST_CASE("leases, recall stamps and bad arguments") {
  const StoreShape shape{2, 1, 4, DType::float32};
  const auto store = make_host_store(shape, 0, 8);
  const TokenRange events[] = {{0, 8}, {8, 10}};
  store->append(events);
  std::vector<KvSegment> out;
  const std::vector<EventId> both{1, 0}, first{0}, none;
  REQUIRE(store->last_recall(0) == -1);
  store->begin_step(4);
  store->acquire(0, both, out);
  REQUIRE_THROWS_AS(store->acquire(0, both, out), Error);
  REQUIRE_THROWS_AS(store->truncate(1), Error);
  const TokenRange more[] = {{10, 12}};
  const void* held = out[0].key;
  store->append(more);  // a lease does not keep the store from growing, nor growth move an event
  store->release(0);
  store->begin_step(6);
  store->acquire(1, first, out);
  store->acquire(0, none, out);
  REQUIRE(out.empty());
  store->release(1);
  store->release(0);
  store->acquire(0, both, out);
  REQUIRE(out[0].key == held);
  store->release(0);
  REQUIRE(store->last_recall(0) == 6);
  REQUIRE(store->last_recall(1) == 6);
  REQUIRE(store->last_recall(2) == -1);
  REQUIRE_THROWS_AS(store->release(0), Error);
  REQUIRE_THROWS_AS(store->release(2), DataError);
  const std::vector<EventId> bad{0, 3};
  const auto acquires = store->counters().acquires;
  REQUIRE_THROWS_AS(store->acquire(0, bad, out), DataError);
  REQUIRE(store->counters().acquires == acquires);
  REQUIRE_THROWS_AS(store->last_recall(3), DataError);
  REQUIRE_THROWS_AS(store->truncate(4), DataError);
  const TokenRange large[] = {{12, 21}};
  REQUIRE_THROWS_AS(store->append(large), DataError);
  std::vector<float> data(64);
  REQUIRE_THROWS_AS(store->write(0, 0, RingView{data.data(), data.data(), 7, 28, 4}), DataError);
  REQUIRE_THROWS_AS(make_host_store({0, 1, 4, DType::float32}, 0, 8), ConfigError);
}
