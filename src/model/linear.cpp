// SPDX-License-Identifier: Apache-2.0
#include "linear.hpp"

#include <algorithm>

#include "episodic/model/activations.hpp"

namespace episodic {

bool can_multiply(TensorType type) { return cpu::is_weight_type(type); }

void multiply(std::int64_t n, std::span<const Product> products, Cut cut, RowClass rows) {
  constexpr std::size_t kMost = 8;  // one call's products share a loop and the rounding of x
  cpu::WeightProduct stored[kMost];
  for (std::size_t first = 0; first < products.size(); first += kMost) {
    const std::size_t count = std::min(kMost, products.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const Product& p = products[first + i];
      const Linear& w = *p.linear;
      stored[i] = {w.type, w.weight, w.out, w.in, w.bias, p.x, w.in, p.y, w.out, p.add};
    }
    cpu::multiply_weights(
        n, {stored, count},
        {.activations = activations(), .rows = rows, .parallel = cut == Cut::blocks});
  }
}

}  // namespace episodic
