// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <vector>

namespace episodic_test {

/// Whether both have the same bits, signs of zeros and NaNs included.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  // memcmp takes no null, of no bytes either
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace episodic_test
