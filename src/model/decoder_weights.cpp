// SPDX-License-Identifier: Apache-2.0
#include "decoder_weights.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "episodic/base/error.hpp"
#include "xielu.hpp"

namespace episodic {
namespace {

class Loader {
 public:
  Loader(const OpenModel& model, DecoderWeights& to)
      : planned_(model.config, model.tensors), to_(to) {}

  Linear linear(WeightRole role, std::int64_t layer) {
    Linear result = stored(role, planned_.at(role, layer));
    if (planned_.has(role, layer, true)) {
      to_.biases.push_back(floats(planned_.at(role, layer, true)));
      result.bias = to_.biases.back().data();
    }
    return result;
  }

  MixtureWeights mixture(const MixtureSpec& spec, std::int64_t layer) {
    using Role = WeightRole;
    MixtureWeights w;
    w.router = plain(Role::router, layer);
    if (spec.bias != RouterBias::none) {
      to_.biases.push_back(floats(planned_.at(Role::router, layer, true)));
      const float* const bias = to_.biases.back().data();
      (spec.bias == RouterBias::product ? w.router.bias : w.choice_bias) = bias;
    }
    const auto experts = [&](Role role, std::vector<Linear>& to) {
      for (std::int64_t e = 0; e < spec.experts; ++e)
        to.push_back(stored(role, planned_.of_expert(role, layer, e)));
      if (!spec.expert_bias) return;
      for (std::int64_t e = 0; e < spec.experts; ++e) {
        to_.biases.push_back(floats(planned_.of_expert(role, layer, e, true)));
        to[static_cast<std::size_t>(e)].bias = to_.biases.back().data();
      }
    };
    experts(Role::expert_gate, w.gate);
    experts(Role::expert_up, w.up);
    experts(Role::expert_down, w.down);
    if (spec.shared_width > 0) {
      w.shared_gate = linear(Role::shared_gate, layer);
      w.shared_up = linear(Role::shared_up, layer);
      w.shared_down = linear(Role::shared_down, layer);
    }
    if (spec.shared_gate) {
      w.shared_router = plain(Role::shared_router, layer);
      w.shared_router.in *= w.shared_router.out;  // one row, which some files have as a list
      w.shared_router.out = 1;
    }
    return w;
  }

  LatentWeights latent(const LayerSpec& spec, std::int64_t layer) {
    using Role = WeightRole;
    const LatentSpec& s = spec.latent;
    LatentWeights w;
    if (s.q_rank > 0) {
      w.q_down = linear(Role::q_down, layer);
      w.q_norm = numbers(Role::q_down_norm, layer);
    }
    w.q = linear(s.q_rank > 0 ? Role::q_up : Role::q, layer);
    w.down = linear(Role::kv_down, layer);
    w.norm = numbers(Role::kv_down_norm, layer);
    WeightView head = planned_.at(Role::kv_up, layer);  // a head's rows after another's
    for (std::int64_t h = 0; h < spec.n_heads; ++h) {
      head.rows = s.still;
      w.key.push_back(transposed(head));
      head.data += s.still * head.row_bytes();
      head.rows = s.value;
      w.value.push_back(stored(Role::kv_up, head));
      head.data += s.value * head.row_bytes();
    }
    return w;
  }

  ShortConvolution convolution(std::int64_t layer) {
    ShortConvolution conv{linear(WeightRole::conv_in, layer), 0, {}, {}};
    const WeightView view = planned_.at(WeightRole::conv, layer);
    conv.taps = view.columns;
    conv.tap = by_tap(view);
    if (planned_.has(WeightRole::conv, layer, true))
      conv.bias = floats(planned_.at(WeightRole::conv, layer, true));
    return conv;
  }

  LinearRecurrence recurrence(const RecurrenceSpec& spec, double eps, std::int64_t layer) {
    using Role = WeightRole;
    LinearRecurrence r;
    r.spec = spec;
    r.in = linear(Role::mix_in, layer);
    r.gate = linear(Role::mix_gate, layer);
    r.step = linear(Role::mix_step, layer);
    if (spec.delta()) r.write = linear(Role::mix_write, layer);
    r.tap = by_tap(planned_.at(Role::mix_conv, layer));
    if (planned_.has(Role::mix_conv, layer, true))
      r.bias = floats(planned_.at(Role::mix_conv, layer, true));
    r.rate = floats(planned_.at(Role::mix_rate, layer));
    for (float& rate : r.rate) rate = -std::exp(rate);  // its logarithm is stored
    r.step_bias = floats(planned_.at(Role::mix_step_bias, layer));
    r.skip = numbers(Role::mix_skip, layer);
    r.norm = floats(planned_.at(Role::mix_norm, layer));
    r.eps = static_cast<float>(eps);
    return r;
  }

  /// Numbers as they are; empty if the plan has no such weight.
  std::vector<float> numbers(WeightRole role, std::int64_t layer) const {
    return planned_.has(role, layer) ? floats(planned_.at(role, layer)) : std::vector<float>();
  }

  /// What a mixture beside a dense network has besides.
  void beside(DecoderLayer& to, std::int64_t layer) {
    using Role = WeightRole;
    to.router_norm.weight = numbers(Role::router_scale, layer);
    const float root = 1 / std::sqrt(static_cast<float>(to_.config.hidden_size));
    for (float& x : to.router_norm.weight) x *= root;
    to_.biases.push_back(numbers(Role::expert_scale, layer));
    to.mixture.expert_scale = to_.biases.back().data();
    to.expert_in_norm = norm(Role::expert_in_norm, layer);
    to.dense_norm = norm(Role::dense_norm, layer);
    to.expert_norm = norm(Role::expert_norm, layer);
  }

  /// A norm's factors; empty if the plan has no such norm.
  DecoderNorm norm(WeightRole role, std::int64_t layer) const {
    if (!planned_.has(role, layer)) return {};
    DecoderNorm norm{floats(planned_.at(role, layer)), {}};
    if (planned_.has(role, layer, true)) norm.bias = floats(planned_.at(role, layer, true));
    return norm;
  }

  const PlannedWeights& planned() const { return planned_; }

 private:
  /// The taps of a convolution: [channels, taps] as [taps, channels].
  static std::vector<float> by_tap(const WeightView& view) {
    const std::vector<float> channels = floats(view);
    std::vector<float> tap(channels.size());
    for (std::int64_t c = 0; c < view.rows; ++c)
      for (std::int64_t i = 0; i < view.columns; ++i)
        tap[static_cast<std::size_t>(i * view.rows + c)] =
            channels[static_cast<std::size_t>(c * view.columns + i)];
    return tap;
  }

  Linear stored(WeightRole role, const WeightView& view) {
    if (!can_multiply(view.type))
      throw FileError(fmt::format("{}: {} is stored as {}; store it as F32, F16 or BF16",
                                  to_.source->file_of("").string(), name_of(role),
                                  name_of(view.type)));
    return {view.type, aligned(view), nullptr, view.rows, view.columns};
  }

  /// A copy whose rows are the columns: of plain numbers in their type, of blocks in float32.
  Linear transposed(const WeightView& view) {
    const std::vector<float> from = floats(view);
    std::vector<float> row(static_cast<std::size_t>(view.rows));
    const TensorType type = block_elements(view.type) == 1 ? view.type : TensorType::f32;
    const std::int64_t row_bytes = cpu::row_bytes(type, view.rows);
    to_.copies.push_back(
        std::make_unique<std::byte[]>(static_cast<std::size_t>(view.columns * row_bytes)));
    std::byte* const data = to_.copies.back().get();
    for (std::int64_t c = 0; c < view.columns; ++c) {
      for (std::int64_t r = 0; r < view.rows; ++r)
        row[static_cast<std::size_t>(r)] = from[static_cast<std::size_t>(r * view.columns + c)];
      cpu::quantize_row(type, row.data(), view.rows, data + c * row_bytes);
    }
    return {type, data, nullptr, view.columns, view.rows};
  }

  /// As float32, whatever it is stored as: small matrices that decide.
  Linear plain(WeightRole role, std::int64_t layer) {
    const WeightView view = planned_.at(role, layer);
    to_.biases.push_back(floats(view));
    const auto* const data = reinterpret_cast<const std::byte*>(to_.biases.back().data());
    return {TensorType::f32, data, nullptr, view.rows, view.columns};
  }

  static std::vector<float> floats(const WeightView& view) {
    std::vector<float> out(static_cast<std::size_t>(view.rows * view.columns));
    widen(view.type, view.data, view.rows * view.columns, out.data());
    if (view.offset != 0)
      for (float& x : out) x += static_cast<float>(view.offset);
    return out;
  }

  /// The rows where they lie, or a copy of them: a file promises no alignment.
  const std::byte* aligned(const WeightView& view) {
    const auto element =
        static_cast<std::uintptr_t>(block_elements(view.type) == 1 ? block_bytes(view.type) : 1);
    if (reinterpret_cast<std::uintptr_t>(view.data) % element == 0) return view.data;
    const auto bytes = static_cast<std::size_t>(view.rows * view.row_bytes());
    to_.copies.push_back(std::make_unique<std::byte[]>(bytes));
    std::memcpy(to_.copies.back().get(), view.data, bytes);
    return to_.copies.back().get();
  }

  PlannedWeights planned_;
  DecoderWeights& to_;
};

}  // namespace

std::shared_ptr<const DecoderWeights> load_decoder_weights(const OpenModel& model) {
  using Role = WeightRole;
  auto w = std::make_shared<DecoderWeights>();
  w->config = model.config;
  w->source = model.tensors;
  w->group = model.group;
  Loader load(model, *w);
  w->embedding = load.linear(Role::embedding, -1);
  const bool has_inputs = model.config.per_layer_width > 0;
  if (has_inputs) {
    w->per_layer_embedding = load.linear(Role::per_layer_embedding, -1);
    w->per_layer_model = load.linear(Role::per_layer_model, -1);
    w->per_layer_model_norm = load.norm(Role::per_layer_model_norm, -1);
  }
  for (std::int64_t l = 0; l < model.config.n_layers; ++l) {
    DecoderLayer layer;
    layer.input_norm = load.norm(Role::input_norm, l);
    layer.attended_norm = load.norm(Role::attended_norm, l);
    layer.feed_norm = load.norm(Role::feed_norm, l);
    layer.fed_norm = load.norm(Role::fed_norm, l);
    layer.q_norm = load.norm(Role::q_norm, l);
    layer.k_norm = load.norm(Role::k_norm, l);
    layer.sink_logits = load.numbers(Role::sink_logits, l);
    const LayerSpec& spec = model.config.layers[static_cast<std::size_t>(l)];
    if (spec.mixer == Mixer::short_convolution) {
      layer.conv = load.convolution(l);
      layer.o = load.linear(Role::conv_out, l);
    } else if (spec.mixer == Mixer::recurrence) {
      layer.recurrence = load.recurrence(spec.recurrence, model.config.rms_norm_eps, l);
      layer.o = load.linear(Role::mix_out, l);
    } else if (spec.latent) {
      layer.latent = load.latent(spec, l);
      layer.o = load.linear(Role::o, l);
    } else {
      layer.q = load.linear(Role::q, l);
      if (spec.keys_of < 0) layer.k = load.linear(Role::k, l);
      if (spec.keys_of < 0 && !spec.keys_are_values) layer.v = load.linear(Role::v, l);
      if (spec.keys_of < 0 && spec.value_norm)
        layer.v_norm.weight.assign(static_cast<std::size_t>(spec.head_dim), 1.0f);
      layer.o = load.linear(Role::o, l);
    }
    if (spec.mixture) layer.mixture = load.mixture(spec.mixture, l);
    if (spec.dense_beside) load.beside(layer, l);
    if (!spec.mixture || spec.dense_beside) {
      if (spec.gated) layer.gate = load.linear(Role::gate, l);
      if (spec.activation == Activation::xielu) layer.xielu = xielu_of(load.planned(), l);
      layer.up = load.linear(Role::up, l);
      layer.down = load.linear(Role::down, l);
    }
    if (has_inputs) {
      layer.per_layer_gate = load.linear(Role::per_layer_gate, l);
      layer.per_layer_out = load.linear(Role::per_layer_out, l);
      layer.per_layer_norm = load.norm(Role::per_layer_norm, l);
    }
    if (spec.layer_scalar) layer.scalar = load.numbers(Role::layer_scalar, l).at(0);
    w->layers.push_back(std::move(layer));
  }
  w->final_norm = load.norm(Role::final_norm, -1);
  w->head = load.linear(Role::head, -1);
  return w;
}

}  // namespace episodic
