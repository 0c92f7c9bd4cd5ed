// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which call of a batch was refused.

#include <cstdint>

namespace episodic::kernels {

/// The number of the first call of a batch (batch.hpp) whose field x_batch refuses, the one that
/// invalid_field(params..., n_sequences) names; -1: none, or there is no batch.
/// \param params arrays of n_sequences each, as x_batch takes them
template <class... Params>
std::int64_t invalid_sequence(std::int64_t n_sequences, const Params*... params) {
  if ((... || !params)) return -1;
  for (std::int64_t i = 0; i < n_sequences; ++i)
    if (invalid_field(params..., i + 1)) return i;
  return -1;
}

}  // namespace episodic::kernels
