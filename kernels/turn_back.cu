// SPDX-License-Identifier: Apache-2.0
#include "turn_back.hpp"

#include <cmath>

#include "fields.hpp"
#include "turn_back.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMostTurned = (std::int64_t{1} << 31) - 1;

FieldError check(const TurnBackParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n_heads, p.n_heads >= 1);
  EPISODIC_FIELD(p, head_dim,
                 p.head_dim >= 1 && product_within(kMostTurned, p.n_heads, p.head_dim));
  EPISODIC_FIELD(p, n, product_within(kMostTurned, p.n, p.n_heads, p.head_dim));
  EPISODIC_FIELD(p, rotary_dim,
                 p.rotary_dim >= 2 && p.rotary_dim % 2 == 0 && p.rotary_dim <= p.head_dim);
  EPISODIC_FIELD(
      p, row_stride,
      p.row_stride >= p.n_heads * p.head_dim && product_within(kMaxElements, p.n, p.row_stride));
  EPISODIC_FIELD(p, attention_factor,
                 std::isfinite(p.attention_factor) && p.attention_factor != 0.0);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, x);
  EPISODIC_FIELD_GIVEN(p, cos);
  EPISODIC_FIELD_GIVEN(p, sin);
  EPISODIC_FIELD_GIVEN(p, y);
  const auto element = static_cast<std::size_t>(size_of(p.dtype));
  EPISODIC_FIELD_ALIGNED(p, x, element);
  EPISODIC_FIELD_ALIGNED(p, cos, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, sin, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, y, element);
  return {};
}

FieldError check(const TurnBackParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const TurnBackParams& p) { return check(p); },
      [](const TurnBackParams& p, const TurnBackParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        return {};
      });
}

/// Whether every access of a pack of `pack` elements is aligned.
bool takes_packs(const TurnBackParams& p, std::int64_t pack) {
  for (const std::int64_t stride : {p.head_dim, p.rotary_dim / 2, p.row_stride})
    if (stride % pack != 0) return false;
  return all_aligned(16, p.x, p.y, p.cos, p.sin);
}

template <class T, int kPack, std::int64_t kMost>
cudaError_t launch_turn_back(const Batch<TurnBackArgs, kMost>& batch, cudaStream_t stream) {
  const std::int64_t items = largest(batch, [](const TurnBackArgs& a) {
    return a.p.n * a.p.n_heads * (a.p.head_dim - a.p.rotary_dim / 2) / kPack;
  });
  const dim3 grid = blocks_for_layers((items + kTurnBackThreads - 1) / kTurnBackThreads, batch.n);
  return launch(TurnBackKernel<T, kPack, kRoomOf<decltype(batch)>>, grid, kTurnBackThreads, 0,
                stream, batch);
}

}  // namespace

const char* invalid_field(const TurnBackParams& params) { return check(params).field; }
const char* invalid_field(const TurnBackParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t turn_back_batch(const TurnBackParams* params, std::int64_t n_sequences,
                            cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  return for_element(params->dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return launch_in_batches<TurnBackArgs>(
        n_sequences,
        [&](std::int64_t i, TurnBackArgs& args) {
          args.p = params[i];
          args.back = static_cast<float>(1.0 / (args.p.attention_factor * args.p.attention_factor));
          return args.p.n > 0;
        },
        [&](const auto& batch) {
          const bool single =
              any_of(batch, [](const TurnBackArgs& a) { return !takes_packs(a.p, kPackOf<T>); });
          return single ? launch_turn_back<T, 1>(batch, stream)
                        : launch_turn_back<T, kPackOf<T>>(batch, stream);
        });
  });
}

cudaError_t turn_back(const TurnBackParams& p, cudaStream_t stream) {
  return turn_back_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
