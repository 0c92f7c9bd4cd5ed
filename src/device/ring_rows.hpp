// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of a ring in host memory: token t has row t % rows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace episodic::device {

/// Rows of the last tokens in rings of another length; those that no token has reached yet are
/// zero. \param from [blocks, from_rows, row]. \return [blocks, to_rows, row]
template <class T>
std::vector<T> in_ring(const std::vector<T>& from, std::int64_t from_rows, std::int64_t to_rows,
                       std::int64_t row, std::int64_t tokens) {
  if (from_rows == 0) return {};
  const std::int64_t blocks = static_cast<std::int64_t>(from.size()) / (from_rows * row),
                     first = std::max<std::int64_t>(0, tokens - std::min(from_rows, to_rows));
  std::vector<T> to(static_cast<std::size_t>(blocks * to_rows * row));
  for (std::int64_t b = 0; b < blocks; ++b)
    for (std::int64_t t = first; t < tokens; ++t)
      std::copy_n(from.begin() + (b * from_rows + t % from_rows) * row, row,
                  to.begin() + (b * to_rows + t % to_rows) * row);
  return to;
}

}  // namespace episodic::device
