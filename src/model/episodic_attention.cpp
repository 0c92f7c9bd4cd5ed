// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/episodic_attention.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

struct MemorySnapshot final : SequenceSnapshot {
  std::shared_ptr<const EpisodicMemory::Snapshot> memory;
};

void check(const char* name, const at::Tensor& x, std::int64_t n, std::int64_t heads,
           std::int64_t dim) {
  if (x.dim() == 3 && x.size(0) == n && x.size(1) == heads && x.size(2) == dim &&
      x.scalar_type() == at::kFloat && x.device().is_cpu() && x.is_contiguous())
    return;
  std::string shape;
  for (const std::int64_t s : x.sizes()) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", s);
  throw DataError(
      fmt::format("EpisodicAttention: {} is [{}] of {} on {}{}, expected a contiguous "
                  "[{}, {}, {}] of float32 on cpu",
                  name, shape, at::toString(x.scalar_type()), x.device().str(),
                  x.is_contiguous() ? "" : ", not contiguous", n, heads, dim));
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
  check("q", q, n, s.n_heads, s.head_dim);
  check("k", k, n, s.n_kv_heads, s.head_dim);
  check("v", v, n, s.n_kv_heads, s.head_dim);
  if (n != memory_->open_tokens())
    throw DataError(
        fmt::format("EpisodicAttention: q has {} tokens, but the step was begun with {}", n,
                    memory_->open_tokens()));
  at::Tensor out = at::empty({n, s.n_heads * s.head_dim}, q.options());
  memory_->attend(layer_, q.const_data_ptr<float>(), k.const_data_ptr<float>(),
                  v.const_data_ptr<float>(), out.mutable_data_ptr<float>());
  return out;
}

void SequenceState::end_step_by_surprise(std::span<const std::int64_t>, const StepSurprise&) {
  throw ConfigError("end_step_by_surprise: this state takes logits; see takes_surprise");
}

void SequenceState::restore(const SequenceSnapshot&) {
  throw ConfigError("restore: the snapshot was not taken from this sequence's state");
}

std::shared_ptr<const SequenceSnapshot> EpisodicState::snapshot() const {
  auto copy = std::make_shared<MemorySnapshot>();
  copy->memory = memory_->snapshot();
  return copy;
}

void EpisodicState::restore(const SequenceSnapshot& snapshot) {
  const auto* copy = dynamic_cast<const MemorySnapshot*>(&snapshot);
  if (!copy) return SequenceState::restore(snapshot);
  memory_->restore(*copy->memory);
}

void EpisodicState::begin_step(std::span<const std::int64_t> ids, StepKind kind) {
  memory_->begin_step(static_cast<std::int64_t>(ids.size()), kind);
}

void EpisodicState::end_step(std::span<const std::int64_t> ids, const at::Tensor& logits) {
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n != memory_->open_tokens() || logits.dim() != 2 || logits.size(0) != n ||
      logits.stride(1) != 1 || logits.scalar_type() != at::kFloat || !logits.device().is_cpu())
    throw DataError(
        fmt::format("end_step: expected float32 logits [{}, vocab] on cpu with dense rows",
                    memory_->open_tokens()));
  memory_->end_step(ids.data(), logits.const_data_ptr<float>(), logits.size(1), logits.stride(0));
}

void EpisodicState::end_step_by_surprise(std::span<const std::int64_t> ids,
                                         const StepSurprise& step) {
  if (static_cast<std::int64_t>(ids.size()) != memory_->open_tokens())
    throw DataError(fmt::format("end_step_by_surprise: {} tokens, but the step was begun with {}",
                                ids.size(), memory_->open_tokens()));
  memory_->end_step(ids.data(), step);
}

}  // namespace episodic
