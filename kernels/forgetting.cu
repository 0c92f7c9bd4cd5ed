// SPDX-License-Identifier: Apache-2.0
#include "forgetting.hpp"

#include "batch.hpp"
#include "fields.hpp"
#include "forgetting.cuh"

namespace episodic::kernels {
namespace {

bool has_work(const ForgetParams& p) { return p.n_events > 0 && p.n_lanes > 0; }

FieldError check(const ForgetParams& p) {
  EPISODIC_FIELD(p, n_events, p.n_events >= 0 && p.n_events <= INT32_MAX);
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 0 && p.n_lanes <= INT32_MAX);
  if (!has_work(p)) return {};
  EPISODIC_FIELD_GIVEN(p, events);
  EPISODIC_FIELD_GIVEN(p, marks);
  EPISODIC_FIELD_GIVEN(p, lanes);
  EPISODIC_FIELD_ALIGNED(p, events, sizeof(DeviceEventId));
  EPISODIC_FIELD_ALIGNED(p, lanes, 8);
  return {};
}

FieldError check(const ForgetParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const ForgetParams& p) { return check(p); });
}

}  // namespace

const char* invalid_field(const ForgetParams& params) { return check(params).field; }

const char* invalid_field(const ForgetParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t forget_events_batch(const ForgetParams* params, std::int64_t n_sequences,
                                cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<ForgetParams>(
      n_sequences,
      [&](std::int64_t i, ForgetParams& args) {
        args = params[i];
        return has_work(args);
      },
      [&](const auto& batch) {
        const std::int64_t lanes = largest(batch, [](const ForgetParams& p) { return p.n_lanes; });
        const dim3 grid(static_cast<unsigned>(lanes), static_cast<unsigned>(batch.n));
        return launch(ForgetKernel<kRoomOf<decltype(batch)>>, grid, kForgetThreads, 0, stream,
                      batch);
      });
}

cudaError_t forget_events(const ForgetParams& p, cudaStream_t stream) {
  return forget_events_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
