// SPDX-License-Identifier: Apache-2.0
#include "episodic/training/trainable_decoder.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/host_only.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/model/weight_plan.hpp"
#include "episodic/training/memory_attention.hpp"
#include "model/atomic_file.hpp"
#include "model/elementwise.hpp"
#include "model/mixture_plan.hpp"
#include "training/frozen_product.hpp"

namespace episodic {
namespace {

/// A product's weights, frozen.
struct Product {
  at::Tensor weight;     // [out, in]; undefined where the product is computed elsewhere
  at::Tensor bias;       // [out], or undefined
  std::int64_t out = 0;  // rows of the weight
};

/// The pair that PEFT keeps for one module of a model: a tensor's, of which a product may be a
/// part.
struct LoraPair {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  at::Tensor a, b;     // [rank, in], [out, rank]
};

/// The rows of B that belong to a product.
struct LoraPart {
  std::size_t pair;
  std::int64_t first_row, rows;
};

using Place = std::pair<WeightRole, std::int64_t>;  // role, layer

struct Layer {
  // RMS norms by what they are applied to (WeightRole); undefined where there is none
  at::Tensor input_norm, attended_norm, feed_norm, fed_norm, q_norm, k_norm;
  at::Tensor keys, values;   // of the sequence so far, [tokens, G, d], before rotary embedding
  std::int64_t served = -1;  // its number in the memory; -1: the memory does not serve it
};

/// What a layer attends to of the memory's events in the open step.
struct Recalled {
  std::vector<EventId> events;
  std::vector<float> weights;
};

at::Tensor widened(const WeightView& view) {
  at::Tensor out = at::empty({view.rows, view.columns}, at::kFloat);
  float* to = out.mutable_data_ptr<float>();
  for (std::int64_t r = 0; r < view.rows; ++r)
    if (!widen(view.type, view.data + r * view.row_bytes(), view.columns, to + r * view.columns))
      throw FileError(
          fmt::format("training: weights stored as {} cannot be read; store them as "
                      "F32, F16 or BF16",
                      name_of(view.type)));
  if (view.offset != 0) out.add_(view.offset);
  return out;
}

/// Uniform in [-bound, bound), the same numbers on every machine.
at::Tensor uniform(std::int64_t rows, std::int64_t columns, double bound, std::mt19937_64& random) {
  at::Tensor out = at::empty({rows, columns}, at::kFloat);
  float* x = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < rows * columns; ++i)
    x[i] = static_cast<float>(bound * (std::ldexp(static_cast<double>(random() >> 11), -52) - 1));
  return out;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!weight.defined()) return x;
  // q and k may be normed head by head: rows of the norm's own width
  const at::Tensor rows = x.reshape({-1, weight.numel()});
  const at::Tensor factor = (rows.square().mean(1, true) + eps).rsqrt();
  return (rows * factor * weight).reshape(x.sizes());
}

}  // namespace

void LoraSettings::validate() const {
  if (rank < 1 || rank > 65536)
    throw ConfigError(fmt::format("rank = {}, must be in [1, 65536]", rank));
  if (!(alpha > 0) || !std::isfinite(alpha))
    throw ConfigError(fmt::format("alpha = {}, must be positive and finite", alpha));
  if (targets.empty())
    throw ConfigError("targets is empty; name the products to adapt: q, k, v, o");
  for (const WeightRole t : targets)
    if (!info_of(t).adapted)
      throw ConfigError(
          fmt::format("targets has {}, which no adapter is trained for; the products "
                      "of a layer are q, k, v, o, gate, up, down",
                      name_of(t)));
}

namespace {

/// What this decoder has no derivative of is refused, not left out.
void require_trainable(const ModelConfig& c) {
  const auto refuse = [&](const char* what) {
    throw ConfigError(
        fmt::format("training: a {} model has {}, which is not trained; take a model "
                    "of another family",
                    c.model_type, what));
  };
  if (const std::string part = host_only_part(c); !part.empty()) refuse(part.c_str());
  if (c.layer_norm) refuse("LayerNorms");
  if (c.query_scale.beta != 0) refuse("queries that grow with their position");
  for (const LayerSpec& layer : c.layers) {
    if (layer.parallel) refuse("parallel blocks");
    if (!layer.gated) refuse("feed-forward networks without a gate");
  }
}

}  // namespace

struct TrainableDecoder::Impl {
  ModelConfig config;
  LoraSettings lora;
  std::map<Place, Product> products;
  std::vector<Layer> layers;
  at::Tensor embedding, final_norm;
  std::vector<LoraPair> pairs;
  std::map<Place, LoraPart> parts;
  std::unique_ptr<EpisodicMemory> memory;
  std::vector<Recalled> recalled;  // by the memory's layers
  RecallHook hook;
  std::shared_ptr<FrozenProducts> elsewhere;  // null: the products are torch's
  at::Tensor last_logits;                     // [1, vocab] after the last step, without gradients

  Impl(const OpenModel& model, const MemoryConfig& settings, const LoraSettings& chosen,
       std::shared_ptr<FrozenProducts> of_weights)
      : config(model.config), lora(chosen), elsewhere(std::move(of_weights)) {
    lora.validate();
    require_dense(config, "training");
    require_attention_in_all_layers(config, "training");
    require_trainable(config);
    if (!model.adapters.empty() && !model.merged)
      throw ConfigError(
          "training: the model has adapters beside its weights; merge them, or open it "
          "without");
    for (const LayerSpec& layer : config.layers)
      if (layer.sink_logits)
        throw ConfigError(fmt::format(
            "training: the sink logits of a {} model have no derivative here; train its adapter "
            "elsewhere and use it with ModelOptions::lora",
            config.model_type));
    load(PlannedWeights(config, model.tensors));
    add_adapter();
    open_memory(settings);
  }

  // -- what it is made of --

  void load(const PlannedWeights& planned) {
    const auto norm = [&](WeightRole role, std::int64_t layer) {
      return planned.has(role, layer) ? widened(planned.at(role, layer)).reshape({-1})
                                      : at::Tensor();
    };
    const auto product = [&](WeightRole role, std::int64_t layer) {
      Product& p = products[{role, layer}];
      p.out = planned.at(role, layer).rows;
      if (!elsewhere) p.weight = widened(planned.at(role, layer));
      if (planned.has(role, layer, true))
        p.bias = widened(planned.at(role, layer, true)).reshape({-1});
    };
    embedding = widened(planned.at(WeightRole::embedding));
    for (std::int64_t l = 0; l < config.n_layers; ++l) {
      Layer layer;
      layer.input_norm = norm(WeightRole::input_norm, l);
      layer.attended_norm = norm(WeightRole::attended_norm, l);
      layer.feed_norm = norm(WeightRole::feed_norm, l);
      layer.fed_norm = norm(WeightRole::fed_norm, l);
      layer.q_norm = norm(WeightRole::q_norm, l);
      layer.k_norm = norm(WeightRole::k_norm, l);
      for (const WeightRole role : kLayerProducts) product(role, l);
      layers.push_back(std::move(layer));
    }
    final_norm = norm(WeightRole::final_norm, -1);
    product(WeightRole::head, -1);
  }

  void add_adapter() {
    std::mt19937_64 random(lora.seed);
    std::map<std::string, std::size_t> by_tensor;
    for (const WeightEntry& e : weight_plan(config)) {
      if (e.bias ||
          std::find(lora.targets.begin(), lora.targets.end(), e.role) == lora.targets.end())
        continue;
      const auto [at, is_new] = by_tensor.try_emplace(e.tensor, pairs.size());
      if (is_new) {
        std::string module = e.tensor;
        if (module.ends_with(".weight")) module.resize(module.size() - 7);
        const std::int64_t out = e.tensor_shape[0], in = e.tensor_shape[1];
        // PEFT's: A as a linear layer's weights begin, B zeros
        at::Tensor a = uniform(lora.rank, in, 1 / std::sqrt(static_cast<double>(in)), random);
        at::Tensor b = at::zeros({out, lora.rank}, at::kFloat);
        pairs.push_back({std::move(module), a.set_requires_grad(true), b.set_requires_grad(true)});
      }
      parts[{e.role, e.layer}] = {at->second, e.first_row, e.rows};
    }
  }

  void open_memory(MemoryConfig settings) {
    if (settings.scope != EventScope::sequence || settings.recall_groups != 1)
      throw ConfigError(
          "training: events or recall by heads (scope, recall_groups) are not trained with; leave "
          "them out of the memory's settings");
    settings.kv_dtype = DType::float32;  // rounding has no derivative
    const std::vector<std::int64_t> served = config.memory_layers();
    for (std::size_t i = 0; i < served.size(); ++i) {
      const LayerSpec& spec = config.layers[static_cast<std::size_t>(served[i])];
      if (spec.window > 0 && settings.n_local > spec.window)
        throw ConfigError(
            fmt::format("training: n_local = {} exceeds the sliding window of {} "
                        "tokens that layer {} has; set n_local to at most that",
                        settings.n_local, spec.window, served[i]));
      layers[static_cast<std::size_t>(served[i])].served = static_cast<std::int64_t>(i);
    }
    memory = std::make_unique<EpisodicMemory>(settings, memory_shape(config, settings.n_local));
    recalled.resize(served.size());
    memory->set_recall_hook([this](const RecalledEvents& r) {
      if (hook) hook(r);
      recalled[static_cast<std::size_t>(r.layer)] = {{r.events.begin(), r.events.end()},
                                                     {r.weights.begin(), r.weights.end()}};
    });
  }

  void begin() {
    memory->reset();
    last_logits = at::Tensor();
    for (Layer& l : layers) l.keys = l.values = at::Tensor();
  }

  // -- a step --

  at::Tensor multiply(WeightRole role, std::int64_t layer, const at::Tensor& x) const {
    const Product& p = products.at({role, layer});
    at::Tensor y = elsewhere ? frozen_product(elsewhere, role, layer, p.out, x)
                             : at::linear(x, p.weight, p.bias);
    if (elsewhere && p.bias.defined()) y = y + p.bias;
    const auto part = parts.find({role, layer});
    if (part == parts.end()) return y;
    const LoraPair& pair = pairs[part->second.pair];
    const double scaling = lora.alpha / static_cast<double>(lora.rank);
    return y + at::linear(at::linear(x, pair.a) * scaling,
                          pair.b.narrow(0, part->second.first_row, part->second.rows));
  }

  /// The tokens that this step sees of a layer that the memory serves, as the memory lays them out.
  void runs_of_memory(const Layer& layer, std::int64_t n, MemoryAttention& how,
                      std::vector<float>& weights) const {
    const MemoryConfig& c = memory->config();
    const std::int64_t first = memory->tokens(), total = first + n;
    const std::int64_t outside = std::max<std::int64_t>(0, total - c.n_local);  // of the last query
    const EventTable& events = memory->events();
    const auto add = [&](std::int64_t begin, std::int64_t end, Position position, float weight) {
      if (end <= begin) return;
      how.runs.push_back({begin, end - begin, position});
      weights.push_back(weight);
    };
    add(0, std::min(c.n_init, outside), Position::fixed, 1);
    add(events.pending_start(), outside, Position::fixed, 1);
    const Recalled& r = recalled[static_cast<std::size_t>(layer.served)];
    for (std::size_t i = 0; i < r.events.size(); ++i)
      add(events[r.events[i]].start, events[r.events[i]].end, Position::fixed, r.weights[i]);
    add(std::max<std::int64_t>(0, first - c.n_local + 1), total, Position::relative, 1);
  }

  at::Tensor attend(std::int64_t l, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
    const std::int64_t n = q.size(0), first = memory->tokens(), total = first + n;
    MemoryAttention how;
    how.first_position = first;
    std::vector<float> weights;
    if (layer.served >= 0) {
      // The memory goes through its own step: it takes the keys and values, recalls, and is told by
      // its own attention which keys matter. That attention's output is not needed a second time.
      recalled[static_cast<std::size_t>(layer.served)] = {};
      at::Tensor unused = at::empty({n, spec.n_heads * spec.head_dim}, at::kFloat);
      memory->attend(layer.served, q.const_data_ptr<float>(), k.const_data_ptr<float>(),
                     v.const_data_ptr<float>(), unused.mutable_data_ptr<float>());
      const LayerShape shape = memory->shape().layer(layer.served);
      how.n_local = memory->config().n_local;
      how.softcap = shape.softcap;
      how.rotary = shape.rotary;
      runs_of_memory(layer, n, how, weights);
    } else {
      how.n_local = spec.window > 0 ? spec.window : total;
      how.softcap = static_cast<float>(spec.soft_cap);
      if (spec.rope >= 0) how.rotary = config.ropes[static_cast<std::size_t>(spec.rope)].at(total);
      const std::int64_t from = std::max<std::int64_t>(0, first - how.n_local + 1);
      how.runs.push_back({from, total - from, Position::relative});
      weights.push_back(1);
    }
    layer.keys = layer.keys.defined() ? at::cat({layer.keys, k}) : k;
    layer.values = layer.values.defined() ? at::cat({layer.values, v}) : v;
    at::Tensor factors = at::empty({static_cast<std::int64_t>(weights.size())}, at::kFloat);
    std::copy(weights.begin(), weights.end(), factors.mutable_data_ptr<float>());
    return memory_attention(q, layer.keys, layer.values, factors, std::move(how));
  }

  /// What a block says, added to the residual stream.
  at::Tensor added(const at::Tensor& x, const at::Tensor& said, const at::Tensor& norm) const {
    return x + rms_norm(said, norm, config.rms_norm_eps) * config.residual_multiplier;
  }

  at::Tensor run_layer(std::int64_t l, at::Tensor x) {
    const Layer& w = layers[static_cast<std::size_t>(l)];
    const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
    const double eps = config.rms_norm_eps;
    const std::int64_t n = x.size(0), d = spec.head_dim;
    const at::Tensor read = rms_norm(x, w.input_norm, eps);
    at::Tensor q = rms_norm(multiply(WeightRole::q, l, read), w.q_norm, eps);
    const at::Tensor k = rms_norm(multiply(WeightRole::k, l, read), w.k_norm, eps);
    const at::Tensor v = multiply(WeightRole::v, l, read);
    // attention scales by 1 / sqrt(d)
    const double usual = 1 / std::sqrt(static_cast<double>(d));
    if (spec.scale != usual) q = q * (spec.scale / usual);
    const at::Tensor attended = attend(l, q.reshape({n, spec.n_heads, d}).contiguous(),
                                       k.reshape({n, spec.n_kv_heads, d}).contiguous(),
                                       v.reshape({n, spec.n_kv_heads, d}).contiguous());
    x = added(x, multiply(WeightRole::o, l, attended), w.attended_norm);
    const at::Tensor fed = rms_norm(x, w.feed_norm, eps);
    at::Tensor gate = multiply(WeightRole::gate, l, fed);
    gate = spec.activation == Activation::silu ? at::silu(gate) : at::gelu(gate, "tanh");
    return added(x, multiply(WeightRole::down, l, gate * multiply(WeightRole::up, l, fed)),
                 w.fed_norm);
  }

  at::Tensor logits_of(const at::Tensor& rows) const {
    at::Tensor y = multiply(WeightRole::head, -1, rms_norm(rows, final_norm, config.rms_norm_eps));
    if (config.logit_multiplier != 1) y = y * config.logit_multiplier;
    if (config.logit_soft_cap != 0) y = (y / config.logit_soft_cap).tanh() * config.logit_soft_cap;
    return y;
  }

  /// Surprise of each token of the step, the logits of a block of rows at a time.
  std::vector<float> surprise_of(const at::Tensor& ids, const at::Tensor& x) {
    constexpr std::int64_t kRows = 64;
    const at::NoGradGuard no_grad;
    const std::int64_t n = ids.size(0);
    at::Tensor surprise = at::zeros({n}, at::kFloat);
    // of tokens first, first + 1, ..., each from the row of logits before it
    const auto read = [&](const at::Tensor& logits, std::int64_t first) {
      const std::int64_t count = std::min(logits.size(0), n - first);
      if (count <= 0) return;
      const at::Tensor rows = logits.narrow(0, 0, count);
      const at::Tensor of_token = rows.gather(1, ids.narrow(0, first, count).unsqueeze(1));
      surprise.narrow(0, first, count).copy_(rows.logsumexp(-1) - of_token.squeeze(1));
    };
    if (last_logits.defined()) read(last_logits, 0);
    for (std::int64_t at = 0; at < n; at += kRows) {
      const std::int64_t rows = std::min(kRows, n - at);
      const at::Tensor logits = logits_of(x.detach().narrow(0, at, rows));
      read(logits, at + 1);
      if (at + rows == n) last_logits = logits.narrow(0, rows - 1, 1).clone();
    }
    const float* from = surprise.const_data_ptr<float>();
    return {from, from + n};
  }

  at::Tensor step(std::span<const std::int64_t> ids, StepKind kind, std::int64_t rows) {
    const auto n = static_cast<std::int64_t>(ids.size());
    if (rows < 0 || rows > n)
      throw DataError(
          fmt::format("training: {} rows of logits asked of a step of {} tokens", rows, n));
    for (const std::int64_t id : ids)
      if (id < 0 || id >= config.vocab_size)
        throw DataError(
            fmt::format("training: id {} is not in the vocabulary of {} tokens; use the "
                        "tokenizer of this model",
                        id, config.vocab_size));
    // What a step that fails puts back; tensors are shared, not copied.
    std::vector<Layer> layers_before = layers;
    at::Tensor logits_before = last_logits;
    memory->begin_step(n, kind);
    try {
      return begun_step(ids, rows);
    } catch (...) {
      layers = std::move(layers_before);
      last_logits = std::move(logits_before);
      memory->abandon_step();
      throw;
    }
  }

  /// The rest of a step. Its last act is the end of the memory's, behind which nothing fails.
  at::Tensor begun_step(std::span<const std::int64_t> ids, std::int64_t rows) {
    const auto n = static_cast<std::int64_t>(ids.size());
    at::Tensor index = at::empty({n}, at::kLong);
    std::copy(ids.begin(), ids.end(), index.mutable_data_ptr<std::int64_t>());
    at::Tensor x = embedding.index_select(0, index) * config.embedding_multiplier;
    for (std::int64_t l = 0; l < config.n_layers; ++l) x = run_layer(l, std::move(x));
    const std::vector<float> surprise = surprise_of(index, x);
    at::Tensor logits = rows == 0 ? at::empty({0, config.vocab_size}, at::kFloat)
                                  : logits_of(x.narrow(0, n - rows, rows));
    memory->end_step(surprise.data());
    return logits;
  }

  // -- what it leaves --

  /// Rows of an adapter's B in the order in which Hugging Face has those of its weights.
  at::Tensor in_order_of_hugging_face(const LoraPair& pair, const at::Tensor& b) const {
    if (config.ropes[0].table.pairs != RotaryPairs::interleaved) return b;
    at::Tensor ordered = b.clone();
    for (const auto& [place, part] : parts) {
      const std::int64_t heads = place.first == WeightRole::q   ? config.n_heads
                                 : place.first == WeightRole::k ? config.n_kv_heads
                                                                : 0;
      if (heads == 0 || &pairs[part.pair] != &pair) continue;
      // [heads, half, 2, rank] -> [heads, 2, half, rank]
      at::Tensor rows = b.narrow(0, part.first_row, part.rows);
      rows = rows.reshape({heads, -1, 2, b.size(1)}).transpose(1, 2).reshape(rows.sizes());
      ordered.narrow(0, part.first_row, part.rows).copy_(rows);
    }
    return ordered;
  }

  nlohmann::ordered_json adapter_config(const std::string& base) const {
    std::vector<std::string> modules;  // q_proj, ...: by their last names, as PEFT takes them
    for (const LoraPair& p : pairs) {
      std::string name = p.module.substr(p.module.rfind('.') + 1);
      if (std::find(modules.begin(), modules.end(), name) == modules.end())
        modules.push_back(std::move(name));
    }
    return {{"peft_type", "LORA"},    {"task_type", "CAUSAL_LM"}, {"base_model_name_or_path", base},
            {"r", lora.rank},         {"lora_alpha", lora.alpha}, {"lora_dropout", 0.0},
            {"bias", "none"},         {"fan_in_fan_out", false},  {"init_lora_weights", true},
            {"inference_mode", true}, {"use_rslora", false},      {"target_modules", modules}};
  }

  void save(const std::filesystem::path& dir, const std::string& base) const {
    std::vector<TensorToWrite> tensors;
    std::vector<at::Tensor> kept;
    for (const LoraPair& p : pairs)
      for (const auto& [tensor, suffix] : {std::pair{p.a, "A"}, std::pair{p.b, "B"}}) {
        if (!tensor.isfinite().all().item<bool>())
          throw DataError(
              fmt::format("training: the adapter of {} is not finite; lower the learning "
                          "rate",
                          p.module));
        kept.push_back(tensor.detach().contiguous());
        if (*suffix == 'B') kept.back() = in_order_of_hugging_face(p, kept.back());
        tensors.push_back({fmt::format("base_model.model.{}.lora_{}.weight", p.module, suffix),
                           TensorType::f32, tensor.sizes().vec(),
                           kept.back().const_data_ptr<float>()});
      }
    write_safetensors(dir / "adapter_model.safetensors", tensors, {{"format", "pt"}});
    const std::string json =
        adapter_config(base).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    AtomicFile file(dir / "adapter_config.json");
    file.write(json.data(), json.size());
    file.commit();
  }
};

TrainableDecoder::TrainableDecoder(const OpenModel& model, const MemoryConfig& memory,
                                   const LoraSettings& lora,
                                   std::shared_ptr<FrozenProducts> products)
    : impl_(std::make_unique<Impl>(model, memory, lora, std::move(products))) {}
TrainableDecoder::~TrainableDecoder() = default;
TrainableDecoder::TrainableDecoder(TrainableDecoder&&) noexcept = default;
TrainableDecoder& TrainableDecoder::operator=(TrainableDecoder&&) noexcept = default;

std::vector<at::Tensor> TrainableDecoder::parameters() const {
  std::vector<at::Tensor> all;
  for (const LoraPair& p : impl_->pairs) {
    all.push_back(p.a);
    all.push_back(p.b);
  }
  return all;
}

void TrainableDecoder::begin() { impl_->begin(); }

at::Tensor TrainableDecoder::step(std::span<const std::int64_t> ids, StepKind kind,
                                  std::int64_t rows) {
  return impl_->step(ids, kind, rows);
}

const EpisodicMemory& TrainableDecoder::memory() const { return *impl_->memory; }

void TrainableDecoder::set_recall_hook(RecallHook hook) { impl_->hook = std::move(hook); }

const ModelConfig& TrainableDecoder::config() const { return impl_->config; }

void TrainableDecoder::save(const std::filesystem::path& dir, const std::string& base) const {
  impl_->save(dir, base);
}

}  // namespace episodic
