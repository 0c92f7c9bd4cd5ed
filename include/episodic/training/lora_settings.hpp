// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What an adapter that is trained is like. Torch-free.

#include <cstdint>
#include <vector>

#include "episodic/model/weight_plan.hpp"

namespace episodic {

/// The adapter that is trained: W x + alpha / rank * B (A x).
struct LoraSettings {
  std::int64_t rank = 8;  ///< 1 to 65536
  double alpha = 16;      ///< > 0
  /// The products that get one; of a fused tensor all parts have one A.
  std::vector<WeightRole> targets = {WeightRole::q, WeightRole::k, WeightRole::v, WeightRole::o};
  std::uint64_t seed = 0;  ///< of A; B begins as zeros, and changes nothing then

  /// \throws ConfigError
  void validate() const;
};

}  // namespace episodic
