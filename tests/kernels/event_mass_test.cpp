// SPDX-License-Identifier: Apache-2.0
#include "kernels/event_mass.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention_problem.hpp"

namespace event_mass_test {

using attention_test::Case;
using attention_test::kDTypes;
using attention_test::of;
using attention_test::Problem;
using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr double kUntouched = -7.0;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Which rows of a problem are of which event: the last ones of each list, cut at random.
struct Events {
  std::int64_t capacity = 0;              ///< of a list
  std::vector<DeviceEventId> recalled;    ///< [lists, capacity]
  std::vector<std::int32_t> sizes;        ///< [lists, 3]
  std::vector<EventRange> table;          ///< [tables, events]
  std::int64_t table_stride = 0;          ///< events of a table; 0: one for all lists
  std::vector<std::int64_t> first, last;  ///< [lists, capacity] rows
};

/// \param most tokens of an event \param others rows before those of the first event, at most
Events cut(const Problem& problem, std::int64_t lists, std::int64_t most, std::int64_t others,
           bool own_tables, std::mt19937& random) {
  Events e;
  const auto draw = [&](std::int64_t below) { return static_cast<std::int64_t>(random()) % below; };
  std::vector<std::vector<std::int64_t>> lengths(size(lists));
  for (std::int64_t l = 0; l < lists; ++l) {
    const std::int64_t count = problem.counts()[size(l)];
    std::int64_t at = std::min(count, draw(others + 1));
    while (at < count) {
      lengths[size(l)].push_back(std::min(count - at, 1 + draw(most)));
      at += lengths[size(l)].back();
    }
    e.capacity =
        std::max<std::int64_t>(e.capacity, static_cast<std::int64_t>(lengths[size(l)].size()) + 2);
  }
  e.recalled.assign(size(lists * e.capacity), 0);
  e.first.assign(size(lists * e.capacity), 0);
  e.last = e.first;
  // In every table an event lies between those that are listed; tables are as long as the longest.
  const std::int64_t events = 2 * e.capacity * (own_tables ? 1 : lists);
  e.table_stride = own_tables ? events : 0;
  e.table.assign(size(own_tables ? lists * events : events), EventRange{0, 1 << 20});
  for (std::int64_t l = 0; l < lists; ++l) {
    const auto n = static_cast<std::int64_t>(lengths[size(l)].size());
    for (const std::int32_t s : {99, 98, static_cast<std::int32_t>(n)}) e.sizes.push_back(s);
    std::int64_t row = problem.counts()[size(l)];
    for (const std::int64_t length : lengths[size(l)]) row -= length;
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t id = 2 * (own_tables ? k : l * e.capacity + k) + 1;
      const std::int64_t length = lengths[size(l)][size(k)], start = 1000 + draw(1000);
      e.recalled[size(l * e.capacity + k)] = static_cast<DeviceEventId>(id);
      e.table[size(l * e.table_stride + id)] = {start, start + length};
      e.first[size(l * e.capacity + k)] = row;
      e.last[size(l * e.capacity + k)] = row += length;
    }
  }
  return e;
}

std::vector<double> masses(const Problem& problem, const Events& e) {
  const DeviceArray<DeviceEventId> recalled(e.recalled);
  const DeviceArray<std::int32_t> sizes(e.sizes);
  const DeviceArray<EventRange> table(e.table);
  const DeviceArray<double> mass(std::vector<double>(e.recalled.size(), kUntouched));
  static_cast<void>(problem.run([](AttentionParams&) {},
                                [&](const AttentionParams& attention) {
                                  EventMassParams p;
                                  p.attention = attention;
                                  p.events = table.data();
                                  p.table_stride = e.table_stride;
                                  p.recalled = recalled.data();
                                  p.n_recalled = sizes.data() + 2;
                                  p.list_capacity = e.capacity;
                                  p.mass = mass.data();
                                  p.workspace_bytes = event_mass_workspace_bytes(p);
                                  REQUIRE(p.workspace_bytes > 0);
                                  const DeviceArray<unsigned char> workspace(p.workspace_bytes);
                                  p.workspace = workspace.data();
                                  REQUIRE(event_masses(p, nullptr) == cudaSuccess);
                                  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
                                }));
  return mass.host();
}

void check(const Case& c, DType dtype, std::int64_t most, std::int64_t others,
           bool own_tables = false) {
  INFO("n " << c.n << " group " << c.group << " heads " << c.kv_heads << " lists " << c.lists
            << " d " << c.d << " far " << c.far << " dtype " << static_cast<int>(dtype));
  const Problem problem(c, dtype, 5);
  std::mt19937 random(static_cast<unsigned>(c.n + c.far));
  const Events e = cut(problem, c.lists, most, others, own_tables, random);
  static_cast<void>(problem.reference());
  std::vector<std::vector<double>> results;
  episodic_test::in_every_order([&] { results.push_back(masses(problem, e)); });
  for (const auto& result : results) REQUIRE(result == results.front());
  double received = 0.0;
  for (std::int64_t l = 0; l < c.lists; ++l)
    for (std::int64_t k = 0; k < e.capacity; ++k) {
      const double got = results.front()[size(l * e.capacity + k)];
      if (k >= e.sizes[size(3 * l + 2)]) {
        REQUIRE(got == kUntouched);
        continue;
      }
      double expected = 0.0;
      for (std::int64_t r = e.first[size(l * e.capacity + k)]; r < e.last[size(l * e.capacity + k)];
           ++r)
        expected += problem.row_mass[size(l * problem.max_rows() + r)];
      REQUIRE(std::abs(got - expected) <= 2e-5 * expected + 1e-7);
      received += expected;
    }
  REQUIRE((received > 0.0) == (c.far > 0 && !c.far_unseen));
}

TEST_CASE("event masses are those of float64 for every number of queries, group and head size") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes) {
    for (const std::int64_t n : {1, 3, 33})
      for (const std::int64_t group : {1, 3}) check(of(n, group, 64, 130), dtype, 40, 30);
    for (const std::int64_t n : {5, 70})  // and more than a tile of queries, on the tensor cores
      for (const std::int64_t d : {8, 72, 128, 136, 256}) {
        Case c = of(n, 2, d, 41);
        c.kv_heads = 1;
        check(c, dtype, 9, 3);
      }
  }
}

TEST_CASE("event masses: lists of heads that recall by themselves, of one table and of their own") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const bool own_tables : {false, true})
      for (const std::int64_t lists : {2, 4}) {
        Case c = of(lists == 2 ? 7 : 11, 2, 24, 60);
        c.kv_heads = 4;
        c.lists = lists;
        c.max_rows = 77;
        check(c, dtype, 20, 12, own_tables);
      }
}

TEST_CASE(
    "event masses: soft caps, scales, sinks, interleaved pairs, windows, events of one token") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes) {
    Case c = of(20, 2, 48, 300);
    c.soft_cap = 2.5f;
    check(c, dtype, 1, 0);  // more events than a block has threads
    c = of(11, 2, 48, 50);
    c.scale = -0.3f;
    c.interleaved = true;
    check(c, dtype, 7, 60);
    c = of(40, 1, 16, 50);
    c.n_local = 9;
    check(c, dtype, 60, 0);
    for (const std::int64_t n : {3, 40}) {
      c = of(n, 2, 48, 50);
      c.sinks = true;
      check(c, dtype, 7, 3);
    }
    c = of(3, 1, 16, 20);
    c.far_unseen = true;
    check(c, dtype, 6, 2);
  }
}

TEST_CASE("event masses: keys of codes, alone and behind others") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {3, 40})  // and on the tensor cores
      for (const std::int64_t codes : {30, 70}) {
        Case c = of(n, 2, 72, 70);
        c.kv_heads = 4;
        c.lists = 2;
        c.codes = codes;
        for (const DType code : {DType::int8, DType::fp8}) {
          c.code = code;
          check(c, dtype, 9, 5);
        }
      }
}

TEST_CASE("event masses of an empty recall: nothing is written") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes) {
    Case c = of(3, 2, 16, 0);
    check(c, dtype, 5, 0);  // no room for rows at all
    c.max_rows = 40;
    check(c, dtype, 5, 0);
    c = of(3, 2, 16, 12);  // rows, and none of an event
    const Problem problem(c, dtype, 5);
    std::mt19937 random(2);
    Events e = cut(problem, 1, 4, 0, false, random);
    e.sizes = {0, 0, 0};
    for (const double m : masses(problem, e)) REQUIRE(m == kUntouched);
  }
}

TEST_CASE("received masses are added layer by layer and list by list") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  constexpr std::size_t kEvents = 700, kLayers = 5, kLists = 2, kCapacity = 300;
  std::vector<double> received(kEvents);
  for (double& x : received) x = std::uniform_real_distribution<>(0, 9)(random);
  std::vector<double> expected = received;
  std::vector<DeviceEventId> recalled(kLayers * kLists * kCapacity, -1);
  std::vector<std::int32_t> sizes;
  std::vector<double> mass(recalled.size(), NAN);
  for (std::size_t l = 0; l < kLayers * kLists; ++l) {
    const std::size_t n = l == 3 ? 0 : l == 4 ? kCapacity : 1 + random() % kCapacity;
    for (const std::size_t s : {std::size_t{0}, std::size_t{5}, n})
      sizes.push_back(static_cast<std::int32_t>(s));
    std::vector<DeviceEventId> ids(kEvents);
    for (std::size_t e = 0; e < kEvents; ++e) ids[e] = static_cast<DeviceEventId>(e);
    std::shuffle(ids.begin(), ids.end(), random);
    for (std::size_t k = 0; k < n; ++k) {
      recalled[l * kCapacity + k] = ids[k];
      mass[l * kCapacity + k] = std::uniform_real_distribution<>(0, 1)(random);
      expected[static_cast<std::size_t>(ids[k])] += mass[l * kCapacity + k];
    }
  }
  const DeviceArray<DeviceEventId> d_recalled(recalled);
  const DeviceArray<std::int32_t> d_sizes(sizes);
  const DeviceArray<double> d_mass(mass);
  std::vector<LayerMasses> layers;
  for (std::size_t l = 0; l < kLayers; ++l)
    layers.push_back({d_recalled.data() + l * kLists * kCapacity,
                      d_sizes.data() + 3 * l * kLists + 2, d_mass.data() + l * kLists * kCapacity});
  const DeviceArray<LayerMasses> d_layers(layers);
  episodic_test::in_every_order([&] {
    const DeviceArray<double> d_received(received);
    const ReceiveParams p{d_layers.data(), kLayers, kLists, kCapacity, d_received.data()};
    REQUIRE(receive_masses(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(d_received.host() == expected);
  });
}

}  // namespace event_mass_test
