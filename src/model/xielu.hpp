// SPDX-License-Identifier: Apache-2.0
#pragma once
// The activation of Apertus, whose parameters are weights of a layer.

#include <cstdint>

#include "elementwise.hpp"
#include "episodic/model/weight_plan.hpp"

namespace episodic {

/// A layer's parameters as the formula has them: the files hold what softplus is taken of.
Xielu xielu_of(const PlannedWeights& planned, std::int64_t layer);

}  // namespace episodic
