// SPDX-License-Identifier: Apache-2.0
#include "xielu.hpp"

#include <cmath>

namespace episodic {

Xielu xielu_of(const PlannedWeights& planned, std::int64_t layer) {
  const auto number = [&](WeightRole role) {
    const WeightView view = planned.at(role, layer);
    float x = 0;
    widen(view.type, view.data, 1, &x);
    return x;
  };
  const auto softplus = [](float x) {  // as torch computes it
    return x > 20 ? x : std::log1p(std::exp(x));
  };
  Xielu x;
  x.beta = number(WeightRole::xielu_beta);
  x.eps = number(WeightRole::xielu_eps);
  x.positive = softplus(number(WeightRole::xielu_alpha_p));
  x.negative = x.beta + softplus(number(WeightRole::xielu_alpha_n));
  return x;
}

}  // namespace episodic
