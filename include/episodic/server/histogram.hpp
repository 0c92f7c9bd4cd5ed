// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Histogram`: how often a value fell into each of some ranges, as Prometheus counts it.

#include <cstdint>
#include <vector>

namespace episodic::server {

class Histogram {
 public:
  /// \param bounds upper ends of the ranges, ascending; each belongs to its range. What is above
  /// the last one is counted too
  explicit Histogram(std::vector<double> bounds);

  /// \param value not a NaN
  void add(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  /// Values in each range: one more than there are bounds.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace episodic::server
