// SPDX-License-Identifier: Apache-2.0
#include "kernels/recall.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "episodic/recall/buffers.hpp"
#include "kernels/batches.hpp"
#include "kernels/device.hpp"
#include "kernels/recall_state.hpp"
#include "kernels/rows.hpp"
#include "support/recall_reference.hpp"
#if defined(EPISODIC_EMULATED_CUDA)
#include "kernels/recall.cuh"
#endif

namespace recall_test {

using episodic::DType;
using episodic::EventId;
using episodic::MemoryConfig;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

/// A memory of events with random sizes and representatives.
struct Memory {
  MemoryConfig config;
  std::int64_t width = 0, max_events = 0;
  std::vector<std::int64_t> event_end;
  std::vector<float> representatives;  // as stored in dtype
  // where there are individual ones: [events, n_repr, width], as stored too
  std::int64_t n_repr = 0, n_heads = 1;
  std::vector<float> each;
  DType dtype = DType::float32;

  /// Individual representatives that an event has.
  std::int64_t count_of(std::size_t e) const {
    return std::min(n_repr, event_end[e] - (e == 0 ? config.n_init : event_end[e - 1]));
  }
  float* each_of(std::size_t e, std::int64_t j) {
    return each.data() + (static_cast<std::int64_t>(e) * n_repr + j) * width;
  }

  episodic::EventTable table() const {
    episodic::EventTable events(config.n_init, config.min_block, config.max_block);
    const std::int64_t end = event_end.empty() ? config.n_init : event_end.back();
    events.close_up_to(end + 1, [&](std::int64_t t) {
      return std::binary_search(event_end.begin(), event_end.end(), t);
    });
    return events;
  }
};

Memory random_memory(std::mt19937& random, std::int64_t n_events, DType dtype, std::int64_t width) {
  Memory m;
  m.dtype = dtype;
  m.width = width;
  m.max_events = n_events + 5;
  m.config.n_init = 4;
  m.config.min_block = 2;
  m.config.max_block = 9;
  std::int64_t end = m.config.n_init;
  for (std::int64_t e = 0; e < n_events; ++e)
    m.event_end.push_back(end += 2 + static_cast<std::int64_t>(random() % 8));
  m.representatives =
      episodic_test::normal_floats(static_cast<std::size_t>(n_events * width), random);
  return m;
}

/// Random individual representatives, by which it is recalled then. What an event has none of would
/// be the best.
void give_each(Memory& m, std::mt19937& random, std::int64_t n_repr, std::int64_t n_heads) {
  m.n_repr = n_repr;
  m.n_heads = n_heads;
  const std::size_t n_events = m.event_end.size();
  m.each =
      episodic_test::normal_floats(n_events * static_cast<std::size_t>(n_repr * m.width), random);
  for (std::size_t e = 0; e < n_events; ++e)
    for (std::int64_t j = m.count_of(e); j < n_repr; ++j)
      for (std::int64_t c = 0; c < m.width; ++c) m.each_of(e, j)[c] *= 1000.0f;
}

struct Lists {
  std::vector<std::int64_t> similarity, contiguity, recalled;
  bool operator==(const Lists&) const = default;
};

/// What outlives a step on the device.
struct Device {
  /// \param codes 0: none, else RecallParams::codes_from
  explicit Device(Memory& m, std::int64_t codes_from_events = 0)
      : memory(&m),
        codes_from(codes_from_events),
        events([&] {
          std::vector<EventRange> ranges;
          std::int64_t start = m.config.n_init;
          for (const std::int64_t end : m.event_end) {
            ranges.push_back({start, end});
            start = end;
          }
          ranges.resize(static_cast<std::size_t>(m.max_events), {-1, -1});
          return ranges;
        }()),
        n_events(std::vector<std::int64_t>{static_cast<std::int64_t>(m.event_end.size())}),
        representatives([&] {
          std::vector<unsigned char> bytes = episodic_test::stored(m.representatives, m.dtype);
          bytes.resize(static_cast<std::size_t>(m.max_events * m.width * size_of(m.dtype)), 0xff);
          return bytes;
        }()) {
    if (m.n_repr > 0) {
      std::vector<unsigned char> bytes = episodic_test::stored(m.each, m.dtype);
      bytes.resize(static_cast<std::size_t>(m.max_events * m.n_repr * m.width * size_of(m.dtype)),
                   0xff);
      each.emplace(bytes);
    }
    const auto room = static_cast<std::size_t>(recall_room(params()));
    REQUIRE(room > 0);
    similarity.emplace(room);
    contiguity.emplace(room);
    recalled.emplace(room);
    sizes.emplace(std::vector<std::int32_t>(3, 0));
    workspace.emplace(recall_workspace_bytes(params()));
    state.emplace(1);
    if (codes_from > 0) encode();
  }

  void encode() {
    const auto rows = static_cast<std::size_t>(memory->max_events);
    codes.emplace(rows * static_cast<std::size_t>(code_stride(memory->width)));
    code_bounds.emplace(rows * static_cast<std::size_t>(code_floats(memory->width)));
    const DeviceArray<CodeLayer> layer(
        std::vector<CodeLayer>{{representatives.data(), codes->data(), code_bounds->data()}});
    const DeviceArray<std::int32_t> count(
        std::vector<std::int32_t>{static_cast<std::int32_t>(memory->event_end.size())});
    const DeviceArray<std::int64_t> first(std::vector<std::int64_t>{0});
    CodeParams p;
    p.events = {nullptr, nullptr, count.data(), first.data(), memory->max_events};
    p.dtype = memory->dtype;
    p.width = memory->width;
    p.capacity = memory->max_events;
    p.layers = layer.data();
    p.n_layers = 1;
    REQUIRE(encode_representatives(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }

  RecallParams params() const {
    const MemoryConfig& c = memory->config;
    RecallParams p;
    p.n_events = n_events.data();
    p.events = events.data();
    p.max_events = memory->max_events;
    p.n_init = c.n_init;
    p.representatives = representatives.data();
    p.dtype = memory->dtype;
    p.width = memory->width;
    if (each) {
      p.representatives = nullptr;
      p.maybe_each = each->data();
      p.n_repr = memory->n_repr;
      p.n_heads = memory->n_heads;
    }
    p.codes_from = codes_from;
    if (codes) {
      p.codes = codes->data();
      p.code_bounds = code_bounds->data();
    }
    p.n_local = c.n_local;
    p.n_mem = c.n_mem;
    p.chunk = c.chunk;
    p.min_block = c.min_block;
    p.contiguity = c.contiguity;
    p.neighbours = c.neighbours;
    p.n = 1;
    if (forgotten) p.maybe_forgotten = forgotten->data();
    return p;
  }

  /// Of all events. \param gone not 0 where one was forgotten
  void forget(std::vector<std::uint8_t> gone) {
    gone.resize(static_cast<std::size_t>(memory->max_events), 0);
    forgotten.emplace(gone);
  }

  Lists step(const std::vector<float>& query, std::int64_t tokens, std::int64_t n) {
    const DeviceArray<std::int64_t> d_tokens(std::vector<std::int64_t>{tokens});
    return step(query, d_tokens, n,
                [](const RecallParams& p) { return recall_events(p, nullptr); });
  }

  /// Recalls as `recall(params)` does.
  template <class Recall>
  Lists step(const std::vector<float>& query, const DeviceArray<std::int64_t>& d_tokens,
             std::int64_t n, Recall&& recall) {
    const DeviceArray<float> d_query(query);
    RecallParams p = params();
    p.tokens = d_tokens.data();
    p.n = n;
    p.query = d_query.data();
    p.queue = p.contiguity_list = contiguity->data();
    p.queue_size = sizes->data() + 1;
    p.similarity = similarity->data();
    p.recalled = recalled->data();
    p.sizes = sizes->data();
    state->give(p);
    p.workspace = workspace->data();
    p.workspace_bytes = workspace->size();
    REQUIRE(recall(p) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const std::vector<std::int32_t> n_of = sizes->host();
    const auto list = [](const DeviceArray<DeviceEventId>& ids, std::int32_t count) {
      const std::vector<DeviceEventId> all = ids.host();
      return std::vector<std::int64_t>(all.begin(), all.begin() + count);
    };
    return {list(*similarity, n_of[0]), list(*contiguity, n_of[1]), list(*recalled, n_of[2])};
  }

  Memory* memory;
  std::int64_t codes_from;
  DeviceArray<EventRange> events;
  DeviceArray<std::int64_t> n_events;
  DeviceArray<unsigned char> representatives;
  std::optional<DeviceArray<unsigned char>> each;
  std::optional<DeviceArray<DeviceEventId>> similarity, contiguity, recalled;
  std::optional<DeviceArray<std::int32_t>> sizes;
  std::optional<episodic_test::RecallState> state;
  std::optional<DeviceArray<unsigned char>> workspace;
  std::optional<DeviceArray<std::uint8_t>> forgotten;
  std::optional<DeviceArray<std::int8_t>> codes;
  std::optional<DeviceArray<float>> code_bounds;
};

/// In float64.
double reference_score(const Memory& m, const std::vector<float>& query, std::size_t event) {
  const std::size_t width = query.size();
  const auto product = [&](const std::vector<float>& vectors, std::size_t row, std::size_t begin,
                           std::size_t end) {
    double sum = 0;
    for (std::size_t c = begin; c < end; ++c)
      sum += static_cast<double>(query[c]) * static_cast<double>(vectors[row * width + c]);
    return sum;
  };
  if (m.n_repr == 0) return product(m.representatives, event, 0, width);
  const std::size_t dim = width / static_cast<std::size_t>(m.n_heads);
  double score = 0;
  for (std::size_t begin = 0; begin < width; begin += dim) {
    double best = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < m.count_of(event); ++j) {
      const double of_one =
          product(m.each, event * static_cast<std::size_t>(m.n_repr) + static_cast<std::size_t>(j),
                  begin, begin + dim);
      if (of_one > best) best = of_one;  // never NaN
    }
    score += best;
  }
  return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
}

/// Ranks all events in float64 and fills by the reference.
std::vector<EventId> reference_similarity(const Memory& m, const std::vector<float>& query,
                                          double capacity) {
  const episodic::EventTable table = m.table();
  std::vector<EventId> order(static_cast<std::size_t>(table.size()));
  std::iota(order.begin(), order.end(), EventId{0});
  std::vector<double> score(order.size());
  for (std::size_t e = 0; e < order.size(); ++e) score[e] = reference_score(m, query, e);
  if (static_cast<double>(table.tokens()) <= capacity)
    return capacity > 0 ? order : std::vector<EventId>{};
  std::stable_sort(order.begin(), order.end(), [&](EventId a, EventId b) {
    return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
  });
  return episodic_test::reference_fill(order, table, capacity);
}

/// The index of the host twin, filled.
std::unique_ptr<episodic::RepresentativeIndex> host_index(const Memory& m) {
  using episodic::RepresentativeScore;
  const bool by_each = m.n_repr > 0;
  const std::int64_t n_repr = by_each ? m.n_repr : 1;
  auto index =
      episodic::make_exact_index({m.n_heads, m.width / m.n_heads, n_repr,
                                  by_each ? RepresentativeScore::max : RepresentativeScore::mean});
  for (std::size_t e = 0; e < m.event_end.size(); ++e)
    index->add(m.representatives.data() + e * static_cast<std::size_t>(m.width),
               by_each ? m.each.data() + e * static_cast<std::size_t>(n_repr * m.width) : nullptr,
               by_each ? m.count_of(e) : 1);
  return index;
}

/// One step from the same queue in every order, each time with the host's lists.
template <class More>
void step_in_every_order(Device& device, const episodic::RecallBuffers& host,
                         const std::vector<float>& query, std::int64_t tokens, std::int64_t n,
                         const More& more) {
  const std::vector<DeviceEventId> queue = device.contiguity->host();
  const std::vector<std::int32_t> sizes = device.sizes->host();
  episodic_test::in_every_order([&] {
    cudaMemcpy(device.contiguity->data(), queue.data(), queue.size() * sizeof(queue[0]),
               cudaMemcpyHostToDevice);
    cudaMemcpy(device.sizes->data(), sizes.data(), 3 * sizeof(sizes[0]), cudaMemcpyHostToDevice);
    const Lists lists = device.step(query, tokens, n);
    REQUIRE(lists.similarity == host.similarity());
    REQUIRE(lists.contiguity == host.contiguity());
    REQUIRE(lists.recalled == host.recalled());
    more(lists);
  });
}

TEST_CASE("recall kernels list what the host lists, step after step, in every dtype and order") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(11);
  const DType dtypes[] = {DType::float32, DType::float16, DType::bfloat16};
  int trial = 0;
  for (const std::int64_t n_events : {0, 1, 2, 7, 60, 1100})
    for (const std::int64_t neighbours : {0, 1, 3})
      for (const double share : {0.0, 0.3, 1.0}) {
        Memory m = random_memory(random, n_events, dtypes[trial++ % 3], 40);
        m.config.n_local = 16;
        m.config.chunk = 8;
        m.config.n_mem = n_events == 60 ? 500 : 64;  // 60 events: all fit
        m.config.neighbours = neighbours;
        m.config.contiguity = share;
        Device device(m);
        const std::unique_ptr<episodic::RepresentativeIndex> index = host_index(m);
        episodic::RecallBuffers host;
        const episodic::EventTable table = m.table();
        REQUIRE(table.size() == n_events);
        for (int step = 0; step < 4; ++step) {
          const std::int64_t n = 1 + static_cast<std::int64_t>(random() % 8);
          // from nothing outside the window to more than the whole budget pending
          const std::int64_t tokens = table.pending_start() + m.config.n_local +
                                      (step == 3 ? 100 : static_cast<std::int64_t>(random() % 9)) -
                                      4;
          const std::vector<float> query = episodic_test::normal_floats(40, random);
          const std::int64_t outside = std::max<std::int64_t>(0, tokens + n - m.config.n_local);
          host.recall(m.config, *index, table, query.data(),
                      outside - std::min(outside, table.tokens()));
          std::optional<Lists> first;
          step_in_every_order(device, host, query, tokens, n, [&](const Lists& lists) {
            const auto budget = episodic_test::reference_budget(
                m.config, outside - std::min(outside, table.tokens()));
            REQUIRE(lists.similarity == reference_similarity(m, query, budget.similarity));
            if (!first) first = lists;
            REQUIRE(*first == lists);
          });
        }
      }
}

TEST_CASE("recall kernels list no event that was forgotten, as the host lists none") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(21);
  int trial = 0;
  for (const std::int64_t n_events : {1, 9, 60, 200, 500})
    for (const std::int64_t codes : {0, 128})
      for (const unsigned kept_of_8 : {7u, 4u, 1u, 0u}) {  // in 0 of 8: all are forgotten
        if (n_events == 500 && kept_of_8 == 7) continue;   // enough of those
        Memory m = random_memory(random, n_events, DType::float32, 40);
        m.config.n_local = 16;
        m.config.chunk = 8;
        m.config.n_mem = n_events == 60 ? 500 : 64;  // 60 events: all fit
        m.config.neighbours = 1 + trial % 2;
        m.config.contiguity = trial++ % 3 == 0 ? 0.0 : 0.4;
        Device device(m, codes);
        const std::unique_ptr<episodic::RepresentativeIndex> index = host_index(m);
        episodic::RecallBuffers host;
        const episodic::EventTable table = m.table();
        std::vector<std::uint8_t> gone(static_cast<std::size_t>(n_events), 0);
        for (int step = 0; step < 4; ++step) {
          if (step > 0) {  // the first step fills the queue, of which some are forgotten then
            for (std::size_t e = 0; e < gone.size(); ++e) {
              if (gone[e] != 0 || random() % 8 < kept_of_8) continue;
              gone[e] = static_cast<std::uint8_t>(1 + random() % 255);
              index->forget(static_cast<EventId>(e));
              host.drop(static_cast<EventId>(e));
            }
            device.forget(gone);
          }
          const std::int64_t tokens = table.pending_start() + m.config.n_local - 1;
          const std::vector<float> query = episodic_test::normal_floats(40, random);
          host.recall(m.config, *index, table, query.data(), m.config.n_init);
          step_in_every_order(device, host, query, tokens, 1, [](const Lists&) {});
          if (kept_of_8 == 0 && step > 0) REQUIRE(host.recalled().empty());
        }
      }
}

TEST_CASE("recall kernels score by the best of an event's representatives, by definition") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(31);
  const DType dtypes[] = {DType::float32, DType::float16, DType::bfloat16};
  struct Case {
    std::int64_t n_events, n_repr, n_heads, head_dim;
  };
  int trial = 0;
  // Heads of less than a pack a thread to more than a warp's, by one and by several; events have 2
  // to 9 tokens. 60 events: all fit.
  for (const Case& c : {Case{0, 4, 2, 8}, Case{1, 4, 2, 8}, Case{2, 1, 1, 8}, Case{60, 3, 2, 16},
                        Case{90, 1, 5, 8}, Case{90, 4, 3, 24}, Case{70, 5, 7, 40},
                        Case{70, 12, 2, 64}, Case{70, 3, 1, 264}, Case{70, 9, 3, 136}})
    for (const DType dtype : {dtypes[trial % 3], dtypes[(trial + 1) % 3]}) {
      ++trial;
      CAPTURE(c.n_events, c.n_repr, c.n_heads, c.head_dim, episodic::name_of(dtype));
      const std::int64_t width = c.n_heads * c.head_dim;
      Memory m = random_memory(random, c.n_events, dtype, width);
      give_each(m, random, c.n_repr, c.n_heads);
      m.config.n_local = 16;
      m.config.chunk = 8;
      m.config.n_mem = c.n_events == 60 ? 500 : 64;
      m.config.contiguity = trial % 2 == 0 ? 0.3 : 0.0;
      Device device(m);
      const std::unique_ptr<episodic::RepresentativeIndex> index = host_index(m);
      episodic::RecallBuffers host;
      const episodic::EventTable table = m.table();
      for (int step = 0; step < 3; ++step) {
        if (step == 2) {  // from here on some are forgotten
          std::vector<std::uint8_t> gone(static_cast<std::size_t>(c.n_events), 0);
          for (std::size_t e = 0; e < gone.size(); e += 1 + random() % 3) {
            gone[e] = 1;
            index->forget(static_cast<EventId>(e));
            host.drop(static_cast<EventId>(e));
          }
          device.forget(gone);
        }
        const std::int64_t tokens = table.pending_start() + m.config.n_local - 1;
        const std::vector<float> query =
            episodic_test::normal_floats(static_cast<std::size_t>(width), random);
        host.recall(m.config, *index, table, query.data(), m.config.n_init);
        step_in_every_order(device, host, query, tokens, 1, [&](const Lists& lists) {
          if (step == 2) return;
          const auto budget = episodic_test::reference_budget(m.config, m.config.n_init);
          REQUIRE(lists.similarity == reference_similarity(m, query, budget.similarity));
        });
        if (c.n_events > 60) REQUIRE(host.similarity().size() > 3);
      }
    }
}

TEST_CASE("the best of an event's representatives is a number's, and -inf where there is none") {
  EPISODIC_NEEDS_DEVICE();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  std::mt19937 random(32);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    Memory m = random_memory(random, 120, dtype, 48);
    give_each(m, random, 3, 2);
    m.config.n_local = 16;
    m.config.chunk = 8;
    m.config.n_mem = 100;
    m.config.contiguity = 0;
    for (std::size_t e = 0; e < 120; ++e) {
      const std::int64_t last = m.count_of(e) - 1;
      if (e % 6 == 1) m.each_of(e, last)[5] = kNaN;  // one of one head, which others stand for
      if (e % 6 == 2)
        for (std::int64_t j = 0; j <= last; ++j) m.each_of(e, j)[40] = kNaN;  // all of a head
      if (e % 6 == 3) m.each_of(e, 0)[7] = e % 12 == 3 ? kInfinity : -kInfinity;
      if (e == 10) m.each_of(e, 0)[3] = kInfinity, m.each_of(e, 0)[4] = -kInfinity;
      if (e >= 110)  // all equal: ties
        for (std::int64_t j = 0; j <= last; ++j) std::copy_n(m.each_of(48, 0), 48, m.each_of(e, j));
    }
    Device device(m);
    const std::unique_ptr<episodic::RepresentativeIndex> index = host_index(m);
    episodic::RecallBuffers host;
    const episodic::EventTable table = m.table();
    for (int step = 0; step < 4; ++step) {
      std::vector<float> query = episodic_test::normal_floats(48, random);
      if (step == 1) query[30] = kNaN;  // a head of it, and so every event, has no best
      if (step == 2) std::fill(query.begin(), query.end(), 0.0f);
      if (step == 3) std::copy_n(m.each_of(48, 0), 48, query.begin());
      host.recall(m.config, *index, table, query.data(), m.config.n_init);
      const auto budget = episodic_test::reference_budget(m.config, m.config.n_init);
      const auto expected = reference_similarity(m, query, budget.similarity);
      CAPTURE(step);
      REQUIRE(expected == host.similarity());
      if (step == 1) REQUIRE(expected.front() == 0);  // all are -inf: by time
      if (step == 3) REQUIRE(std::count(expected.begin(), expected.end(), 110) == 1);
      episodic_test::in_every_order([&] {
        const auto lists = device.step(query, table.pending_start() + m.config.n_local - 1, 1);
        REQUIRE(lists.similarity == expected);
      });
    }
  }
}

TEST_CASE("recall kernels rank ties by time, NaN last, and narrow any range of scores") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(3);
  for (const int kind : {0, 1, 2, 3}) {
    Memory m = random_memory(random, 4000, DType::float32, 8);
    m.config.n_local = 16;
    m.config.chunk = 8;
    m.config.n_mem = 100;
    m.config.contiguity = 0;
    for (std::size_t e = 0; e < 4000; ++e)
      for (std::size_t c = 0; c < 8; ++c) {
        float& x = m.representatives[e * 8 + c];
        if (c > 0)
          x = 0;
        else if (kind == 0)
          x = 1;  // all equal
        else if (kind == 1)
          x = static_cast<float>(random() % 3) - 1;  // three values
        else if (kind == 2)
          x = 1 + static_cast<float>(random() % 4096) * 0x1p-23f;  // one bin
        else
          x = (random() % 2 ? 1 : -1) * std::ldexp(1.0f, static_cast<int>(random() % 200) - 100);
      }
    if (kind == 1) m.representatives[0] = std::numeric_limits<float>::quiet_NaN();
    Device device(m);
    std::vector<float> query(8, 0.0f);
    query[0] = 1.0f;
    const std::int64_t tokens = m.event_end.back() + m.config.n_local - 1;
    Memory shown = m;
    if (kind == 1) shown.representatives[0] = -std::numeric_limits<float>::infinity();  // as NaN
    // only the sinks are outside the window and in no event
    const auto expected =
        reference_similarity(shown, query, static_cast<double>(m.config.chunk + m.config.n_mem));
    episodic_test::in_every_order(
        [&] { REQUIRE(device.step(query, tokens, 1).similarity == expected); });
  }
}

TEST_CASE("recall and its rows in one launch are what they are in two") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(4);
  for (const std::int64_t n_events : {0, 5, 700}) {
    Memory m = random_memory(random, n_events, DType::float16, 24);
    m.config.n_local = 16;
    m.config.chunk = 8;
    m.config.n_mem = 64;
    m.config.contiguity = 0.3;
    Device apart(m), together(m);
    // Addresses are made up: rows are computed, and what they point to is not read.
    const auto made_up = [](std::size_t at) { return reinterpret_cast<const void*>(at << 20); };
    const DeviceArray<const void*> blocks(
        std::vector<const void*>(static_cast<std::size_t>(m.max_events), made_up(5)));
    RowsParams rows;
    rows.dtype = DType::float16;
    rows.n_kv_heads = 2;
    rows.head_dim = 8;
    rows.n_init = m.config.n_init;
    rows.n_local = m.config.n_local;
    rows.sink_key = made_up(1);
    rows.sink_value = made_up(2);
    rows.ring_key = made_up(3);
    rows.ring_value = made_up(4);
    rows.ring_capacity = 40;
    rows.ring_head_stride = 320;
    rows.event_block = blocks.data();
    rows.max_rows = 200;
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> query = episodic_test::normal_floats(24, random);
      const std::int64_t end = m.event_end.empty() ? m.config.n_init : m.event_end.back();
      const DeviceArray<std::int64_t> tokens(
          std::vector<std::int64_t>{end + m.config.n_local - 2 + 5 * step});
      const auto recall = [&](Device& device, bool in_one) {
        const DeviceArray<KvRow> list(std::vector<KvRow>(200));
        const DeviceArray<std::int32_t> n_rows(1), overflow(std::vector<std::int32_t>{0});
        RowsParams r = rows;
        r.tokens = tokens.data();
        r.n = 3;
        r.n_events = device.n_events.data();
        r.events = device.events.data();
        r.recalled = device.recalled->data();
        r.n_recalled = device.sizes->data() + 2;
        r.rows = list.data();
        r.n_rows = n_rows.data();
        r.overflow = overflow.data();
        const Lists lists = device.step(query, tokens, 3, [&](const RecallParams& p) {
          if (in_one) return recall_rows(p, r, nullptr);
          const cudaError_t error = recall_events(p, nullptr);
          return error == cudaSuccess ? far_rows(r, nullptr) : error;
        });
        std::vector<std::array<std::int64_t, 3>> got;
        const std::vector<KvRow> all = list.host();
        const std::int32_t count = n_rows.host()[0];
        for (std::int32_t i = 0; i < count; ++i) {
          const KvRow& row = all[static_cast<std::size_t>(i)];
          got.push_back({static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row.key)),
                         static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row.value)),
                         row.token});
        }
        return std::pair(lists, got);
      };
      const auto expected = recall(apart, false);
      REQUIRE(expected.second.size() >= (n_events > 0 ? 4u : 2u));
      const std::vector<DeviceEventId> queue = together.contiguity->host();
      const std::vector<std::int32_t> sizes = together.sizes->host();
      episodic_test::in_every_order([&] {
        cudaMemcpy(together.contiguity->data(), queue.data(), queue.size() * 4,
                   cudaMemcpyHostToDevice);
        cudaMemcpy(together.sizes->data(), sizes.data(), 12, cudaMemcpyHostToDevice);
        const auto got = recall(together, true);
        REQUIRE(got.first == expected.first);
        REQUIRE(got.second == expected.second);
      });
    }
    RowsParams other = rows;
    REQUIRE(recall_rows(together.params(), other, nullptr) == cudaErrorInvalidValue);
  }
}

/// A sequence of a batch: its memory, and the rows that are written behind its recall.
struct BatchSequence {
  /// \param by_each by individual representatives, without codes then
  BatchSequence(std::int64_t i, DType dtype, bool by_each = false)
      : random(static_cast<unsigned>(i)) {
    constexpr std::int64_t kEvents[] = {60, 0, 330, 5, 200, 1};  // the second remembers nothing
    memory = random_memory(random, kEvents[i % 6], dtype, 24);
    memory.config.n_local = 16 + i;
    memory.config.chunk = 8;
    memory.config.n_mem = i % 4 == 3 ? 200 : 64;
    memory.config.contiguity = 0.1 * static_cast<double>(i % 4);
    memory.config.neighbours = i % 3;
    if (by_each) give_each(memory, random, 5, 3);
    device.emplace(memory, i % 2 == 0 && !by_each ? 64 : 0);
    if (i % 5 == 4) {
      std::vector<std::uint8_t> gone;
      for (std::size_t e = 0; e < memory.event_end.size(); ++e) gone.push_back(random() % 2);
      device->forget(gone);
    }
    blocks.emplace(std::vector<const void*>(static_cast<std::size_t>(memory.max_events),
                                            reinterpret_cast<const void*>(5 << 20)));
  }
  std::vector<float> query() { return episodic_test::normal_floats(24, random); }
  std::int64_t tokens() const {
    const std::int64_t end =
        memory.event_end.empty() ? memory.config.n_init : memory.event_end.back();
    return end + memory.config.n_local + 2;
  }
  RowsParams rows_of(const RecallParams& p) {
    RowsParams r;
    r.dtype = DType::float16;
    r.n_kv_heads = 2;
    r.head_dim = 8;
    r.tokens = p.tokens;
    r.n = p.n;
    r.n_init = p.n_init;
    r.n_local = p.n_local;
    // Addresses are made up: rows are computed, and what they point to is not read.
    r.sink_key = r.sink_value = r.ring_key = r.ring_value = reinterpret_cast<const void*>(1 << 20);
    r.ring_capacity = 60;
    r.ring_head_stride = 480;
    r.n_events = p.n_events;
    r.events = p.events;
    r.recalled = p.recalled;
    r.n_recalled = p.sizes + 2;
    r.event_block = blocks->data();
    r.rows = rows.data();
    r.n_rows = n_rows.data();
    r.overflow = overflow.data();
    r.max_rows = 300;
    return r;
  }

  std::mt19937 random;
  Memory memory;
  std::optional<Device> device;
  std::optional<DeviceArray<const void*>> blocks;
  DeviceArray<KvRow> rows{std::vector<KvRow>(300)};
  DeviceArray<std::int32_t> n_rows{1}, overflow{std::vector<std::int32_t>{0}};
};

/// A step of all of them by one call. \param recall of the parameters of all
template <class Recall>
void step_together(std::vector<std::unique_ptr<BatchSequence>>& sequences,
                   std::vector<RecallParams>& params, std::vector<Lists>& lists,
                   const Recall& recall) {
  const std::size_t i = params.size();
  if (i == sequences.size()) return recall();
  BatchSequence& s = *sequences[i];
  const DeviceArray<std::int64_t> tokens(std::vector<std::int64_t>{s.tokens()});
  lists[i] = s.device->step(s.query(), tokens, 1 + static_cast<std::int64_t>(i % 2),
                            [&](const RecallParams& p) {
                              params.push_back(p);
                              step_together(sequences, params, lists, recall);
                              return cudaSuccess;
                            });
}

TEST_CASE("a batch of recalls has the lists and rows of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  const DType dtypes[] = {DType::float32, DType::float16, DType::bfloat16};
  int trial = 0;
  for (const std::int64_t n : episodic_test::batch_sizes(kMostRecallsInLaunch))
    for (const bool with_rows : {true, false}) {
      const DType dtype = dtypes[trial % 3];
      const bool by_each = ++trial % 4 < 2;  // with rows and without
      CAPTURE(n, with_rows, by_each);
      std::vector<std::unique_ptr<BatchSequence>> alone, together;
      for (std::int64_t i = 0; i < n; ++i) {
        alone.push_back(std::make_unique<BatchSequence>(i, dtype, by_each));
        together.push_back(std::make_unique<BatchSequence>(i, dtype, by_each));
      }
      for (int step = 0; step < 2; ++step) {
        std::vector<RecallParams> params;
        std::vector<Lists> expected(alone.size()), got(alone.size());
        step_together(alone, params, expected, [&] {
          for (std::size_t i = 0; i < params.size(); ++i)
            REQUIRE((with_rows ? recall_rows(params[i], alone[i]->rows_of(params[i]), nullptr)
                               : recall_events(params[i], nullptr)) == cudaSuccess);
        });
        params.clear();
        step_together(together, params, got, [&] {
          std::vector<RowsParams> rows;
          for (std::size_t i = 0; i < params.size(); ++i)
            rows.push_back(together[i]->rows_of(params[i]));
          const std::int64_t launches = episodic_test::count_launches([&] {
            REQUIRE((with_rows ? recall_rows_batch(params.data(), rows.data(), n, nullptr)
                               : recall_events_batch(params.data(), n, nullptr)) == cudaSuccess);
          });
          // With codes for one, each launch is two.
          const std::int64_t batches = episodic_test::launches_of(n);
          REQUIRE((launches < 0 || launches == (by_each ? 1 : 2) * batches));
        });
        for (std::size_t i = 0; i < got.size(); ++i) {
          CAPTURE(i, step);
          REQUIRE(got[i] == expected[i]);
          REQUIRE(together[i]->device->state->is_clear());
          if (!with_rows) continue;
          const std::vector<KvRow> a = alone[i]->rows.host(), b = together[i]->rows.host();
          const std::int32_t count = alone[i]->n_rows.host()[0];
          REQUIRE(together[i]->n_rows.host()[0] == count);
          for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
            REQUIRE(b[r].token == a[r].token);
            REQUIRE(b[r].key == a[r].key);
            REQUIRE(b[r].value == a[r].value);
            REQUIRE(b[r].head_stride == a[r].head_stride);
          }
        }
      }
      REQUIRE(alone[0]->device->sizes->host()[2] > 0);
    }
}

TEST_CASE("a batch of recalls names the field that its sequences do not share") {
  EPISODIC_NEEDS_DEVICE();
  BatchSequence s(0, DType::float16);
  std::vector<RecallParams> params(3);
  std::vector<RowsParams> rows;
  const DeviceArray<std::int64_t> tokens(std::vector<std::int64_t>{9});
  s.device->step(s.query(), tokens, 1, [&](const RecallParams& p) {
    const auto refused = [&](const char* field, auto&& change) {
      params.assign(3, p);
      rows.assign(3, s.rows_of(p));
      REQUIRE(invalid_field(params.data(), 3) == nullptr);
      REQUIRE(invalid_field(params.data(), rows.data(), 3) == nullptr);
      change();
      const char* const named = invalid_field(params.data(), rows.data(), 3);
      CAPTURE(field);
      REQUIRE(named != nullptr);
      REQUIRE(std::string(named) == field);
      REQUIRE(recall_rows_batch(params.data(), rows.data(), 3, nullptr) == cudaErrorInvalidValue);
    };
    refused("dtype", [&] { params[2].dtype = DType::bfloat16; });
    refused("width", [&] { params[2].width = 16; });
    refused("n_lanes", [&] { params[2].n_lanes = 2, params[2].workspace_bytes *= 2; });
    refused("query", [&] { params[1].query = nullptr; });
    refused("n_repr", [&] { params[1].n_repr = 1; });
    refused("n_heads", [&] { params[1].n_heads = 1; });
    refused("maybe_each", [&] {
      for (RecallParams& of_one : params) {
        of_one.codes_from = 0;
        of_one.n_repr = of_one.n_heads = 1;
      }
      params[2].maybe_each = params[2].representatives;
    });
    refused("dtype", [&] { rows[2].dtype = DType::bfloat16; });
    refused("head_dim", [&] { rows[2].head_dim = 4; });
    refused("n_kv_heads", [&] { rows[1].n_kv_heads = 4; });
    refused("recalled", [&] { rows[1].recalled = nullptr; });
    REQUIRE(recall_rows_batch(params.data(), nullptr, 3, nullptr) == cudaErrorInvalidValue);
    REQUIRE(std::string(invalid_field(params.data(), nullptr, 3)) == "rows");
    REQUIRE(std::string(invalid_field(params.data(), -1)) == "n_sequences");
    params[2].dtype = DType::bfloat16;
    REQUIRE(recall_events_batch(params.data(), 3, nullptr) == cudaErrorInvalidValue);
    return recall_events_batch(&p, 1, nullptr);
  });
}

TEST_CASE("recall through codes lists what the scan lists, to the bit, whatever the vectors") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(21);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const DType dtypes[] = {DType::float32, DType::float16, DType::bfloat16};
  int trial = 0;
  for (const std::int64_t width : {8, 40, 264})  // a head's, several heads'
    for (const int kind : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const std::int64_t n_events = trial % 3 == 0 ? 64 : trial % 3 == 1 ? 200 : 330;
      Memory m = random_memory(random, n_events, dtypes[trial % 3], width);
      ++trial;
      m.config.n_local = 16;
      m.config.chunk = 8;
      m.config.n_mem = 64;
      m.config.contiguity = kind % 2 ? 0.3 : 0.0;
      std::vector<float>& x = m.representatives;
      const auto at = [&](std::int64_t event) { return x.data() + event * width; };
      for (std::int64_t e = 0; e < n_events; ++e)
        for (std::int64_t c = 0; c < width; ++c) {
          if (kind == 1) at(e)[c] += 30.0f;        // a large common part
          if (kind == 2) at(e)[c] = at(e % 5)[c];  // few different ones: ties
          if (kind == 3) at(e)[c] = 1.0f;          // all equal
          if (kind == 4 && e > 0) at(e)[c] = at(0)[c] + 1e-3f * at(e)[c];  // codes cannot tell
          if (kind == 6) at(e)[c] *= e % 7 ? 1e-6f : 1e4f;                 // very different lengths
        }
      if (kind == 5) {
        at(0)[0] = std::numeric_limits<float>::quiet_NaN();
        at(n_events / 2)[width - 1] = kInfinity;
        at(n_events - 1)[1] = -kInfinity;
        at(7)[3] = dtypes[(trial - 1) % 3] == DType::float16 ? 6e4f : 3e38f;
      }
      Device scan(m), through(m, 1);
      for (int step = 0; step < (kind == 7 ? 4 : 2); ++step) {
        std::vector<float> query =
            episodic_test::normal_floats(static_cast<std::size_t>(width), random);
        if (step == 1 && kind < 4)  // one event's own direction
          std::copy_n(at(static_cast<std::int64_t>(random()) % n_events), width, query.begin());
        if (kind == 7)
          for (float& q : query)
            q *= step == 0 ? 0.0f : step == 1 ? 1e17f : step == 2 ? 1e-38f : 1.0f;
        if (kind == 7 && step == 3) query[1] = std::numeric_limits<float>::quiet_NaN();
        const std::int64_t tokens = m.event_end.back() + m.config.n_local + step - 4;
        const std::vector<DeviceEventId> queue = through.contiguity->host();
        const std::vector<std::int32_t> sizes = through.sizes->host();
        const Lists expected = scan.step(query, tokens, 2);
        REQUIRE(!expected.similarity.empty());
        CAPTURE(width, kind, step);
        episodic_test::in_every_order([&] {
          cudaMemcpy(through.contiguity->data(), queue.data(), queue.size() * 4,
                     cudaMemcpyHostToDevice);
          cudaMemcpy(through.sizes->data(), sizes.data(), 12, cudaMemcpyHostToDevice);
          REQUIRE(through.step(query, tokens, 2) == expected);
        });
      }
    }
}

TEST_CASE("what codes leave out could not have been chosen, and a reach too small is noticed") {
#if defined(EPISODIC_EMULATED_CUDA)
  std::mt19937 random(27);
  const RecallArgs* args = nullptr;
  RecallArgs kept;
  emulator::Listener<RecallBatch>::heard = [&](const RecallBatch& batch) {
    kept = batch.of[0];
    args = &kept;
  };
  int wrong_by_plant = 0;
  std::int64_t left_out = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const std::int64_t n_events = 256, width = trial % 2 == 0 ? 40 : 136;
    Memory m = random_memory(random, n_events, DType::float32, width);
    m.config.n_local = 16;
    m.config.chunk = 8;
    m.config.n_mem = 64;
    m.config.contiguity = 0;
    const float near = trial % 3 == 0 ? 1.0f : trial % 3 == 1 ? 0.1f : 0.02f;
    for (std::int64_t e = 1; e < n_events; ++e)  // the nearer to each other the less codes tell
      for (std::int64_t c = 0; c < width; ++c) {
        float& x = m.representatives[static_cast<std::size_t>(e * width + c)];
        x = m.representatives[static_cast<std::size_t>(c)] + near * x;
      }
    Device sound(m, 1), planted(m, 1);
    std::vector<float> bounds = planted.code_bounds->host();
    const auto floats = static_cast<std::size_t>(code_floats(width));
    for (std::size_t r = 1; r <= static_cast<std::size_t>(n_events); ++r)
      bounds[r * floats - 1] = 0.0f;
    cudaMemcpy(planted.code_bounds->data(), bounds.data(), bounds.size() * sizeof(float),
               cudaMemcpyHostToDevice);
    const std::int64_t tokens = m.event_end.back() + 15;
    const auto budget = episodic_test::reference_budget(m.config, m.config.n_init);
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> query =
          episodic_test::normal_floats(static_cast<std::size_t>(width), random);
      const std::vector<EventId> expected = reference_similarity(m, query, budget.similarity);
      const Lists lists = sound.step(query, tokens, 1);
      REQUIRE(args != nullptr);
      const auto* const workspace = static_cast<const unsigned char*>(args->p.workspace);
      const auto count = *reinterpret_cast<const std::uint32_t*>(workspace + args->n_candidates);
      const auto* const ranks =
          reinterpret_cast<const std::uint64_t*>(workspace + args->candidates);
      std::vector<bool> scored(static_cast<std::size_t>(n_events), false);
      for (std::uint32_t i = 0; i < count; ++i)
        scored[static_cast<std::size_t>(episodic::rules::event_of(ranks[i]))] = true;
      left_out += n_events - count;
      CAPTURE(trial, step);
      for (const EventId e : expected) REQUIRE(scored[static_cast<std::size_t>(e)]);
      REQUIRE(lists.similarity == expected);
      wrong_by_plant += planted.step(query, tokens, 1).similarity != expected;
    }
  }
  emulator::Listener<RecallBatch>::heard = nullptr;
  REQUIRE(left_out > 180 * 100);  // of 256 each
  REQUIRE(wrong_by_plant > 2);
#else
  EPISODIC_SKIP("candidates are looked at on the emulated device");
#endif
}

TEST_CASE("codes leave few candidates, and none are searched below codes_from events") {
#if defined(EPISODIC_EMULATED_CUDA)
  std::mt19937 random(22);
  const std::uint32_t* candidates = nullptr;  // where they are counted
  bool searched = false;
  emulator::Listener<RecallBatch>::heard = [&](const RecallBatch& batch) {
    const RecallArgs& a = batch.of[0];
    searched = a.p.codes_from > 0 && *a.p.n_events >= a.p.codes_from;
    candidates = reinterpret_cast<const std::uint32_t*>(
        static_cast<const unsigned char*>(a.p.workspace) + a.n_candidates);
  };
  Memory m = random_memory(random, 6000, DType::bfloat16, 128);
  m.config.n_local = 64;
  m.config.chunk = 16;
  m.config.n_mem = 128;
  for (float& x : m.representatives) x += 10.0f;
  Device scan(m), through(m, 6000), without(m, 6001);
  const std::int64_t tokens = m.event_end.back() + 63;
  for (int step = 0; step < 3; ++step) {  // the first one knows nothing of where scores lie
    const std::vector<float> query = episodic_test::normal_floats(128, random);
    const Lists expected = scan.step(query, tokens, 1);
    REQUIRE(!searched);
    REQUIRE(without.step(query, tokens, 1) == expected);
    REQUIRE(!searched);
    REQUIRE(through.step(query, tokens, 1) == expected);
    REQUIRE(searched);
    searched = false;
    REQUIRE(*candidates >= expected.similarity.size());
    if (step > 0) REQUIRE(*candidates < 600);
  }
  emulator::Listener<RecallBatch>::heard = nullptr;
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("recall lists the same wherever its bins are narrow, and leaves them empty") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(25);
  constexpr float kMost = std::numeric_limits<float>::max();
  const episodic::rules::ScoreCentre centres[] = {
      {},           {0.0f, 1.0f},  {30.0f, 1e-30f}, {-1e6f, 1e-3f}, {kMost, kMost},
      {-kMost, 1},  {2.5f, 1e38f}, {7.0f, 8.0f},    {-7.0f, 9.0f},  {1e-40f, 1e-42f},
      {40.0f, 40.f}};
  for (const std::int64_t codes : {0, 1})
    for (const bool by_each : {false, true}) {
      if (codes > 0 && by_each) continue;
      Memory m = random_memory(random, 500, DType::float16, 40);
      if (by_each) give_each(m, random, 3, 5);
      m.config.n_local = 16;
      m.config.chunk = 8;
      m.config.n_mem = 90;
      m.config.contiguity = 0.3;
      for (float& x : m.representatives) x += 1.0f;
      const std::int64_t tokens = m.event_end.back() + 15;
      for (int step = 0; step < 2; ++step) {
        const std::vector<float> query = episodic_test::normal_floats(40, random);
        std::optional<Lists> first;
        for (const episodic::rules::ScoreCentre& centre : centres) {
          Device device(m, codes);
          device.state.emplace(1, centre);
          CAPTURE(codes, by_each, centre.at, centre.scale);
          const Lists lists = device.step(query, tokens, 1);
          if (!first) first = lists;
          REQUIRE(lists == *first);
          REQUIRE(device.state->is_clear());
          // the next call finds where this one was decided
          const episodic::rules::ScoreCentre kept = device.state->centre.host()[0];
          const double last =
              reference_score(m, query, static_cast<std::size_t>(lists.similarity.back()));
          if (codes == 0) REQUIRE(std::abs(static_cast<double>(kept.at) - last) < 1e-3);
          REQUIRE(kept.scale >= std::abs(kept.at));
        }
        REQUIRE(first->similarity.size() > 5);
        REQUIRE(first->contiguity.size() > 2);
      }
    }
}

TEST_CASE("recall lists more than a block's shared memory holds, and more neighbours") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(26);
  // rooms below and above that of shared lists, neighbours compared there and marked
  struct Case {
    std::int64_t n_events, n_mem, neighbours;
  };
  for (const Case& c : {Case{900, 800, 8}, Case{3000, 2600, 1}, Case{2400, 2600, 3}}) {
    Memory m = random_memory(random, c.n_events, DType::bfloat16, 8);
    m.config.n_local = 16;
    m.config.chunk = 8;
    m.config.n_mem = c.n_mem;
    m.config.contiguity = 0.4;
    m.config.neighbours = c.neighbours;
    Device device(m);
    const std::unique_ptr<episodic::RepresentativeIndex> index = host_index(m);
    episodic::RecallBuffers host;
    const episodic::EventTable table = m.table();
    for (int step = 0; step < 2; ++step) {
      const std::vector<float> query = episodic_test::normal_floats(8, random);
      const std::int64_t tokens = table.pending_start() + m.config.n_local - 1;
      host.recall(m.config, *index, table, query.data(), m.config.n_init);
      step_in_every_order(device, host, query, tokens, 1, [](const Lists&) {});
      REQUIRE(!host.contiguity().empty());
    }
  }
}

TEST_CASE("recall takes as many blocks as there are multiprocessors, with the same lists") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  std::mt19937 random(24);
  Memory m = random_memory(random, 1100, DType::bfloat16, 40);
  m.config.n_local = 16;
  m.config.chunk = 8;
  m.config.n_mem = 200;
  Device scan(m), through(m, 1);
  const std::vector<float> query = episodic_test::normal_floats(40, random);
  const std::int64_t tokens = m.event_end.back() + 15;
  std::optional<Lists> first;
  const std::int64_t wanted = (m.max_events + kEventsOfBlock - 1) / kEventsOfBlock;
  for (const int multiprocessors : {1, 2, 5, 20, 132}) {
    emulator::set_multiprocessors(multiprocessors);
    const std::int64_t blocks = std::min<std::int64_t>(wanted, multiprocessors);
    for (Device* device : {&scan, &through}) {
      emulator::reset_calls();
      const Lists lists = device->step(query, tokens, 1);
      REQUIRE(emulator::calls().blocks == (device == &scan ? 1 : 2) * blocks);
      if (!first) first = lists;
      REQUIRE(lists == *first);
    }
  }
  emulator::set_multiprocessors(4);
  REQUIRE(wanted < 132);
  REQUIRE(!first->similarity.empty());
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("recall kernels find few among very many events") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  Memory m = random_memory(random, 40000, DType::bfloat16, 16);
  m.config.n_local = 64;
  m.config.chunk = 16;
  m.config.n_mem = 512;
  m.config.contiguity = 0.3;
  Device device(m);
  const std::vector<float> query = episodic_test::normal_floats(16, random);
  const Lists lists = device.step(query, m.event_end.back() + 63, 1);
  const auto budget = episodic_test::reference_budget(m.config, m.config.n_init);
  REQUIRE(lists.similarity == reference_similarity(m, query, budget.similarity));
  REQUIRE(std::is_sorted(lists.recalled.begin(), lists.recalled.end()));
}

TEST_CASE("recall kernels refuse parameters that make no sense, without a device") {
  RecallParams p;
  REQUIRE(recall_room(p) == 0);
  REQUIRE(recall_workspace_bytes(p) == 0);
  REQUIRE(recall_events(p, nullptr) == cudaErrorInvalidValue);
  p.max_events = 10'000'000;  // as many events as tokens that a long memory has
  p.n = p.chunk = 512;
  p.n_init = 128;
  p.n_local = 4096;
  p.n_mem = 2048;
  p.min_block = 8;
  p.width = 4096;
  REQUIRE(recall_room(p) == (128 + 512 + 2048) / 8 + 3);
  REQUIRE(recall_workspace_bytes(p) >= 8 * static_cast<std::size_t>(p.max_events));
  REQUIRE(recall_events(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  p.n_mem = 1 << 20;
  p.min_block = 1;
  REQUIRE(recall_room(p) == 0);  // a list no block has room for
  p.n_mem = 2048;
  p.max_events = std::int64_t{1} << 31;
  REQUIRE(recall_room(p) == 0);
  p.max_events = 1000;
  p.contiguity = 1.5;
  REQUIRE(recall_room(p) == 0);
  p.contiguity = 0.3;
  const std::size_t without_codes = recall_workspace_bytes(p);
  p.codes_from = 1;
  REQUIRE(recall_workspace_bytes(p) >= without_codes + 4 * 1000);
  p.codes_from = -1;
  REQUIRE(recall_room(p) == 0);
}

}  // namespace recall_test
