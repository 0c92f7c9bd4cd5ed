// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which events each layer recalls alone (EM Fig. 5): what one list for all layers would lose.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace episodic::analysis {

/// Counted over the steps of a text.
class RecallOverlap {
 public:
  explicit RecallOverlap(std::size_t layers) : recalled_(layers), alone_(layers) {}

  /// One step. \param events that each layer recalled, in any order, each once
  void add(const std::vector<std::vector<std::int64_t>>& events) {
    std::map<std::int64_t, std::int64_t> layers_of;
    for (const auto& list : events)
      for (const std::int64_t e : list) ++layers_of[e];
    for (std::size_t l = 0; l < recalled_.size() && l < events.size(); ++l)
      for (const std::int64_t e : events[l]) {
        ++recalled_[l];
        alone_[l] += layers_of[e] == 1;
      }
  }

  std::size_t layers() const { return recalled_.size(); }
  /// Events that the layer recalled, over all steps.
  std::int64_t recalled(std::size_t layer) const { return recalled_[layer]; }
  /// Share of them that no other layer recalled in the same step; 0 if it recalled none.
  double alone(std::size_t layer) const {
    return recalled_[layer] == 0
               ? 0.0
               : static_cast<double>(alone_[layer]) / static_cast<double>(recalled_[layer]);
  }

 private:
  std::vector<std::int64_t> recalled_, alone_;
};

}  // namespace episodic::analysis
