// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Values of another width than keys, in launchers and kernels over a window's rings: the fields
/// value_dim, value_head_stride and value_page_stride of a call's parameters, and what 0 stands for
/// in them.

#include <cstdint>

#include "elements.cuh"
#include "episodic/base/rules/host_device.hpp"
#include "fields.hpp"
#include "ring_pages.hpp"

namespace episodic::kernels {

template <class Params>
std::int64_t value_dim(const Params& p) {
  return p.value_dim > 0 ? p.value_dim : p.head_dim;
}
template <class Params>
std::int64_t value_head_stride(const Params& p) {
  return p.value_head_stride > 0 ? p.value_head_stride : p.ring_head_stride;
}

/// The parameters with what 0 stands for in its place.
template <class Params>
Params with_value_width(Params p) {
  p.value_dim = value_dim(p);
  p.value_head_stride = value_head_stride(p);
  if (p.value_page_stride == 0) p.value_page_stride = p.ring_pages.page_stride;
  return p;
}

/// What does not fit of how a window's values lie. The fields before them were checked.
template <class Params>
FieldError check_value_ring(const Params& p) {
  EPISODIC_FIELD(
      p, value_head_stride,
      p.value_head_stride >= 0 &&
          product_within(value_head_stride(p), slots_in_a_piece(p.ring_pages, p.ring_capacity),
                         value_dim(p)) &&
          product_within(kMaxElements, value_head_stride(p), p.n_kv_heads));
  EPISODIC_FIELD(p, value_page_stride, p.value_page_stride % 8 == 0);
  return {};
}

/// Where the values' ring lies in pages. \param p as with_value_width leaves them
template <class Params>
EPISODIC_HOST_DEVICE RingPages value_pages(const Params& p) {
  RingPages pages = p.ring_pages;
  pages.page_stride = p.value_page_stride;
  return pages;
}

}  // namespace episodic::kernels
