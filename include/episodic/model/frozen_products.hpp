// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `FrozenProducts`: the products with weights that training leaves as they are, wherever they are
/// computed. They are most of training's work, and all that it wants of a device. Torch-free.

#include <cstdint>

#include "episodic/model/weight_plan.hpp"

namespace episodic {

/// The products of a model's layers (q, k, v, o, gate, up, down) and its head, each with a weight
/// W [out, in] of the weight plan, without its bias. All numbers are float32, rows packed, in host
/// memory. One thread at a time.
class FrozenProducts {
 public:
  virtual ~FrozenProducts() = default;

  /// Rows x times W^T. \param x [n, in] \param y [n, out], written
  virtual void multiply(WeightRole role, std::int64_t layer, std::int64_t n, const float* x,
                        float* y) = 0;

  /// The way back of a gradient: rows dy times W. \param dy [n, out] \param dx [n, in], written
  virtual void multiply_back(WeightRole role, std::int64_t layer, std::int64_t n, const float* dy,
                             float* dx) = 0;
};

}  // namespace episodic
