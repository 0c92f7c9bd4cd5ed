// SPDX-License-Identifier: Apache-2.0
#include "mixture_block.hpp"

#include "decoder_blocks.hpp"
#include "elementwise.hpp"

namespace episodic {
namespace {

/// Through the norm behind the network, if there is one.
void add_fed(const ModelConfig& c, const DecoderLayer& w, float* y, std::int64_t first,
             std::int64_t n, StepBuffers& step) {
  if (!w.fed_norm.empty()) norm_rows(c, w.fed_norm, y, n, y);
  add_scaled(static_cast<float>(c.residual_multiplier), y, step.hidden.from(first),
             n * c.hidden_size);
}

/// Of ranks that have a part of the channels each. \param group null: one process
void add_up_ranks(Group* group, const ModelConfig& c, float* y, std::int64_t n) {
  if (group) group->sum({y, static_cast<std::size_t>(n * c.hidden_size)});
}

}  // namespace

void add_mixture(const ModelConfig& c, std::size_t layer, const DecoderLayer& w, const float* x,
                 std::int64_t first, std::int64_t n, Mixture& mixture, StepBuffers& step,
                 Group* group) {
  const LayerSpec& spec = c.layers[layer];
  float* const y = step.normed.from(first);  // where x may be
  step.over_classes(first, n, [&](std::int64_t from, std::int64_t to, RowClass rows) {
    const std::int64_t at = (from - first) * c.hidden_size;
    mixture.run(spec.mixture, w.mixture, spec.activation, to - from, x + at, y + at, rows);
  });
  add_up_ranks(group, c, y, n);
  add_fed(c, w, y, first, n, step);
}

void add_beside_mixture(const ModelConfig& c, std::size_t layer, const DecoderLayer& w,
                        const float* gate, std::int64_t first, std::int64_t n, Cut cut,
                        Mixture& mixture, StepBuffers& step, Group* group) {
  const LayerSpec& spec = c.layers[layer];
  const float* const stream = step.hidden.from(first);
  float *const both = step.normed.from(first), *const experts = step.mixed_in.from(first);
  const Product down{&w.down, gate, both};
  step.multiply(first, n, {&down, 1}, cut);
  add_up_ranks(group, c, both, n);
  norm_rows(c, w.dense_norm, both, n, both);
  norm_rows(c, w.router_norm, stream, n, step.routed.from(first));
  norm_rows(c, w.expert_in_norm, stream, n, experts);
  step.over_classes(first, n, [&](std::int64_t from, std::int64_t to, RowClass rows) {
    float* const x = step.mixed_in.from(from);
    mixture.run(spec.mixture, w.mixture, spec.activation, to - from, x, x, rows,
                step.routed.from(from));
  });
  add_up_ranks(group, c, experts, n);
  norm_rows(c, w.expert_norm, experts, n, experts);
  add_scaled(1.0f, experts, both, n * c.hidden_size);
  add_fed(c, w, both, first, n, step);
}

}  // namespace episodic
