// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/checksum.hpp"

#include <random>
#include <vector>

#include "support/test.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

using namespace episodic;

TEST_CASE("the checksum is XXH3 of 64 bits, whatever instructions this machine has") {
  REQUIRE(checksum({}) == 0x2d06800538d394c2u);  // as the format's description has it
  std::mt19937_64 rng(1);
  std::vector<std::byte> bytes(20011);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  const auto agrees = [&](std::size_t from, std::size_t n, std::uint64_t seed) {
    return checksum(std::span(bytes).subspan(from, n), seed) ==
           XXH3_64bits_withSeed(bytes.data() + from, n, seed);
  };
  // Around 16, 128, 240, and blocks of 1,024 bytes the algorithm changes its way.
  for (std::size_t n = 0; n <= 2100; ++n)
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{rng()}})
      if (!agrees(n % 61, n, seed)) FAIL(n << " bytes, seed " << seed);
  for (int i = 0; i < 200; ++i) {
    const std::size_t from = rng() % 4000, n = rng() % (bytes.size() - from);
    if (!agrees(from, n, i)) FAIL(n << " bytes from " << from);
  }
}
