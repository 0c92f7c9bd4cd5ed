// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

namespace emulator {

/// Makes memory what was never written: NaNs as floats of 16 and 32 bits. Words of 64 bits are in turn
/// 0x7fff7fff7fff7fff and -1: as a range of tokens they are no empty one, whatever its tokens' bytes.
inline void make_unwritten(void* memory, std::size_t bytes) {
  auto* const to = static_cast<unsigned char*>(memory);
  std::memset(to, 0xff, bytes);
  for (std::size_t at = 1; at < bytes; at += at % 16 == 7 ? 10 : 2) to[at] = 0x7f;
}

}  // namespace emulator
