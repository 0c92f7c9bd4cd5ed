// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/episodic_attention.hpp"

#include <fmt/format.h>

#include <string>

#include "elementwise.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

struct StateSnapshot final : SequenceSnapshot {
  std::shared_ptr<const MemorySnapshot> memory;
  std::shared_ptr<const SequenceSnapshot> beside;
};

template <class View>
std::string described(const View& x) {
  return fmt::format("[{}, {}, {}] of {} on {}", x.sizes.n, x.sizes.heads, x.sizes.dim,
                     name_of(x.dtype), x.memory == MemoryKind::host ? "cpu" : "cuda");
}

template <class View>
void require(const char* name, const View& x, std::int64_t n, std::int64_t heads,
             std::int64_t dim) {
  if (x.sizes != TensorSizes{n, heads, dim} || is_code(x.dtype) || x.memory != MemoryKind::host)
    throw DataError(
        fmt::format("EpisodicAttention: {} is {}, expected [{}, {}, {}] of float32, bfloat16 or "
                    "float16 on cpu; move the model back, or give its shape to the memory",
                    name, described(x), n, heads, dim));
}

}  // namespace

EpisodicAttention::EpisodicAttention(std::shared_ptr<EpisodicMemory> memory, std::int64_t layer,
                                     std::vector<float> sink_logits, bool again)
    : memory_(std::move(memory)),
      layer_(layer),
      sink_logits_(std::move(sink_logits)),
      again_(again) {
  if (layer_ < 0 || layer_ >= memory_->shape().n_layers)
    throw ConfigError(fmt::format("EpisodicAttention: layer {}, but the memory has layers 0 to {}",
                                  layer_, memory_->shape().n_layers - 1));
  const std::int64_t heads = memory_->shape().n_heads;
  if (!sink_logits_.empty() && static_cast<std::int64_t>(sink_logits_.size()) != heads)
    throw ConfigError(fmt::format("EpisodicAttention: {} sink_logits, but the layer has {} heads",
                                  sink_logits_.size(), heads));
}

void EpisodicAttention::forward(const TensorView& q, const TensorView& k, const TensorView& v,
                                const MutableTensorView& out) {
  const MemoryShape& s = memory_->shape();
  const std::int64_t n = q.sizes.n;
  require("q", q, n, s.n_heads, s.head_dim);
  require("k", k, n, again_ ? 0 : s.n_kv_heads, s.head_dim);
  require("v", v, n, again_ ? 0 : s.n_kv_heads, s.head_dim);
  require("out", out, n, s.n_heads, s.head_dim);
  if (n != memory_->open_tokens())
    throw DataError(
        fmt::format("EpisodicAttention: q has {} tokens, but the step was begun with {}", n,
                    memory_->open_tokens()));
  const float* const sinks = sink_logits_.empty() ? nullptr : sink_logits_.data();
  if (again_) return memory_->attend_again(layer_, q, out, sinks);
  memory_->attend(layer_, {q, k, v, out, sinks});
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
  if (beside_) copy->beside = beside_->snapshot();
  return copy;
}

void EpisodicState::restore(const SequenceSnapshot& snapshot) {
  const auto* copy = dynamic_cast<const StateSnapshot*>(&snapshot);
  if (!copy || !copy->beside != !beside_) return SequenceState::restore(snapshot);
  memory_->restore(*copy->memory);  // may refuse
  if (beside_) beside_->restore(*copy->beside);
}

void EpisodicState::reset() {
  memory_->reset();
  if (beside_) beside_->reset();
}

void EpisodicState::begin_step(std::span<const std::int64_t> ids, StepKind kind) {
  if (beside_ && beside_->tokens() != memory_->tokens()) {
    if (memory_->tokens() != 0)
      throw DataError(
          fmt::format("the memory stands at token {}, but the model's other layers have seen {} "
                      "(sliding layers, or those with attention of their own); go back by the "
                      "snapshots of the model's state, not of its memory",
                      memory_->tokens(), beside_->tokens()));
    beside_->reset();
  }
  memory_->begin_step(static_cast<std::int64_t>(ids.size()), kind);
  try {
    if (beside_) beside_->begin_step(ids, kind);
  } catch (...) {
    memory_->abandon_step();
    throw;
  }
}

void EpisodicState::abandon_step() noexcept {
  try {
    memory_->abandon_step();
  } catch (const Error&) {  // another thread is within the memory, whose step that is
  }
  if (beside_) beside_->abandon_step();
}

void EpisodicState::end_step(std::span<const std::int64_t> ids, const LogitsView& logits) {
  end_memory_step(ids, logits);  // may refuse the step
  if (beside_) beside_->end_step(ids, logits);
}

void EpisodicState::end_memory_step(std::span<const std::int64_t> ids, const LogitsView& logits) {
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n != memory_->open_tokens() || logits.rows != n || logits.data == nullptr ||
      logits.vocab < 1 || (n > 1 && logits.row_stride < logits.vocab) || is_code(logits.dtype) ||
      logits.memory != MemoryKind::host)
    throw DataError(
        fmt::format("end_step: expected logits [{}, vocab] of float32, bfloat16 or float16 on cpu "
                    "with dense rows",
                    memory_->open_tokens()));
  if (logits.dtype == DType::float32)
    return memory_->end_step(ids.data(), static_cast<const float*>(logits.data), logits.vocab,
                             logits.row_stride);
  const TensorType type = logits.dtype == DType::bfloat16 ? TensorType::bf16 : TensorType::f16;
  widened_.resize(static_cast<std::size_t>(n * logits.vocab));
  for (std::int64_t i = 0; i < n; ++i)
    widen(type, static_cast<const std::byte*>(logits.data) + 2 * i * logits.row_stride,
          logits.vocab, widened_.data() + i * logits.vocab);
  memory_->end_step(ids.data(), widened_.data(), logits.vocab, logits.vocab);
}

void EpisodicState::end_step_by_surprise(std::span<const std::int64_t> ids,
                                         const StepSurprise& step) {
  if (static_cast<std::int64_t>(ids.size()) != memory_->open_tokens())
    throw DataError(fmt::format("end_step_by_surprise: {} tokens, but the step was begun with {}",
                                ids.size(), memory_->open_tokens()));
  memory_->end_step(ids.data(), step);  // may refuse the step
  if (beside_) beside_->end_step(ids, {});
}

}  // namespace episodic
