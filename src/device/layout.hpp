// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places of arrays in one buffer, counted before it is taken.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace episodic::device {

/// Sizes are counted up to here, and what is more counts as much: settings at the ends of their
/// ranges would else wrap around. No bound of bytes is larger.
inline constexpr std::int64_t kMostSize = std::int64_t{1} << 60;
/// The product of two sizes, at most kMostSize. \pre neither is negative
inline std::int64_t size_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMostSize : std::min(product, kMostSize);
}

/// Where the arrays of one buffer lie: each behind the one before, aligned. Without a buffer it
/// only counts, and hands out null.
class Layout {
 public:
  Layout() = default;
  explicit Layout(std::byte* buffer) : buffer_(buffer) {}
  /// Bytes from the start of an array of so many to the next one's.
  static std::int64_t aligned(std::int64_t bytes) {
    constexpr std::int64_t kAlign = 256;
    return (bytes + kAlign - 1) / kAlign * kAlign;
  }
  /// The next array. \param count elements
  template <class T = std::byte>
  T* take(std::int64_t count) {
    const std::int64_t at = bytes_;
    const std::int64_t bytes = size_product(count, static_cast<std::int64_t>(sizeof(T)));
    bytes_ = std::min(bytes_ + aligned(bytes), kMostSize);
    return buffer_ ? reinterpret_cast<T*>(buffer_ + at) : nullptr;
  }
  /// Of all arrays so far.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* buffer_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace episodic::device
