// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/checksum.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace episodic {

#if EPISODIC_CHECKSUM_AVX2
std::uint64_t checksum_avx2(const void* bytes, std::size_t n, std::uint64_t seed);
#endif

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
#if EPISODIC_CHECKSUM_AVX2
  if (__builtin_cpu_supports("avx2")) return checksum_avx2(bytes.data(), bytes.size(), seed);
#endif
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace episodic
