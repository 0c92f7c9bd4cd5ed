// SPDX-License-Identifier: Apache-2.0
#include "key_segmenter.hpp"

#include "batch.hpp"
#include "elements.cuh"
#include "fields.hpp"
#include "key_segmenter.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;
constexpr std::int64_t kMostTimelines = 65535;  // a grid's second dimension
constexpr std::int64_t kMostRounds = 1 << 16;   // launches of one call

struct Shape {
  std::int64_t timelines = 0, channels = 0, blocks = 0;
  std::int64_t launches = 0;  // rounds the step may need, or 1 where a block does them all
};

/// \param shape written, unless the sizes are refused
FieldError check_sizes(const KeySegmenterParams& p, Shape& shape) {
  EPISODIC_FIELD(p, signal, p.signal == KeySignal::similarity || p.signal == KeySignal::gaussian);
  EPISODIC_FIELD(p, n, p.n >= 0 && p.n <= kMost);
  EPISODIC_FIELD(p, min_count, p.min_count >= 0 && p.min_count <= kMost);
  EPISODIC_FIELD(p, n_layers, p.n_layers >= 1 && p.n_layers <= kMost);
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1 && p.n_kv_heads <= kMost / p.n_layers);
  EPISODIC_FIELD(p, head_dim, p.head_dim >= 1 && p.head_dim <= kMost / (p.n_layers * p.n_kv_heads));
  const std::int64_t heads = p.n_layers * p.n_kv_heads;
  shape.timelines = p.per_head ? heads : 1;
  shape.channels = p.per_head ? p.head_dim : heads * p.head_dim;
  shape.blocks = (shape.channels + kKeyThreads - 1) / kKeyThreads;
  shape.launches = 1;
  if (shape.blocks > 1) {
    // A round ends at a cut, after kKeyAhead tokens, or at the step's end. Between two cuts lie the
    // keys that give no value and two that are recorded.
    const std::int64_t between = (p.min_count < 1 ? 1 : p.min_count) + 2;
    shape.launches = 2 + (p.n - 1) / between + p.n / kKeyAhead;
  }
  EPISODIC_FIELD(p, per_head, shape.timelines <= kMostTimelines);
  EPISODIC_FIELD(p, n, shape.launches <= kMostRounds);
  return {};
}

std::size_t workspace_of(const Shape& shape) {
  return static_cast<std::size_t>(shape.timelines * shape.blocks * kKeyAhead) * sizeof(double);
}

FieldError check(const KeySegmenterParams& p, Shape& shape) {
  if (const FieldError wrong = check_sizes(p, shape)) return wrong;
  const bool gaussian = p.signal == KeySignal::gaussian;
  EPISODIC_FIELD(p, var_floor, !gaussian || p.var_floor > 0.0);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  if (p.n == 0) return {};
  EPISODIC_FIELD(p, key_capacity, p.key_capacity >= p.n);
  EPISODIC_FIELD(p, key_row_stride, p.key_row_stride >= p.head_dim);
  EPISODIC_FIELD(p, key_head_stride, p.key_head_stride >= 0);
  EPISODIC_FIELD(p, key_pages, valid(p.key_pages));
  EPISODIC_FIELD_GIVEN(p, state);
  EPISODIC_FIELD_GIVEN(p, segmenter);
  EPISODIC_FIELD_GIVEN(p, mean);
  EPISODIC_FIELD_GIVEN(p, keys);
  EPISODIC_FIELD_GIVEN(p, raw);
  EPISODIC_FIELD(p, variance, !gaussian || p.variance);
  EPISODIC_FIELD_GIVEN(p, workspace);
  EPISODIC_FIELD(p, workspace_bytes, p.workspace_bytes >= workspace_of(shape));
  EPISODIC_FIELD_ALIGNED(p, workspace, kWorkspaceAlignment);
  return {};
}

FieldError check(const KeySegmenterParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences,
      [](const KeySegmenterParams& p) {
        Shape shape;
        return check(p, shape);
      },
      [](const KeySegmenterParams& p, const KeySegmenterParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, per_head);
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, n_layers);
        EPISODIC_FIELD_SHARED(p, first, n_kv_heads);
        EPISODIC_FIELD_SHARED(p, first, head_dim);
        return {};
      });
}

Shape shape_of(const KeySegmenterParams& sound) {
  Shape shape;
  static_cast<void>(check_sizes(sound, shape));
  return shape;
}

/// Only tokens with a value and cuts are written by the kernel.
cudaError_t clear_outputs(const KeySegmenterParams& p, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(shape_of(p).timelines * p.n);
  constexpr int kNaN = 0xff;  // every byte of a float
  cudaError_t error = cudaMemsetAsync(p.raw, 0, count, stream);
  for (float* out : {p.maybe_signal, p.maybe_threshold})
    if (error == cudaSuccess && out)
      error = cudaMemsetAsync(out, kNaN, count * sizeof(float), stream);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // said here
  return error;
}

/// The calls with this signal. A sequence that needs fewer rounds than another has nothing to do in
/// the last ones.
template <class Key, KeySignal kSignal>
cudaError_t launch_rounds(const KeySegmenterParams* params, std::int64_t n_sequences,
                          cudaStream_t stream) {
  return launch_in_batches<KeySegmenterParams>(
      n_sequences,
      [&](std::int64_t i, KeySegmenterParams& args) {
        args = params[i];
        return args.n > 0 && args.signal == kSignal;
      },
      [&](const auto& batch) {
        const Shape shape = shape_of(batch.of[0]);  // but for launches that of all
        const dim3 grid(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.timelines),
                        static_cast<unsigned>(batch.n));
        const std::int64_t rounds =
            largest(batch, [](const KeySegmenterParams& p) { return shape_of(p).launches; });
        cudaError_t error = cudaSuccess;
        for (std::int64_t i = 0; i < rounds && error == cudaSuccess; ++i)
          error = launch(KeySegmenterKernel<Key, kSignal, kRoomOf<decltype(batch)>>, grid,
                         kKeyThreads, 0, stream, batch, shape.channels);
        return error;
      });
}

}  // namespace

std::size_t key_segmenter_workspace_bytes(const KeySegmenterParams& params) {
  Shape shape;
  return check_sizes(params, shape) ? 0 : workspace_of(shape);
}

const char* invalid_field(const KeySegmenterParams& params) {
  Shape shape;
  return check(params, shape).field;
}

const char* invalid_field(const KeySegmenterParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t segment_by_keys_batch(const KeySegmenterParams* params, std::int64_t n_sequences,
                                  cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  for (std::int64_t i = 0; i < n_sequences; ++i) {
    if (params[i].n == 0) continue;
    if (const cudaError_t error = clear_outputs(params[i], stream)) return error;
  }
  return for_element(params->dtype, [&](auto element) {
    using Key = typename decltype(element)::type;
    const cudaError_t error =
        launch_rounds<Key, KeySignal::similarity>(params, n_sequences, stream);
    return error ? error : launch_rounds<Key, KeySignal::gaussian>(params, n_sequences, stream);
  });
}

cudaError_t segment_by_keys(const KeySegmenterParams& params, cudaStream_t stream) {
  return segment_by_keys_batch(&params, 1, stream);
}

}  // namespace episodic::kernels
