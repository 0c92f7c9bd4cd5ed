// SPDX-License-Identifier: Apache-2.0
#include "kernels/recall_counts.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device.hpp"

namespace recall_counts_test {

using episodic_test::DeviceArray;
using namespace episodic::kernels;

TEST_CASE("recalls are counted by event, over lanes and steps") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::size_t kRoom = 300, kEvents = 700;
  std::mt19937 random(5);
  for (const std::size_t lanes : {1u, 2u, 5u})
    for (const bool own_tables : {false, true}) {
      const std::size_t tables = own_tables ? lanes + 1 : 1;
      std::vector<std::int32_t> timeline;  // not every table has a lane
      for (std::size_t l = 0; l < lanes; ++l) timeline.push_back(static_cast<std::int32_t>(l + 1));
      std::vector<DeviceEventId> all(kEvents);
      for (std::size_t e = 0; e < kEvents; ++e) all[e] = static_cast<DeviceEventId>(e);
      struct Step {
        std::vector<DeviceEventId> lists;
        std::vector<std::int32_t> sizes;
      };
      std::vector<Step> steps;
      struct Count {
        std::uint64_t recalls = 0, last = 0;
      };
      std::vector<Count> expected(tables * kEvents);
      std::uint64_t total = 7;  // of before
      for (std::uint32_t s = 0; s < 4; ++s) {
        Step& step = steps.emplace_back();
        for (std::size_t l = 0; l < lanes; ++l) {
          std::shuffle(all.begin(), all.end(), random);
          step.lists.insert(step.lists.end(), all.begin(), all.begin() + std::ptrdiff_t(kRoom));
          const std::size_t size = s == 1 && l == 0 ? 0 : s == 2 ? kRoom : random() % kRoom;
          step.sizes.insert(step.sizes.end(), {-1, -1, static_cast<std::int32_t>(size)});
          for (std::size_t i = 0; i < size; ++i) {
            const auto event = static_cast<std::size_t>(step.lists[l * kRoom + i]);
            Count& of = expected[(own_tables ? l + 1 : 0) * kEvents + event];
            ++of.recalls;
            of.last = 10 + s + 1;
          }
          total += size;
        }
      }
      const DeviceArray<std::int32_t> d_timeline(timeline);
      episodic_test::in_every_order([&] {
        const DeviceArray<RecallCount> counts(std::vector<RecallCount>(tables * kEvents));
        const DeviceArray<unsigned long long> sum(std::vector<unsigned long long>{7});
        for (std::uint32_t s = 0; s < steps.size(); ++s) {
          const DeviceArray<DeviceEventId> lists(steps[s].lists);
          const DeviceArray<std::int32_t> sizes(steps[s].sizes);
          const DeviceArray<std::uint32_t> before(std::vector<std::uint32_t>{10 + s});
          std::vector<LaneLists> of_lanes;
          for (std::size_t l = 0; l < lanes; ++l)
            of_lanes.push_back({nullptr, nullptr, lists.data() + l * kRoom, sizes.data() + 3 * l});
          const DeviceArray<LaneLists> d_lanes(of_lanes);
          const RecallCountsParams p{d_lanes.data(),
                                     static_cast<std::int64_t>(lanes),
                                     own_tables ? d_timeline.data() : nullptr,
                                     static_cast<std::int64_t>(kEvents),
                                     before.data(),
                                     counts.data(),
                                     sum.data()};
          REQUIRE(count_recalls(p, nullptr) == cudaSuccess);
          REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        }
        REQUIRE(sum.host()[0] == total);
        const std::vector<RecallCount> got = counts.host();
        for (std::size_t e = 0; e < got.size(); ++e) {
          REQUIRE(got[e].recalls == expected[e].recalls);
          REQUIRE(got[e].last == expected[e].last);
        }
      });
    }
  REQUIRE(count_recalls({}, nullptr) == cudaSuccess);  // no lane
}

TEST_CASE("lists that were counted are kept, each lane's where it says") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::size_t kRoom = 300, kLanes = 3;
  std::mt19937 random(6);
  std::vector<DeviceEventId> lists(3 * kLanes * kRoom);
  for (DeviceEventId& e : lists) e = static_cast<DeviceEventId>(random() % 500);
  std::vector<std::int32_t> sizes;
  for (std::size_t l = 0; l < kLanes; ++l)
    for (const std::size_t size : {l == 0 ? 0 : kRoom, l == 1 ? 1 : 200 + l, random() % kRoom})
      sizes.push_back(static_cast<std::int32_t>(size));
  const auto lanes_of = [&](const DeviceArray<DeviceEventId>& of,
                            const DeviceArray<std::int32_t>& of_sizes) {
    std::vector<LaneLists> lanes;
    for (std::size_t l = 0; l < kLanes; ++l) {
      DeviceEventId* const at = of.data() + 3 * l * kRoom;
      lanes.push_back({at, at + kRoom, at + 2 * kRoom, of_sizes.data() + 3 * l});
    }
    return DeviceArray<LaneLists>(lanes);
  };
  episodic_test::in_every_order([&] {
    const DeviceArray<DeviceEventId> d_lists(lists),
        d_kept(std::vector<DeviceEventId>(lists.size(), -5));
    const DeviceArray<std::int32_t> d_sizes(sizes),
        d_kept_sizes(std::vector<std::int32_t>(sizes.size(), -5));
    const DeviceArray<LaneLists> lanes = lanes_of(d_lists, d_sizes),
                                 kept = lanes_of(d_kept, d_kept_sizes);
    const DeviceArray<std::uint32_t> before(std::vector<std::uint32_t>{0});
    const DeviceArray<RecallCount> counts(std::vector<RecallCount>(500));
    const DeviceArray<unsigned long long> sum(std::vector<unsigned long long>{0});
    const RecallCountsParams p{lanes.data(),  kLanes,        nullptr,    500,
                               before.data(), counts.data(), sum.data(), kept.data()};
    REQUIRE(count_recalls(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(d_kept_sizes.host() == sizes);
    const std::vector<DeviceEventId> got = d_kept.host();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool listed = i % kRoom < static_cast<std::size_t>(sizes[i / kRoom]);
      REQUIRE(got[i] == (listed ? lists[i] : -5));
    }
  });
}

}  // namespace recall_counts_test
