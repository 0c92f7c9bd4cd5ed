// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a model's configuration and its weights contradict each other: what the weights are goes
// before what is said of them. Torch-free.

#include "episodic/model/open_model.hpp"

namespace episodic {

/// Makes an open model's configuration and names those of its weights: a head of its own where the
/// model was said to be tied, names under a prefix, weights that were said to be quantised. What is
/// not as it was said gets a line in OpenModel::notes.
void reconcile(OpenModel& model);

}  // namespace episodic
