// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of attention/head_rows.hpp; how they become functions: base/inline.hpp.
#include "episodic/attention/detail/rows.hpp"

#include "episodic/attention/detail/row_buffer.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic {

EPISODIC_INLINE void copy_rows(std::int64_t n, std::int64_t heads, std::int64_t head_dim,
                               const HeadRows& from, const MutableHeadRows& to) {
  if (n == 0 || heads == 0) return;
  const HeadRows x = from.with_strides(heads, head_dim);
  const MutableHeadRows y = to.with_strides(heads, head_dim);
  detail::check_rows("copy_rows: from", x);
  detail::check_written_rows("copy_rows: to", y, n, heads, head_dim);
  const cpu::Kernels& k = cpu::kernels();
  detail::for_row_runs(n, n * heads * head_dim, [&](std::int64_t begin, std::int64_t end) {
    detail::RowBuffer wide(head_dim);
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        if (x.dtype == y.dtype) {
          std::memmove(y.row(i, h), x.row(i, h),
                       static_cast<std::size_t>(head_dim * size_of(x.dtype)));
          continue;
        }
        detail::load_row(k, x.row(i, h), x.dtype, head_dim, wide.data());
        detail::store_row(k, wide.data(), head_dim, y.row(i, h), y.dtype);
      }
    }
  });
}

}  // namespace episodic
