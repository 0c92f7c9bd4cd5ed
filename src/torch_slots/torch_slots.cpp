// SPDX-License-Identifier: Apache-2.0
#include "episodic/torch_slots/torch_slots.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <optional>

#include "episodic/base/error.hpp"
#include "torch_tensor.hpp"

namespace episodic {
namespace {

using torch_tensor::described, torch_tensor::dtype_of, torch_tensor::torch_type;

std::optional<MemoryKind> memory_of(const c10::Device& device) {
  if (device.is_cpu()) return MemoryKind::host;
  if (device.is_cuda()) return MemoryKind::cuda;
  return std::nullopt;
}

const char* name_of(MemoryKind memory) { return memory == MemoryKind::host ? "cpu" : "cuda"; }

/// What a slot can read where it lies: the tensor itself, or a packed copy of one whose channels
/// are apart, or whose rows are all the same.
at::Tensor readable(const char* name, const at::Tensor& x) {
  if (!x.defined() || x.dim() != 3 || !dtype_of(x.scalar_type()) || !memory_of(x.device()))
    throw DataError(
        fmt::format("attend: {} is {}, expected [n, heads, channels] of float32, bfloat16 or "
                    "float16 on cpu or cuda",
                    name, described(x)));
  const bool in_place = x.stride(2) == 1 && (x.stride(0) != 0 || x.stride(1) != 0);
  return in_place ? x : x.clone(at::MemoryFormat::Contiguous);
}

TensorView view_of(const at::Tensor& x) {
  return {x.const_data_ptr(),
          *dtype_of(x.scalar_type()),
          {x.size(0), x.size(1), x.size(2)},
          {x.stride(0), x.stride(1)},
          *memory_of(x.device())};
}

at::Tensor blob(const void* data, at::IntArrayRef sizes, at::IntArrayRef strides, DType dtype,
                c10::Device device) {
  // from_blob asks CUDA whose memory it is unless it is told
  return at::from_blob(
      const_cast<void*>(data), sizes, strides, [](void*) {},
      at::TensorOptions(torch_type(dtype)).device(device), device);
}

template <class View>
at::Tensor tensor_over(const char* name, const View& x, c10::Device device) {
  if (is_code(x.dtype) || x.memory != memory_of(device))
    throw DataError(
        fmt::format("TorchSlot: {} is of {} on {}, expected float32, bfloat16 or float16 on {}",
                    name, episodic::name_of(x.dtype), name_of(x.memory), device.str()));
  return blob(x.data, {x.sizes.n, x.sizes.heads, x.sizes.dim}, {x.strides.row, x.strides.head, 1},
              x.dtype, device);
}

}  // namespace

void TorchSlot::forward(const TensorView& q, const TensorView& k, const TensorView& v,
                        const MutableTensorView& out) {
  const at::NoGradGuard no_grad;
  const c10::Device on = device();
  const at::Tensor to = tensor_over("out", out, on);
  const at::Tensor queries = tensor_over("q", q, on), keys = tensor_over("k", k, on),
                   values = tensor_over("v", v, on);
  const at::Tensor made = attend(queries, keys, values);
  if (!made.defined() || made.dim() != 2 || made.size(0) != out.sizes.n ||
      made.size(1) != out.sizes.heads * out.sizes.dim)
    throw DataError(fmt::format("TorchSlot: attend gave {}, expected [{}, {}]", described(made),
                                out.sizes.n, out.sizes.heads * out.sizes.dim));
  to.copy_(made.reshape({out.sizes.n, out.sizes.heads, out.sizes.dim}));
}

at::Tensor attend(AttentionSlot& slot, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v) {
  if (auto* on_tensors = dynamic_cast<TorchSlot*>(&slot)) return on_tensors->attend(q, k, v);
  const at::NoGradGuard no_grad;
  const at::Tensor queries = readable("q", q), keys = readable("k", k), values = readable("v", v);
  at::Tensor out = at::empty({q.size(0), q.size(1) * q.size(2)}, queries.options());
  slot.forward(view_of(queries), view_of(keys), view_of(values),
               {out.mutable_data_ptr(),
                *dtype_of(out.scalar_type()),
                {q.size(0), q.size(1), q.size(2)},
                *memory_of(out.device())});
  return out;
}

void end_step(SequenceState& state, std::span<const std::int64_t> ids, const at::Tensor& logits) {
  if (!logits.defined() || logits.dim() != 2 || !dtype_of(logits.scalar_type()) ||
      !memory_of(logits.device()))
    throw DataError(
        fmt::format("end_step: logits is {}, expected [{}, vocab] of float32, bfloat16 or float16",
                    described(logits), ids.size()));
  const at::NoGradGuard no_grad;
  const bool in_place = logits.size(1) < 2 || logits.stride(1) == 1;
  const at::Tensor rows = in_place ? logits : logits.clone(at::MemoryFormat::Contiguous);
  state.end_step(ids, {rows.const_data_ptr(), rows.size(0), rows.size(1), rows.stride(0),
                       *dtype_of(rows.scalar_type()), *memory_of(rows.device())});
}

at::Tensor tensor_of(const LogitsView& logits, c10::Device device) {
  if (is_code(logits.dtype) || logits.memory != memory_of(device))
    throw DataError(
        fmt::format("end_step: logits is [{}, {}] of {} on {}, expected float32, bfloat16 or "
                    "float16 on {}",
                    logits.rows, logits.vocab, at::toString(torch_type(logits.dtype)),
                    name_of(logits.memory), device.str()));
  return blob(logits.data, {logits.rows, logits.vocab}, {logits.row_stride, 1}, logits.dtype,
              device);
}

}  // namespace episodic
