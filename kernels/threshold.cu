// SPDX-License-Identifier: Apache-2.0
#include "threshold.hpp"

#include "fields.hpp"
#include "threshold.cuh"

namespace episodic::kernels {

namespace {

FieldError check(const ThresholdParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, tau, p.tau >= 1);
  EPISODIC_FIELD(p, n_init, p.n_init >= 0);
  EPISODIC_FIELD(p, window,
                 p.window == ThresholdWindow::moving || p.window == ThresholdWindow::chunked);
  if (p.n == 0) return {};
  EPISODIC_FIELD(p, recent_capacity, p.recent_capacity >= p.n && p.recent_capacity - p.n >= p.tau);
  EPISODIC_FIELD_GIVEN(p, state);
  EPISODIC_FIELD_GIVEN(p, surprise);
  EPISODIC_FIELD_GIVEN(p, recent);
  EPISODIC_FIELD_GIVEN(p, threshold);
  EPISODIC_FIELD_GIVEN(p, raw);
  return {};
}

}  // namespace

const char* invalid_field(const ThresholdParams& params) { return check(params).field; }

cudaError_t surprise_threshold(const ThresholdParams& params, cudaStream_t stream) {
  if (const FieldError wrong = check(params)) return wrong.error;
  if (params.n == 0) return cudaSuccess;
  constexpr std::int64_t kTokens = kThresholdThreads / kThresholdLanes;
  return launch(ThresholdKernel, blocks_for((params.n - 1) / kTokens + 1), kThresholdThreads, 0,
                stream, params);
}

}  // namespace episodic::kernels
