// SPDX-License-Identifier: Apache-2.0
#pragma once
// Budgets and filling of the recall buffers restated in doubles (EM 3.4): the reference of the
// rules that host and device share.
#include <cmath>
#include <cstdint>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic_test {

/// Tokens that the two buffers may take.
struct ReferenceBudget {
  double similarity = 0, contiguity = 0;
};

inline ReferenceBudget reference_budget(const episodic::MemoryConfig& c, std::int64_t outside) {
  const double capacity = static_cast<double>(c.n_init + c.chunk + c.n_mem - outside);
  const double contiguity = c.contiguity == 0 ? 0 : std::floor(c.contiguity * capacity + 1);
  return {capacity - contiguity, contiguity};
}

/// Events of `order` up to the one at which `capacity` is reached; that one if it brings the total
/// strictly nearer.
inline std::vector<episodic::EventId> reference_fill(const std::vector<episodic::EventId>& order,
                                                     const episodic::EventTable& events,
                                                     double capacity) {
  std::vector<episodic::EventId> out;
  if (capacity <= 0) return out;
  double total = 0;
  for (const episodic::EventId e : order) {
    const double with = total + static_cast<double>(events[e].size());
    if (with >= capacity) {
      if (std::abs(with - capacity) < std::abs(total - capacity)) out.push_back(e);
      break;
    }
    out.push_back(e);
    total = with;
  }
  return out;
}

}  // namespace episodic_test
