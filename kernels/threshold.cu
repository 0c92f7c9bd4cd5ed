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

FieldError check(const ThresholdParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const ThresholdParams& p) { return check(p); });
}

}  // namespace

const char* invalid_field(const ThresholdParams& params) { return check(params).field; }
const char* invalid_field(const ThresholdParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t surprise_threshold_batch(const ThresholdParams* params, std::int64_t n_sequences,
                                     cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<ThresholdParams>(
      n_sequences, call_with_tokens_of(params), [&](const auto& batch) {
        const std::int64_t most = largest(batch, [](const ThresholdParams& p) { return p.n; });
        const dim3 grid = blocks_for_layers((most - 1) / kThresholdTokens + 1, batch.n);
        if (any_of(batch, [](const ThresholdParams& p) { return !is_staged(p); }))
          return launch(ThresholdKernel<false, kRoomOf<decltype(batch)>>, grid, kThresholdThreads,
                        0, stream, batch);
        const std::size_t bytes = threshold_shared_bytes(largest(batch, longest_span));
        return launch(ThresholdKernel<true, kRoomOf<decltype(batch)>>, grid, kThresholdThreads,
                      bytes, stream, batch);
      });
}

cudaError_t surprise_threshold(const ThresholdParams& params, cudaStream_t stream) {
  return surprise_threshold_batch(&params, 1, stream);
}

}  // namespace episodic::kernels
