// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in a step on the device.
#include "decoder_step.hpp"
#include "kernels/mixture.hpp"

namespace episodic::device {

/// From the rows that it reads to the next block's. Its shared expert goes as a dense network
/// would, into `added`, where what the router chose is added to it.
void DecoderSteps::feed_mixture(Step& step, std::int64_t l, const DeviceNorm& next_norm) {
  const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
  const MixtureSpec& mixture = spec.mixture;
  const DeviceLayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
  const Activations& a = step.a;
  if (!step.normed) add_norm(step, {}, step.norm);
  kernels::ChooseExpertsParams choose;
  choose.dtype = dtype;
  choose.x = a.normed;
  choose.n = step.n;
  choose.hidden = config.hidden_size;
  choose.router = w.mixture.router;
  choose.maybe_bias = w.mixture.maybe_bias;
  choose.maybe_choice = w.mixture.maybe_choice;
  choose.experts = mixture.experts;
  choose.chosen = mixture.chosen;
  choose.sigmoid = mixture.scoring == RouterScoring::sigmoid;
  choose.normalised = mixture.normalised;
  choose.scaling = static_cast<float>(mixture.scaling);
  choose.expert = a.expert;
  choose.weight = a.expert_weight;
  choose.maybe_shared_router = w.mixture.maybe_shared_router;
  choose.maybe_shared = w.mixture.maybe_shared_router ? a.shared_factor : nullptr;
  check(kernels::choose_experts(choose, stream.get()), "the router", choose);

  const bool shared = mixture.shared_width > 0;
  if (shared) {
    feed_forward(step, l);
    if (step.few) {
      float* rows[kernels::kMostProductRows] = {};
      for (std::int64_t i = 0; i < step.n; ++i) rows[i] = a.added + i * config.hidden_size;
      const kernels::ProductParams of = product_of(step, w.down, a.inner);
      check(kernels::product(of, rows, stream.get()), "the shared expert", of, rows);
    } else {
      multiply(w.down, a.inner, step.n, DType::float32, a.added);
    }
  }

  kernels::ExpertGateParams gate;
  gate.dtype = dtype;
  gate.activation = spec.activation == Activation::silu ? kernels::GateActivation::silu
                                                        : kernels::GateActivation::gelu_tanh;
  gate.x = a.normed;
  gate.gate_up = w.mixture.gate_up;
  gate.blocks = w.mixture.gate_up_blocks;
  gate.maybe_bias = w.mixture.maybe_gate_up_bias;
  gate.slope = static_cast<float>(mixture.slope);
  gate.limit = static_cast<float>(mixture.limit);
  gate.expert = a.expert;
  gate.n = step.n;
  gate.in = config.hidden_size;
  gate.width = mixture.width;
  gate.chosen = mixture.chosen;
  gate.inner = a.expert_inner;
  check(kernels::expert_gate(gate, stream.get()), "the experts' gates", gate);

  kernels::ExpertSumParams sum;
  sum.dtype = dtype;
  sum.inner = a.expert_inner;
  sum.down = w.mixture.down;
  sum.blocks = w.mixture.down_blocks;
  sum.maybe_bias = w.mixture.maybe_down_bias;
  sum.expert = a.expert;
  sum.weight = a.expert_weight;
  sum.n = step.n;
  sum.width = mixture.width;
  sum.out = config.hidden_size;
  sum.chosen = mixture.chosen;
  sum.adds = shared;
  sum.maybe_shared = choose.maybe_shared;
  sum.sum = a.added;
  check(kernels::expert_sum(sum, stream.get()), "the experts' sum", sum);

  kernels::AddNormParams p;
  p.maybe_norm_of_added = w.fed_norm;
  p.multiplier = static_cast<float>(config.residual_multiplier);
  p.maybe_added = a.added;
  add_norm(step, p, next_norm);
}

}  // namespace episodic::device
