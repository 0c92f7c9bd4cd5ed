// SPDX-License-Identifier: Apache-2.0
#include "decoder_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "convert.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "head_place.hpp"
#include "kernels/early_launches.hpp"
#include "step_cost.hpp"

namespace episodic::device {
namespace {

/// The largest number of rows that every product of a step takes.
std::int64_t most_few_rows(const DeviceWeights& weights, DType dtype) {
  const auto all_take = [&](std::int64_t n) {
    const auto takes = [&](const DeviceLinear& w, bool of_hidden) {
      if (w.in == 0) return true;
      if (w.in_blocks() && !kernels::takes_product(w.blocks, n, w.in)) return false;
      const bool rounds = w.in_blocks() && w.blocks.part[0].type != kernels::BlockType::fp8;
      return rounds || kernels::takes_product(dtype, n, w.in, of_hidden);
    };
    return takes(weights.head, true) &&
           std::all_of(weights.layers.begin(), weights.layers.end(), [&](const auto& w) {
             return takes(w.qkv, true) && takes(w.output_gate, true) && takes(w.gate_up, true) &&
                    takes(w.o, false) && takes(w.down, false);
           });
  };
  std::int64_t n = kernels::kMostProductRows;
  while (n > 0 && !all_take(n)) --n;
  return n;
}

}  // namespace

void Activations::lay_out(Layout& c, const ModelConfig& config, std::int64_t head_dim, DType dtype,
                          std::int64_t rows, std::int64_t sequences) {
  const std::int64_t element = size_of(dtype);
  std::int64_t heads = 0, queries = 0, inner_size = 0, choices = 0, expert_size = 0;
  for (const LayerSpec& s : config.layers) {
    heads = std::max(heads, s.n_heads + 2 * s.n_kv_heads);
    queries = std::max(queries, s.n_heads);
    inner_size = std::max(inner_size, s.mixture ? s.mixture.shared_width : s.intermediate_size);
    choices = std::max(choices, s.mixture.chosen);
    expert_size = std::max(expert_size, s.mixture.chosen * s.mixture.width);
  }
  std::int64_t mixing = has_recurrent_layers(config) ? config.hidden_size : 0;
  std::int64_t mixing_in = 3 * mixing, gates = 0, channels = 0, weights = 0, values = 0;
  for (const LayerSpec& s : config.layers) {
    if (s.output_gate) gates = std::max(gates, s.n_heads * head_dim);
    if (const RecurrenceSpec& r = s.recurrence) {
      channels = std::max(channels, r.channels());
      weights = std::max(weights, 2 * r.heads);
      values = std::max(values, r.values());
    }
  }
  mixing = std::max(mixing, values);
  mixing_in = std::max(mixing_in, channels + values + weights);
  positions = c.take<std::int64_t>(sequences + rows);
  ids = positions ? positions + sequences : nullptr;
  hidden = c.take<float>(rows * config.hidden_size);
  added = c.take<float>(rows * config.hidden_size);
  normed = c.take(rows * config.hidden_size * element);
  qkv = c.take(rows * std::max(heads * head_dim, mixing_in) * element);
  attended = c.take(rows * std::max(queries * head_dim, mixing) * element);
  gate_up = c.take(rows * std::max(2 * inner_size, gates) * element);
  inner = c.take(rows * inner_size * element);
  if (choices > 0) {
    expert = c.take<std::int32_t>(rows * choices);
    expert_weight = c.take<float>(rows * choices);
    shared_factor = c.take<float>(rows);
    expert_inner = c.take(rows * expert_size * element);
  }
  mix_inputs = c.take<float>(rows * channels);
  mix_weights = c.take<float>(rows * weights);
  mix_y = c.take<float>(rows * values);
  tile =
      c.take<float>(std::min(rows * config.vocab_size, std::max(kTileLogits, rows * kLeastPiece)));
  surprise_state = c.take<kernels::SurpriseState>(rows);
}

std::int64_t Activations::bytes(const ModelConfig& config, std::int64_t head_dim, DType dtype,
                                std::int64_t rows, std::int64_t sequences) {
  Layout counter;
  Activations().lay_out(counter, config, head_dim, dtype, rows, sequences);
  return counter.bytes();
}

DecoderSteps::DecoderSteps(ModelConfig c, DType d, int of_device, const PlannedWeights& planned,
                           const WeightChanges& changes)
    : config(std::move(c)), dtype(d), device(of_device), weights(config, dtype, planned, changes) {
  most_few_rows_ = most_few_rows(weights, dtype);
  if (const std::vector<std::int64_t> served = config.memory_layers(); !served.empty())
    last_served_ = served.back();
  needs_normed_ =
      config.layer_norm || std::any_of(config.layers.begin(), config.layers.end(),
                                       [](const LayerSpec& layer) { return layer.parallel; });
}

DecoderSteps::BatchRoom& DecoderSteps::batch_room(std::int64_t rows, std::int64_t sequences) {
  if (rows <= batch_rows_ && sequences <= batch_sequences_) return batch_;
  rows = std::max(rows, batch_rows_);
  sequences = std::max(sequences, batch_sequences_);
  check(cudaStreamSynchronize(stream.get()), "the model's steps");
  batch_graphs.clear();
  batch_rows_ = batch_sequences_ = 0;
  batch_buffer_ = DeviceBuffer();  // its bytes may be needed
  const std::int64_t head_dim = weights.heads().head_dim();
  batch_buffer_ = DeviceBuffer(Activations::bytes(config, head_dim, dtype, rows, sequences),
                               "the activations of a step of several sequences",
                               "take fewer sequences or tokens in a step");
  Layout layout(batch_buffer_.data());
  batch_.of.lay_out(layout, config, head_dim, dtype, rows, sequences);
  batch_.staging =
      StagingRing((rows + sequences) * static_cast<std::int64_t>(sizeof(std::int64_t)));
  batch_rows_ = rows;
  batch_sequences_ = sequences;
  return batch_;
}

bool DecoderSteps::takes_few(std::span<const DecoderPart> parts) const {
  return static_cast<std::int64_t>(parts.size()) <= most_few_rows_ &&
         std::all_of(parts.begin(), parts.end(), [](const DecoderPart& p) {
           // Those products write keys where they are kept, rotated: there is nothing to show.
           return p.n == 1 && !p.of->keys_hook;
         });
}

void DecoderSteps::add_norm(Step& step, kernels::AddNormParams p, const DeviceNorm& norm) {
  p.dtype = dtype;
  p.n = step.n;
  p.width = config.hidden_size;
  p.eps = static_cast<float>(config.rms_norm_eps);
  p.hidden = step.a.hidden;
  p.maybe_norm = norm.maybe_weight;
  p.layer_norm = config.layer_norm;
  p.maybe_norm_bias = norm.maybe_bias;
  p.y = step.a.normed;
  check(kernels::add_norm(p, stream.get()), "the residual stream", p);
  step.normed = true;
}

/// Of what the step stands at.
kernels::ProductParams DecoderSteps::product_of(const Step& step, const DeviceLinear& w) const {
  kernels::ProductParams p = product_of(step, w, step.normed ? step.a.normed : nullptr);
  if (!step.normed) {
    p.hidden = step.a.hidden;
    p.maybe_norm = step.norm.maybe_weight;
    p.eps = static_cast<float>(config.rms_norm_eps);
  }
  return p;
}

kernels::ProductParams DecoderSteps::product_of(const Step& step, const DeviceLinear& w,
                                                const std::byte* x) const {
  kernels::ProductParams p;
  p.dtype = dtype;
  p.n = step.n;
  p.in = w.in;
  p.out = w.out;
  p.weight = w.weight;
  p.blocks = w.blocks;
  p.maybe_bias = w.maybe_bias;
  p.x = x;
  return p;
}

/// Adds a block's last product to the residual stream, and makes the next block's input of that,
/// or leaves that to the next product.
void DecoderSteps::finish_block(Step& step, const DeviceLinear& w, const std::byte* x,
                                const float* maybe_norm_of_added, const DeviceNorm& next_norm) {
  const Activations& a = step.a;
  kernels::AddNormParams p;
  p.maybe_norm_of_added = maybe_norm_of_added;
  p.multiplier = static_cast<float>(config.residual_multiplier);
  if (step.few && !maybe_norm_of_added && !needs_normed_) {
    const kernels::ProductParams of = product_of(step, w, x);
    check(kernels::add_product(of, p.multiplier, a.hidden, stream.get()), "a product", of,
          a.hidden);
    step.normed = false;
    step.norm = next_norm;
    return;
  }
  if (step.few) {
    float* rows[kernels::kMostProductRows] = {};
    for (std::int64_t i = 0; i < step.n; ++i) rows[i] = a.added + i * config.hidden_size;
    const kernels::ProductParams of = product_of(step, w, x);
    check(kernels::product(of, rows, stream.get()), "a product", of, rows);
    p.maybe_added = a.added;
    return add_norm(step, p, next_norm);
  }
  p.maybe_bias = w.maybe_bias;
  const bool directly = !maybe_norm_of_added && p.multiplier == 1.0f;
  if (!directly) p.maybe_added = a.added;
  multiply(w, x, step.n, DType::float32, directly ? a.hidden : a.added, directly);
  add_norm(step, p, next_norm);
}

/// Adds what a parallel block's attention says, but for its bias, and leaves the input that the
/// feed-forward network reads too.
void DecoderSteps::add_beside(Step& step, const DeviceLinear& w, const std::byte* x) {
  if (!step.few) return multiply(w, x, step.n, DType::float32, step.a.hidden, true);
  kernels::ProductParams of = product_of(step, w, x);
  of.maybe_bias = nullptr;
  check(kernels::add_product(of, 1.0f, step.a.hidden, stream.get()), "a product", of,
        step.a.hidden);
}

/// Queries, and keys and values; of few rows the latter where their sequences keep them.
void DecoderSteps::make_heads(Step& step, std::int64_t l) {
  const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
  const DeviceLayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
  if (spec.output_gate) first_product(step, w.output_gate, step.a.gate_up, "attention's gate");
  if (step.few && spec.qk_norm == QkNorm::none && config.query_scale.beta == 0) {
    kernels::HeadsParams heads;
    heads.n_heads = spec.n_heads;
    heads.n_kv_heads = spec.n_kv_heads;
    heads.head_dim = weights.heads().head_dim();
    heads.q = step.a.qkv;
    heads.q_row_stride = w.qkv.out;
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
      DecoderSequence& of = *step.parts[i].of;
      const std::int64_t served = of.memory_layer[static_cast<std::size_t>(l)];
      const HeadPlace place = served >= 0 ? of.memory->head_place(served) : of.causal.head_place(l);
      heads.rotary_dim = place.rotary_dim;
      heads.interleaved = place.interleaved;
      heads.row[i] = place.target;
    }
    const kernels::ProductParams of = product_of(step, w.qkv);
    check(kernels::heads_product(of, heads, stream.get()), "queries, keys and values", of, heads);
    return attend(step, l, true);
  }
  kernels::FinishQkvParams heads;
  heads.dtype = dtype;
  heads.n = step.n;
  heads.n_heads = spec.n_heads;
  heads.n_kv_heads = spec.n_kv_heads;
  heads.head_dim = weights.heads().head_dim();
  heads.qkv = step.a.qkv;
  heads.maybe_bias = w.qkv.maybe_bias;
  heads.maybe_q_norm = w.q_norm;
  heads.maybe_k_norm = w.k_norm;
  heads.whole_rows = spec.qk_norm == QkNorm::row;
  heads.normed_channels = config.head_dim;
  heads.eps = static_cast<float>(config.rms_norm_eps);
  if (step.few) {
    kernels::ProductParams p = product_of(step, w.qkv);
    p.maybe_bias = nullptr;  // below
    check(kernels::narrow_product(p, step.a.qkv, stream.get()), "queries, keys and values", p,
          step.a.qkv);
  } else {
    multiply(w.qkv, step.a.normed, step.n, dtype, step.a.qkv);
  }
  check(kernels::finish_qkv(heads, stream.get()), "biases and norms of q, k and v", heads);
  if (config.query_scale.beta != 0) scale_queries(step, l);
  attend(step, l, false);
}

/// A short convolution in place of heads and attention.
void DecoderSteps::convolve(Step& step, std::int64_t l) {
  const DeviceLayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
  // its bias is the convolution's to add
  first_product(step, w.qkv, step.a.qkv, "the product of a convolution");
  std::vector<kernels::ShortConvolutionParams> of;
  for (const DecoderPart& part : step.parts) {
    kernels::ShortConvolutionParams& p = of.emplace_back(part.of->causal.convolution(l));
    p.dtype = dtype;
    p.rows = step.a.qkv + part.first * w.qkv.out * size_of(dtype);
    p.maybe_rows_bias = w.qkv.maybe_bias;
    p.tap = w.tap;
    p.maybe_bias = w.maybe_conv_bias;
    p.out = step.a.attended + part.first * w.o.in * size_of(dtype);
  }
  launch_batch(kernels::short_convolution_batch, of, stream.get(), "a short convolution");
}

/// By the positions of each part's rows.
void DecoderSteps::scale_queries(const Step& step, std::int64_t l) const {
  const DeviceLinear& qkv = weights.layers[static_cast<std::size_t>(l)].qkv;
  for (const DecoderPart& part : step.parts) {
    kernels::ScaleQueriesParams p;
    p.dtype = dtype;
    p.q = step.a.qkv + part.first * qkv.out * size_of(dtype);
    p.n = part.n;
    p.width = config.layers[static_cast<std::size_t>(l)].n_heads * weights.heads().head_dim();
    p.row_stride = qkv.out;
    p.position = part.position;
    p.last_position = part.of->memory ? part.of->memory->config().n_local - 1
                                      : std::numeric_limits<std::int64_t>::max();
    p.original = config.query_scale.original;
    p.beta = static_cast<float>(config.query_scale.beta);
    check(kernels::scale_queries(p, stream.get()), "the queries' scale", p);
  }
}

/// Waits: the hook is the host's.
void DecoderSteps::show_keys(const DecoderPart& part, std::int64_t l,
                             const DeviceMemory::LayerStep& of) const {
  const HeadLayout& heads = weights.heads();
  const std::int64_t row = config.layers[static_cast<std::size_t>(l)].n_kv_heads * heads.head_dim();
  const auto row_bytes = static_cast<std::size_t>(row * size_of(dtype));
  std::vector<std::byte> stored(static_cast<std::size_t>(part.n) * row_bytes);
  check(cudaMemcpy2DAsync(stored.data(), row_bytes, of.k.data,
                          static_cast<std::size_t>(of.k.strides.row * size_of(dtype)), row_bytes,
                          static_cast<std::size_t>(part.n), cudaMemcpyDeviceToHost, stream.get()),
        "copying keys");
  check(cudaStreamSynchronize(stream.get()), "the step that makes keys");
  std::vector<float> keys(static_cast<std::size_t>(part.n * row));
  widen(stored.data(), part.n * row, dtype, keys.data());
  part.of->keys_hook(l, heads.of_model(keys));
}

void DecoderSteps::attend(const Step& step, std::int64_t l, bool appended) {
  const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
  const std::int64_t row = weights.layers[static_cast<std::size_t>(l)].qkv.out;
  const std::int64_t dim = weights.heads().head_dim();
  std::vector<DeviceMemory::SequenceStep> of_memories;
  std::vector<CausalLayers::SequenceStep> causal;
  std::int64_t served = -1;  // the layer's number in a memory, the same in all
  for (const DecoderPart& part : step.parts) {
    // The heads of a token lie side by side: those of q, of k, of v.
    const auto heads_from = [&](std::int64_t first, std::int64_t count) {
      const std::byte* const at = step.a.qkv + (part.first * row + first * dim) * size_of(dtype);
      return TensorView(at, dtype, {part.n, count, dim}, {row, dim}, MemoryKind::cuda);
    };
    DeviceMemory::LayerStep of;
    of.q = heads_from(0, spec.n_heads);
    of.k = heads_from(spec.n_heads, spec.n_kv_heads);
    of.v = heads_from(spec.n_heads + spec.n_kv_heads, spec.n_kv_heads);
    of.out = {step.a.attended + part.first * spec.n_heads * dim * size_of(dtype),
              dtype,
              {part.n, spec.n_heads, dim},
              MemoryKind::cuda};
    of.scale = static_cast<float>(spec.scale);
    of.sink_logits = weights.layers[static_cast<std::size_t>(l)].sink_logits;
    of.appended = appended;
    if (part.of->keys_hook) show_keys(part, l, of);
    if (const std::int64_t number = part.of->memory_layer[static_cast<std::size_t>(l)];
        number >= 0) {
      served = number;
      of_memories.push_back({&*part.of->memory, of});
    } else {
      causal.push_back({&part.of->causal, of});
    }
  }
  if (!of_memories.empty()) DeviceMemory::attend_batch(served, of_memories);
  CausalLayers::attend(l, causal, stream.get());
  if (step.branches) fork_ends(step, l);
}

namespace {

kernels::GateActivation activation_of(const LayerSpec& spec) {
  switch (spec.activation) {
    case Activation::silu:
      return kernels::GateActivation::silu;
    case Activation::gelu_tanh:
      return kernels::GateActivation::gelu_tanh;
    case Activation::relu_squared:
      return kernels::GateActivation::relu_squared;
    case Activation::xielu:
      return kernels::GateActivation::xielu;
  }
  return {};
}

}  // namespace

void DecoderSteps::feed_forward(Step& step, std::int64_t l) {
  const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
  const DeviceLayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
  const kernels::GateActivation activation = activation_of(spec);
  if (step.few) {
    kernels::ProductParams of = product_of(step, w.gate_up);
    if (spec.gated) {
      check(kernels::gated_product(of, activation, step.a.inner, stream.get()), "the gate", of,
            activation, step.a.inner);
      return;
    }
    of.maybe_bias = nullptr;  // below
    check(kernels::narrow_product(of, step.a.gate_up, stream.get()), "the network's first product",
          of, step.a.gate_up);
  } else {
    multiply(w.gate_up, step.a.normed, step.n, dtype, step.a.gate_up);
  }
  kernels::GateParams gate{dtype,  activation,    step.a.gate_up, w.gate_up.maybe_bias,
                           step.n, w.gate_up.out, step.a.inner};
  if (spec.gated) gate.width /= 2;
  gate.gated = spec.gated;
  gate.xielu = w.xielu;
  check(kernels::gate_times_up(gate, stream.get()), "the gate", gate);
}

void DecoderSteps::run_layer(Step& step, std::int64_t l) {
  const DeviceLayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
  const bool parallel = config.layers[static_cast<std::size_t>(l)].parallel;
  if (w.recurrence.norm)
    recur(step, l);
  else if (w.tap)
    convolve(step, l);
  else
    make_heads(step, l);
  if (w.output_gate.in > 0) gate_attended(step, l);
  if (parallel)
    add_beside(step, w.o, step.a.attended);
  else
    finish_block(step, w.o, step.a.attended, w.attended_norm, w.feed_norm);
  const bool last = l + 1 == config.n_layers;
  const DeviceNorm& next_norm =
      last ? weights.final_norm : weights.layers[static_cast<std::size_t>(l) + 1].input_norm;
  if (config.layers[static_cast<std::size_t>(l)].mixture) return feed_mixture(step, l, next_norm);
  feed_forward(step, l);
  DeviceLinear down = w.down;
  if (parallel) down.maybe_bias = w.o.maybe_bias;  // of both blocks one has a bias at most
  finish_block(step, down, step.a.inner, w.fed_norm, next_norm);
}

void DecoderSteps::enqueue_angles(const Step& step) {
  std::vector<DeviceMemory*> memories;
  std::vector<const CausalLayers*> causal;
  for (const DecoderPart& part : step.parts) {
    if (part.of->memory) memories.push_back(&*part.of->memory);
    part.of->causal.begin_step(part.n, part.position);
    causal.push_back(&part.of->causal);
  }
  DeviceMemory::enqueue_angles(memories);
  CausalLayers::enqueue_angles(causal, stream.get());
}

void DecoderSteps::enqueue(std::span<const DecoderPart> parts, const Activations& a,
                           float* maybe_logits) {
  Step step{parts, a};
  enqueue_step(step, maybe_logits);
}

void DecoderSteps::capture(std::span<const DecoderPart> parts, const Activations& a) {
  Step step{parts, a};
  for (const DecoderPart& part : parts)
    if (part.of->memory) step.ends.push_back({&*part.of->memory, part.of->surprise});
  if (early_launches) {
    enqueue_step(step, nullptr);
    return DeviceMemory::enqueue_end_batch(step.ends);
  }
  step.branches = true;
  fork_surprise(step);
  enqueue_step(step, nullptr);
  beside_.join(stream.get());
}

void DecoderSteps::enqueue_step(Step& step, float* maybe_logits) {
  const kernels::EarlyLaunches early(early_launches);
  const Activations& a = step.a;
  for (const DecoderPart& part : step.parts) step.n += part.n;
  step.few = takes_few(step.parts);
  kernels::EmbedParams embed;
  embed.dtype = dtype;
  embed.table = weights.embedding.weight;
  embed.vocab = config.vocab_size;
  embed.width = config.hidden_size;
  embed.ids = a.ids;
  embed.n = step.n;
  embed.hidden = a.hidden;
  embed.multiplier = static_cast<float>(config.embedding_multiplier);
  embed_rows(embed);
  step.norm = weights.layers.front().input_norm;
  if (!step.few || needs_normed_) add_norm(step, {}, step.norm);
  enqueue_angles(step);
  for (std::int64_t l = 0; l < config.n_layers; ++l) run_layer(step, l);
  run_head(step, maybe_logits);
}

}  // namespace episodic::device
