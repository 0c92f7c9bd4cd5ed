// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "emulator.hpp"

namespace emulator {

/// What memory holds that was never written (emulator.hpp).
inline Unwritten unwritten = Unwritten::not_a_number;

/// The byte of shared memory then.
inline int unwritten_byte() {
  return unwritten == Unwritten::not_a_number ? 0xff : unwritten == Unwritten::zeros ? 0 : 1;
}

/// Makes memory what was never written: NaNs as floats of 16 and 32 bits, by default. Words of 64
/// bits are then in turn 0x7fff7fff7fff7fff and -1: as a range of tokens they are no empty one,
/// whatever its tokens' bytes.
inline void make_unwritten(void* memory, std::size_t bytes) {
  if (unwritten != Unwritten::not_a_number) {
    std::memset(memory, unwritten_byte(), bytes);
    return;
  }
  constexpr std::size_t kPattern = 4096;  // copied, for memories are large
  static const auto pattern = [] {
    std::array<unsigned char, kPattern> p;
    for (std::size_t i = 0; i < kPattern; ++i) p[i] = i % 16 < 8 && i % 2 == 1 ? 0x7f : 0xff;
    return p;
  }();
  auto* const to = static_cast<unsigned char*>(memory);
  for (std::size_t at = 0; at < bytes; at += kPattern)
    std::memcpy(to + at, pattern.data(), std::min(kPattern, bytes - at));
}

}  // namespace emulator
