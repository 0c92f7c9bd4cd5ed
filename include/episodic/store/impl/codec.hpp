// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of store/codec.hpp; how they become functions: base/inline.hpp.
#include "episodic/store/codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/rules/fp8.hpp"
#include "episodic/base/text.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE {
namespace codec_detail {

inline constexpr std::int64_t kScaleAlignment =
    64;  // codes begin at a cache line, as the scales do

// Below half a unit above the largest float16, 65504, a number still rounds to it.
inline constexpr float kFloat16Overflow = 65520.0f;

constexpr std::int64_t padded(std::int64_t bytes) {
  return (bytes + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
}

inline std::int64_t scale_bytes(const StoreShape& shape) {
  return is_code(shape.dtype)
             ? padded(2 * shape.n_kv_heads * static_cast<std::int64_t>(sizeof(float)))
             : 0;
}

// Bytes of the keys, or of the values, of one lane of an event.
inline std::int64_t side_bytes(const StoreShape& shape, std::int64_t n) {
  return n * shape.n_kv_heads * shape.head_dim * size_of(shape.dtype);
}

inline void check_source(const StoreShape& shape, const TokenRange& event, const RingView& source) {
  if (source.capacity < event.size())
    throw DataError(concat("event store: an event of ", event.size(),
                           " tokens, but the ring it is copied from holds ", source.capacity));
  if (!is_code(source.dtype)) return;
  if (shape.dtype != source.dtype)
    throw DataError(concat("event store: the ring that an event is copied from is ",
                           name_of(source.dtype), ", and events are kept as ", name_of(shape.dtype),
                           "; make it float32, bfloat16 or float16"));
  if (!source.key_scale || !source.value_scale)
    throw DataError(concat("event store: the ring that an event is copied from is ",
                           name_of(source.dtype),
                           " and has no scales; give key_scale and value_scale"));
}

// Whether there are numbers that the dtype cannot hold and that are refused.
inline bool may_refuse(DType dtype) { return dtype == DType::float16 || is_code(dtype); }

// Keys or values of one event in a ring of float32, or of the stored dtype.
struct Side {
  const char* name;
  const void* data;
  const float* scale;  // of the ring's codes, by head
  const RingView& ring;
  const StoreShape& shape;
  const TokenRange& event;

  const void* place(std::int64_t g, std::int64_t i) const {
    const std::int64_t at =
        g * ring.head_stride + (event.start + i) % ring.capacity * ring.row_stride;
    return static_cast<const std::byte*>(data) + at * size_of(ring.dtype);
  }
  const float* row(std::int64_t g, std::int64_t i) const {
    return static_cast<const float*>(place(g, i));
  }
  std::string where(std::int64_t g, std::int64_t i, std::int64_t c) const {
    return concat("event store: ", name, " of token ", event.start + i, ", key/value head ", g,
                  ", channel ", c, " is ", row(g, i)[c]);
  }
};

// Refuses a row that the dtype cannot hold: for float16, what would turn into infinity (infinity
// and NaN themselves are kept); for codes, what is not finite. \return max |x| for these
inline float check_row(const cpu::Kernels& k, const Side& side, std::int64_t g, std::int64_t i) {
  const DType dtype = side.shape.dtype;
  if (!may_refuse(dtype)) return 0.0f;
  const float* x = side.row(g, i);
  const std::int64_t d = side.shape.head_dim;
  const float largest = k.max_magnitude(x, d);
  if (is_code(dtype) ? std::isfinite(largest) : largest < kFloat16Overflow) return largest;
  for (std::int64_t c = 0; c < d; ++c) {
    if (is_code(dtype) && !std::isfinite(x[c]))
      throw DataError(side.where(g, i, c) +
                      ", which has no 8-bit code; look for what made it in the model's weights or "
                      "input, or set kv_dtype to \"float32\" to keep it as it is");
    if (dtype == DType::float16 && std::isfinite(x[c]) && std::fabs(x[c]) >= kFloat16Overflow)
      throw DataError(side.where(g, i, c) +
                      ", beyond the largest float16, 65504; set kv_dtype to \"bfloat16\", "
                      "\"float32\", \"int8\" or \"fp8\"");
  }
  return largest;
}

// The scale of one head, whose codes go to `to`.
inline float encode_codes(const cpu::Kernels& k, const Side& side, std::int64_t g, std::byte* to) {
  const std::int64_t n = side.event.size(), d = side.shape.head_dim;
  float largest = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, check_row(k, side, g, i));
  const bool fp8 = side.shape.dtype == DType::fp8;
  const rules::Fp8Scale power = rules::fp8_scale(largest);
  const float scale = fp8 ? power.scale : largest / 127.0f;
  if (scale < std::numeric_limits<float>::min()) {  // its inverse might not be finite
    std::memset(to, 0, static_cast<std::size_t>(n * d));
    return 0.0f;
  }
  for (std::int64_t i = 0; i < n; ++i, to += d) {
    if (fp8)
      k.quantize_fp8(side.row(g, i), d, power.inverse, reinterpret_cast<cpu::Fp8*>(to));
    else
      k.quantize(side.row(g, i), d, 1.0f / scale, reinterpret_cast<std::int8_t*>(to));
  }
  return scale;
}

inline void encode_head(const cpu::Kernels& k, const Side& side, std::int64_t g, std::byte* to) {
  const std::int64_t n = side.event.size(), d = side.shape.head_dim;
  if (side.shape.dtype == side.ring.dtype) {
    const auto bytes = static_cast<std::size_t>(d * size_of(side.ring.dtype));
    for (std::int64_t i = 0; i < n; ++i, to += bytes) std::memcpy(to, side.place(g, i), bytes);
    return;
  }
  auto* half = reinterpret_cast<std::uint16_t*>(to);
  for (std::int64_t i = 0; i < n; ++i, half += d) {
    const float* x = side.row(g, i);
    if (side.shape.dtype == DType::bfloat16) {
      k.narrow(x, d, half);
    } else {
      check_row(k, side, g, i);
      k.narrow_half(x, d, half);
    }
  }
}

// One event out of a ring of 16 bits, as float32.
class WideEvent {
 public:
  WideEvent(const StoreShape& shape, const TokenRange& event, const RingView& source)
      : n_(event.size()), d_(shape.head_dim) {
    const cpu::Kernels& k = cpu::kernels();
    const auto widen = [&](const void* data, std::vector<float>& to) {
      const Side side{"", data, nullptr, source, shape, event};
      to.resize(static_cast<std::size_t>(shape.n_kv_heads * n_ * d_));
      for (std::int64_t g = 0; g < shape.n_kv_heads; ++g)
        for (std::int64_t i = 0; i < n_; ++i)
          k.to_float(side.place(g, i), source.dtype, d_,
                     to.data() + (g * n_ + (event.start + i) % n_) * d_);
    };
    widen(source.key, keys_);
    widen(source.value, values_);
  }
  RingView view() const { return {keys_.data(), values_.data(), n_, n_ * d_, d_}; }

 private:
  std::int64_t n_, d_;
  std::vector<float> keys_, values_;
};

}  // namespace codec_detail

EPISODIC_INLINE std::int64_t block_bytes(const StoreShape& shape, std::int64_t n) {
  using namespace codec_detail;
  const std::int64_t bytes = scale_bytes(shape) + 2 * side_bytes(shape, n);
  return is_code(shape.dtype) ? padded(bytes) : bytes;
}

EPISODIC_INLINE void encode_block(const StoreShape& shape, const TokenRange& event,
                                  const RingView& source, std::byte* block) {
  using namespace codec_detail;
  const std::int64_t n = event.size();
  check_source(shape, event, source);
  if (source.dtype != DType::float32 && source.dtype != shape.dtype)
    return encode_block(shape, event, WideEvent(shape, event, source).view(), block);
  const cpu::Kernels& k = cpu::kernels();
  const std::int64_t heads = shape.n_kv_heads, head_bytes = side_bytes(shape, n) / heads;
  auto* scale = reinterpret_cast<float*>(block);
  std::byte* to = block + scale_bytes(shape);
  const bool encodes = is_code(shape.dtype) && source.dtype != shape.dtype;
  for (const Side& side : {Side{"key", source.key, source.key_scale, source, shape, event},
                           Side{"value", source.value, source.value_scale, source, shape, event}})
    for (std::int64_t g = 0; g < heads; ++g, to += head_bytes) {
      if (encodes) {
        *scale++ = encode_codes(k, side, g, to);
        continue;
      }
      encode_head(k, side, g, to);
      if (is_code(shape.dtype)) *scale++ = side.scale[g];
    }
  if (!is_code(shape.dtype)) return;
  // what no element takes is zero, so that equal events are equal bytes
  std::memset(block + 2 * heads * sizeof(float), 0,
              static_cast<std::size_t>(scale_bytes(shape)) - 2 * heads * sizeof(float));
  std::memset(to, 0, static_cast<std::size_t>(block + block_bytes(shape, n) - to));
}

EPISODIC_INLINE KvSegment segment_of(const StoreShape& shape, const TokenRange& event,
                                     const std::byte* block) {
  using namespace codec_detail;
  const std::int64_t n = event.size();
  KvSegment s;
  s.key = block + scale_bytes(shape);
  s.value = block + scale_bytes(shape) + side_bytes(shape, n);
  s.length = n;
  s.first_token = event.start;
  s.head_stride = n * shape.head_dim;
  s.row_stride = shape.head_dim;
  s.dtype = shape.dtype;
  s.position = Position::fixed;
  if (is_code(shape.dtype)) {
    s.key_scale = reinterpret_cast<const float*>(block);
    s.value_scale = s.key_scale + shape.n_kv_heads;
  }
  return s;
}

}  // namespace EPISODIC_NAMESPACE
