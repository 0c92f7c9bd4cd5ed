// SPDX-License-Identifier: Apache-2.0
#include "model_layers.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calls.hpp"
#include "episodic/attention/copy_rows.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/text.hpp"
#include "episodic/model/host_only.hpp"
#include "episodic/model/recurrent_state.hpp"

namespace episodic::c {
namespace {

constexpr std::size_t kLayerLeast = 64;  // of its first version, for ever (tests/c/abi_v1.txt)

/// The episodic_memory as what EpisodicState shares; whoever has both lives longer than the state.
std::shared_ptr<EpisodicMemory> not_owned(EpisodicMemory& memory) {
  return {std::shared_ptr<void>(), &memory};
}

std::shared_ptr<CausalState> windows_of(const ModelConfig& model) {
  if (model.memory_layers().size() == model.layers.size()) return nullptr;
  return std::make_shared<CausalState>(model);
}

Rope rope_of(const episodic_layer& layer) {
  Rope rope;
  if (layer.frequencies)
    rope.table.inverse_frequency.assign(layer.frequencies,
                                        layer.frequencies + layer.rotary_dim / 2);
  else
    rope.table = plain_rotary(layer.rotary_dim, layer.rotary_theta);
  if (layer.attention_factor != 0) rope.table.attention_factor = layer.attention_factor;
  rope.table.pairs = layer.interleaved ? RotaryPairs::interleaved : RotaryPairs::halves;
  return rope;
}

episodic_layer layer_of(const episodic_shape& shape) {
  episodic_layer layer{};
  layer.struct_size = sizeof layer;
  layer.rotary_dim = shape.rotary_dim;
  layer.rotary_theta = shape.rotary_theta;
  layer.frequencies = shape.frequencies;
  layer.attention_factor = shape.attention_factor;
  layer.interleaved = shape.interleaved;
  layer.scale = shape.scale;
  layer.softcap = shape.softcap;
  return layer;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b));
}

/// What differs between two layers, for a message; empty if nothing.
std::string difference_of_layers(const ModelConfig& a, const ModelConfig& b, std::size_t l) {
  const LayerSpec &x = a.layers[l], &y = b.layers[l];
  if (x.window != y.window) return concat("a window of ", x.window, ", not ", y.window);
  if (!near(x.scale, y.scale)) return concat("an attention scale of ", x.scale, ", not ", y.scale);
  if (!near(x.soft_cap, y.soft_cap))
    return concat("a soft cap of ", x.soft_cap, ", not ", y.soft_cap);
  const auto table = [](const ModelConfig& m, const LayerSpec& s) {
    return s.rope < 0 ? nullptr : &m.ropes[static_cast<std::size_t>(s.rope)];
  };
  const Rope *r = table(a, x), *s = table(b, y);
  if (!r != !s) return concat(r ? "a" : "no", " rotary embedding");
  if (!r) return {};
  if (r->depends_on_length()) return {};  // the model knows best which table is its memory's
  const std::vector<double>&f = r->table.inverse_frequency, &g = s->table.inverse_frequency;
  if (f.size() != g.size() || !std::equal(f.begin(), f.end(), g.begin(), near) ||
      !near(r->table.attention_factor, s->table.attention_factor))
    return "another rotary table";
  return {};
}

}  // namespace

ModelConfig described_model(const episodic_shape& shape, const episodic_layer* layers) {
  ModelConfig model;
  model.model_type = "described";
  model.n_layers = shape.n_layers;
  model.n_heads = shape.n_heads;
  model.n_kv_heads = shape.n_kv_heads;
  model.head_dim = shape.head_dim;
  if (shape.n_layers < 1 || shape.n_layers > 65536)
    throw ConfigError(concat("shape: n_layers = ", shape.n_layers, ", must be in [1, 65536]"));
  constexpr std::int64_t kMost = 1 << 20;  // before there is room made for so many
  for (const auto& [name, x] : {std::pair{"n_heads", shape.n_heads}, {"head_dim", shape.head_dim}})
    if (x < 1 || x > kMost)
      throw ConfigError(concat("shape: ", name, " = ", x, ", must be in [1, ", kMost, "]"));
  if (shape.n_kv_heads < 1 || shape.n_heads < shape.n_kv_heads ||
      shape.n_heads % shape.n_kv_heads != 0)
    throw ConfigError(concat("shape: ", shape.n_heads, " heads over ", shape.n_kv_heads,
                             " key/value heads of ", shape.head_dim,
                             " channels; n_heads must be a multiple of n_kv_heads"));
  const std::size_t stride = layers ? layers->struct_size : 0;  // of the caller's version
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    const auto* given = reinterpret_cast<const episodic_layer*>(
        reinterpret_cast<const char*>(layers) + static_cast<std::size_t>(l) * stride);
    const episodic_layer one =
        layers ? known_fields(given, "layers", {}, kLayerLeast) : layer_of(shape);
    if (layers && (one.struct_size != stride || stride % alignof(episodic_layer) != 0))
      throw ApiError{EPISODIC_CONFIG, concat("layers: struct_size = ", one.struct_size, " beside ",
                                             stride, "; all must be sizeof the struct")};
    if (one.rotary_dim < 0 || one.rotary_dim % 2 != 0 || one.rotary_dim > shape.head_dim)
      throw ConfigError(concat("layers: rotary_dim = ", one.rotary_dim, " of layer ", l,
                               ", must be even and in [0, head_dim]"));
    if (one.window < 0)
      throw ConfigError(concat("layers: window = ", one.window, " of layer ", l, ", must be >= 0"));
    LayerSpec spec;
    spec.n_heads = shape.n_heads;
    spec.n_kv_heads = shape.n_kv_heads;
    spec.head_dim = shape.head_dim;
    spec.window = one.window;
    spec.scale = one.scale != 0 ? static_cast<double>(one.scale)
                                : 1 / std::sqrt(static_cast<double>(shape.head_dim));
    spec.soft_cap = static_cast<double>(one.softcap);
    spec.rope = -1;
    if (one.rotary_dim > 0) {
      const Rope rope = rope_of(one);
      const auto at = std::find(model.ropes.begin(), model.ropes.end(), rope);
      spec.rope = static_cast<int>(at - model.ropes.begin());
      if (at == model.ropes.end()) model.ropes.push_back(rope);
    }
    model.layers.push_back(spec);
  }
  return model;
}

void require_same_model(const ModelConfig& model, const ModelConfig& described,
                        const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(concat(path, ": is not the model that is given, but one with ", what,
                             "; give the path of that model"));
  };
  const auto number = [&](const char* name, std::int64_t there, std::int64_t given) {
    if (there != given) refuse(concat(there, " ", name, ", not ", given));
  };
  number("layers", model.n_layers, described.n_layers);
  number("query heads", model.n_heads, described.n_heads);
  number("key/value heads", model.n_kv_heads, described.n_kv_heads);
  number("channels in a head", model.head_dim, described.head_dim);
  for (std::size_t l = 0; l < model.layers.size(); ++l)
    if (const std::string what = difference_of_layers(model, described, l); !what.empty())
      refuse(concat(what, " in layer ", l));
}

ModelLayers::ModelLayers(EpisodicMemory& memory, const ModelConfig& model,
                         const ModelConfig& caller)
    : memory_(&memory),
      model_(model),
      caller_(caller),
      layers_(model.layers.size()),
      windows_(windows_of(model)),
      state_(not_owned(memory), windows_) {
  require_attention_in_all_layers(model, "a memory for layers of your own");
  require_no_host_only_part(model, "a memory for layers of your own");
  std::int64_t served = 0;
  for (const std::int64_t l : model.memory_layers()) {
    layers_[static_cast<std::size_t>(l)].served = served++;
    const std::int64_t window = model.layers[static_cast<std::size_t>(l)].window;
    if (window > 0 && memory.config().n_local > window)
      throw ConfigError(concat("n_local = ", memory.config().n_local,
                               " exceeds the sliding window of ", window, " tokens that layer ", l,
                               " has; set n_local to at most that"));
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const LayerSpec &spec = model.layers[l], &given = caller.layers[l];
    layers_[l].ratio =
        static_cast<float>(spec.scale * std::sqrt(static_cast<double>(spec.head_dim)));
    if (spec.rope < 0 || given.rope < 0) continue;
    const RotaryTable& table = model.ropes[static_cast<std::size_t>(spec.rope)].table;
    const RotaryPairs pairs = caller.ropes[static_cast<std::size_t>(given.rope)].table.pairs;
    if (table.pairs == pairs) continue;
    layers_[l].paired = table.rotary_dim();
    layers_[l].to_interleaved = table.pairs == RotaryPairs::interleaved;
  }
  memory.keep_beside(windows_);  // which takes over what was kept of them
}

std::unique_ptr<ModelLayers> ModelLayers::over(EpisodicMemory& other) const {
  return std::make_unique<ModelLayers>(other, model_, caller_);
}

void ModelLayers::begin_step(std::int64_t n, StepKind kind) {
  // before there is room made for so many
  if (n < 1 || n > memory_->config().chunk)
    throw DataError(
        concat("begin_step: n = ", n, ", must be in [1, chunk = ", memory_->config().chunk, "]"));
  next_ = 0;
  state_.begin_step(std::vector<std::int64_t>(static_cast<std::size_t>(n)), kind);
}

TensorView ModelLayers::rows(const char* name, const Layer& layer, const TensorView& given,
                             std::int64_t heads, float ratio, bool pairs,
                             std::vector<float>& buffer) const {
  const std::int64_t n = memory_->open_tokens(), d = model_.head_dim;
  const bool reordered = pairs && layer.paired > 0;
  if (layer.served >= 0 && ratio == 1 && !reordered) return given;  // the memory takes all kinds
  if (!given.data || given.sizes != TensorSizes{n, heads, d})
    throw DataError(concat("attend: ", name, " is ", given.data ? "" : "null, ", "[", given.sizes.n,
                           ", ", given.sizes.heads, ", ", given.sizes.dim, "], must be [", n, ", ",
                           heads, ", ", d, "]"));
  if (given.rotary == Rotary::after && (layer.served < 0 || reordered))
    throw DataError(
        concat("attend: ", name, " comes after rotary embedding; this layer takes it before"));
  buffer.resize(static_cast<std::size_t>(n * heads * d));
  MutableTensorView packed(buffer.data(), {n, heads, d});
  packed.rotary = given.rotary;
  copy_rows(given, packed);
  if (reordered) {
    std::vector<float> head(static_cast<std::size_t>(layer.paired));
    const std::int64_t half = layer.paired / 2;
    for (float* x = buffer.data(); x != buffer.data() + buffer.size(); x += d) {
      std::copy_n(x, layer.paired, head.data());
      for (std::int64_t c = 0; c < half; ++c)
        for (std::int64_t p = 0; p < 2; ++p) {
          const std::int64_t beside = 2 * c + p, apart = p * half + c;
          x[layer.to_interleaved ? beside : apart] =
              head[static_cast<std::size_t>(layer.to_interleaved ? apart : beside)];
        }
    }
  }
  if (ratio != 1)
    for (float& x : buffer) x *= ratio;
  return packed;
}

void ModelLayers::attend(std::int64_t layer, const TensorView& q, const TensorView& k,
                         const TensorView& v, const MutableTensorView& out) {
  const auto n_layers = static_cast<std::int64_t>(layers_.size());
  if (layer < 0 || layer >= n_layers)
    throw DataError(concat("attend: layer = ", layer, ", must be in [0, ", n_layers, ")"));
  if (memory_->open_tokens() == 0)
    throw DataError("attend: no step is open; call begin_step first");
  if (layer != next_)
    throw DataError(concat("attend: layer = ", layer, ", but layer ", next_,
                           " comes next; layers come in order, each once"));
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  const TensorView queries = rows("q", l, q, model_.n_heads, l.ratio, true, q_);
  const TensorView keys = rows("k", l, k, model_.n_kv_heads, 1, true, k_);
  const TensorView values = rows("v", l, v, model_.n_kv_heads, 1, false, v_);
  if (l.served >= 0) {
    static_cast<SequenceMemory&>(*memory_).attend(l.served, queries, keys, values, out);
  } else {
    const TensorSizes sizes{memory_->open_tokens(), model_.n_heads, model_.head_dim};
    if (!out.data || out.sizes != sizes)
      throw DataError(concat("attend: out is ", out.data ? "" : "null, ", "[", out.sizes.n, ", ",
                             out.sizes.heads, ", ", out.sizes.dim, "], must be [", sizes.n, ", ",
                             sizes.heads, ", ", sizes.dim, "]"));
    out_.resize(q_.size());
    const MutableTensorView packed(out_.data(), sizes);
    windows_->attend_layer(layer, queries, keys, values, packed);
    copy_rows(packed, out);
  }
  ++next_;
}

void ModelLayers::require_all_attended() const {
  if (memory_->open_tokens() > 0 && next_ != static_cast<std::int64_t>(layers_.size()))
    throw DataError(concat("end_step: layer ", next_, " of the step has not attended"));
}

void ModelLayers::ended() {
  if (windows_) windows_->end_step({}, {});
}

}  // namespace episodic::c
