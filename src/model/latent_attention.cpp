// SPDX-License-Identifier: Apache-2.0
#include "latent_attention.hpp"

#include <algorithm>

#include "decoder_buffers.hpp"
#include "elementwise.hpp"
#include "episodic/model/activations.hpp"

namespace episodic {
namespace {

/// Of the norms within, whatever the model's others add (as in transformers).
constexpr float kEps = 1e-6f;

/// Products of each head's rows, which lie between those of other heads.
/// \param x, y of head 0 and row `first`; heads lie x_head and y_head numbers apart
void multiply_heads(const std::vector<Linear>& heads, const float* x, std::int64_t x_head, float* y,
                    std::int64_t y_head, std::int64_t first, std::int64_t n, Cut cut,
                    const StepBuffers& step) {
  const auto count = static_cast<std::int64_t>(heads.size());
  std::vector<cpu::WeightProduct> products(heads.size());
  step.over_classes(first, n, [&](std::int64_t from, std::int64_t to, RowClass rows) {
    const std::int64_t row = from - first;
    for (std::int64_t h = 0; h < count; ++h) {
      const Linear& w = heads[static_cast<std::size_t>(h)];
      products[static_cast<std::size_t>(h)] = {w.type,         w.weight,
                                               w.out,          w.in,
                                               w.bias,         x + (row * count + h) * x_head,
                                               count * x_head, y + (row * count + h) * y_head,
                                               count * y_head, false};
    }
    cpu::multiply_weights(
        to - from, products,
        {.activations = activations(), .rows = rows, .parallel = cut == Cut::blocks});
  });
}

}  // namespace

void latent_heads(const LatentSpec& spec, const LatentWeights& w, const float* x,
                  std::int64_t first, std::int64_t n, Cut cut, StepBuffers& step) {
  const std::int64_t d = spec.width(), heads = static_cast<std::int64_t>(w.key.size());
  float* const made = step.latent_queries.from(first);
  float* const low = step.latent_low.from(first);
  const Product down{&w.down, x, low};
  if (spec.q_rank > 0) {
    float* const short_q = step.latent_q.from(first);
    const Product both[] = {{&w.q_down, x, short_q}, down};
    step.multiply(first, n, both, cut);
    rms_norm(short_q, w.q_norm.data(), kEps, n, spec.q_rank, short_q);
    const Product up{&w.q, short_q, made};
    step.multiply(first, n, {&up, 1}, cut);
  } else {
    const Product both[] = {{&w.q, x, made}, down};
    step.multiply(first, n, both, cut);
  }
  float *const q = step.q.from(first), *const k = step.k.from(first), *const v = step.v.from(first);
  for (std::int64_t i = 0; i < n; ++i) {
    const float* const token = low + i * d;  // its latent, then its turning key
    std::copy_n(token + spec.rank, spec.turning, k + i * d);
    rms_norm(token, w.norm.data(), kEps, 1, spec.rank, k + i * d + spec.turning);
    std::copy_n(k + i * d, d, v + i * d);
    for (std::int64_t h = i * heads; h < (i + 1) * heads; ++h)
      std::copy_n(made + h * spec.query() + spec.still, spec.turning, q + h * d);
  }
  multiply_heads(w.key, made, spec.query(), q + spec.turning, d, first, n, cut, step);
}

const float* latent_values(const LatentSpec& spec, const LatentWeights& w, std::int64_t first,
                           std::int64_t n, Cut cut, StepBuffers& step) {
  float* const values = step.latent_values.from(first);
  multiply_heads(w.value, step.attended.from(first) + spec.turning, spec.width(), values,
                 spec.value, first, n, cut, step);
  return values;
}

}  // namespace episodic
