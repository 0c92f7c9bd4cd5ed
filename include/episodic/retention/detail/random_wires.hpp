// SPDX-License-Identifier: Apache-2.0
#pragma once
// Links drawn at random in place of those of engrams that fire together (Memoria C.2, Table 6).
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// By engram, those that it is linked with, sorted; itself if it fires.
using Wires = std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>;

/// As many pairs as would fire together, each of one that fires and a long-term engram. A pair that
/// is drawn twice counts once. \param seed the same draws for the same
inline Wires random_wires(const std::vector<std::int64_t>& firing,
                          const std::vector<std::int64_t>& long_term, std::int64_t seed) {
  std::map<std::int64_t, std::set<std::int64_t>> drawn;
  for (const std::int64_t id : firing) drawn[id].insert(id);
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  const std::size_t n = firing.size(), pairs = long_term.empty() ? 0 : n * (n - 1) / 2;
  for (std::size_t p = 0; p < pairs; ++p) {
    const std::int64_t a = firing[p % n], b = long_term[random() % long_term.size()];
    if (a == b) continue;
    drawn[a].insert(b);
    drawn[b].insert(a);
  }
  Wires wires;
  for (const auto& [id, others] : drawn)
    wires.emplace_back(id, std::vector<std::int64_t>(others.begin(), others.end()));
  return wires;
}

}  // namespace EPISODIC_NAMESPACE::detail
