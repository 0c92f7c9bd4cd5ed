// SPDX-License-Identifier: Apache-2.0
// What stands in place of attention in a step on the device, and a gate behind it.
#include <vector>

#include "decoder_step.hpp"
#include "kernels/linear_recurrence.hpp"

namespace episodic::device {

/// A recurrence in place of heads and attention.
void DecoderSteps::recur(Step& step, std::int64_t l) {
  const DeviceLayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
  const RecurrenceSpec& s = config.layers[static_cast<std::size_t>(l)].recurrence;
  first_product(step, w.qkv, step.a.qkv, "the products of a recurrence");
  std::vector<kernels::LinearRecurrenceParams> of;
  for (const DecoderPart& part : step.parts) {
    kernels::LinearRecurrenceParams& p = of.emplace_back(part.of->causal.recurrence(l));
    p.dtype = dtype;
    p.eps = static_cast<float>(config.rms_norm_eps);
    p.rows = step.a.qkv + part.first * w.qkv.out * size_of(dtype);
    p.maybe_rows_bias = w.qkv.maybe_bias;
    p.tap = w.tap;
    p.maybe_bias = w.maybe_conv_bias;
    p.log_rate = w.recurrence.log_rate;
    p.step_bias = w.recurrence.step_bias;
    p.maybe_skip = w.recurrence.maybe_skip;
    p.norm = w.recurrence.norm;
    p.inputs = step.a.mix_inputs + part.first * s.channels();
    p.weights = step.a.mix_weights + part.first * 2 * s.heads;
    p.y = step.a.mix_y + part.first * s.values();
    p.out = step.a.attended + part.first * w.o.in * size_of(dtype);
  }
  launch_batch(kernels::linear_recurrence_batch, of, stream.get(), "a recurrence");
}

/// A product of what the layer reads, without its bias.
void DecoderSteps::first_product(Step& step, const DeviceLinear& w, std::byte* to,
                                 const char* what) {
  if (!step.few) return multiply(w, step.a.normed, step.n, dtype, to);
  kernels::ProductParams p = product_of(step, w);
  p.maybe_bias = nullptr;
  check(kernels::narrow_product(p, to, stream.get()), what, p, to);
}

/// Multiplies what attention gave by its gate, whose product is in a.gate_up.
void DecoderSteps::gate_attended(const Step& step, std::int64_t l) {
  const DeviceLinear& gate = weights.layers[static_cast<std::size_t>(l)].output_gate;
  const kernels::GateRowsParams p{dtype,          step.n,          gate.out,
                                  step.a.gate_up, gate.maybe_bias, step.a.attended};
  check(kernels::gate_rows(p, stream.get()), "attention's gate", p);
}

}  // namespace episodic::device
