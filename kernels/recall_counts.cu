// SPDX-License-Identifier: Apache-2.0
#include "recall_counts.hpp"

#include "batch.hpp"
#include "fields.hpp"
#include "recall_counts.cuh"

namespace episodic::kernels {
namespace {

FieldError check(const RecallCountsParams& p) {
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 0 && p.n_lanes <= INT32_MAX);
  EPISODIC_FIELD(p, max_events, p.max_events >= 0 && p.max_events <= INT32_MAX);
  if (p.n_lanes == 0) return {};
  EPISODIC_FIELD_GIVEN(p, lanes);
  EPISODIC_FIELD_GIVEN(p, steps);
  EPISODIC_FIELD_GIVEN(p, counts);
  EPISODIC_FIELD_GIVEN(p, total);
  EPISODIC_FIELD_ALIGNED(p, lanes, 8);
  EPISODIC_FIELD_ALIGNED(p, maybe_timeline, 4);
  EPISODIC_FIELD_ALIGNED(p, steps, 4);
  EPISODIC_FIELD_ALIGNED(p, counts, 4);
  EPISODIC_FIELD_ALIGNED(p, total, 8);
  EPISODIC_FIELD_ALIGNED(p, maybe_kept, 8);
  return {};
}

FieldError check(const RecallCountsParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const RecallCountsParams& p) { return check(p); },
      [](const RecallCountsParams& p, const RecallCountsParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, n_lanes);
        return {};
      });
}

}  // namespace

const char* invalid_field(const RecallCountsParams& params) { return check(params).field; }
const char* invalid_field(const RecallCountsParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t count_recalls_batch(const RecallCountsParams* params, std::int64_t n_sequences,
                                cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0 || params[0].n_lanes == 0) return cudaSuccess;
  return launch_in_batches<RecallCountsParams>(
      n_sequences, call_of(params), [&](const auto& batch) {
        const dim3 grid(static_cast<unsigned>(batch.of[0].n_lanes), static_cast<unsigned>(batch.n));
        return launch(CountRecallsKernel<kRoomOf<decltype(batch)>>, grid, kCountThreads, 0, stream,
                      batch);
      });
}

cudaError_t count_recalls(const RecallCountsParams& p, cudaStream_t stream) {
  return count_recalls_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
