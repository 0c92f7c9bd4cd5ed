// SPDX-License-Identifier: Apache-2.0
#pragma once
// What latent attention has around attention proper: queries and the one key head that it sees, and
// the values of each head (LatentSpec).

#include <cstdint>
#include <vector>

#include "episodic/model/latent_spec.hpp"
#include "linear.hpp"

namespace episodic {

struct StepBuffers;

/// The weights of a layer, where they lie.
struct LatentWeights {
  Linear q_down;              ///< [q_rank, hidden], where queries are made by two products
  std::vector<float> q_norm;  ///< [q_rank], between them
  Linear q;                   ///< [heads * query, q_rank or hidden]
  Linear down;                ///< [rank + turning, hidden]: a token's latent and turning key
  std::vector<float> norm;    ///< [rank], of the latent
  /// Of each head: [rank, still], which is kv_b's part of keys transposed, and [value, rank].
  std::vector<Linear> key, value;
};

/// Rows of x to rows of queries [heads, width], keys and values [1, width] of the step.
void latent_heads(const LatentSpec& spec, const LatentWeights& w, const float* x,
                  std::int64_t first, std::int64_t n, Cut cut, StepBuffers& step);

/// What attention gave, to values [heads * value]. \return rows of step.latent_values
const float* latent_values(const LatentSpec& spec, const LatentWeights& w, std::int64_t first,
                           std::int64_t n, Cut cut, StepBuffers& step);

}  // namespace episodic
