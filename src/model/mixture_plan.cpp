// SPDX-License-Identifier: Apache-2.0
#include "mixture_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

using Role = WeightRole;
using Shape = std::vector<std::int64_t>;

/// Whole names behind "model.layers.N.". "{}": the expert's number, where each has a tensor of its
/// own; else the tensor's first dimension is the experts. Null: rows of the tensor in gate_up.
struct TensorNames {
  MixtureTensors which;
  const char *router, *product_bias, *choice_bias;
  const char *gate, *up, *gate_up, *down;
  const char *shared_router, *shared_gate, *shared_up, *shared_gate_up, *shared_down;
};

constexpr const char *kQwenRouter = "mlp.gate.weight", *kQwenBias = "mlp.gate.bias",
                     *kQwenChoice = "mlp.gate.e_score_correction_bias",
                     *kQwenSharedRouter = "mlp.shared_expert_gate.weight",
                     *kQwenSharedGate = "mlp.shared_expert.gate_proj.weight",
                     *kQwenSharedUp = "mlp.shared_expert.up_proj.weight",
                     *kQwenSharedDown = "mlp.shared_expert.down_proj.weight",
                     *kDeepseekSharedGate = "mlp.shared_experts.gate_proj.weight",
                     *kDeepseekSharedUp = "mlp.shared_experts.up_proj.weight",
                     *kDeepseekSharedDown = "mlp.shared_experts.down_proj.weight";

constexpr TensorNames kMixtureTensors[] = {
    {MixtureTensors::qwen, kQwenRouter, kQwenBias, kQwenChoice, "mlp.experts.{}.gate_proj.weight",
     "mlp.experts.{}.up_proj.weight", nullptr, "mlp.experts.{}.down_proj.weight", kQwenSharedRouter,
     kQwenSharedGate, kQwenSharedUp, nullptr, kQwenSharedDown},
    {MixtureTensors::mixtral, "block_sparse_moe.gate.weight", "block_sparse_moe.gate.bias",
     "block_sparse_moe.gate.e_score_correction_bias", "block_sparse_moe.experts.{}.w1.weight",
     "block_sparse_moe.experts.{}.w3.weight", nullptr, "block_sparse_moe.experts.{}.w2.weight",
     kQwenSharedRouter, kQwenSharedGate, kQwenSharedUp, nullptr, kQwenSharedDown},
    {MixtureTensors::granite, "block_sparse_moe.router.layer.weight",
     "block_sparse_moe.router.layer.bias", "block_sparse_moe.router.e_score_correction_bias",
     nullptr, nullptr, "block_sparse_moe.input_linear.weight",
     "block_sparse_moe.output_linear.weight", kQwenSharedRouter, nullptr, nullptr,
     "shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight"},
    {MixtureTensors::fused, kQwenRouter, kQwenBias, kQwenChoice, nullptr, nullptr,
     "mlp.experts.gate_up_proj", "mlp.experts.down_proj", kQwenSharedRouter, kQwenSharedGate,
     kQwenSharedUp, nullptr, kQwenSharedDown},
    {MixtureTensors::granite_fused, "block_sparse_moe.router.weight",
     "block_sparse_moe.router.bias", "block_sparse_moe.router.e_score_correction_bias", nullptr,
     nullptr, "block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj",
     kQwenSharedRouter, nullptr, nullptr, "shared_mlp.input_linear.weight",
     "shared_mlp.output_linear.weight"},
    {MixtureTensors::stacked, kQwenRouter, kQwenBias, kQwenChoice, "mlp.experts.gate_proj.weight",
     "mlp.experts.up_proj.weight", nullptr, "mlp.experts.down_proj.weight", kQwenSharedRouter,
     kQwenSharedGate, kQwenSharedUp, nullptr, kQwenSharedDown},
    {MixtureTensors::gemma, "router.proj.weight", "router.proj.bias",
     "router.e_score_correction_bias", nullptr, nullptr, "experts.gate_up_proj",
     "experts.down_proj", kQwenSharedRouter, kQwenSharedGate, kQwenSharedUp, nullptr,
     kQwenSharedDown},
    {MixtureTensors::deepseek, kQwenRouter, kQwenBias, kQwenChoice,
     "mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight", nullptr,
     "mlp.experts.{}.down_proj.weight", kQwenSharedRouter, kDeepseekSharedGate, kDeepseekSharedUp,
     nullptr, kDeepseekSharedDown},
    {MixtureTensors::deepseek_fused, kQwenRouter, kQwenBias, kQwenChoice, nullptr, nullptr,
     "mlp.experts.gate_up_proj", "mlp.experts.down_proj", kQwenSharedRouter, kDeepseekSharedGate,
     kDeepseekSharedUp, nullptr, kDeepseekSharedDown},
};

const TensorNames& names_of(MixtureTensors which) {
  return kMixtureTensors[static_cast<std::size_t>(which)];
}

constexpr bool in_order() {
  std::size_t i = 0;
  for (const TensorNames& row : kMixtureTensors)
    if (row.which != static_cast<MixtureTensors>(i++)) return false;
  return true;
}
static_assert(in_order(), "each way to hold a mixture's tensors has its row");

std::string name_of_expert(const char* name, std::int64_t expert) {
  std::string text = name;
  if (const std::size_t at = text.find("{}"); at != std::string::npos)
    text.replace(at, 2, std::to_string(expert));
  return text;
}

class MixturePlanner {
 public:
  MixturePlanner(const MixtureSpec& spec, std::int64_t hidden, std::int64_t layer,
                 const std::string& prefix, std::vector<WeightEntry>& to)
      : s_(spec),
        names_(names_of(spec.tensors)),
        hidden_(hidden),
        layer_(layer),
        prefix_(prefix),
        to_(to) {}

  void plan() {
    add(Role::router, names_.router, {s_.experts, hidden_});
    if (s_.bias != RouterBias::none)
      add(Role::router, s_.bias == RouterBias::product ? names_.product_bias : names_.choice_bias,
          {s_.experts}, true);
    for (std::int64_t e = 0; e < s_.experts; ++e) add_expert(e);
    if (s_.shared_width > 0) add_shared();
  }

 private:
  void add(Role role, const char* name, const Shape& shape, bool bias = false) {
    to_.push_back({role, layer_, bias, prefix_ + name, shape, 0, shape[0], 0});
  }

  void add_expert(std::int64_t e) {
    if (names_.gate_up) {
      part(Role::expert_gate, names_.gate_up, e, s_.width, hidden_, 0, 2);
      part(Role::expert_up, names_.gate_up, e, s_.width, hidden_, 1, 2);
    } else {
      part(Role::expert_gate, names_.gate, e, s_.width, hidden_, 0, 1);
      part(Role::expert_up, names_.up, e, s_.width, hidden_, 0, 1);
    }
    part(Role::expert_down, names_.down, e, hidden_, s_.width, 0, 1);
    if (!s_.expert_bias) return;
    bias(Role::expert_gate, names_.gate, e, s_.width);
    bias(Role::expert_up, names_.up, e, s_.width);
    bias(Role::expert_down, names_.down, e, hidden_);
  }

  /// Under the name of the weights: an expert's own, or a row of [experts, rows].
  void bias(Role role, const char* weights, std::int64_t e, std::int64_t rows) {
    std::string name = name_of_expert(weights, e);
    const bool own = name != weights;
    name.replace(name.rfind('.'), std::string::npos, ".bias");
    if (own)
      to_.push_back({role, layer_, true, prefix_ + name, {rows}, 0, rows, 0, e});
    else
      to_.push_back({role, layer_, true, prefix_ + name, {s_.experts, rows}, e, 1, 0, e});
  }

  /// Part `number` of the `of` parts that an expert's rows in a tensor are.
  void part(Role role, const char* name, std::int64_t e, std::int64_t rows, std::int64_t columns,
            std::int64_t number, std::int64_t of) {
    const bool own = std::string_view(name).find("{}") != std::string_view::npos;
    const Shape shape = own ? Shape{of * rows, columns} : Shape{s_.experts, of * rows, columns};
    const std::int64_t first = ((own ? 0 : e * of) + number) * rows;
    to_.push_back(
        {role, layer_, false, prefix_ + name_of_expert(name, e), shape, first, rows, 0, e});
  }

  void add_shared() {
    // GGUF has the one row as a list
    if (s_.shared_gate)
      add(Role::shared_router, names_.shared_router,
          s_.tensors == MixtureTensors::stacked ? Shape{hidden_} : Shape{1, hidden_});
    const std::int64_t width = s_.shared_width;
    if (names_.shared_gate_up) {
      add(Role::shared_gate, names_.shared_gate_up, {2 * width, hidden_});
      to_.back().rows = width;
      add(Role::shared_up, names_.shared_gate_up, {2 * width, hidden_});
      to_.back().first_row = to_.back().rows = width;
    } else {
      add(Role::shared_gate, names_.shared_gate, {width, hidden_});
      add(Role::shared_up, names_.shared_up, {width, hidden_});
    }
    add(Role::shared_down, names_.shared_down, {hidden_, width});
  }

  const MixtureSpec& s_;
  const TensorNames& names_;
  std::int64_t hidden_, layer_;
  const std::string& prefix_;
  std::vector<WeightEntry>& to_;
};

}  // namespace

void plan_mixture(const MixtureSpec& spec, std::int64_t hidden, std::int64_t layer,
                  const std::string& prefix, std::vector<WeightEntry>& to) {
  MixturePlanner(spec, hidden, layer, prefix, to).plan();
}

void find_mixture_tensors(const TensorSource& tensors, ModelConfig& config) {
  const auto first = std::find_if(config.layers.begin(), config.layers.end(),
                                  [](const LayerSpec& l) { return bool(l.mixture); });
  if (first == config.layers.end()) return;
  const std::string prefix = fmt::format("model.layers.{}.", first - config.layers.begin());
  const auto has = [&](const char* name) {
    return name && tensors.find(prefix + name_of_expert(name, 0)) ? 1 : 0;
  };
  const auto count = [&](MixtureTensors which) {
    const TensorNames& names = names_of(which);
    const bool shared = first->mixture.shared_width > 0;
    return has(names.router) + has(names.gate) + has(names.gate_up) + has(names.down) +
           (shared ? has(names.shared_down) : 0);
  };
  // Of as many the family's own: a message then names what its files usually have.
  MixtureTensors best = first->mixture.tensors;
  for (const TensorNames& row : kMixtureTensors)
    if (count(row.which) > count(best)) best = row.which;
  for (LayerSpec& layer : config.layers)
    if (layer.mixture) layer.mixture.tensors = best;
}

bool names_a_mixture(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  return has("expert") || has("block_sparse_moe") || has("shared_mlp") ||
         name.ends_with("mlp.gate");
}

void require_dense(const ModelConfig& config, const char* who) {
  if (!config.has_mixture()) return;
  throw ConfigError(fmt::format(
      "{}: the model (model_type \"{}\") is a mixture of experts, which cannot be trained", who,
      config.model_type));
}

}  // namespace episodic
