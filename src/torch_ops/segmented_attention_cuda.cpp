// SPDX-License-Identifier: Apache-2.0
// The operator on CUDA tensors: the kernels of episodic::kernels on torch's memory and stream.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "device_torch/native_stream.hpp"
#include "episodic/base/error.hpp"
#include "kernels/attention.hpp"
#include "kernels/window.hpp"
#include "segmented_attention.hpp"

namespace episodic::torch_ops {
namespace {

/// \param of_launch of a launcher of kernels/: what it was given
template <class... Arguments>
void check(cudaError_t error, const char* what, const Arguments&... of_launch) {
  if (error == cudaSuccess) return;
  const char* field = nullptr;
  if constexpr (sizeof...(of_launch) > 0) field = invalid_field(of_launch...);
  throw DeviceError(fmt::format(
      "segmented_attention: {}: {}{}{}; on a device heads are multiples of 8 channels, at most "
      "256, and rotary_dim is a multiple of 16",
      what, cudaGetErrorString(error), field ? ": the kernel does not take its " : "",
      field ? field : ""));
}

/// Arrays of one call. Torch hands its memory on in the order of the stream, so that an array may
/// go while the stream still has to read it.
class Arrays {
 public:
  Arrays(const at::Tensor& like, cudaStream_t stream)
      : bytes_(like.options().dtype(at::kByte)), stream_(stream) {}

  void* bytes(std::size_t n) {
    kept_.push_back(at::empty({static_cast<std::int64_t>(std::max<std::size_t>(1, n))}, bytes_));
    return kept_.back().data_ptr();
  }
  template <class T>
  T* of(std::int64_t n) {
    return static_cast<T*>(bytes(static_cast<std::size_t>(n) * sizeof(T)));
  }
  /// A copy of host numbers. From memory that is not page-locked: read before the call returns.
  template <class T>
  T* copy(const std::vector<T>& from) {
    T* to = of<T>(static_cast<std::int64_t>(from.size()));
    if (!from.empty())
      check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice,
                            stream_),
            "copying to the device");
    return to;
  }

 private:
  at::TensorOptions bytes_;
  cudaStream_t stream_;
  std::vector<at::Tensor> kept_;
};

}  // namespace

Result on_cuda(const Arguments& a) {
  const c10::OptionalDeviceGuard guard(a.q.device());
  const auto stream = static_cast<cudaStream_t>(device_torch::native_stream(
      c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(a.q.device())));
  Arrays arrays(a.q, stream);
  at::Tensor out = at::empty({a.n, a.heads, a.value_dim}, a.q.options());
  at::Tensor lse = at::empty({a.n, a.heads}, a.q.options().dtype(at::kFloat));

  const std::int64_t half = a.rotary.rotary_dim() / 2;
  const std::vector<std::int64_t> positions{a.first_position, a.first_local()};
  const auto* first_position = arrays.copy(positions);
  const double* frequency = arrays.copy(a.rotary.inverse_frequency);
  struct Angles {
    float *cos, *sin;
  };
  const auto angles = [&](const std::int64_t* first, std::int64_t n) {
    const Angles to{arrays.of<float>(n * half), arrays.of<float>(n * half)};
    const kernels::RotaryAnglesParams p{n,      half,  first, frequency, a.rotary.attention_factor,
                                        to.cos, to.sin};
    check(kernels::rotary_angles(p, stream), "rotary angles", p);
    return to;
  };
  const Angles of_queries = angles(first_position, a.n);
  const Angles of_local = angles(first_position + 1, a.local_tokens);
  RotaryAngles fixed;
  fixed.compute_fixed(a.rotary, a.n_local);

  // A window longer than the sequence is one of all of it.
  const std::int64_t n_local = std::min(a.n_local, a.first_position + a.n);
  const std::int64_t capacity = std::max(a.local_tokens, n_local + a.n - 1);
  const auto ring = [&](std::int64_t width) {
    return arrays.bytes(static_cast<std::size_t>(capacity * a.kv_heads * width * size_of(a.dtype)));
  };
  kernels::AppendParams window;
  window.dtype = a.dtype, window.n = a.local_tokens, window.n_kv_heads = a.kv_heads;
  window.head_dim = a.dim, window.rotary_dim = 2 * half;
  window.interleaved = a.rotary.pairs == RotaryPairs::interleaved;
  window.first_position = first_position + 1;
  window.k = a.local_key.const_data_ptr(), window.v = a.local_value.const_data_ptr();
  window.k_row_stride = a.kv_heads * a.dim, window.v_row_stride = a.kv_heads * a.value_dim;
  window.cos = of_local.cos, window.sin = of_local.sin;
  window.ring_rotated_key = ring(a.dim), window.ring_value = ring(a.value_dim);
  window.ring_capacity = capacity, window.ring_head_stride = capacity * a.dim;
  window.value_dim = a.value_dim, window.value_head_stride = capacity * a.value_dim;
  check(kernels::append_window(window, stream), "the window", window);

  std::vector<kernels::KvRow> rows;
  for (const Arguments::Far& far : a.far) {
    const std::int64_t bytes = a.kv_heads * size_of(a.dtype);  // of a channel of all heads
    for (std::int64_t i = 0; i < far.key.size(0); ++i) {
      kernels::KvRow row;
      row.key = static_cast<const char*>(far.key.const_data_ptr()) + i * bytes * a.dim;
      row.value = static_cast<const char*>(far.value.const_data_ptr()) + i * bytes * a.value_dim;
      row.token = far.first_token + i;
      row.head_stride = static_cast<std::int32_t>(a.dim);
      row.value_weight = far.weight;
      rows.push_back(row);
    }
  }
  kernels::AttentionParams p;
  p.dtype = a.dtype, p.n_queries = a.n, p.n_heads = a.heads, p.n_kv_heads = a.kv_heads;
  p.head_dim = a.dim, p.value_dim = a.value_dim, p.n_local = n_local, p.scale = a.scale,
  p.soft_cap = a.soft_cap;
  p.q = a.q.const_data_ptr(), p.q_row_stride = a.heads * a.dim;
  p.first_position = first_position;
  p.rotary_dim = 2 * half, p.interleaved = window.interleaved;
  p.query_cos = of_queries.cos, p.query_sin = of_queries.sin;
  p.fixed_cos = arrays.copy(fixed.cos), p.fixed_sin = arrays.copy(fixed.sin);
  p.rows = arrays.copy(rows);
  p.n_rows = arrays.copy(std::vector<std::int32_t>{static_cast<std::int32_t>(rows.size())});
  p.max_rows = static_cast<std::int64_t>(rows.size());
  p.local_key = window.ring_rotated_key, p.local_value = window.ring_value;
  p.ring_capacity = capacity, p.ring_head_stride = window.ring_head_stride;
  p.value_head_stride = window.value_head_stride;
  p.out = out.data_ptr(), p.maybe_lse = lse.mutable_data_ptr<float>();
  p.workspace_bytes = kernels::attention_workspace_bytes(p);
  p.workspace = arrays.bytes(p.workspace_bytes);
  check(kernels::segmented_attention(p, stream), "attention", p);
  return {out, lse};
}

}  // namespace episodic::torch_ops
