// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/checksum.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace episodic {

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace episodic
