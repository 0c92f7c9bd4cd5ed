// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/index.hpp; how they become functions: base/inline.hpp.
#include "episodic/base/inline.hpp"
#include "episodic/recall/detail/projection.hpp"
#include "episodic/recall/detail/vector_slabs.hpp"
#include "episodic/recall/index.hpp"

namespace EPISODIC_NAMESPACE {

EPISODIC_INLINE IndexBytes index_bytes(const MemoryConfig& config, std::int64_t n_heads,
                                       std::int64_t head_dim, std::int64_t n_events) {
  const std::int64_t width = n_heads * head_dim;
  IndexBytes bytes;
  const std::int64_t slab = detail::VectorSlabs(width).rows_per_slab();
  const std::int64_t rows = (n_events + slab - 1) / slab * slab;
  bytes.vectors = 4 * width * rows;
  if (config.score == RepresentativeScore::max) {
    // Every vector is read at each search: there are no codes, and nothing can be put away.
    bytes.codes = 4 * width * config.n_repr * rows;
    return bytes;
  }
  // A code of a byte a channel with scales, its error, the projection and the flag of the
  // forgotten.
  constexpr std::int64_t kScaleChannels = 128;
  const std::int64_t scales = (width + kScaleChannels - 1) / kScaleChannels;
  bytes.codes = n_events * (width + 4 * scales + 4 + detail::Projection::kBytes + 1);
  // Links of the graph: 64 at the bottom level, 32 at each of the few above.
  if (config.index == IndexKind::faiss && n_events > config.exact_up_to)
    bytes.codes = n_events * (4 * 66 + 8 + 4);
  return bytes;
}

}  // namespace EPISODIC_NAMESPACE
