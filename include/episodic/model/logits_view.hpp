// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `LogitsView`: rows of logits where they lie.

#include <cstdint>
#include <span>

#include "episodic/base/dtype.hpp"
#include "episodic/base/tensor_view.hpp"

namespace episodic {

/// Rows [rows, vocab] of logits, the elements of a row side by side. Owns nothing.
struct LogitsView {
  const void* data = nullptr;
  std::int64_t rows = 0, vocab = 0;
  std::int64_t row_stride = 0;  ///< elements from a row to the next
  DType dtype = DType::float32;
  MemoryKind memory = MemoryKind::host;

  constexpr LogitsView() = default;
  constexpr LogitsView(const void* first, std::int64_t n, std::int64_t width, std::int64_t stride,
                       DType type = DType::float32, MemoryKind where = MemoryKind::host)
      : data(first), rows(n), vocab(width), row_stride(stride), dtype(type), memory(where) {}
  /// Packed rows of float32 in host memory.
  constexpr LogitsView(const float* packed, std::int64_t n, std::int64_t width)
      : LogitsView(packed, n, width, width) {}

  /// All of packed float32 logits in host memory: [rows * vocab].
  std::span<const float> floats() const {
    return {static_cast<const float*>(data), static_cast<std::size_t>(rows * vocab)};
  }
  /// Row i of float32 logits in host memory: [vocab].
  std::span<const float> row(std::int64_t i) const {
    return {static_cast<const float*>(data) + i * row_stride, static_cast<std::size_t>(vocab)};
  }
};

}  // namespace episodic
