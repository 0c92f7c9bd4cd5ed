// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random names and numbers of facts that are hidden in a text.

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace episodic::tools {

/// Draws that are the same with every standard library.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  /// A number of n digits, the first not 0.
  std::string digits(int n) {
    std::string out(1, static_cast<char>('1' + below(9)));
    while (static_cast<int>(out.size()) < n) out += static_cast<char>('0' + below(10));
    return out;
  }
  /// One of them, which is then gone.
  std::string take(std::vector<std::string>& from) {
    const std::size_t i = below(from.size());
    const std::string one = from[i];
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
    return one;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace episodic::tools
