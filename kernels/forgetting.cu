// SPDX-License-Identifier: Apache-2.0
#include "forgetting.hpp"

#include "fields.hpp"
#include "forgetting.cuh"

namespace episodic::kernels {
namespace {

FieldError check(const ForgetParams& p) {
  EPISODIC_FIELD(p, n_events, p.n_events >= 0 && p.n_events <= INT32_MAX);
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 0 && p.n_lanes <= INT32_MAX);
  if (p.n_events == 0 || p.n_lanes == 0) return {};
  EPISODIC_FIELD_GIVEN(p, events);
  EPISODIC_FIELD_GIVEN(p, marks);
  EPISODIC_FIELD_GIVEN(p, lanes);
  EPISODIC_FIELD_ALIGNED(p, events, sizeof(DeviceEventId));
  EPISODIC_FIELD_ALIGNED(p, lanes, 8);
  return {};
}

}  // namespace

const char* invalid_field(const ForgetParams& params) { return check(params).field; }

cudaError_t forget_events(const ForgetParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n_events == 0 || p.n_lanes == 0) return cudaSuccess;
  return launch(ForgetKernel, static_cast<unsigned>(p.n_lanes), kForgetThreads, 0, stream, p);
}

}  // namespace episodic::kernels
