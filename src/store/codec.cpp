// SPDX-License-Identifier: Apache-2.0
#include "episodic/store/codec.hpp"

#include <fmt/format.h>

#include <cstring>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

void encode_row(const float* from, std::int64_t n, DType dtype, std::byte* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  auto* out = reinterpret_cast<std::uint16_t*>(to);
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_bfloat16(from[i]);
}

}  // namespace

std::int64_t block_bytes(const StoreShape& shape, std::int64_t n) {
  return 2 * n * shape.n_kv_heads * shape.head_dim * size_of(shape.dtype);
}

void encode_block(const StoreShape& shape, const TokenRange& event, const RingView& source,
                  std::byte* block) {
  const std::int64_t n = event.size();
  if (source.capacity < n)
    throw DataError(
        fmt::format("event store: an event of {} tokens, but the ring it is copied from holds {}",
                    n, source.capacity));
  const std::int64_t row_bytes = shape.head_dim * size_of(shape.dtype);
  for (const float* from : {source.key, source.value})
    for (std::int64_t g = 0; g < shape.n_kv_heads; ++g)
      for (std::int64_t i = 0; i < n; ++i, block += row_bytes)
        encode_row(
            from + g * source.head_stride + (event.start + i) % source.capacity * source.row_stride,
            shape.head_dim, shape.dtype, block);
}

KvSegment segment_of(const StoreShape& shape, const TokenRange& event, const std::byte* block) {
  const std::int64_t n = event.size();
  KvSegment s;
  s.key = block;
  s.value = block + block_bytes(shape, n) / 2;
  s.length = n;
  s.first_token = event.start;
  s.head_stride = n * shape.head_dim;
  s.row_stride = shape.head_dim;
  s.dtype = shape.dtype;
  s.position = Position::fixed;
  return s;
}

}  // namespace episodic
