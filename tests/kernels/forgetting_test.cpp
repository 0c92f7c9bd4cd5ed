// SPDX-License-Identifier: Apache-2.0
#include "kernels/forgetting.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device.hpp"

namespace forgetting_test {

using episodic_test::DeviceArray;
using namespace episodic::kernels;

TEST_CASE("forgotten events are marked and leave the lists, whose order stays") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(21);
  constexpr std::size_t kRoom = 700, kEvents = 900;
  for (const std::size_t lanes : {1u, 5u})
    for (const std::size_t gone : {0u, 1u, 40u, 899u}) {
      std::vector<DeviceEventId> all(kEvents);
      for (std::size_t e = 0; e < kEvents; ++e) all[e] = static_cast<DeviceEventId>(e);
      std::shuffle(all.begin(), all.end(), random);
      std::vector<DeviceEventId> events(all.begin(), all.begin() + std::ptrdiff_t(gone));
      std::sort(events.begin(), events.end());
      std::vector<std::uint8_t> marks(kEvents);
      for (std::uint8_t& m : marks) m = random() % 4 == 0 ? 7 : 0;  // of other times
      std::vector<DeviceEventId> lists(lanes * 3 * kRoom);
      std::vector<std::int32_t> sizes;
      for (std::size_t l = 0; l < lanes * 3; ++l) {
        std::shuffle(all.begin(), all.end(), random);
        std::copy_n(all.begin(), kRoom, lists.begin() + std::ptrdiff_t(l * kRoom));
        const std::size_t size = l == 1 ? 0 : l == 2 ? kRoom : random() % kRoom;
        sizes.push_back(static_cast<std::int32_t>(size));
      }
      std::vector<DeviceEventId> expected = lists;
      std::vector<std::int32_t> expected_sizes = sizes;
      std::vector<std::uint8_t> expected_marks = marks;
      for (const DeviceEventId e : events) expected_marks[static_cast<std::size_t>(e)] = 1;
      for (std::size_t l = 0; l < lanes * 3; ++l) {
        const auto first = expected.begin() + std::ptrdiff_t(l * kRoom);
        const auto end = std::remove_if(first, first + sizes[l], [&](DeviceEventId e) {
          return std::binary_search(events.begin(), events.end(), e);
        });
        expected_sizes[l] = static_cast<std::int32_t>(end - first);
      }
      const DeviceArray<DeviceEventId> d_events(events);
      episodic_test::in_every_order([&] {
        const DeviceArray<DeviceEventId> d_lists(lists);
        const DeviceArray<std::int32_t> d_sizes(sizes);
        const DeviceArray<std::uint8_t> d_marks(marks);
        std::vector<LaneLists> of_lanes;
        for (std::size_t l = 0; l < lanes; ++l) {
          DeviceEventId* const first = d_lists.data() + l * 3 * kRoom;
          of_lanes.push_back({first, first + kRoom, first + 2 * kRoom, d_sizes.data() + 3 * l});
        }
        const DeviceArray<LaneLists> d_lanes(of_lanes);
        const ForgetParams p{d_events.data(), static_cast<std::int64_t>(gone), d_marks.data(),
                             d_lanes.data(), static_cast<std::int64_t>(lanes)};
        REQUIRE(forget_events(p, nullptr) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        REQUIRE(d_marks.host() == expected_marks);
        REQUIRE(d_sizes.host() == expected_sizes);
        const std::vector<DeviceEventId> got = d_lists.host();
        for (std::size_t l = 0; l < lanes * 3; ++l)
          for (std::size_t k = 0; k < static_cast<std::size_t>(expected_sizes[l]); ++k)
            REQUIRE(got[l * kRoom + k] == expected[l * kRoom + k]);
      });
    }
}

}  // namespace forgetting_test
