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

FieldError check(const CodeParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const CodeParams& p) { return check(p); },
      [](const CodeParams& p, const CodeParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, width);
        EPISODIC_FIELD_SHARED(p, first, n_layers);
        return {};
      });
}

}  // namespace

const char* invalid_field(const CodeParams& params) { return check(params).field; }
const char* invalid_field(const CodeParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t encode_representatives_batch(const CodeParams* params, std::int64_t n_sequences,
                                         cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<CodeParams>(
      n_sequences, call_with_events_of(params), [&](const auto& batch) {
        // Slabs that so many events can fill.
        const std::int64_t slabs =
            largest(batch, [](const CodeParams& p) { return p.events.max_count / kCodeSlab + 1; });
        dim3 grid = blocks_for_layers(slabs, batch.of[0].n_layers);
        grid.z = static_cast<unsigned>(batch.n);
        return for_element(batch.of[0].dtype, [&](auto element) {
          return launch(EncodeKernel<typename decltype(element)::type, kRoomOf<decltype(batch)>>,
                        grid, kCodeThreads, 0, stream, batch);
        });
      });
}

cudaError_t encode_representatives(const CodeParams& p, cudaStream_t stream) {
  return encode_representatives_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
