// SPDX-License-Identifier: Apache-2.0
#pragma once
// A product of FrozenProducts as an operation that autograd knows the way back through.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "episodic/model/frozen_products.hpp"

namespace episodic {

/// \param x [n, in], float32 \param out rows of the weight
/// \return [n, out]; a gradient reaches x alone
at::Tensor frozen_product(const std::shared_ptr<FrozenProducts>& products, WeightRole role,
                          std::int64_t layer, std::int64_t out, const at::Tensor& x);

}  // namespace episodic
