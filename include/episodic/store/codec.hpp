// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How one lane of one event lies in a store, in every tier alike: so it is attended where it
/// lies, and moving it between tiers is copying bytes.

#include <cstddef>
#include <cstdint>

#include "episodic/attention/segment.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/timeline/event_table.hpp"

namespace EPISODIC_NAMESPACE {

struct StoreShape {
  std::int64_t n_lanes = 0;     ///< of all layers that recall
  std::int64_t n_kv_heads = 0;  ///< of a lane: G where a layer is one lane
  std::int64_t head_dim = 0;    ///< d
  DType dtype = DType::float32;
  /// Bytes of one token over all lanes, keys and values, without what an event adds once.
  std::int64_t token_bytes() const { return 2 * n_lanes * n_kv_heads * head_dim * size_of(dtype); }
};

/// Lanes [first, first + count): those that an event belongs to. All of them where the sequence has
/// one table of events; one where each lane has its own (HEM 2.4).
struct LaneRange {
  std::int64_t first = 0, count = 0;
  bool holds(std::int64_t lane) const { return lane >= first && lane < first + count; }
};

/// Keys or values of a run of tokens that may wrap around a ring: element (g, i, c) of token
/// first + i at data[g * head_stride + ((first + i) % capacity) * row_stride + c], of float32,
/// bfloat16 or float16; or codes of one event (int8, fp8) that a block of theirs takes as they are.
struct RingView {
  const void* key = nullptr;
  const void* value = nullptr;
  std::int64_t capacity = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  DType dtype = DType::float32;
  const float* key_scale = nullptr;  ///< [G] of codes, else null
  const float* value_scale = nullptr;
};

/// Bytes of one lane of an event of n tokens, its block: keys [G, n, d], then values [G, n, d]. A
/// block of codes (int8, fp8) begins with 2 * G float scales, the keys' and then the values',
/// padded to 64 bytes, and is itself padded to a multiple of 64: give it an address that is a
/// multiple of 4 at least.
std::int64_t block_bytes(const StoreShape& shape, std::int64_t n);

/// Copies one lane of an event out of the window's ring into a block, converting to the stored
/// dtype, to nearest.
///
/// int8: the scale of a head's keys (of its values) is max |x| / 127 over the event, so an element
/// is off by half a scale at most; it is 0, and so are the elements, if that is below FLT_MIN.
///
/// fp8: the scale is a power of two with which the largest element does not saturate
/// (rules::fp8_scale), so an element is off by 2^-4 of itself at most, or by 2^-17 of the largest;
/// 0 as above.
///
/// \throws DataError if the ring cannot hold the event, or is of codes without scales, or for a
/// block of another dtype; for float16, if a finite element would round to infinity (from 65520
/// on); for int8 and fp8, if an element is NaN or infinite, which the other types keep. The block's
/// contents are undefined then.
void encode_block(const StoreShape& shape, const TokenRange& event, const RingView& source,
                  std::byte* block);

/// The block as attention reads it, in place.
KvSegment segment_of(const StoreShape& shape, const TokenRange& event, const std::byte* block);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/store/impl/codec.hpp"
#endif
