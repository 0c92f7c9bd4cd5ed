// SPDX-License-Identifier: Apache-2.0
// The checksum compiled for AVX2, twice as fast on bytes that no cache holds. Only this file sees
// the flag: it includes nothing that could leave AVX2 code in a function that others share.
#include <cstddef>
#include <cstdint>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace episodic {

std::uint64_t checksum_avx2(const void* bytes, std::size_t n, std::uint64_t seed);

std::uint64_t checksum_avx2(const void* bytes, std::size_t n, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, n, seed);
}

}  // namespace episodic
