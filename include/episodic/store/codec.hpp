// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How one layer of one event lies in a store, in every tier alike: so it is attended where it
/// lies, and moving it between tiers is copying bytes.

#include <cstddef>
#include <cstdint>

#include "episodic/attention/segment.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

struct StoreShape {
  std::int64_t n_layers = 0;    ///< L, episodic layers
  std::int64_t n_kv_heads = 0;  ///< G
  std::int64_t head_dim = 0;    ///< d
  DType dtype = DType::float32;
  /// Bytes of one token over all layers, keys and values, without what an event adds once.
  std::int64_t token_bytes() const { return 2 * n_layers * n_kv_heads * head_dim * size_of(dtype); }
};

/// Keys or values of a run of tokens that may wrap around a ring: element (g, i, c) of token
/// first + i at data[g * head_stride + ((first + i) % capacity) * row_stride + c].
struct RingView {
  const float* key = nullptr;
  const float* value = nullptr;
  std::int64_t capacity = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
};

/// Bytes of one layer of an event of n tokens: keys [G, n, d], then values [G, n, d].
std::int64_t block_bytes(const StoreShape& shape, std::int64_t n);

/// Copies one layer of an event out of the window's ring into a block, converting to the stored
/// dtype. \throws DataError if the ring cannot hold the event
void encode_block(const StoreShape& shape, const TokenRange& event, const RingView& source,
                  std::byte* block);

/// The block as attention reads it, in place.
KvSegment segment_of(const StoreShape& shape, const TokenRange& event, const std::byte* block);

}  // namespace episodic
