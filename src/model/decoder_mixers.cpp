// SPDX-License-Identifier: Apache-2.0
// Steps of what stands in place of attention, and of a gate behind it.
#include <fmt/format.h>

#include <algorithm>

#include "decoder_buffers.hpp"
#include "decoder_weights.hpp"
#include "elementwise.hpp"
#include "episodic/base/error.hpp"

namespace episodic {

void StepBuffers::fit_mixers(const ModelConfig& c, std::int64_t rows) {
  for (const LayerSpec& layer : c.layers) {  // those of one kind are alike
    if (layer.output_gate) gated_q.fit(rows, layer.q_rows());
    if (layer.mixer == Mixer::short_convolution) {
      mixing.fit(rows, 3 * c.hidden_size);
      mixed.fit(rows, c.hidden_size);
    } else if (const RecurrenceSpec& r = layer.recurrence) {
      mixing.fit(rows, r.channels());
      mixed.fit(rows, r.values());
      mix_gate.fit(rows, r.values());
      mix_step.fit(rows, r.heads);
      mix_write.fit(rows, r.heads);
    }
  }
}

void StepBuffers::multiply_mixer(const DecoderLayer& of, const float* x, std::int64_t first,
                                 std::int64_t n, Cut cut) {
  if (!of.recurrence.spec) {
    const Product in{&of.conv.in, x, mixing.from(first)};
    return multiply(first, n, {&in, 1}, cut);
  }
  const LinearRecurrence& r = of.recurrence;
  const Product all[] = {{&r.in, x, mixing.from(first)},
                         {&r.gate, x, mix_gate.from(first)},
                         {&r.step, x, mix_step.from(first)},
                         {&r.write, x, mix_write.from(first)}};
  multiply(first, n, {all, r.spec.delta() ? 4u : 3u}, cut);
}

void StepBuffers::mix(const DecoderLayer& of, std::size_t layer, const SequenceRows& rows,
                      RecurrentState& state) {
  const auto l = static_cast<std::int64_t>(layer);
  const std::span<float> after = state.next(l);
  if (const LinearRecurrence& r = of.recurrence; r.spec)
    linear_recurrence(
        r, rows.n,
        {mixing.from(rows.first), mix_gate.from(rows.first), mix_step.from(rows.first),
         mix_write.from(rows.first), mixed.from(rows.first)},
        state.now(l), after);
  else
    short_convolution(of.conv, rows.n, mixing.from(rows.first), state.now(l), after,
                      mixed.from(rows.first));
  if (!all_finite(after.data(), static_cast<std::int64_t>(after.size())))
    throw DataError(
        fmt::format("a step: what layer {} keeps in place of keys and values is not finite", l));
}

void StepBuffers::take_queries(const LayerSpec& spec, std::int64_t first, std::int64_t n) {
  const std::int64_t d = spec.head_dim;
  const float* from = gated_q.from(first);
  float* to = q.from(first);
  for (std::int64_t head = 0; head < n * spec.n_heads; ++head)
    std::copy_n(from + head * 2 * d, d, to + head * d);
}

void StepBuffers::gate_attended(const LayerSpec& spec, std::int64_t first, std::int64_t n) {
  const std::int64_t d = spec.head_dim;
  const float* from = gated_q.from(first) + d;
  float* to = attended.from(first);
  for (std::int64_t head = 0; head < n * spec.n_heads; ++head)
    sigmoid_times(from + head * 2 * d, d, to + head * d);
}

}  // namespace episodic
