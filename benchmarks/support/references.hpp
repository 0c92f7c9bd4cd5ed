// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two physical limits that figures are divided by, measured in the same process and with the
// same threads: a plain matrix product of equal flops, and a plain read of a large buffer.

#include <cstdint>
#include <vector>

#include "support/environment.hpp"

namespace episodic::bench {

/// One square float32 product (sgemm of the BLAS that the build found: MKL in libtorch, or the
/// system's).
class GemmReference {
 public:
  /// \param flops that one run should have; the side is rounded to a multiple of 16
  explicit GemmReference(double flops);

  /// One product. \return floating-point operations per second, of wall and of processor time
  Laps::Times rates();

  Json to_json() const;

 private:
  std::int64_t side_;
  std::vector<float> a_, b_, c_;
  std::vector<double> wall_seconds_;
};

/// Sum over a buffer several times the last-level cache, split over all threads. A run also leaves
/// nothing of the benchmark's data in the cache.
class ReadReference {
 public:
  ReadReference();

  /// One pass. \return bytes per second
  double rate();

  Json to_json() const;

 private:
  std::vector<std::uint64_t> data_;
  std::vector<std::uint64_t> sums_;
  std::vector<double> rates_;
};

}  // namespace episodic::bench
