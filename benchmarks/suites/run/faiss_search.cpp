// SPDX-License-Identifier: Apache-2.0
#include <faiss/IndexFlat.h>

#include <algorithm>

#include "run/chunks.hpp"

namespace episodic::suites {

std::vector<std::int64_t> nearest(std::span<const float> vectors, std::span<const float> query,
                                  std::int64_t top) {
  const auto n = static_cast<std::int64_t>(vectors.size() / query.size());
  const std::int64_t k = std::min(n, top);
  if (k <= 0) return {};
  faiss::IndexFlatIP index(static_cast<int>(query.size()));
  index.add(n, vectors.data());
  std::vector<float> scores(static_cast<std::size_t>(k));
  std::vector<std::int64_t> found(static_cast<std::size_t>(k));
  index.search(1, query.data(), k, scores.data(), found.data());
  std::sort(found.begin(), found.end());
  return found;
}

const char* search_name() { return "FAISS IndexFlatIP"; }

}  // namespace episodic::suites
