// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order of the rows of q and k. Hugging Face keeps the channels of a rotary pair half a head
// apart, llama, granite and smollm3 in GGUF keep them side by side (RotaryPairs::interleaved).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace episodic {

/// Rows j and half + j of each head, which become rows 2 j and 2 j + 1.
/// \param from `heads` heads of rows / heads rows each, an even number; `bytes` in all
inline std::vector<std::byte> pairs_together(const void* from, std::size_t bytes, std::int64_t rows,
                                             std::int64_t heads) {
  const std::int64_t half = rows / heads / 2;
  const std::size_t row_bytes = bytes / static_cast<std::size_t>(rows);
  std::vector<std::byte> out(bytes);
  const auto* row = static_cast<const std::byte*>(from);
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t p = 0; p < 2; ++p)
      for (std::int64_t j = 0; j < half; ++j, row += row_bytes)
        std::memcpy(out.data() + static_cast<std::size_t>(h * 2 * half + 2 * j + p) * row_bytes,
                    row, row_bytes);
  return out;
}

}  // namespace episodic
