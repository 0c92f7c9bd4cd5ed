// SPDX-License-Identifier: Apache-2.0
#include "state.hpp"

#include "elements.cuh"
#include "fields.hpp"
#include "state.cuh"

namespace episodic::kernels {
namespace {

FieldError check(const MergeStatesParams& p) {
  EPISODIC_FIELD(p, n_rows, p.n_rows >= 0);
  EPISODIC_FIELD(p, value_dim, product_within(kMaxElements, p.n_rows, p.value_dim));
  if (p.n_rows == 0) return {};
  EPISODIC_FIELD_GIVEN(p, lse);
  EPISODIC_FIELD_GIVEN(p, part_lse);
  EPISODIC_FIELD(p, out, p.value_dim == 0 || p.out);
  EPISODIC_FIELD(p, part_out, p.value_dim == 0 || p.part_out);
  EPISODIC_FIELD(p, maybe_part_weighted_mass,
                 !p.maybe_weighted_mass == !p.maybe_part_weighted_mass);
  EPISODIC_FIELD_ALIGNED(p, out, 4);
  EPISODIC_FIELD_ALIGNED(p, lse, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_weighted_mass, 4);
  EPISODIC_FIELD_ALIGNED(p, part_out, 4);
  EPISODIC_FIELD_ALIGNED(p, part_lse, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_part_weighted_mass, 4);
  return {};
}

FieldError check(const RescaleSumsParams& p) {
  EPISODIC_FIELD(p, n_heads, p.n_heads >= 0);
  EPISODIC_FIELD(p, n_keys, product_within(kMaxElements, p.n_keys, p.n_heads));
  EPISODIC_FIELD(p, n_events, product_within(kMaxElements, p.n_events, p.n_heads));
  if (p.n_heads == 0 || p.n_keys + p.n_events == 0) return {};
  EPISODIC_FIELD_GIVEN(p, part_lse);
  EPISODIC_FIELD_GIVEN(p, whole_lse);
  EPISODIC_FIELD(p, maybe_sums, p.n_keys == 0 || p.maybe_sums);
  EPISODIC_FIELD(p, maybe_masses, p.n_events == 0 || p.maybe_masses);
  EPISODIC_FIELD_ALIGNED(p, part_lse, 4);
  EPISODIC_FIELD_ALIGNED(p, whole_lse, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_sums, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_masses, 8);
  return {};
}

// No template: sources of one unit may have one of that name.
FieldError check(const MergeStatesParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const MergeStatesParams& p) { return check(p); });
}
FieldError check(const RescaleSumsParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const RescaleSumsParams& p) { return check(p); });
}

/// Elements of a sequence, a thread each.
std::int64_t elements(const RescaleSumsParams& p) { return (p.n_keys + p.n_events) * p.n_heads; }

}  // namespace

const char* invalid_field(const MergeStatesParams& params) { return check(params).field; }
const char* invalid_field(const MergeStatesParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const RescaleSumsParams& params) { return check(params).field; }
const char* invalid_field(const RescaleSumsParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t merge_states_batch(const MergeStatesParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<MergeStatesParams>(
      n_sequences,
      [params](std::int64_t i, MergeStatesParams& args) {
        args = params[i];
        return args.n_rows > 0;
      },
      [&](const auto& batch) {
        const std::int64_t rows =
            largest(batch, [](const MergeStatesParams& p) { return p.n_rows; });
        const dim3 grid =
            blocks_for_layers((rows + kStatesPerBlock - 1) / kStatesPerBlock, batch.n);
        return launch(MergeStatesKernel<kRoomOf<decltype(batch)>>, grid, kMergeStateThreads, 0,
                      stream, batch);
      });
}

cudaError_t merge_states(const MergeStatesParams& p, cudaStream_t stream) {
  return merge_states_batch(&p, 1, stream);
}

cudaError_t rescale_sums_batch(const RescaleSumsParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<RescaleSumsParams>(
      n_sequences,
      [params](std::int64_t i, RescaleSumsParams& args) {
        args = params[i];
        return elements(args) > 0;
      },
      [&](const auto& batch) {
        const std::int64_t count = largest(batch, elements);
        const dim3 grid =
            blocks_for_layers((count + kMergeStateThreads - 1) / kMergeStateThreads, batch.n);
        return launch(RescaleSumsKernel<kRoomOf<decltype(batch)>>, grid, kMergeStateThreads, 0,
                      stream, batch);
      });
}

cudaError_t rescale_sums(const RescaleSumsParams& p, cudaStream_t stream) {
  return rescale_sums_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
