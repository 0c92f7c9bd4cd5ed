// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Marks functions that host and device both compile. The headers of this folder hold the rules
/// that the CPU's memory and its CUDA twins share, so that neither can drift from the other; C++17,
/// pure functions of numbers, no allocation, no exceptions.

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define EPISODIC_HOST_DEVICE __host__ __device__
#else
#define EPISODIC_HOST_DEVICE
#endif

namespace episodic::rules {

/// a + b and a * b, rounded once each and never fused: nvcc would contract them otherwise.
EPISODIC_HOST_DEVICE inline double add(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
EPISODIC_HOST_DEVICE inline double multiply(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

EPISODIC_HOST_DEVICE inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
EPISODIC_HOST_DEVICE inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

}  // namespace episodic::rules
