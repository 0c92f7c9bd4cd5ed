// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of attention/copy_rows.hpp; how they become functions: base/inline.hpp.
#include "episodic/attention/copy_rows.hpp"

#include <cstring>

#include "episodic/attention/detail/row_buffer.hpp"
#include "episodic/attention/detail/rows.hpp"
#include "episodic/base/detail/view_checks.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE {

EPISODIC_INLINE void copy_rows(const TensorView& from, const MutableTensorView& to) {
  const TensorSizes& sizes = from.sizes;
  detail::check_sizes("copy_rows", sizes);
  if (sizes.n == 0 || sizes.heads == 0) return;
  detail::check_view("copy_rows", "from", from, sizes);
  detail::check_written_view("copy_rows", "to", to, sizes);
  const cpu::Kernels& k = cpu::kernels();
  detail::for_row_runs(
      sizes.n, sizes.n * sizes.heads * sizes.dim, [&](std::int64_t begin, std::int64_t end) {
        detail::RowBuffer wide(sizes.dim);
        for (std::int64_t i = begin; i < end; ++i) {
          for (std::int64_t h = 0; h < sizes.heads; ++h) {
            if (from.dtype == to.dtype) {
              std::memmove(to.at(i, h), from.at(i, h),
                           static_cast<std::size_t>(sizes.dim * size_of(from.dtype)));
              continue;
            }
            detail::load_row(k, from.at(i, h), from.dtype, sizes.dim, wide.data());
            detail::store_row(k, wide.data(), sizes.dim, to.at(i, h), to.dtype);
          }
        }
      });
}

}  // namespace EPISODIC_NAMESPACE
