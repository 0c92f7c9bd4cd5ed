// SPDX-License-Identifier: Apache-2.0
#pragma once
// A mixture of experts as a block of the decoder, alone or beside a dense network: rows of the
// residual stream to rows of the residual stream. Both want all rows of a step, for an expert is
// read once for those that chose it.

#include <cstdint>

#include "decoder_buffers.hpp"
#include "decoder_weights.hpp"
#include "mixture.hpp"

namespace episodic {

/// Adds what a layer's mixture makes of x. \param x [n, hidden], may be rows of step.normed
/// \param group whose ranks have the other channels of each expert; null: none
void add_mixture(const ModelConfig& c, std::size_t layer, const DecoderLayer& w, const float* x,
                 std::int64_t first, std::int64_t n, Mixture& mixture, StepBuffers& step,
                 Group* group);

/// Adds what a dense network and the mixture beside it say.
/// \param gate what the last product of the dense network reads
void add_beside_mixture(const ModelConfig& c, std::size_t layer, const DecoderLayer& w,
                        const float* gate, std::int64_t first, std::int64_t n, Cut cut,
                        Mixture& mixture, StepBuffers& step, Group* group);

}  // namespace episodic
