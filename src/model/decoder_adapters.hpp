// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adapters beside a decoder's weights, by the products that they are added to.

#include <cstdint>
#include <map>
#include <vector>

#include "decoder_weights.hpp"
#include "episodic/model/lora.hpp"
#include "linear.hpp"

namespace episodic {

/// What one adapter adds to a product: factor * B (A x).
struct LowRank {
  Linear a, b;
  float factor = 1;
};

using LowRanks = std::map<const Linear*, std::vector<LowRank>>;  // by what they are added to

/// The adapters of one sequence.
struct DecoderAdapters {
  std::vector<AppliedLora> applied;
  LowRanks low_ranks;
  std::int64_t most_rank = 0;  // the largest of them

  DecoderAdapters() = default;
  /// \throws ConfigError for a null adapter, one of another model, or a scale that is not finite
  DecoderAdapters(std::vector<AppliedLora> chosen, const DecoderWeights& weights);
};

}  // namespace episodic
