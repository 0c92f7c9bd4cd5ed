// SPDX-License-Identifier: Apache-2.0
// In place of faiss_search.cpp in builds with EPISODIC_FAISS off.
#include "run/chunks.hpp"

namespace episodic::suites {

std::vector<std::int64_t> nearest(std::span<const float> vectors, std::span<const float> query,
                                  std::int64_t top) {
  return nearest_exact(vectors, query, top);
}

const char* search_name() { return "exact"; }

}  // namespace episodic::suites
