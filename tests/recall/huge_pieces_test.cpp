// SPDX-License-Identifier: Apache-2.0
#include "episodic/recall/detail/huge_pieces.hpp"

#include <algorithm>
#include <cstdint>
#include <random>

#include "support/test.hpp"

using namespace episodic;

TEST_CASE("huge pieces keep their content and place, begin as zeros, and count what they take") {
  std::mt19937 rng(51);
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{13313}, std::int64_t{1} << 18,
                                   detail::HugePieces::kPage, 3 * detail::HugePieces::kPage + 1}) {
    detail::HugePieces pieces(bytes);
    REQUIRE(pieces.piece_bytes() >= bytes);
    REQUIRE(pieces.bytes() == 0);
    const std::int64_t step = bytes > 1000 ? 1 : 40000;
    std::vector<unsigned char> seeds;
    std::vector<std::byte*> places;
    const auto filled = [&](std::int64_t i, unsigned char with) {
      const std::byte* p = pieces.piece(i);
      return std::all_of(p, p + bytes, [&](std::byte b) { return b == std::byte{with}; });
    };
    for (int round = 0; round < 12; ++round) {
      const std::int64_t old = pieces.size();
      const std::int64_t n = round % 3 == 2 ? old - std::min(old, step * (1 + round / 3))
                                            : old + step * static_cast<std::int64_t>(1 + rng() % 9);
      pieces.resize(n);
      REQUIRE(pieces.size() == n);
      REQUIRE(pieces.bytes() == n * pieces.piece_bytes());
      seeds.resize(static_cast<std::size_t>(std::min(old, n)));
      places.resize(seeds.size());
      bool aligned = true, zero = true, kept = true;
      for (std::int64_t i = old; i < n; ++i) {
        aligned = aligned && reinterpret_cast<std::uintptr_t>(pieces.piece(i)) % 64 == 0;
        zero = zero && filled(i, 0);
        seeds.push_back(static_cast<unsigned char>(1 + rng() % 255));
        places.push_back(pieces.piece(i));
        std::fill_n(pieces.piece(i), bytes, std::byte{seeds.back()});
      }
      pieces.finish(n);
      for (std::int64_t i = 0; i < n; ++i)
        kept = kept && pieces.piece(i) == places[static_cast<std::size_t>(i)] &&
               filled(i, seeds[static_cast<std::size_t>(i)]);
      REQUIRE(aligned);
      REQUIRE(zero);
      REQUIRE(kept);
    }
  }
}
