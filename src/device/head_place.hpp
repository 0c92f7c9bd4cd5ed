// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a layer takes the heads of a step's only token, for the product that makes them.

#include <cstdint>

#include "kernels/product.hpp"

namespace episodic::device {

struct HeadPlace {
  std::int64_t rotary_dim = 0;
  bool interleaved = false;
  kernels::HeadTarget target;
};

}  // namespace episodic::device
