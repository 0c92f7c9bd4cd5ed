// SPDX-License-Identifier: Apache-2.0
#include "per_layer_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "decoder_blocks.hpp"
#include "elementwise.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic {

void PerLayerInputs::fit(const ModelConfig& c, std::int64_t rows) {
  rows_ = rows;
  width_ = c.per_layer_width;
  inputs_.floats(c.n_layers * rows * width_);
  projected_.floats(c.n_layers * rows * width_);
  row_.floats(c.n_layers * width_);
}

void PerLayerInputs::look_up(const DecoderWeights& w, std::span<const std::int64_t> ids,
                             std::int64_t first) {
  const Linear& table = w.per_layer_embedding;
  const auto multiplier = std::sqrt(static_cast<float>(width_));
  for (const std::int64_t id : ids) {
    float* const row = row_.floats();
    widen(table.type, table.weight + id * table.row_bytes(), table.in, row);
    scale(multiplier, row, table.in);
    for (std::int64_t l = 0; l < w.config.n_layers; ++l)
      std::copy_n(row + l * width_, width_, place(l, first));
    ++first;
  }
}

void PerLayerInputs::add_projected(const DecoderWeights& w, StepBuffers& step) {
  const ModelConfig& c = w.config;
  const std::int64_t all = c.n_layers * width_;
  float* const projected = projected_.floats();
  const Product product{&w.per_layer_model, step.hidden.from(0), projected};
  step.multiply(0, rows_, {&product, 1}, Cut::blocks);
  const auto multiplier = 1 / std::sqrt(static_cast<float>(c.hidden_size));
  constexpr float kHalf = 1 / std::numbers::sqrt2_v<float>;  // of the two, which vary alike
  constexpr std::int64_t kRows = 16;                         // of a task
  parallel_for((rows_ + kRows - 1) / kRows, [&](std::int64_t block) {
    for (std::int64_t i = block * kRows; i < std::min(rows_, (block + 1) * kRows); ++i) {
      float* const row = projected + i * all;
      scale(multiplier, row, all);
      norm_rows(c, w.per_layer_model_norm, row, c.n_layers, row);
      for (std::int64_t l = 0; l < c.n_layers; ++l) {
        float* const to = place(l, i);
        add_scaled(1.0f, row + l * width_, to, width_);
        scale(kHalf, to, width_);
      }
    }
  });
}

}  // namespace episodic
