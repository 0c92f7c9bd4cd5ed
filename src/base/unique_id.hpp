// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <random>

namespace episodic::detail {

/// A number that no other file or memory has: 64 bits from the system's entropy, never 0.
inline std::uint64_t unique_id() {
  std::random_device entropy;
  std::uint64_t id = 0;
  while (id == 0) id = (static_cast<std::uint64_t>(entropy()) << 32) | entropy();
  return id;
}

}  // namespace episodic::detail
