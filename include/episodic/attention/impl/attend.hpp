// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of attention/attend.hpp; how they become functions: base/inline.hpp.
#include "episodic/attention/attend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "episodic/attention/detail/attend_parts.hpp"
#include "episodic/base/detail/view_checks.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace attend_detail {

inline constexpr std::align_val_t kAlignment{64};

// From this many query rows per kv head on, blocked products win over reading keys row by row: a
// blocked product always pays for whole panels of lanes.
inline constexpr std::int64_t kFewRows = 16;

// A window of this size or more holds every token; positions added to it do not overflow.
inline constexpr std::int64_t kUnboundedWindow = std::int64_t{1} << 62;

[[noreturn]] inline void fail(const std::string& what) { throw DataError("attend: " + what); }

inline void check_segment(const AttendShape& shape, const AttendInput& input, const KvSegment& s,
                          std::int64_t first_kv_head, std::size_t list, std::size_t index) {
  const auto where = [&] { return concat("segment ", index, " of list ", list, ": "); };
  if (s.length < 0) fail(where() + concat("length ", s.length, " is negative"));
  if (s.length == 0) return;
  if (s.key == nullptr || s.value == nullptr) fail(where() + "key or value is null");
  if (is_code(s.dtype) && (s.key_scale == nullptr || s.value_scale == nullptr)) {
    fail(where() + concat("is ", name_of(s.dtype), ", but key_scale or value_scale is null"));
  }
  if (s.length > 1 && s.row_stride < shape.head_dim) {
    fail(where() + concat("row_stride ", s.row_stride, " is less than head_dim ", shape.head_dim,
                          ": rows would overlap"));
  }
  if (s.head_stride < 0) fail(where() + concat("head_stride ", s.head_stride, " is negative"));
  if (s.value_head_stride < 0) {
    fail(where() + concat("value_head_stride ", s.value_head_stride, " is negative"));
  }
  if (const std::int64_t stride = detail::side_of(s, true).row_stride;
      s.value_row_stride < 0 || (s.length > 1 && stride < shape.value_dim)) {
    fail(where() + concat("value_row_stride ", s.value_row_stride, " (0: row_stride, ",
                          s.row_stride, ") is less than value_dim ", shape.value_dim,
                          ": rows would overlap"));
  }
  if (s.first_head < 0 || s.first_head > first_kv_head) {
    fail(where() + concat("first_head is ", s.first_head, ", but the list is read from kv head ",
                          first_kv_head, " on"));
  }
  if (!std::isfinite(s.value_weight)) fail(where() + "value_weight is not finite");
  if (s.position == Position::relative && input.q_relative.data == nullptr) {
    fail(where() + "is relative, but q_relative is null");
  }
  if (s.position == Position::fixed && input.q_fixed.data == nullptr) {
    fail(where() + "is fixed, but q_fixed is null");
  }
}

// Number of the next relative segment of a list from index i on; the list has one.
inline std::size_t next_relative(std::span<const KvSegment> list, std::size_t i) {
  while (list[i].position != Position::relative) ++i;
  return i;
}

// One array for each relative segment of the list, the first at number `first`.
inline void check_columns_of(std::span<const KvSegment> list, const AttendOutput& output,
                             std::size_t first) {
  for (const KvSegment& s : list) {
    if (s.position != Position::relative) continue;
    if (s.length > 0 && output.column_sums[first] == nullptr) {
      fail(concat("column_sums[", first, "] is null"));
    }
    ++first;
  }
}

inline void check_column_sums(const AttendInput& input, const AttendOutput& output) {
  const std::size_t given = output.column_sums.size();
  if (given == 0) return;
  const auto lists = input.segments;
  const auto in_first = static_cast<std::size_t>(detail::count_relative(lists[0]));
  std::size_t total = 0;
  bool same_count = true;
  for (const auto& list : lists) {
    const auto n = static_cast<std::size_t>(detail::count_relative(list));
    total += n;
    same_count &= n == in_first;
  }
  if (given == total) {
    std::size_t first = 0;
    for (const auto& list : lists) {
      check_columns_of(list, output, first);
      first += static_cast<std::size_t>(detail::count_relative(list));
    }
    return;
  }
  if (!same_count || given != in_first) {
    fail(concat("column_sums has ", given, " arrays, but the lists have ", total,
                " relative segments together"));
  }
  check_columns_of(lists[0], output, 0);
  for (std::size_t l = 1; l < lists.size(); ++l) {
    std::size_t a = 0, b = 0;
    for (std::size_t r = 0; r < in_first; ++r, ++a, ++b) {
      a = next_relative(lists[0], a);
      b = next_relative(lists[l], b);
      if (lists[0][a].length == lists[l][b].length) continue;
      fail(concat(
          "relative segment ", r, " has ", lists[l][b].length, " tokens in list ", l, " and ",
          lists[0][a].length,
          " in list 0, so one set of column_sums does not fit both; give one for each list"));
    }
  }
}

inline void check(const AttendShape& shape, const AttendInput& input, const AttendOutput& output) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) fail(concat(name, " is ", value, ", must be at least 1"));
  };
  positive("n_queries", shape.n_queries);
  positive("n_heads", shape.n_heads);
  positive("n_kv_heads", shape.n_kv_heads);
  positive("head_dim", shape.head_dim);
  if (shape.value_dim < 0) {
    fail(concat("value_dim is ", shape.value_dim, ", must be positive, or 0 for head_dim"));
  }
  positive("n_local", shape.n_local);
  if (shape.n_heads % shape.n_kv_heads != 0) {
    fail(concat("n_heads ", shape.n_heads, " is not a multiple of n_kv_heads ", shape.n_kv_heads));
  }
  if (shape.n_queries > std::numeric_limits<std::int32_t>::max()) {
    fail(concat("n_queries is ", shape.n_queries, ": too many for one call"));
  }
  if (shape.first_position < 0) {
    fail(concat("first_position is ", shape.first_position, ", must not be negative"));
  }
  if (!std::isfinite(shape.scale)) fail("scale is not finite");
  if (!std::isfinite(shape.softcap) || shape.softcap < 0.0f) {
    fail(concat("softcap is ", shape.softcap, ", must be positive, or 0 for none"));
  }
  const TensorSizes of_queries = shape.of_queries();
  if (input.q_relative.data != nullptr)
    detail::check_view("attend", "q_relative", input.q_relative, of_queries);
  if (input.q_fixed.data != nullptr)
    detail::check_view("attend", "q_fixed", input.q_fixed, of_queries);
  detail::check_written_view("attend", "out", output.out, shape.of_outputs());
  const std::size_t lists = input.segments.size();
  if (lists == 0 || static_cast<std::size_t>(shape.n_kv_heads) % lists != 0) {
    fail(concat("there are ", lists, " segment lists; their number must divide n_kv_heads ",
                shape.n_kv_heads));
  }
  const std::int64_t kv_heads = shape.n_kv_heads / static_cast<std::int64_t>(lists);
  for (std::size_t l = 0; l < lists; ++l) {
    for (std::size_t i = 0; i < input.segments[l].size(); ++i) {
      check_segment(shape, input, input.segments[l][i], static_cast<std::int64_t>(l) * kv_heads, l,
                    i);
    }
  }
  check_column_sums(input, output);
  if (input.sink_logits == nullptr) return;
  for (std::int64_t h = 0; h < shape.n_heads; ++h) {
    if (input.sink_logits[h] < std::numeric_limits<float>::infinity()) continue;  // -inf is none
    fail(concat("sink_logits[", h, "] is ", input.sink_logits[h],
                ", must be finite, or -inf for none"));
  }
}

}  // namespace attend_detail

EPISODIC_INLINE AttendWorkspace::AttendWorkspace() = default;

EPISODIC_INLINE AttendWorkspace::~AttendWorkspace() {
  ::operator delete(data_, attend_detail::kAlignment);
}

EPISODIC_INLINE AttendWorkspace::AttendWorkspace(AttendWorkspace&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

EPISODIC_INLINE AttendWorkspace& AttendWorkspace::operator=(AttendWorkspace&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

EPISODIC_INLINE float* AttendWorkspace::floats(std::int64_t n) {
  if (n > capacity_) {
    // an eighth more, so that a window which grows token by token does not allocate at each
    const std::int64_t wanted = n + n / 8;
    ::operator delete(std::exchange(data_, nullptr), attend_detail::kAlignment);
    capacity_ = 0;
    data_ = static_cast<float*>(::operator new(static_cast<std::size_t>(wanted) * sizeof(float),
                                               attend_detail::kAlignment));
    capacity_ = wanted;
  }
  return data_;
}

EPISODIC_INLINE void attend(const AttendShape& given_shape, const AttendInput& input,
                            const AttendOutput& output, AttendWorkspace& workspace) {
  using namespace attend_detail;
  AttendShape shape = given_shape;
  if (shape.value_dim == 0) shape.value_dim = shape.head_dim;
  check(shape, input, output);
  shape.n_local = std::min(shape.n_local, kUnboundedWindow);
  const double scale = shape.scale == 0.0f ? 1.0 / std::sqrt(static_cast<double>(shape.head_dim))
                                           : static_cast<double>(shape.scale);
  detail::ScoreScale scores;
  if (shape.softcap > 0.0f) {
    scores.query_factor = static_cast<float>(scale / shape.softcap);
    scores.cap = static_cast<float>(shape.softcap * detail::kLog2E);
  } else {
    scores.query_factor = static_cast<float>(scale * detail::kLog2E);
  }
  const cpu::Kernels& kernels = cpu::kernels();
  const std::int64_t rows = shape.n_queries * (shape.n_heads / shape.n_kv_heads);
  if (rows <= kFewRows) {
    detail::attend_few(kernels, shape, input, output, scores, workspace);
  } else {
    detail::attend_many(kernels, shape, input, output, scores, workspace);
  }
}

}  // namespace EPISODIC_NAMESPACE
