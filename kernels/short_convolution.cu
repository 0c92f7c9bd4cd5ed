// SPDX-License-Identifier: Apache-2.0
#include "short_convolution.hpp"

#include "fields.hpp"
#include "short_convolution.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMostConvolved = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostConvolutionTaps = 1 << 20;

FieldError check(const ShortConvolutionParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, taps, p.taps >= 1 && p.taps <= kMostConvolutionTaps);
  EPISODIC_FIELD(p, width, product_within(kMostConvolved, p.width, p.taps));
  EPISODIC_FIELD(p, n, product_within(kMostConvolved, p.n, p.width));
  EPISODIC_FIELD(p, ring_capacity,
                 p.ring_capacity >= p.n + p.taps - 1 && p.ring_capacity >= 1 &&
                     product_within(kMaxElements, p.ring_capacity, p.width));
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, first_position);
  EPISODIC_FIELD_GIVEN(p, rows);
  EPISODIC_FIELD_GIVEN(p, tap);
  EPISODIC_FIELD_GIVEN(p, ring);
  EPISODIC_FIELD_GIVEN(p, out);
  const auto element = static_cast<std::size_t>(size_of(p.dtype));
  EPISODIC_FIELD_ALIGNED(p, rows, element);
  EPISODIC_FIELD_ALIGNED(p, out, element);
  EPISODIC_FIELD_ALIGNED(p, maybe_rows_bias, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, tap, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, maybe_bias, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, ring, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, first_position, 8);
  return {};
}

FieldError check(const ShortConvolutionParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const ShortConvolutionParams& p) { return check(p); },
      [](const ShortConvolutionParams& p, const ShortConvolutionParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, width);
        EPISODIC_FIELD_SHARED(p, first, taps);
        return {};
      });
}

}  // namespace

const char* invalid_field(const ShortConvolutionParams& params) { return check(params).field; }
const char* invalid_field(const ShortConvolutionParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t short_convolution_batch(const ShortConvolutionParams* params, std::int64_t n_sequences,
                                    cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  return for_element(params->dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return launch_in_batches<ShortConvolutionParams>(
        n_sequences, call_with_tokens_of(params), [&](const auto& batch) {
          const std::int64_t items =
              largest(batch, [](const ShortConvolutionParams& p) { return p.n * p.width; });
          const dim3 grid =
              blocks_for_layers((items + kConvolutionThreads - 1) / kConvolutionThreads, batch.n);
          return launch(ShortConvolutionKernel<T, kRoomOf<decltype(batch)>>, grid,
                        kConvolutionThreads, 0, stream, batch);
        });
  });
}

cudaError_t short_convolution(const ShortConvolutionParams& p, cudaStream_t stream) {
  return short_convolution_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
