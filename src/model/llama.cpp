// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/llama.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "elementwise.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "linear.hpp"
#include "llama_weights.hpp"

namespace episodic {
namespace {

/// The outputs of one step's stages, kept from step to step: row i belongs to token i.
struct StepBuffers {
  std::int64_t capacity = 0;
  at::Tensor hidden, normed;          // [capacity, hidden]
  at::Tensor q, k, v;                 // [capacity, heads, d]
  at::Tensor gate, up;                // [capacity, intermediate]
  at::Tensor q_rows, k_rows, v_rows;  // their first n rows
  std::int64_t n = 0;

  void fit(const ModelConfig& c, std::int64_t rows) {
    if (rows > capacity) {
      hidden = at::empty({rows, c.hidden_size}, at::kFloat);
      normed = at::empty({rows, c.hidden_size}, at::kFloat);
      q = at::empty({rows, c.n_heads, c.head_dim}, at::kFloat);
      k = at::empty({rows, c.n_kv_heads, c.head_dim}, at::kFloat);
      v = at::empty({rows, c.n_kv_heads, c.head_dim}, at::kFloat);
      gate = at::empty({rows, c.intermediate_size}, at::kFloat);
      up = at::empty({rows, c.intermediate_size}, at::kFloat);
      capacity = rows;
      n = 0;
    }
    if (rows != n) {
      q_rows = q.narrow(0, 0, rows);
      k_rows = k.narrow(0, 0, rows);
      v_rows = v.narrow(0, 0, rows);
      n = rows;
    }
  }
};

float* rows_of(at::Tensor& t, std::int64_t first) {
  return t.mutable_data_ptr<float>() + first * (t.numel() / t.size(0));
}

}  // namespace

struct LlamaModel::Impl {
  std::shared_ptr<const LlamaWeights> weights;
  std::vector<std::shared_ptr<AttentionSlot>> slots;
  std::shared_ptr<SequenceState> state;
  StepBuffers step;
  at::Tensor logits;       // reused while nobody else holds it
  at::Tensor last_logits;  // what `step` left for `logits`

  explicit Impl(std::shared_ptr<const LlamaWeights> w)
      : weights(std::move(w)), slots(weights->layers.size()) {}

  const ModelConfig& config() const { return weights->config; }

  void check_ids(std::span<const std::int64_t> ids) const {
    if (ids.empty()) throw DataError("LlamaModel::forward: no tokens; a step needs at least one");
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (ids[i] < 0 || ids[i] >= config().vocab_size)
        throw DataError(
            fmt::format("LlamaModel::forward: ids[{}] = {} is not in the vocabulary of {} "
                        "tokens; use the tokenizer of this model",
                        i, ids[i], config().vocab_size));
  }

  void embed(std::span<const std::int64_t> ids) {
    const std::int64_t width = config().hidden_size;
    const float* table = weights->embedding.const_data_ptr<float>();
    float* to = step.hidden.mutable_data_ptr<float>();
    for (const std::int64_t id : ids) {
      std::memcpy(to, table + id * width, sizeof(float) * static_cast<std::size_t>(width));
      to += width;
    }
  }

  void norm(const at::Tensor& weight, std::int64_t first, std::int64_t n) {
    rms_norm(rows_of(step.hidden, first), weight.const_data_ptr<float>(),
             static_cast<float>(config().rms_norm_eps), n, config().hidden_size,
             rows_of(step.normed, first));
  }

  /// Rows [first, first + n) of the residual stream to rows of q, k and v.
  void before_attention(const LlamaLayer& w, std::int64_t first, std::int64_t n, Cut cut) {
    norm(w.input_norm, first, n);
    const float* x = rows_of(step.normed, first);
    const Product qkv[] = {{&w.q, x, rows_of(step.q, first)},
                           {&w.k, x, rows_of(step.k, first)},
                           {&w.v, x, rows_of(step.v, first)}};
    multiply(n, qkv, cut);
  }

  /// Adds what attention and the feed-forward network say to those rows.
  void after_attention(const LlamaLayer& w, const float* attended, std::int64_t first,
                       std::int64_t n, Cut cut) {
    float* hidden = rows_of(step.hidden, first);
    const Product out{&w.o, attended + first * w.o.in, hidden, true};
    multiply(n, {&out, 1}, cut);
    norm(w.post_norm, first, n);
    const float* x = rows_of(step.normed, first);
    float* gate = rows_of(step.gate, first);
    float* up = rows_of(step.up, first);
    const Product gate_up[] = {{&w.gate, x, gate}, {&w.up, x, up}};
    multiply(n, gate_up, cut);
    silu_times(gate, up, n * config().intermediate_size);
    const Product down{&w.down, gate, hidden, true};
    multiply(n, {&down, 1}, cut);
  }

  /// Runs f(first, n, cut) over all rows. A small layer stays in the cache while blocks of rows
  /// pass through all its products, one block per thread; for a large one each product is cut
  /// instead.
  template <class F>
  void over_rows(std::int64_t n, F&& f) const {
    constexpr std::int64_t kRows = 64, kSmallLayer = 4'000'000;  // rows, weights
    const ModelConfig& c = config();
    const std::int64_t layer_size =
        c.hidden_size * (3 * c.intermediate_size + 2 * (c.n_heads + c.n_kv_heads) * c.head_dim);
    if (n <= kRows || layer_size > kSmallLayer) return f(0, n, Cut::blocks);
    parallel_for((n + kRows - 1) / kRows, [&](std::int64_t block) {
      f(block * kRows, std::min(kRows, n - block * kRows), Cut::whole);
    });
  }

  const float* attend(std::size_t layer, std::int64_t n, at::Tensor& attended) {
    if (!slots[layer])
      throw DataError(
          fmt::format("LlamaModel::forward: the attention slot of layer {} is empty; put "
                      "one there, or call use_full_attention",
                      layer));
    attended = slots[layer]->forward(step.q_rows, step.k_rows, step.v_rows);
    const std::int64_t width = config().n_heads * config().head_dim;
    if (!attended.defined() || attended.dim() != 2 || attended.size(0) != n ||
        attended.size(1) != width || attended.scalar_type() != at::kFloat ||
        !attended.device().is_cpu() || !attended.is_contiguous())
      throw DataError(
          fmt::format("LlamaModel::forward: the attention slot of layer {} must return a "
                      "contiguous float32 tensor [{}, {}] on the CPU",
                      layer, n, width));
    return attended.const_data_ptr<float>();
  }

  void run_layers(std::int64_t n) {
    const auto& layers = weights->layers;
    over_rows(n, [&](std::int64_t first, std::int64_t rows, Cut cut) {
      before_attention(layers[0], first, rows, cut);
    });
    for (std::size_t l = 0; l < layers.size(); ++l) {
      at::Tensor attended;
      const float* from = attend(l, n, attended);
      over_rows(n, [&](std::int64_t first, std::int64_t rows, Cut cut) {
        after_attention(layers[l], from, first, rows, cut);
        if (l + 1 < layers.size()) before_attention(layers[l + 1], first, rows, cut);
      });
    }
  }

  /// Logits of the last `rows` of n rows.
  void run_head(std::int64_t n, std::int64_t rows) {
    norm(weights->final_norm, n - rows, rows);
    if (!logits.defined() || logits.size(0) != rows || logits.use_count() > 1 ||
        logits.storage().use_count() > 1)
      logits = at::empty({rows, config().vocab_size}, at::kFloat);
    const Product head{&weights->head, rows_of(step.normed, n - rows), rows_of(logits, 0)};
    multiply(rows, {&head, 1}, Cut::blocks);
  }
};

LlamaModel::LlamaModel() = default;
LlamaModel::LlamaModel(LlamaModel&&) noexcept = default;
LlamaModel& LlamaModel::operator=(LlamaModel&&) noexcept = default;
LlamaModel::~LlamaModel() = default;

LlamaModel LlamaModel::load(const std::filesystem::path& dir) {
  LlamaModel model;
  model.impl_ = std::make_unique<Impl>(load_llama_weights(dir));
  use_full_attention(model);
  return model;
}

LlamaModel LlamaModel::share_weights() const {
  LlamaModel model;
  model.impl_ = std::make_unique<Impl>(impl_->weights);
  use_full_attention(model);
  return model;
}

const ModelConfig& LlamaModel::config() const { return impl_->config(); }

at::Tensor LlamaModel::forward(std::span<const std::int64_t> ids, LogitRows rows) {
  const at::NoGradGuard no_grad;
  Impl& m = *impl_;
  m.check_ids(ids);
  if (!m.state)
    throw DataError(
        "LlamaModel::forward: the model has no sequence state; put one there, or call "
        "use_full_attention");
  const auto n = static_cast<std::int64_t>(ids.size());
  m.step.fit(m.config(), n);
  m.state->begin_step(ids);
  m.embed(ids);
  m.run_layers(n);
  const bool all = rows == LogitRows::all || m.state->wants_all_logits();
  m.run_head(n, all ? n : 1);
  m.state->end_step(ids, m.logits);
  if (rows == LogitRows::last && m.logits.size(0) > 1)
    return m.logits.narrow(0, m.logits.size(0) - 1, 1).clone();
  return m.logits;
}

std::int64_t LlamaModel::chunk() const {
  if (!impl_->state)
    throw DataError("LlamaModel: the model has no sequence state; call use_full_attention");
  return impl_->state->chunk();
}

std::int64_t LlamaModel::tokens() const { return impl_->state ? impl_->state->tokens() : 0; }

void LlamaModel::step(std::span<const std::int64_t> ids) {
  impl_->last_logits = at::Tensor();  // so that forward may write into the same storage again
  impl_->last_logits = forward(ids, LogitRows::last);
}

std::span<const float> LlamaModel::logits() {
  // A state that keeps them has the right ones after it was restored, too.
  if (impl_->state)
    if (const std::span<const float> kept = impl_->state->last_logits(); !kept.empty()) return kept;
  const at::Tensor& last = impl_->last_logits;
  if (!last.defined() || tokens() == 0)
    throw DataError("LlamaModel::logits: no step was made yet; call step first");
  return {last.const_data_ptr<float>(), static_cast<std::size_t>(last.numel())};
}

std::shared_ptr<AttentionSlot>& LlamaModel::attention(std::int64_t layer) {
  if (layer < 0 || layer >= impl_->config().n_layers)
    throw DataError(fmt::format("LlamaModel::attention: layer = {}, must be in [0, {})", layer,
                                impl_->config().n_layers));
  return impl_->slots[static_cast<std::size_t>(layer)];
}

std::shared_ptr<SequenceState>& LlamaModel::state() { return impl_->state; }
const std::shared_ptr<SequenceState>& LlamaModel::state() const { return impl_->state; }

}  // namespace episodic
