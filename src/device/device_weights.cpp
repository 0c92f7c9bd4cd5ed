// SPDX-License-Identifier: Apache-2.0
#include "device_weights.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "block_weights.hpp"
#include "convert.hpp"
#include "episodic/model/quantize.hpp"
#include "kernels/mixture.hpp"
#include "model/elementwise.hpp"
#include "model/xielu.hpp"

namespace episodic::device {
namespace {

using Role = WeightRole;

bool is_stored_as(TensorType type, DType dtype) {
  return (type == TensorType::f32 && dtype == DType::float32) ||
         (type == TensorType::f16 && dtype == DType::float16) ||
         (type == TensorType::bf16 && dtype == DType::bfloat16);
}

/// Widened rows of blocks that a product of many rows reads at once.
constexpr std::int64_t kMostSlab = 128 << 20;

/// Rows or columns of a weight as they lie on the device: as they are, or heads that are padded, or
/// one part of each head that has several.
struct Axis {
  const HeadLayout* heads = nullptr;  // null: as they are
  std::int64_t parts = 1, part = 0;

  std::int64_t size(std::int64_t of_model, std::int64_t head_dim) const {
    return heads ? of_model / (head_dim * parts) * heads->head_dim() : of_model;
  }
  /// Index in the model's weight; -1: a zero.
  std::int64_t source(std::int64_t at, std::int64_t head_dim) const {
    if (!heads) return at;
    const std::int64_t c = heads->channel(at % heads->head_dim());
    return c < 0 ? -1 : (at / heads->head_dim() * parts + part) * head_dim + c;
  }
};

}  // namespace

DeviceWeights::DeviceWeights(const ModelConfig& config, DType dtype, const PlannedWeights& planned,
                             const WeightChanges& changes)
    : heads_(config), dtype_(dtype), changes_(changes) {
  Layout counter;
  lay_out(config, planned, counter);
  bytes_ = counter.bytes();
}

void DeviceWeights::lay_out(const ModelConfig& config, const PlannedWeights& planned, Layout& c) {
  const std::int64_t element = size_of(dtype_), hidden = config.hidden_size, d = heads_.head_dim();
  std::int64_t l = -1, widest = 0;
  std::vector<WeightView> views;
  const auto view = [&](Role role, WeightView of) {
    if (changes_.plain && block_elements(of.type) > 1) of.type = TensorType::bf16;
    if (const auto as =
            changes_.rounded ? rounded_as(role, of.columns, *changes_.rounded) : std::nullopt)
      of.type = *as;
    views.push_back(of);
  };
  // Padded heads have rows and columns that no block holds.
  const auto linear = [&](std::int64_t out, std::int64_t in, bool bias,
                          std::initializer_list<Role> roles, bool of_heads = false) {
    views.clear();
    for (const Role role : roles) {
      view(role, planned.at(role, l));
      // half of them are the output's gate
      if (role == Role::q && config.layers[static_cast<std::size_t>(l)].output_gate)
        views.back().rows /= 2;
    }
    DeviceLinear w;
    w.out = out;
    w.in = in;
    if (!of_heads || !heads_.padded())
      w.blocks = plan_blocks(views, roles.size() == 2, changes_.fp8 && l >= 0);
    if (w.in_blocks()) {
      lay_out_blocks(c, w.blocks, in);
      widest = std::max(widest, out * in * element);
    } else {
      w.weight = c.take(out * in * element);
    }
    if (bias) w.maybe_bias = c.take<float>(out);
    return w;
  };
  const auto experts = [&](std::int64_t rows, std::int64_t in, std::int64_t count,
                           std::int64_t chosen, std::initializer_list<Role> roles,
                           std::byte*& plain) {
    views.clear();
    for (std::int64_t e = 0; e < count; ++e)
      for (const Role role : roles) view(role, planned.of_expert(role, l, e));
    kernels::BlockWeights blocks = plan_blocks(views, true);
    if (blocks.n_parts == 0 || !kernels::takes_experts(chosen, in)) {
      plain = c.take(rows * in * element);
      return kernels::BlockMatrix();
    }
    lay_out_blocks(c, blocks, in);
    return blocks.part[0];
  };
  const auto norm = [&](bool is_there, std::int64_t width) {
    return is_there ? c.take<float>(width) : nullptr;
  };
  const auto norm_of_rows = [&](bool is_there) {
    return DeviceNorm{norm(is_there, hidden), norm(is_there && config.norm_bias, hidden)};
  };
  embedding = linear(config.vocab_size, hidden, false, {Role::embedding});
  if (!config.tie_word_embeddings) widest = 0;  // no product reads it
  layers.clear();
  for (const LayerSpec& s : config.layers) {
    ++l;
    const std::int64_t q = s.n_heads * d, kv = s.n_kv_heads * d;
    const bool before = s.norms != NormPlace::after, behind = s.norms != NormPlace::before;
    const bool row = s.qk_norm == QkNorm::row, any = s.qk_norm != QkNorm::none;
    DeviceLayerWeights w;
    w.input_norm = norm_of_rows(before);
    w.attended_norm = norm(behind, hidden);
    w.feed_norm = norm_of_rows(before && !s.parallel);
    w.fed_norm = norm(behind, hidden);
    w.q_norm = norm(any, row ? q : d);
    w.k_norm = norm(any, row ? kv : d);
    w.sink_logits = norm(s.sink_logits, s.n_heads);
    if (s.mixer == Mixer::short_convolution) {
      w.qkv = linear(3 * hidden, hidden, s.conv_bias, {Role::conv_in});
      w.o = linear(hidden, hidden, s.conv_bias, {Role::conv_out});
      w.tap = c.take<float>(hidden * s.conv_taps);
      w.maybe_conv_bias = norm(s.conv_bias, hidden);
    } else if (const RecurrenceSpec& r = s.recurrence) {
      const std::int64_t out = r.channels() + r.values() + (r.delta() ? 2 : 1) * r.heads;
      w.qkv = r.delta()
                  ? linear(out, hidden, r.bias,
                           {Role::mix_in, Role::mix_gate, Role::mix_step, Role::mix_write})
                  : linear(out, hidden, r.bias, {Role::mix_in, Role::mix_gate, Role::mix_step});
      w.o = linear(hidden, r.values(), r.bias, {Role::mix_out});
      w.tap = c.take<float>(r.channels() * r.taps);
      w.maybe_conv_bias = norm(r.conv_bias, r.channels());
      w.recurrence.log_rate = norm(true, r.heads);
      w.recurrence.step_bias = norm(true, r.heads);
      w.recurrence.maybe_skip = norm(!r.delta(), r.heads);
      w.recurrence.norm = norm(true, r.delta() ? r.value_dim : r.values());
    } else {
      w.qkv = linear(q + 2 * kv, hidden, s.qkv_bias, {Role::q, Role::k, Role::v}, true);
      w.o = linear(hidden, q, s.o_bias, {Role::o}, true);
      if (s.output_gate) w.output_gate = linear(q, hidden, s.qkv_bias, {Role::q}, true);
    }
    const MixtureSpec& m = s.mixture;
    if (const std::int64_t inner = m ? m.shared_width : s.intermediate_size; inner > 0) {
      const bool bias = !m && s.mlp_bias;
      if (m) {
        w.gate_up = linear(2 * inner, hidden, bias, {Role::shared_gate, Role::shared_up});
        w.down = linear(hidden, inner, bias, {Role::shared_down});
      } else {
        w.gate_up = s.gated ? linear(2 * inner, hidden, bias, {Role::gate, Role::up})
                            : linear(inner, hidden, bias, {Role::up});
        w.down = linear(hidden, inner, bias, {Role::down});
      }
    }
    if (m) {
      w.mixture.router = c.take<float>(m.experts * hidden);
      if (m.bias != RouterBias::none)
        (m.bias == RouterBias::choice ? w.mixture.maybe_choice : w.mixture.maybe_bias) =
            c.take<float>(m.experts);
      if (m.shared_gate) w.mixture.maybe_shared_router = c.take<float>(hidden);
      w.mixture.gate_up_blocks = experts(m.experts * 2 * m.width, hidden, m.experts, 1,
                                         {Role::expert_gate, Role::expert_up}, w.mixture.gate_up);
      w.mixture.down_blocks = experts(m.experts * hidden, m.width, m.experts, m.chosen,
                                      {Role::expert_down}, w.mixture.down);
      if (m.expert_bias) {
        w.mixture.maybe_gate_up_bias = c.take<float>(m.experts * 2 * m.width);
        w.mixture.maybe_down_bias = c.take<float>(m.experts * hidden);
      }
    }
    layers.push_back(w);
  }
  final_norm = norm_of_rows(true);
  l = -1;
  head = config.tie_word_embeddings ? embedding
                                    : linear(config.vocab_size, hidden, false, {Role::head});
  slab_bytes = std::min(widest, kMostSlab);
  slab = slab_bytes > 0 ? c.take(slab_bytes) : nullptr;
}

/// Reads weights off the files and sends them, some rows at a time.
class DeviceWeights::Loader {
 public:
  Loader(const PlannedWeights& planned, DType dtype, std::int64_t head_dim, cudaStream_t stream)
      : planned_(planned),
        dtype_(dtype),
        head_dim_(head_dim),
        stream_(stream),
        blocks_([this](void* to, const void* from, std::int64_t bytes) { copy(to, from, bytes); }) {
  }

  /// One product's rows, of several weights behind each other.
  void linear(const DeviceLinear& w, std::int64_t layer, std::initializer_list<Role> roles,
              const Axis& rows = {}, const Axis& columns = {}) {
    Rows to{w};
    for (const Role role : roles) add(to, layer, role, rows, columns);
  }

  /// What decides stays float32; experts lie behind each other.
  void mixture(const DeviceMixture& w, const MixtureSpec& spec, std::int64_t layer) {
    const auto floats = [&](float* maybe_to, Role role, bool bias) {
      if (maybe_to)
        send(reinterpret_cast<std::byte*>(maybe_to), DType::float32, planned_.at(role, layer, bias),
             {});
    };
    floats(w.router, Role::router, false);
    floats(w.maybe_bias, Role::router, true);
    floats(w.maybe_choice, Role::router, true);
    floats(w.maybe_shared_router, Role::shared_router, false);
    Rows gate_up{of_experts(w.gate_up, w.gate_up_blocks)}, down{of_experts(w.down, w.down_blocks)};
    for (std::int64_t e = 0; e < spec.experts; ++e) {
      for (const Role role : {Role::expert_gate, Role::expert_up})
        add(gate_up, planned_.of_expert(role, layer, e), {}, {});
      add(down, planned_.of_expert(Role::expert_down, layer, e), {}, {});
    }
    if (!spec.expert_bias) return;
    auto* gate_up_bias = reinterpret_cast<std::byte*>(w.maybe_gate_up_bias);
    auto* down_bias = reinterpret_cast<std::byte*>(w.maybe_down_bias);
    const auto bias = [&](std::byte*& to, Role role, std::int64_t e) {
      to += send(to, DType::float32, planned_.of_expert(role, layer, e, true), {});
    };
    for (std::int64_t e = 0; e < spec.experts; ++e) {
      for (const Role role : {Role::expert_gate, Role::expert_up}) bias(gate_up_bias, role, e);
      bias(down_bias, Role::expert_down, e);
    }
  }

  void norm(float* maybe_to, Role role, std::int64_t layer, const Axis& rows = {}) {
    if (maybe_to)
      send(reinterpret_cast<std::byte*>(maybe_to), DType::float32, planned_.at(role, layer), rows);
  }

  /// Queries, and the gate that each head has behind its query.
  void gated_heads(const DeviceLayerWeights& w, std::int64_t layer, const HeadLayout& heads,
                   const Axis& of_heads) {
    const Axis queries{&heads, 2, 0}, gates{&heads, 2, 1};
    linear(w.output_gate, layer, {Role::q}, gates);
    Rows to{w.qkv};
    for (const Role role : {Role::q, Role::k, Role::v})
      add(to, layer, role, role == Role::q ? queries : of_heads, {});
  }

  void recurrence(const DeviceLayerWeights& w, bool delta, std::int64_t layer) {
    if (delta)
      linear(w.qkv, layer, {Role::mix_in, Role::mix_gate, Role::mix_step, Role::mix_write});
    else
      linear(w.qkv, layer, {Role::mix_in, Role::mix_gate, Role::mix_step});
    linear(w.o, layer, {Role::mix_out});
    convolution(w, Role::mix_conv, layer);
    norm(w.recurrence.log_rate, Role::mix_rate, layer);
    norm(w.recurrence.step_bias, Role::mix_step_bias, layer);
    norm(w.recurrence.maybe_skip, Role::mix_skip, layer);
    norm(w.recurrence.norm, Role::mix_norm, layer);
  }

  void convolution(const DeviceLayerWeights& w, Role role, std::int64_t layer) {
    send(reinterpret_cast<std::byte*>(w.tap), DType::float32, planned_.at(role, layer), {});
    if (w.maybe_conv_bias)
      send(reinterpret_cast<std::byte*>(w.maybe_conv_bias), DType::float32,
           planned_.at(role, layer, true), {});
  }

  void norm(const DeviceNorm& to, Role role, std::int64_t layer) {
    norm(to.maybe_weight, role, layer);
    if (to.maybe_bias)
      send(reinterpret_cast<std::byte*>(to.maybe_bias), DType::float32,
           planned_.at(role, layer, true), {});
  }

 private:
  /// Rows of a product, of which the first are there.
  struct Rows {
    DeviceLinear to;
    std::int64_t n = 0;
  };
  static Rows of_experts(std::byte* plain, const kernels::BlockMatrix& blocks) {
    Rows rows;
    rows.to.weight = plain;
    if (blocks.rows > 0) rows.to.blocks = {1, {blocks}};
    return rows;
  }

  /// Adds a role's rows behind them, with their biases.
  void add(Rows& rows, std::int64_t layer, Role role, const Axis& axis, const Axis& columns) {
    if (rows.to.maybe_bias)
      send(reinterpret_cast<std::byte*>(rows.to.maybe_bias + rows.n), DType::float32,
           planned_.at(role, layer, true), axis);
    add(rows, planned_.at(role, layer), axis, columns);
  }
  void add(Rows& rows, const WeightView& from, const Axis& axis, const Axis& columns) {
    const std::int64_t out = axis.size(from.rows, head_dim_);
    if (rows.to.in_blocks())
      blocks_.load(rows.to.blocks, rows.n, from, out,
                   [&](std::int64_t i) { return axis.source(i, head_dim_); });
    else
      send(rows.to.weight + rows.n * columns.size(from.columns, head_dim_) * size_of(dtype_),
           dtype_, from, axis, columns);
    rows.n += out;
  }

  /// \return bytes written
  std::int64_t send(std::byte* to, DType as, const WeightView& from, const Axis& rows,
                    const Axis& columns = {}) {
    const std::int64_t out = rows.size(from.rows, head_dim_);
    const std::int64_t in = columns.size(from.columns, head_dim_);
    const std::int64_t row_bytes = in * size_of(as);
    if (is_stored_as(from.type, as) && from.offset == 0 && !rows.heads && !columns.heads) {
      copy(to, from.data, out * row_bytes);
      return out * row_bytes;
    }
    constexpr std::int64_t kElements = 4 << 20;  // of the weights that are widened at once
    const std::int64_t at_once = std::clamp<std::int64_t>(kElements / in, 1, out);
    for (std::int64_t first = 0; first < out; first += at_once) {
      const std::int64_t count = std::min(at_once, out - first);
      widen_rows(from, rows, columns, first, count, in);
      narrowed_.resize(static_cast<std::size_t>(count * row_bytes));
      narrow(wide_.data(), count * in, as, narrowed_.data());
      copy(to + first * row_bytes, narrowed_.data(), count * row_bytes);
    }
    return out * row_bytes;
  }

  /// Rows [first, first + count), `in` columns each, into wide_.
  void widen_rows(const WeightView& from, const Axis& rows, const Axis& columns, std::int64_t first,
                  std::int64_t count, std::int64_t in) {
    const auto offset = static_cast<float>(from.offset);
    wide_.assign(static_cast<std::size_t>(count * in), 0.0f);
    if (!rows.heads && !columns.heads) {
      widen(from.type, from.data + first * from.row_bytes(), count * in, wide_.data());
      if (offset != 0)
        for (float& x : wide_) x += offset;
      return;
    }
    row_.resize(static_cast<std::size_t>(from.columns));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = rows.source(first + i, head_dim_);
      if (row < 0) continue;
      widen(from.type, from.data + row * from.row_bytes(), from.columns, row_.data());
      float* const to = wide_.data() + i * in;
      for (std::int64_t c = 0; c < in; ++c)
        if (const std::int64_t column = columns.source(c, head_dim_); column >= 0)
          to[c] = row_[static_cast<std::size_t>(column)] + offset;
    }
  }

  /// From pageable memory: returns once that may be used again.
  void copy(void* to, const void* from, std::int64_t bytes) {
    check(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_),
        "copying weights");
    check(cudaStreamSynchronize(stream_), "copying weights");
  }

  const PlannedWeights& planned_;
  DType dtype_;
  std::int64_t head_dim_;  // of the model
  cudaStream_t stream_;
  std::vector<float> wide_, row_;
  std::vector<std::byte> narrowed_;
  BlockLoader blocks_;
};

void DeviceWeights::load(const ModelConfig& config, const PlannedWeights& planned,
                         cudaStream_t stream) {
  buffer_ = DeviceBuffer(bytes_, "the model's weights", "take a smaller model or a 16-bit dtype");
  Layout layout(buffer_.data());
  lay_out(config, planned, layout);
  Loader loader(planned, dtype_, config.head_dim, stream);
  const Axis of_heads{heads_.padded() ? &heads_ : nullptr};
  loader.linear(embedding, -1, {Role::embedding});
  for (std::size_t i = 0; i < layers.size(); ++i) {
    DeviceLayerWeights& w = layers[i];
    const LayerSpec& spec = config.layers[i];
    const auto l = static_cast<std::int64_t>(i);
    loader.norm(w.input_norm, Role::input_norm, l);
    loader.norm(w.attended_norm, Role::attended_norm, l);
    loader.norm(w.feed_norm, Role::feed_norm, l);
    loader.norm(w.fed_norm, Role::fed_norm, l);
    loader.norm(w.q_norm, Role::q_norm, l, of_heads);
    loader.norm(w.k_norm, Role::k_norm, l, of_heads);
    loader.norm(w.sink_logits, Role::sink_logits, l);
    if (spec.recurrence) {
      loader.recurrence(w, spec.recurrence.delta(), l);
    } else if (w.tap) {
      loader.linear(w.qkv, l, {Role::conv_in});
      loader.linear(w.o, l, {Role::conv_out});
      loader.convolution(w, Role::conv, l);
    } else if (spec.output_gate) {
      loader.gated_heads(w, l, heads_, of_heads);
      loader.linear(w.o, l, {Role::o}, {}, of_heads);
    } else {
      loader.linear(w.qkv, l, {Role::q, Role::k, Role::v}, of_heads);
      loader.linear(w.o, l, {Role::o}, {}, of_heads);
    }
    if (const MixtureSpec& m = config.layers[i].mixture) {
      loader.mixture(w.mixture, m, l);
      if (m.shared_width == 0) continue;
      loader.linear(w.gate_up, l, {Role::shared_gate, Role::shared_up});
      loader.linear(w.down, l, {Role::shared_down});
      continue;
    }
    if (spec.gated)
      loader.linear(w.gate_up, l, {Role::gate, Role::up});
    else
      loader.linear(w.gate_up, l, {Role::up});
    loader.linear(w.down, l, {Role::down});
    if (spec.activation == Activation::xielu) {
      const Xielu x = xielu_of(planned, l);
      w.xielu = {x.positive, x.negative, x.beta, x.eps};
    }
  }
  loader.norm(final_norm, Role::final_norm, -1);
  if (!config.tie_word_embeddings) loader.linear(head, -1, {Role::head});
}

}  // namespace episodic::device
