// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of attention/rotary.hpp; how they become functions: base/inline.hpp.
#include "episodic/attention/rotary.hpp"

#include <atomic>
#include <cmath>

#include "episodic/attention/detail/rotate_row.hpp"
#include "episodic/attention/detail/row_buffer.hpp"
#include "episodic/attention/detail/rows.hpp"
#include "episodic/base/detail/view_checks.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/text.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE {
namespace rotary_detail {

// The angle of position 64 a + b is that of 64 a rotated by that of b: two library calls for
// each anchor and each remainder instead of one per position, and the same bits for a position
// whatever `first` is. The product adds an error of 2e-16, which float32 does not see.
inline constexpr std::int64_t kAnchor = 64;

inline void check_angles(const char* name, const RotaryTable& table, const AngleRows& angles,
                         std::int64_t n) {
  if (angles.n != 1 && angles.n != n) {
    throw DataError(concat(name, ": angles has ", angles.n, " rows, must have 1 or n = ", n));
  }
  if (2 * angles.half != table.rotary_dim()) {
    throw DataError(concat(name, ": angles were computed for another rotary table than this one, ",
                           "whose rotary_dim is ", table.rotary_dim()));
  }
}

inline void check_sizes(const char* name, const RotaryTable& table, const TensorSizes& sizes) {
  detail::check_sizes(name, sizes);
  if (sizes.dim < table.rotary_dim()) {
    throw DataError(concat(name, ": sizes are ", detail::described(sizes),
                           "; the last must hold rotary_dim ", table.rotary_dim()));
  }
}

}  // namespace rotary_detail

EPISODIC_INLINE RotaryTable plain_rotary(std::int64_t rotary_dim, double theta) {
  if (rotary_dim < 0 || rotary_dim % 2 != 0) {
    throw DataError(
        concat("plain_rotary: rotary_dim is ", rotary_dim, ", must be even and not negative"));
  }
  if (!(theta > 0.0) || !std::isfinite(theta)) {
    throw DataError(concat("plain_rotary: theta is ", theta, ", must be positive"));
  }
  RotaryTable table;
  table.inverse_frequency.resize(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t c = 0; c < table.inverse_frequency.size(); ++c) {
    table.inverse_frequency[c] =
        std::pow(theta, -2.0 * static_cast<double>(c) / static_cast<double>(rotary_dim));
  }
  return table;
}

EPISODIC_INLINE void RotaryAngles::compute(const RotaryTable& table, std::int64_t first,
                                           std::int64_t count) {
  fill_checked("compute", table, first, count, table.attention_factor);
}

EPISODIC_INLINE void RotaryAngles::compute_back(const RotaryTable& table, std::int64_t first,
                                                std::int64_t count) {
  const double factor = 1.0 / table.attention_factor;
  if (!std::isfinite(factor) || factor == 0.0) {
    throw DataError(concat("RotaryAngles::compute_back: the table's attention_factor is ",
                           table.attention_factor, ", which nothing turns back"));
  }
  fill_checked("compute_back", table, first, count, factor);
  for (float& x : sin) x = -x;
}

EPISODIC_INLINE void RotaryAngles::fill_checked(const char* name, const RotaryTable& table,
                                                std::int64_t first, std::int64_t count,
                                                double factor) {
  if (count < 0 || first < 0) {
    throw DataError(concat("RotaryAngles::", name, ": first is ", first, " and n is ", count,
                           ", must not be negative"));
  }
  fill(table, first, count, factor);
}

EPISODIC_INLINE void RotaryAngles::compute_fixed(const RotaryTable& table, std::int64_t n_local) {
  if (n_local < 1) {
    throw DataError(
        concat("RotaryAngles::compute_fixed: n_local is ", n_local, ", must be at least 1"));
  }
  fill(table, n_local - 1, 1, table.attention_factor * table.attention_factor);
}

EPISODIC_INLINE void RotaryAngles::fill(const RotaryTable& table, std::int64_t first,
                                        std::int64_t count, double factor) {
  using namespace rotary_detail;
  n = count;
  half = static_cast<std::int64_t>(table.inverse_frequency.size());
  const auto pairs = static_cast<std::size_t>(half);
  cos.resize(static_cast<std::size_t>(n) * pairs);
  sin.resize(static_cast<std::size_t>(n) * pairs);
  if (n == 0) return;
  double step_cos[kAnchor], step_sin[kAnchor];
  for (std::size_t c = 0; c < pairs; ++c) {
    const double frequency = table.inverse_frequency[c];
    bool known[kAnchor] = {};
    double anchor_cos = 0.0, anchor_sin = 0.0;
    std::int64_t anchor = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t a = (first + i) / kAnchor, b = (first + i) % kAnchor;
      if (a != anchor) {
        anchor = a;
        const double angle = static_cast<double>(a * kAnchor) * frequency;
        anchor_cos = std::cos(angle) * factor;
        anchor_sin = std::sin(angle) * factor;
      }
      if (!known[b]) {
        known[b] = true;
        step_cos[b] = std::cos(static_cast<double>(b) * frequency);
        step_sin[b] = std::sin(static_cast<double>(b) * frequency);
      }
      const std::size_t at = static_cast<std::size_t>(i) * pairs + c;
      cos[at] = static_cast<float>(anchor_cos * step_cos[b] - anchor_sin * step_sin[b]);
      sin[at] = static_cast<float>(anchor_sin * step_cos[b] + anchor_cos * step_sin[b]);
    }
  }
}

EPISODIC_INLINE void rotate(const RotaryTable& table, const AngleRows& angles, const TensorView& x,
                            const MutableTensorView& y) {
  using namespace rotary_detail;
  const std::int64_t n = x.sizes.n, heads = x.sizes.heads, head_dim = x.sizes.dim;
  rotary_detail::check_sizes("rotate", table, x.sizes);
  check_angles("rotate", table, angles, n);
  if (n == 0 || heads == 0) return;
  detail::check_view("rotate", "x", x, x.sizes);
  detail::check_written_view("rotate", "y", y, x.sizes);
  const cpu::Kernels& k = cpu::kernels();
  const detail::RotateRow rotate_row(k, table, head_dim);
  const bool in_place = y.dtype == DType::float32;  // y itself holds the row as float32
  detail::for_row_runs(n, n * heads * head_dim, [&](std::int64_t begin, std::int64_t end) {
    detail::RowBuffer buffer(head_dim);
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        void* place = y.at(i, h);
        float* wide = in_place ? static_cast<float*>(place) : buffer.data();
        if (x.dtype == DType::float32) {
          rotate_row(angles, i, static_cast<const float*>(x.at(i, h)), wide);
        } else {
          k.to_float(x.at(i, h), x.dtype, head_dim, wide);
          rotate_row(angles, i, wide, wide);
        }
        if (!in_place) detail::store_row(k, wide, head_dim, place, y.dtype);
      }
    }
  });
}

EPISODIC_INLINE void rotate(const RotaryTable& table, const RotaryAngles& angles, std::int64_t n,
                            std::int64_t heads, std::int64_t head_dim, const float* x,
                            std::int64_t x_row, std::int64_t x_head, float* y, std::int64_t y_row,
                            std::int64_t y_head) {
  const TensorSizes sizes{n, heads, head_dim};
  rotate(table, angles.rows(), TensorView(x, DType::float32, sizes, {x_row, x_head}),
         MutableTensorView(y, DType::float32, sizes, {y_row, y_head}));
}

EPISODIC_INLINE bool rotate_queries(const RotaryTable& table, const AngleRows& position,
                                    const AngleRows& fixed, const TensorView& q,
                                    const RotatedQueries& out, AttendWorkspace& workspace,
                                    const AngleRows& back) {
  using namespace rotary_detail;
  const std::int64_t n = q.sizes.n, heads = q.sizes.heads, head_dim = q.sizes.dim;
  const bool comes_rotated = q.rotary == Rotary::after;
  rotary_detail::check_sizes("rotate_queries", table, q.sizes);
  if (!comes_rotated) check_angles("rotate_queries", table, position, n);
  if (out.fixed != nullptr) check_angles("rotate_queries: fixed", table, fixed, 1);
  if (out.fixed != nullptr && comes_rotated) check_angles("rotate_queries: back", table, back, n);
  if (n < 1) throw DataError("rotate_queries: n is 0; there is no mean of no query");
  if (out.relative == nullptr) throw DataError("rotate_queries: relative is null");
  if (out.mean != nullptr && out.fixed == nullptr) {
    throw DataError("rotate_queries: mean is asked for, but fixed is null");
  }
  detail::check_view("rotate_queries", "q", q, q.sizes);
  const cpu::Kernels& k = cpu::kernels();
  const detail::RotateRow rotate_row(k, table, head_dim);
  double* sums = nullptr;
  if (out.mean != nullptr) {
    sums = reinterpret_cast<double*>(workspace.floats(2 * heads * head_dim));
  }
  // \return whether the row is finite
  const auto rotate_one = [&](std::int64_t i, std::int64_t h) {
    const std::int64_t at = (i * heads + h) * head_dim;
    float* relative = out.relative + at;
    float* same = out.fixed != nullptr ? out.fixed + at : nullptr;
    if (i + 1 < n) {
      const std::int64_t bytes = head_dim * size_of(DType::float32), row = heads * head_dim;
      detail::fetch(q.at(i + 1, h), head_dim * size_of(q.dtype));
      detail::fetch_to_write(relative + row, bytes);
      if (same != nullptr) detail::fetch_to_write(same + row, bytes);
    }
    const float* x = static_cast<const float*>(q.at(i, h));
    if (q.dtype != DType::float32) {
      k.to_float(q.at(i, h), q.dtype, head_dim, relative);
      x = relative;
    }
    bool finite = detail::all_below(x, head_dim, detail::kInfinityBits);
    if (same != nullptr) {
      if (comes_rotated) {
        rotate_row(back, i, x, same);
        finite &= detail::all_below(same, head_dim, detail::kInfinityBits);
      }
      rotate_row(fixed, 0, comes_rotated ? same : x, same);
      if (sums != nullptr) {
        double* sum = sums + h * head_dim;
        for (std::int64_t c = 0; c < head_dim; ++c) sum[c] += static_cast<double>(same[c]);
      }
    }
    if (comes_rotated) {
      detail::load_row(k, x, DType::float32, head_dim, relative);
    } else {
      rotate_row(position, i, x, relative);
    }
    return finite;
  };
  // A task is a few heads with all their queries, so that each sum has one thread and one order:
  // heads side by side, a page of the system in all, for a shorter row costs more to find than to
  // read.
  constexpr std::int64_t kRun = 1024;  // elements
  const std::int64_t side_by_side = std::max<std::int64_t>(1, kRun / head_dim);
  std::atomic<bool> all_finite{true};
  const auto task = [&](std::int64_t t) {
    const std::int64_t first = t * side_by_side, end = std::min(heads, first + side_by_side);
    if (sums != nullptr) std::fill(sums + first * head_dim, sums + end * head_dim, 0.0);
    bool finite = true;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t h = first; h < end; ++h) finite &= rotate_one(i, h);
    if (!finite) all_finite.store(false, std::memory_order_relaxed);
    if (sums == nullptr) return;
    for (std::int64_t c = first * head_dim; c < end * head_dim; ++c)
      out.mean[c] = static_cast<float>(sums[c] / static_cast<double>(n));
  };
  const std::int64_t tasks = (heads + side_by_side - 1) / side_by_side;
  if (n * heads * head_dim < detail::kSerialElements) {
    for (std::int64_t t = 0; t < tasks; ++t) task(t);
  } else {
    parallel_for(tasks, task);
  }
  return all_finite;
}

}  // namespace EPISODIC_NAMESPACE
