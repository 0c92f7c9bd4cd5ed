// SPDX-License-Identifier: Apache-2.0
#include "linear_recurrence.hpp"

#include "fields.hpp"
#include "linear_recurrence.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMostRecurrent = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostRecurrentSize = 1 << 20;  // of each: sums of products fit in 64 bits

FieldError check(const LinearRecurrenceParams& p) {
  const auto within = [](std::int64_t x) { return x >= 1 && x <= kMostRecurrentSize; };
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, heads, within(p.heads));
  EPISODIC_FIELD(p, key_heads, within(p.key_heads) && p.heads % p.key_heads == 0);
  EPISODIC_FIELD(p, key_dim, p.key_dim >= 1 && p.key_dim <= kMostRecurrentKey);
  EPISODIC_FIELD(p, value_dim, within(p.value_dim));
  EPISODIC_FIELD(p, taps, within(p.taps));
  EPISODIC_FIELD(p, value_dim, recurrent_row(p) <= kMostRecurrent / p.taps);
  EPISODIC_FIELD(p, n, product_within(kMostRecurrent, p.n, recurrent_row(p)));
  EPISODIC_FIELD(p, least_step, p.delta || p.least_step >= 0.0f);
  EPISODIC_FIELD(p, most_step, p.delta || p.most_step >= p.least_step);
  EPISODIC_FIELD(p, ring_capacity,
                 p.ring_capacity >= p.n + p.taps - 1 && p.ring_capacity >= 1 &&
                     product_within(kMaxElements, p.ring_capacity, recurrent_row(p)));
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, first_position);
  EPISODIC_FIELD_GIVEN(p, rows);
  EPISODIC_FIELD_GIVEN(p, tap);
  EPISODIC_FIELD_GIVEN(p, log_rate);
  EPISODIC_FIELD_GIVEN(p, step_bias);
  EPISODIC_FIELD_GIVEN(p, norm);
  EPISODIC_FIELD_GIVEN(p, ring);
  EPISODIC_FIELD_GIVEN(p, matrix);
  EPISODIC_FIELD_GIVEN(p, tag);
  EPISODIC_FIELD_GIVEN(p, inputs);
  EPISODIC_FIELD_GIVEN(p, weights);
  EPISODIC_FIELD_GIVEN(p, y);
  EPISODIC_FIELD_GIVEN(p, out);
  const auto element = static_cast<std::size_t>(size_of(p.dtype));
  EPISODIC_FIELD_ALIGNED(p, rows, element);
  EPISODIC_FIELD_ALIGNED(p, out, element);
  EPISODIC_FIELD_ALIGNED(p, maybe_rows_bias, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, tap, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, maybe_bias, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, ring, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, matrix, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, first_position, 8);
  EPISODIC_FIELD_ALIGNED(p, tag, 8);
  return {};
}

FieldError check(const LinearRecurrenceParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const LinearRecurrenceParams& p) { return check(p); },
      [](const LinearRecurrenceParams& p, const LinearRecurrenceParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, delta);
        EPISODIC_FIELD_SHARED(p, first, tiled);
        EPISODIC_FIELD_SHARED(p, first, heads);
        EPISODIC_FIELD_SHARED(p, first, key_heads);
        EPISODIC_FIELD_SHARED(p, first, key_dim);
        EPISODIC_FIELD_SHARED(p, first, value_dim);
        EPISODIC_FIELD_SHARED(p, first, taps);
        return {};
      });
}

template <class T, std::int64_t kMost>
cudaError_t launch_recurrence(const Batch<LinearRecurrenceParams, kMost>& batch,
                              cudaStream_t stream) {
  const LinearRecurrenceParams& p = batch.of[0];  // whose sizes are those of all
  const std::int64_t tokens = largest(batch, [](const LinearRecurrenceParams& of) { return of.n; });
  const std::int64_t channels = 2 * p.key_heads * p.key_dim + p.heads * p.value_dim;
  const std::int64_t items = tokens * channels;
  cudaError_t error =
      launch(RecurrenceInputsKernel<T, kRoomOf<decltype(batch)>>,
             blocks_for_layers((items + kRecurrenceThreads - 1) / kRecurrenceThreads, batch.n),
             kRecurrenceThreads, 0, stream, batch);
  if (error != cudaSuccess) return error;
  error = launch(RecurrenceKernel<kRoomOf<decltype(batch)>>,
                 blocks_for_layers(p.heads * recurrent_pieces(p.value_dim), batch.n),
                 kRecurrenceThreads, recurrence_shared_bytes(p.key_dim), stream, batch);
  if (error != cudaSuccess) return error;
  return launch(RecurrenceNormKernel<T, kRoomOf<decltype(batch)>>,
                blocks_for_layers(tokens * (p.delta ? p.heads : p.key_heads), batch.n),
                kRecurrenceNormThreads, 0, stream, batch);
}

}  // namespace

const char* invalid_field(const LinearRecurrenceParams& params) { return check(params).field; }
const char* invalid_field(const LinearRecurrenceParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t linear_recurrence_batch(const LinearRecurrenceParams* params, std::int64_t n_sequences,
                                    cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  return for_element(params->dtype, [&](auto element) {
    return launch_in_batches<LinearRecurrenceParams>(
        n_sequences, call_with_tokens_of(params), [&](const auto& batch) {
          return launch_recurrence<typename decltype(element)::type>(batch, stream);
        });
  });
}

cudaError_t linear_recurrence(const LinearRecurrenceParams& p, cudaStream_t stream) {
  return linear_recurrence_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
