// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the two ways of attending: which keys of a segment a run of queries can see, and how
// scratch memory is cut.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "episodic/attention/attend.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::detail {

inline constexpr float kLowest = -3.0e38f;  // start of a running maximum; finite (see Kernels)
inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

/// Below this many multiply-adds a parallel region costs more than it saves (about 20 us).
inline constexpr std::int64_t kSerialWork = 500'000;

/// How kv heads share segment lists: list l is that of kv heads [l * kv_heads, (l + 1) * kv_heads)
/// and of the query heads [l * heads, (l + 1) * heads) that read them.
struct HeadGroups {
  std::int64_t lists, kv_heads, heads;

  HeadGroups(const AttendShape& shape, const AttendInput& input)
      : lists(static_cast<std::int64_t>(input.segments.size())),
        kv_heads(shape.n_kv_heads / lists),
        heads(shape.n_heads / lists) {}
  std::int64_t list_of(std::int64_t g) const { return g / kv_heads; }
};

inline std::int64_t count_relative(std::span<const KvSegment> list) {
  return std::count_if(list.begin(), list.end(),
                       [](const KvSegment& s) { return s.position == Position::relative; });
}

/// Where the column sums of one relative segment go.
struct Column {
  float* to = nullptr;
  std::int64_t stride = 0;
  std::int64_t first_head = 0;  // query head of element 0 of a row
  float* at(std::int64_t token, std::int64_t head) const {
    return to + token * stride + head - first_head;
  }
};

/// The two layouts of AttendOutput::column_sums: one set for all lists, or one for each.
class Columns {
 public:
  Columns(const AttendShape& shape, const AttendInput& input, const AttendOutput& output)
      : sums_(output.column_sums), n_heads_(shape.n_heads), groups_(shape, input) {
    const std::int64_t first = count_relative(input.segments[0]);
    for (const auto& list : input.segments) shared_ &= count_relative(list) == first;
    shared_ &= static_cast<std::int64_t>(sums_.size()) == first;
  }
  bool wanted() const { return !sums_.empty(); }
  bool shared() const { return shared_; }
  /// \param before relative segments of the lists before `list`; relative: number in its own list
  Column of(std::int64_t list, std::int64_t before, std::int64_t relative) const {
    if (shared_) return {sums_[static_cast<std::size_t>(relative)], n_heads_, 0};
    return {sums_[static_cast<std::size_t>(before + relative)], groups_.heads,
            list * groups_.heads};
  }

 private:
  std::span<float* const> sums_;
  std::int64_t n_heads_;
  HeadGroups groups_;
  bool shared_ = true;
};

/// Tokens [begin, end) of a segment, the only ones seen by any query at positions [p0, p1].
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

inline Range seen_by(const KvSegment& s, std::int64_t n_local, std::int64_t p0, std::int64_t p1) {
  const bool local = s.position == Position::relative;
  const std::int64_t low = local ? p0 - n_local + 1 : s.first_token;
  const std::int64_t high = local ? p1 + 1 : p1 - n_local + 1;
  const std::int64_t begin = std::clamp<std::int64_t>(low - s.first_token, 0, s.length);
  const std::int64_t end = std::clamp<std::int64_t>(high - s.first_token, begin, s.length);
  return {begin, end};
}

/// Query numbers [low, high) that see token `t` of a segment, cut to [0, n].
inline void seen_from(const KvSegment& s, const AttendShape& shape, std::int64_t t,
                      std::int32_t* low, std::int32_t* high) {
  const std::int64_t j = s.first_token + t - shape.first_position;
  const bool local = s.position == Position::relative;
  const std::int64_t n = shape.n_queries;
  *low = static_cast<std::int32_t>(std::clamp<std::int64_t>(local ? j : j + shape.n_local, 0, n));
  *high = static_cast<std::int32_t>(local ? std::clamp<std::int64_t>(j + shape.n_local, 0, n) : n);
}

/// The keys or values of a segment.
struct SegmentSide {
  const void* base = nullptr;
  std::int64_t head_stride = 0, row_stride = 0;
};

inline SegmentSide side_of(const KvSegment& s, bool values) {
  if (!values) return {s.key, s.head_stride, s.row_stride};
  return {s.value, s.value_head_stride > 0 ? s.value_head_stride : s.head_stride,
          s.value_row_stride > 0 ? s.value_row_stride : s.row_stride};
}

inline const void* row_of(const KvSegment& s, bool values, std::int64_t g, std::int64_t t) {
  const SegmentSide side = side_of(s, values);
  return static_cast<const char*>(side.base) +
         ((g - s.first_head) * side.head_stride + t * side.row_stride) * size_of(s.dtype);
}

/// What an element of the keys (of the values) of kv head g must be multiplied with: 1 unless
/// codes.
inline float key_scale_of(const KvSegment& s, std::int64_t g) {
  return is_code(s.dtype) ? s.key_scale[g - s.first_head] : 1.0f;
}
inline float value_scale_of(const KvSegment& s, std::int64_t g) {
  return is_code(s.dtype) ? s.value_scale[g - s.first_head] : 1.0f;
}

/// Cuts one block of floats into aligned parts: first over nullptr to learn the size.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}
  template <class T = float>
  T* take(std::int64_t n) {
    T* p = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    const std::int64_t floats = (n * static_cast<std::int64_t>(sizeof(T)) + 3) / 4;
    used_ += (floats + 15) / 16 * 16;
    return p;
  }
  std::int64_t used() const { return used_; }

 private:
  float* base_;
  std::int64_t used_ = 0;
};

inline float log_sum_exp_of(float max, float sum) {
  if (sum == 0.0f) return -std::numeric_limits<float>::infinity();
  return static_cast<float>((static_cast<double>(max) + std::log2(static_cast<double>(sum))) *
                            kLn2);
}

inline constexpr float kNothing = -std::numeric_limits<float>::infinity();  // lse of no key

/// What stands beside the keys (`beside_keys`) adds to a sum of exp2(score - max), scores
/// in units of log 2. Infinite where they outweigh all keys here by far: those then get nothing.
inline double share_of_other(float other_lse, float max) {
  return other_lse == kNothing ? 0.0 : std::exp2(static_cast<double>(other_lse) * kLog2E - max);
}

/// Log-sum-exp of the keys here and of those attended elsewhere.
inline float with_other(float lse, float other_lse) {
  if (other_lse == kNothing) return lse;
  if (lse == kNothing) return other_lse;
  const double low = std::min(lse, other_lse), high = std::max(lse, other_lse);
  return static_cast<float>(high + std::log1p(std::exp(low - high)));
}

/// Log-sum-exp of all that takes part in the softmax of row (query, head) without a key here.
inline float beside_keys(const AttendInput& input, std::int64_t row, std::int64_t head) {
  const float other = input.other_lse != nullptr ? input.other_lse[row] : kNothing;
  return input.sink_logits != nullptr ? with_other(input.sink_logits[head], other) : other;
}

/// Number of keys in the relative segments of a list, seen or not.
inline std::int64_t relative_keys(std::span<const KvSegment> list) {
  std::int64_t n = 0;
  for (const KvSegment& s : list) n += s.position == Position::relative ? s.length : 0;
  return n;
}

/// Keys of a list that any query sees.
inline std::int64_t seen_keys(std::span<const KvSegment> list, const AttendShape& shape) {
  std::int64_t n = 0;
  for (const KvSegment& s : list) {
    n += seen_by(s, shape.n_local, shape.first_position, shape.first_position + shape.n_queries - 1)
             .size();
  }
  return n;
}

/// Queries are packed times query_factor. With a cap their products become cap * tanh(product);
/// either way scores are in units of log2 (cpu/kernels.hpp).
struct ScoreScale {
  float query_factor = 1.0f;
  float cap = 0.0f;  // 0: none
};

void attend_few(const cpu::Kernels& k, const AttendShape& shape, const AttendInput& input,
                const AttendOutput& output, const ScoreScale& scale, AttendWorkspace& workspace);
void attend_many(const cpu::Kernels& k, const AttendShape& shape, const AttendInput& input,
                 const AttendOutput& output, const ScoreScale& scale, AttendWorkspace& workspace);

}  // namespace EPISODIC_NAMESPACE::detail
