// SPDX-License-Identifier: Apache-2.0
#pragma once
// What calls of a recall hand to the next ones.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/recall.hpp"

namespace episodic_test {

struct RecallState {
  /// \param centre that the first call finds: it changes no result
  explicit RecallState(std::int64_t lanes, const episodic::rules::ScoreCentre& first = {})
      : arrived(std::vector<std::uint32_t>(static_cast<std::size_t>(lanes), 0)),
        histogram(std::vector<unsigned long long>(
            static_cast<std::size_t>(lanes * episodic::rules::kScoreBins), 0)),
        centre(std::vector<episodic::rules::ScoreCentre>(static_cast<std::size_t>(lanes), first)) {}

  void give(episodic::kernels::RecallParams& p) const {
    p.arrived = arrived.data();
    p.histogram = histogram.data();
    p.centre = centre.data();
  }
  /// Whether it is as a call must leave it.
  bool is_clear() const {
    const auto zeros = [](const auto& values) {
      return std::all_of(values.begin(), values.end(), [](auto x) { return x == 0; });
    };
    return zeros(arrived.host()) && zeros(histogram.host());
  }

  DeviceArray<std::uint32_t> arrived;
  DeviceArray<unsigned long long> histogram;
  DeviceArray<episodic::rules::ScoreCentre> centre;
};

}  // namespace episodic_test
