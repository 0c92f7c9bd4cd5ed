// SPDX-License-Identifier: Apache-2.0
#include "recall_counts.hpp"

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
  return {};
}

}  // namespace

const char* invalid_field(const RecallCountsParams& params) { return check(params).field; }

cudaError_t count_recalls(const RecallCountsParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n_lanes == 0) return cudaSuccess;
  return launch(CountRecallsKernel, static_cast<unsigned>(p.n_lanes), kCountThreads, 0, stream, p);
}

}  // namespace episodic::kernels
