// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/weight_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <set>
#include <system_error>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/weights.hpp"
#include "mixture_plan.hpp"
#include "other_formats.hpp"

namespace episodic {
namespace {

using Role = WeightRole;

/// Writes the entries of one model, layer by layer.
class Planner {
 public:
  explicit Planner(const ModelConfig& config) : c_(config) {}

  std::vector<WeightEntry> plan() {
    const std::int64_t vocab = c_.vocab_size, hidden = c_.hidden_size;
    add(Role::embedding, weight_of(Role::embedding), {vocab, hidden});
    if (const std::int64_t width = c_.per_layer_width; width > 0) {
      const std::int64_t all = c_.n_layers * width;
      linear(Role::per_layer_embedding, c_.per_layer_vocab, all, false);
      linear(Role::per_layer_model, all, hidden, false);
      norm(Role::per_layer_model_norm, Role::per_layer_model_norm, width);
    }
    for (layer_ = 0; layer_ < c_.n_layers; ++layer_) add_layer();
    layer_ = -1;
    prefix_.clear();
    norm(Role::final_norm, Role::final_norm, hidden);
    add(Role::head, weight_of(c_.tie_word_embeddings ? Role::embedding : Role::head),
        {vocab, hidden});
    return std::move(entries_);
  }

 private:
  void add_layer() {
    const LayerSpec& s = c_.layers[static_cast<std::size_t>(layer_)];
    prefix_ = fmt::format("model.layers.{}.", layer_);
    const std::int64_t hidden = c_.hidden_size;
    const std::int64_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;

    // With norms on both sides of a block, the name that LLaMA gives to the norm before the
    // feed-forward network is that of the norm behind attention.
    if (s.norms != NormPlace::after) norm(Role::input_norm, Role::input_norm, hidden);
    if (s.mixer == Mixer::short_convolution) {
      linear(Role::conv_in, 3 * hidden, hidden, s.conv_bias);
      add(Role::conv, weight_of(Role::conv), {hidden, 1, s.conv_taps});
      if (s.conv_bias) add(Role::conv, tensor_of(Role::conv) + ".bias", {hidden}, true);
      linear(Role::conv_out, hidden, hidden, s.conv_bias);
    } else if (s.mixer == Mixer::recurrence) {
      add_recurrence(s.recurrence);
    } else if (s.latent) {
      add_latent(s);
    } else if (s.fused_qkv) {
      fused(prefix_ + "self_attn.qkv_proj", hidden, s.qkv_bias,
            {{Role::q, q}, {Role::k, kv}, {Role::v, kv}});
    } else {
      linear(Role::q, s.q_rows(), hidden, s.qkv_bias);
      if (s.keys_of < 0) linear(Role::k, kv, hidden, s.qkv_bias);
      if (s.keys_of < 0 && !s.keys_are_values) linear(Role::v, kv, hidden, s.qkv_bias);
    }
    if (s.qk_norm != QkNorm::none) {
      const bool row = s.qk_norm == QkNorm::row;
      norm(Role::q_norm, Role::q_norm, row ? q : s.head_dim);
      if (s.keys_of < 0) norm(Role::k_norm, Role::k_norm, row ? kv : s.head_dim);
    }
    if (s.sink_logits)  // not behind ".weight"
      add(Role::sink_logits, prefix_ + info_of(Role::sink_logits).hugging_face, {s.n_heads});
    if (s.mixer == Mixer::attention)
      linear(Role::o, hidden, s.latent ? s.n_heads * s.latent.value : q, s.o_bias);
    if (s.norms != NormPlace::before)
      norm(Role::attended_norm, Role::attended_norm, hidden);
    else if (!s.parallel)
      norm(Role::feed_norm, Role::attended_norm, hidden);
    if (s.norms == NormPlace::both) norm(Role::feed_norm, Role::feed_norm, hidden);
    if (s.mixture) plan_mixture(s.mixture, hidden, layer_, prefix_, entries_);
    if (s.dense_beside) add_beside(s);
    if (!s.mixture || s.dense_beside) add_dense(s);
    if (s.norms != NormPlace::before) norm(Role::fed_norm, Role::fed_norm, hidden);
    if (const std::int64_t width = c_.per_layer_width; width > 0) {
      linear(Role::per_layer_gate, width, hidden, false);
      linear(Role::per_layer_out, hidden, width, false);
      norm(Role::per_layer_norm, Role::per_layer_norm, hidden);
    }
    if (s.layer_scalar) add(Role::layer_scalar, tensor_of(Role::layer_scalar), {1});
  }

  void add_latent(const LayerSpec& s) {
    const LatentSpec& l = s.latent;
    const std::int64_t hidden = c_.hidden_size, queries = s.n_heads * l.query();
    if (l.q_rank > 0) {
      linear(Role::q_down, l.q_rank, hidden, l.bias);
      norm(Role::q_down_norm, Role::q_down_norm, l.q_rank);
      linear(Role::q_up, queries, l.q_rank, false);
    } else {
      linear(Role::q, queries, hidden, false);
    }
    linear(Role::kv_down, l.width(), hidden, l.bias);
    norm(Role::kv_down_norm, Role::kv_down_norm, l.rank);
    linear(Role::kv_up, s.n_heads * (l.still + l.value), l.rank, false);
  }

  /// Of Mamba2 the products are rows of one tensor.
  void add_recurrence(const RecurrenceSpec& r) {
    const std::int64_t hidden = c_.hidden_size;
    const bool delta = r.delta();
    if (delta) {
      linear(Role::mix_in, r.channels(), hidden, r.bias);
      linear(Role::mix_gate, r.values(), hidden, r.bias);
      linear(Role::mix_write, r.heads, hidden, r.bias);
      linear(Role::mix_step, r.heads, hidden, r.bias);
    } else {
      fused(
          tensor_of(Role::mix_in), hidden, r.bias,
          {{Role::mix_gate, r.values()}, {Role::mix_in, r.channels()}, {Role::mix_step, r.heads}});
    }
    add(Role::mix_conv, weight_of(Role::mix_conv), {r.channels(), 1, r.taps});
    if (r.conv_bias) add(Role::mix_conv, tensor_of(Role::mix_conv) + ".bias", {r.channels()}, true);
    add(Role::mix_rate, tensor_of(Role::mix_rate), {r.heads});
    add(Role::mix_step_bias, tensor_of(Role::mix_step_bias), {r.heads});
    if (!delta) add(Role::mix_skip, tensor_of(Role::mix_skip), {r.heads});
    add(Role::mix_norm, weight_of(Role::mix_norm), {delta ? r.value_dim : r.values()});
    linear(Role::mix_out, hidden, r.values(), r.bias);
  }

  void add_dense(const LayerSpec& s) {
    const std::int64_t hidden = c_.hidden_size, inner = s.intermediate_size;
    if (s.fused_gate_up) {
      fused(has_own(Role::gate) ? tensor_of(Role::gate) : prefix_ + "mlp.gate_up_proj", hidden,
            s.mlp_bias, {{Role::gate, inner}, {Role::up, inner}});
    } else {
      if (s.gated) linear(Role::gate, inner, hidden, s.mlp_bias);
      linear(Role::up, inner, hidden, s.mlp_bias);
    }
    linear(Role::down, hidden, inner, s.mlp_bias);
    if (s.activation == Activation::xielu)
      for (const Role role : kXieluRoles) number(role);
  }

  /// What a mixture beside a dense network has besides.
  void add_beside(const LayerSpec& s) {
    const std::int64_t hidden = c_.hidden_size;
    add(Role::router_scale, tensor_of(Role::router_scale), {hidden});  // not behind ".weight"
    add(Role::expert_scale, tensor_of(Role::expert_scale), {s.mixture.experts});
    for (const Role role : {Role::dense_norm, Role::expert_in_norm, Role::expert_norm})
      norm(role, role, hidden);
  }

  void add(Role role, const std::string& tensor, const std::vector<std::int64_t>& shape,
           bool bias = false) {
    entries_.push_back({role, layer_, bias, tensor, shape, 0, shape[0], 0});
  }

  /// Name of a tensor, without what ends it.
  std::string tensor_of(Role role) const {
    const auto own = std::find_if(c_.names.begin(), c_.names.end(),
                                  [&](const WeightName& name) { return name.role == role; });
    return prefix_ + (own == c_.names.end() ? info_of(role).hugging_face : own->hugging_face);
  }

  std::string weight_of(Role role) const { return tensor_of(role) + ".weight"; }

  /// Whether the family has a name for it.
  bool has_own(Role role) const {
    return std::any_of(c_.names.begin(), c_.names.end(),
                       [&](const WeightName& name) { return name.role == role; });
  }

  /// \param named the role whose tensor's name it has, unless the family has a name for it
  void norm(Role role, Role named, std::int64_t width) {
    const std::string name = tensor_of(has_own(role) ? role : named);
    add(role, name + ".weight", {width});
    entries_.back().offset = c_.norm_offset;
    if (c_.norm_bias && role != Role::q_norm && role != Role::k_norm)
      add(role, name + ".bias", {width}, true);
  }

  /// Of alpha there is a list of one number, the others are numbers as they are.
  void number(Role role) {
    const bool listed = role == Role::xielu_alpha_p || role == Role::xielu_alpha_n;
    const std::vector<std::int64_t> shape(listed ? 1 : 0, 1);
    entries_.push_back({role, layer_, false, tensor_of(role), shape, 0, 1, 0});
  }

  void linear(Role role, std::int64_t out, std::int64_t in, bool bias) {
    add(role, weight_of(role), {out, in});
    if (bias) add(role, tensor_of(role) + ".bias", {out}, true);
  }

  /// Several products whose rows lie behind each other in one tensor.
  void fused(const std::string& name, std::int64_t in, bool bias,
             const std::vector<std::pair<Role, std::int64_t>>& parts) {
    std::int64_t out = 0, first = 0;
    for (const auto& part : parts) out += part.second;
    for (const auto& [role, rows] : parts) {
      entries_.push_back({role, layer_, false, name + ".weight", {out, in}, first, rows, 0});
      if (bias) entries_.push_back({role, layer_, true, name + ".bias", {out}, first, rows, 0});
      first += rows;
    }
  }

  const ModelConfig& c_;
  std::int64_t layer_ = -1;
  std::string prefix_;
  std::vector<WeightEntry> entries_;
};

/// "model.layers.12.": 12
bool layer_of(std::string_view name, std::int64_t& layer) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  return std::from_chars(name.data(), name.data() + name.size(), layer).ec == std::errc();
}

/// Of a layer behind the last, which drafts tokens and has no part in their logits.
bool is_drafting(std::string_view name, const ModelConfig& c) {
  std::int64_t layer = 0;
  return layer_of(name, layer) && layer >= c.n_layers && layer < c.n_layers + c.drafting_layers;
}

bool has_output_gates(const ModelConfig& c) {
  return std::any_of(c.layers.begin(), c.layers.end(),
                     [](const LayerSpec& layer) { return layer.output_gate; });
}

/// Tensors that some checkpoints carry beside the weights: tables that follow from config.json, and
/// the head of a tied model, which is its embedding.
bool harmless(const std::string& name, const ModelConfig& c) {
  const auto ends_with = [&](std::string_view end) {
    return name.size() >= end.size() &&
           name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends_with("rotary_emb.inv_freq") || ends_with("rotary_emb.cos_cached") ||
         ends_with("rotary_emb.sin_cached") || ends_with("self_attn.masked_bias") ||
         (has_output_gates(c) && name.starts_with("mtp.")) ||  // Qwen's guesses of further tokens
         (c.tie_word_embeddings && name == "lm_head.weight") || is_drafting(name, c);
}

/// Matrices are multiplied as they lie; norms and biases are read as numbers.
bool known(TensorType type, std::size_t rank) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16 ||
         (rank >= 2 && block_elements(type) > 1);
}

/// Elements of a tensor's row, and how many rows there are: all dimensions but the last, flattened.
std::int64_t columns_of(const StoredTensor& t) { return t.shape.size() > 1 ? t.shape.back() : 1; }
std::int64_t row_bytes_of(const StoredTensor& t) {
  return columns_of(t) / block_elements(t.type) * block_bytes(t.type);
}

/// Says why weights are not those of a configuration, as precisely as both allow.
class Mismatch {
 public:
  Mismatch(const ModelConfig& config, const TensorSource& source) : c_(config), source_(source) {}

  [[noreturn]] void missing(const WeightEntry& e) const {
    refuse_scheme();
    std::string why;
    if (e.role == Role::head)
      why =
          "config.json has tie_word_embeddings false (or no word of it): set it to true if the "
          "head is the embedding";
    else if (e.bias)
      why = fmt::format(
          "config.json has {} true, or its model_type has such biases: both must be "
          "of one model",
          bias_key(e.role));
    else if (e.role == Role::q_norm || e.role == Role::k_norm)
      why = "is the model_type right?";
    else if (e.role == Role::embedding && !source_.tensors().empty())
      why = fmt::format(
          "its tensors are called such as '{}', under a prefix of their own: give "
          "the model as its makers save it",
          printable(source_.tensors().front()->name));
    else
      why = "weights and config.json must be of one model";
    throw FileError(fmt::format("{}: has no tensor '{}', which model_type \"{}\" calls for; {}",
                                file(e.tensor), e.tensor, c_.model_type, why));
  }

  [[noreturn]] void shape(const WeightEntry& e, const StoredTensor& view) const {
    refuse_scheme();
    throw FileError(
        fmt::format("{}: tensor '{}' has shape [{}], config.json calls for [{}] by {}; weights and "
                    "config.json must be of one model",
                    file(e.tensor), e.tensor, fmt::join(view.shape, ", "),
                    fmt::join(e.tensor_shape, ", "), info_of(e.role).sizes));
  }

  [[noreturn]] void type(const WeightEntry& e, const StoredTensor& view) const {
    refuse_scheme();
    throw FileError(fmt::format("{}: tensor '{}' is stored as {}; store it as F32, F16 or BF16",
                                file(e.tensor), e.tensor, name_of(view.type)));
  }

  [[noreturn]] void unused(const StoredTensor& view) const {
    refuse_scheme();
    std::string why = "weights and config.json must be of one model";
    const std::string_view name = view.name;
    std::int64_t layer = 0;
    if (name.ends_with("_proj.bias"))
      why =
          fmt::format("config.json has {} false (or no word of it): both must be of one model",
                      name.find(".mlp.") == std::string_view::npos ? "attention_bias" : "mlp_bias");
    else if (name.find(".lora_") != std::string_view::npos)
      why = "it is an adapter's: save the model with its adapter merged";
    else if (layer_of(name, layer) && layer >= c_.n_layers)
      why = fmt::format("config.json has num_hidden_layers {}: both must be of one model",
                        c_.n_layers);
    else if (name.find("expert") != std::string_view::npos)
      why = "it is a mixture of experts': config.json must be of the same model";
    else if (name.find("vision") != std::string_view::npos)
      why = "the model sees, which is not supported: give its language model alone";
    throw FileError(fmt::format("{}: tensor '{}' has no place in a model of model_type \"{}\"; {}",
                                file(view.name), printable(view.name), c_.model_type, why));
  }

 private:
  std::string file(const std::string& tensor) const { return source_.file_of(tensor).string(); }

  /// What is missing or has another shape may be there, quantised.
  void refuse_scheme() const {
    const std::string scheme = quantization_found(source_, c_.quantization);
    if (!scheme.empty())
      throw FileError(fmt::format(
          "{}: the weights are quantised by {}{}, which is not read; {}", file(""), scheme,
          c_.quantization.empty()
              ? ""
              : fmt::format(" (config.json: quantization \"{}\")", printable(c_.quantization)),
          kDequantise));
  }

  static const char* bias_key(Role role) {
    if (info_of(role).block == WeightBlock::convolution) return "conv_bias";
    if (role == Role::mix_conv) return "mamba_conv_bias";
    if (info_of(role).block == WeightBlock::recurrence) return "mamba_proj_bias";
    return info_of(role).block == WeightBlock::feed_forward ? "mlp_bias" : "attention_bias";
  }

  const ModelConfig& c_;
  const TensorSource& source_;
};

}  // namespace

std::vector<WeightEntry> weight_plan(const ModelConfig& config) { return Planner(config).plan(); }

PlannedWeights::PlannedWeights(const ModelConfig& config,
                               std::shared_ptr<const TensorSource> source)
    : source_(std::move(source)), entries_(weight_plan(config)) {
  std::set<std::string, std::less<>> used;
  const Mismatch mismatch(config, *source_);
  for (const WeightEntry& e : entries_) {
    const StoredTensor* view = source_->find(e.tensor);
    if (!view) mismatch.missing(e);
    if (view->shape != e.tensor_shape) mismatch.shape(e, *view);
    if (!known(view->type, view->shape.size())) mismatch.type(e, *view);
    used.insert(e.tensor);
    if (view->shape.size() < 2 || e.bias)
      require_finite(e);  // small, and all of it is read in any case
  }
  for (const StoredTensor* view : source_->tensors())
    if (!used.count(view->name) && !harmless(view->name, config)) mismatch.unused(*view);
  std::int64_t layer = -2;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].layer != layer) {
      layer = entries_[i].layer;
      first_of_layer_.push_back(i);
    }
  require_not_all_zero();
}

void PlannedWeights::require_not_all_zero() const {
  for (const WeightEntry& e : entries_) {
    if (e.role != Role::embedding && e.role != Role::head && e.role != Role::final_norm) continue;
    const StoredTensor& t = *source_->find(e.tensor);
    if (!t.data) continue;
    const std::int64_t columns = columns_of(t), row_bytes = row_bytes_of(t);
    std::vector<float> row(static_cast<std::size_t>(columns));
    const auto all_zero = [&](std::int64_t r) {
      cpu::widen_row(t.type, t.data + r * row_bytes, columns, row.data());
      const auto offset = static_cast<float>(e.offset);
      return std::all_of(row.begin(), row.end(), [&](float x) { return x + offset == 0; });
    };
    std::int64_t r = 0;  // the first row ends the search, unless something is wrong
    while (r < e.rows && all_zero(r)) ++r;
    if (r == e.rows)
      throw FileError(
          fmt::format("{}: all numbers of tensor '{}' are 0, so the model says nothing; fetch or "
                      "convert the weights again",
                      source_->file_of(e.tensor).string(), e.tensor));
  }
}

void PlannedWeights::require_finite() const {
  for (const WeightEntry& e : entries_) require_finite(e);
}

void PlannedWeights::require_finite(const WeightEntry& e) const {
  const StoredTensor& t = *source_->find(e.tensor);
  if (!t.data) return;
  const std::int64_t columns = columns_of(t), row_bytes = row_bytes_of(t);
  constexpr std::int64_t kRows = 64;  // looked at by one thread
  std::atomic<std::int64_t> found{e.rows};
  parallel_for((e.rows + kRows - 1) / kRows, [&](std::int64_t block) {
    std::vector<float> numbers(static_cast<std::size_t>(columns));
    const std::int64_t end = std::min(e.rows, (block + 1) * kRows);
    for (std::int64_t row = block * kRows; row < std::min(end, found.load()); ++row) {
      cpu::widen_row(t.type, t.data + (e.first_row + row) * row_bytes, columns, numbers.data());
      if (std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }))
        continue;
      for (std::int64_t first = found; row < first && !found.compare_exchange_weak(first, row);) {
      }
    }
  });
  if (found < e.rows)
    throw FileError(
        fmt::format("{}: tensor '{}' holds NaN or infinity in row {}; fetch or convert the "
                    "weights again",
                    source_->file_of(e.tensor).string(), e.tensor, e.first_row + found));
}

const WeightEntry* PlannedWeights::find(WeightRole role, std::int64_t layer, bool bias,
                                        std::int64_t expert) const {
  const auto is_it = [&](const WeightEntry& e) {
    return e.role == role && e.bias == bias && e.expert == expert;
  };
  // groups: the embedding, the layers, what follows them
  const std::size_t groups = first_of_layer_.size();
  const auto group = [&](std::size_t g) -> const WeightEntry* {
    const auto begin = entries_.begin() + static_cast<std::ptrdiff_t>(first_of_layer_[g]);
    const auto end = g + 1 < groups
                         ? entries_.begin() + static_cast<std::ptrdiff_t>(first_of_layer_[g + 1])
                         : entries_.end();
    const auto it = std::find_if(begin, end, is_it);
    return it == end ? nullptr : &*it;
  };
  if (layer >= 0)
    return static_cast<std::size_t>(layer) + 2 < groups ? group(static_cast<std::size_t>(layer) + 1)
                                                        : nullptr;
  const WeightEntry* first = group(0);
  return first ? first : group(groups - 1);
}

bool PlannedWeights::has(WeightRole role, std::int64_t layer, bool bias) const {
  return find(role, layer, bias, -1) != nullptr;
}

WeightView PlannedWeights::at(WeightRole role, std::int64_t layer, bool bias) const {
  return at(role, layer, bias, -1);
}

WeightView PlannedWeights::of_expert(WeightRole role, std::int64_t layer, std::int64_t expert,
                                     bool bias) const {
  return at(role, layer, bias, expert);
}

WeightView PlannedWeights::at(WeightRole role, std::int64_t layer, bool bias,
                              std::int64_t expert) const {
  const WeightEntry* e = find(role, layer, bias, expert);
  if (!e)
    throw DataError(fmt::format("weight plan: layer {} has no {}{}", layer, name_of(role),
                                bias ? " bias" : ""));
  const StoredTensor& t = *source_->find(e->tensor);
  WeightView view{t.type, t.data, e->rows, e->columns(), e->offset};
  if (view.data) view.data += e->first_row * view.row_bytes();
  return view;
}

}  // namespace episodic
