// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/histogram.hpp"

#include <algorithm>
#include <utility>

namespace episodic::server {

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::add(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(at)];
  ++count_;
  sum_ += value;
}

}  // namespace episodic::server
