// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of a device's dtype (float32, float16 or bfloat16) as floats on the host, and back; events
// of any stored dtype as the rings that a store reads, and the parts of a store's block.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "episodic/base/dtype.hpp"
#include "episodic/store/codec.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic::device {

inline void widen(const std::byte* from, std::int64_t count, DType dtype, float* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t h;
    std::memcpy(&h, from + 2 * i, 2);
    to[i] = dtype == DType::bfloat16 ? from_bfloat16(h) : from_float16(h);
  }
}

/// To nearest.
inline void narrow(const float* from, std::int64_t count, DType dtype, std::byte* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t h = dtype == DType::bfloat16 ? to_bfloat16(from[i]) : to_float16(from[i]);
    std::memcpy(to + 2 * i, &h, 2);
  }
}

inline std::vector<float> widened(const std::vector<std::byte>& from, DType dtype) {
  std::vector<float> to(from.size() / static_cast<std::size_t>(size_of(dtype)));
  widen(from.data(), static_cast<std::int64_t>(to.size()), dtype, to.data());
  return to;
}

inline std::vector<std::byte> narrowed(const std::vector<float>& from, DType dtype) {
  std::vector<std::byte> to(from.size() * static_cast<std::size_t>(size_of(dtype)));
  narrow(from.data(), static_cast<std::int64_t>(from.size()), dtype, to.data());
  return to;
}

/// Where a block of a store (store/codec.hpp) has its keys, with the values behind them. What is
/// before are the scales of codes.
inline std::int64_t keys_in_block(const StoreShape& shape) { return block_bytes(shape, 0); }

/// Keys and values of one event, [G, n, d] each, as the rings that a store reads.
class EventRings {
 public:
  /// \param block keys and then values of tokens [event.start, event.end), of `dtype`
  /// \param scales [2 G] of codes: of the keys and then of the values; outlives the view
  /// \return rings as long as the event; valid until the next call
  RingView of(const std::byte* block, DType dtype, std::int64_t n_kv_heads, std::int64_t head_dim,
              const TokenRange& event, const float* scales = nullptr) {
    const std::int64_t n = event.size(), rows = n_kv_heads * n, row = head_dim * size_of(dtype);
    if (is_code(dtype)) {
      codes_.resize(static_cast<std::size_t>(2 * rows * row));
      for (std::int64_t r = 0; r < 2 * rows; ++r)
        std::memcpy(codes_.data() + (r / n * n + (event.start + r) % n) * row, block + r * row,
                    static_cast<std::size_t>(row));
      return RingView{codes_.data(), codes_.data() + rows * row, n, n * head_dim, head_dim, dtype,
                      scales,        scales + n_kv_heads};
    }
    keys_.resize(static_cast<std::size_t>(rows * head_dim));
    values_.resize(keys_.size());
    for (std::int64_t g = 0; g < n_kv_heads; ++g)
      for (std::int64_t t = 0; t < n; ++t) {
        const std::byte* const from = block + (g * n + t) * row;
        const std::int64_t to = (g * n + (event.start + t) % n) * head_dim;
        widen(from, head_dim, dtype, keys_.data() + to);
        widen(from + rows * row, head_dim, dtype, values_.data() + to);
      }
    return RingView{keys_.data(), values_.data(), n, n * head_dim, head_dim};
  }

 private:
  std::vector<float> keys_, values_;
  std::vector<std::byte> codes_;
};

}  // namespace episodic::device
