// SPDX-License-Identifier: Apache-2.0
#include "codes.hpp"

#include "codes.cuh"
#include "fields.hpp"

namespace episodic::kernels {

namespace {

FieldError check(const CodeParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, width, p.width >= 8 && p.width % 8 == 0);
  EPISODIC_FIELD(p, events.max_count, p.events.max_count >= 0);
  EPISODIC_FIELD(p, capacity, product_within(kMaxElements, p.capacity, p.width));
  EPISODIC_FIELD(p, n_layers, p.n_layers >= 0 && p.n_layers <= kMostGridRows);
  EPISODIC_FIELD(p, events.max_count, product_within(kMaxElements, p.n_layers, p.events.max_count));
  if (p.events.max_count == 0 || p.n_layers == 0) return {};
  EPISODIC_FIELD_GIVEN(p, events.count);
  EPISODIC_FIELD_GIVEN(p, events.first_id);
  EPISODIC_FIELD_GIVEN(p, layers);
  EPISODIC_FIELD_ALIGNED(p, events.count, 4);
  EPISODIC_FIELD_ALIGNED(p, events.first_id, 8);
  EPISODIC_FIELD_ALIGNED(p, layers, 8);
  return {};
}

}  // namespace

const char* invalid_field(const CodeParams& params) { return check(params).field; }

cudaError_t encode_representatives(const CodeParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.events.max_count == 0 || p.n_layers == 0) return cudaSuccess;
  // Slabs that so many events can fill.
  const std::int64_t slabs = p.events.max_count / kCodeSlab + 1;
  return for_element(p.dtype, [&](auto element) {
    return launch(EncodeKernel<typename decltype(element)::type>,
                  blocks_for_layers(slabs, p.n_layers), kCodeThreads, 0, stream, p);
  });
}

}  // namespace episodic::kernels
