// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/episodic_attention.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "episodic/base/error.hpp"
#include "torch_tensor.hpp"

namespace episodic {
namespace {

using torch_tensor::described, torch_tensor::dtype_of;

struct StateSnapshot final : SequenceSnapshot {
  std::shared_ptr<const MemorySnapshot> memory;
};

/// What the memory can read where it lies: the tensor itself, or a packed copy of one whose
/// channels are apart.
at::Tensor readable(const char* name, const at::Tensor& x, std::int64_t n, std::int64_t heads,
                    std::int64_t dim) {
  if (x.dim() == 3 && x.size(0) == n && x.size(1) == heads && x.size(2) == dim &&
      dtype_of(x.scalar_type()) && x.device().is_cpu())
    return x.stride(2) == 1 ? x : x.clone(at::MemoryFormat::Contiguous);
  throw DataError(
      fmt::format("EpisodicAttention: {} is {}, expected [{}, {}, {}] of float32, bfloat16 or "
                  "float16 on cpu; move the model back, or give its shape to the memory",
                  name, described(x), n, heads, dim));
}

TensorView view_of(const at::Tensor& x) {
  return {x.const_data_ptr(),
          *dtype_of(x.scalar_type()),
          {x.size(0), x.size(1), x.size(2)},
          {x.stride(0), x.stride(1)}};
}

}  // namespace

EpisodicAttention::EpisodicAttention(std::shared_ptr<EpisodicMemory> memory, std::int64_t layer)
    : memory_(std::move(memory)), layer_(layer) {
  if (layer_ < 0 || layer_ >= memory_->shape().n_layers)
    throw ConfigError(fmt::format("EpisodicAttention: layer {}, but the memory has layers 0 to {}",
                                  layer_, memory_->shape().n_layers - 1));
}

at::Tensor EpisodicAttention::forward(const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v) {
  const MemoryShape& s = memory_->shape();
  const std::int64_t n = q.dim() == 3 ? q.size(0) : -1;
  const at::NoGradGuard no_grad;
  const at::Tensor queries = readable("q", q, n, s.n_heads, s.head_dim);
  const at::Tensor keys = readable("k", k, n, s.n_kv_heads, s.head_dim);
  const at::Tensor values = readable("v", v, n, s.n_kv_heads, s.head_dim);
  if (n != memory_->open_tokens())
    throw DataError(
        fmt::format("EpisodicAttention: q has {} tokens, but the step was begun with {}", n,
                    memory_->open_tokens()));
  at::Tensor out = at::empty({n, s.n_heads * s.head_dim}, queries.options());
  memory_->attend(
      layer_, view_of(queries), view_of(keys), view_of(values),
      {out.mutable_data_ptr(), *dtype_of(out.scalar_type()), {n, s.n_heads, s.head_dim}});
  return out;
}

void SequenceState::end_step_by_surprise(std::span<const std::int64_t>, const StepSurprise&) {
  throw ConfigError("end_step_by_surprise: this state takes logits; see takes_surprise");
}

void SequenceState::restore(const SequenceSnapshot&) {
  throw ConfigError("restore: the snapshot was not taken from this sequence's state");
}

std::shared_ptr<const SequenceSnapshot> EpisodicState::snapshot() const {
  auto copy = std::make_shared<StateSnapshot>();
  copy->memory = memory_->snapshot();
  return copy;
}

void EpisodicState::restore(const SequenceSnapshot& snapshot) {
  const auto* copy = dynamic_cast<const StateSnapshot*>(&snapshot);
  if (!copy) return SequenceState::restore(snapshot);
  memory_->restore(*copy->memory);
}

void EpisodicState::begin_step(std::span<const std::int64_t> ids, StepKind kind) {
  memory_->begin_step(static_cast<std::int64_t>(ids.size()), kind);
}

void EpisodicState::end_step(std::span<const std::int64_t> ids, const at::Tensor& logits) {
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n != memory_->open_tokens() || logits.dim() != 2 || logits.size(0) != n ||
      (logits.size(1) > 1 && logits.stride(1) != 1) || !dtype_of(logits.scalar_type()) ||
      !logits.device().is_cpu())
    throw DataError(
        fmt::format("end_step: expected logits [{}, vocab] of float32, bfloat16 or float16 on cpu "
                    "with dense rows",
                    memory_->open_tokens()));
  const at::NoGradGuard no_grad;
  const at::Tensor rows = logits.to(at::kFloat);
  memory_->end_step(ids.data(), rows.const_data_ptr<float>(), rows.size(1), rows.stride(0));
}

void EpisodicState::end_step_by_surprise(std::span<const std::int64_t> ids,
                                         const StepSurprise& step) {
  if (static_cast<std::int64_t>(ids.size()) != memory_->open_tokens())
    throw DataError(fmt::format("end_step_by_surprise: {} tokens, but the step was begun with {}",
                                ids.size(), memory_->open_tokens()));
  memory_->end_step(ids.data(), step);
}

}  // namespace episodic
