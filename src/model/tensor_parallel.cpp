// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/tensor_parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/weight_plan.hpp"

namespace episodic {
namespace {

[[noreturn]] void refuse_layer(std::int64_t layer, const char* what) {
  throw ConfigError(fmt::format(
      "tensor parallel: layer {} {}, which is not divided among ranks; run the model in "
      "one process",
      layer, what));
}

void require_divided(const ModelConfig& c, std::int64_t l) {
  const LayerSpec& s = c.layers[static_cast<std::size_t>(l)];
  if (s.latent) refuse_layer(l, "has latent attention");
  if (s.qk_norm == QkNorm::row) refuse_layer(l, "has a norm over the queries of all heads");
  if (s.keys_of >= 0) refuse_layer(l, "attends to the keys of another layer");
  if (c.per_layer_width > 0) refuse_layer(l, "has an input of its own");
}

/// \param what, of a layer \param remedy for who has other numbers of ranks
std::int64_t divided(std::int64_t n, int ranks, std::int64_t layer, const char* what) {
  if (n % ranks != 0)
    throw ConfigError(fmt::format(
        "tensor parallel: {} ranks do not divide the {} {} of layer {}; start a number of ranks "
        "that does",
        ranks, n, what, layer));
  return n / ranks;
}

/// A rank's tensors: parts of another source's, or the whole of them.
class ShareOfTensors final : public TensorSource {
 public:
  explicit ShareOfTensors(std::shared_ptr<const TensorSource> whole) : whole_(std::move(whole)) {}

  /// \param from the tensor of the whole that it is a part of
  void put(StoredTensor tensor, std::string from) {
    std::string name = tensor.name;
    tensors_[std::move(name)] = {std::move(tensor), std::move(from)};
  }
  /// Room for a part that does not lie in one piece.
  std::byte* room(std::int64_t bytes) {
    copies_.emplace_back(static_cast<std::size_t>(bytes));
    return copies_.back().data();
  }

  const StoredTensor* find(std::string_view name) const override {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : &at->second.first;
  }
  std::vector<const StoredTensor*> tensors() const override {
    std::vector<const StoredTensor*> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(&tensor.first);
    return all;
  }
  std::filesystem::path file_of(std::string_view name) const override {
    const auto at = tensors_.find(name);
    return whole_->file_of(at == tensors_.end() ? name : std::string_view(at->second.second));
  }

 private:
  std::shared_ptr<const TensorSource> whole_;
  std::map<std::string, std::pair<StoredTensor, std::string>, std::less<>> tensors_;
  std::vector<std::vector<std::byte>> copies_;
};

/// Cuts a rank's parts out of the weights of the whole.
class Slicer {
 public:
  Slicer(const PlannedWeights& whole, int rank, int ranks, ShareOfTensors& to)
      : whole_(whole), rank_(rank), ranks_(ranks), to_(to) {
    for (const WeightEntry& e : whole.entries()) names_[key_of(e)] = &e.tensor;
  }

  /// \param part as the rank's plan has it
  void cut(const WeightEntry& part) {
    const WeightView view = part.expert < 0
                                ? whole_.at(part.role, part.layer, part.bias)
                                : whole_.of_expert(part.role, part.layer, part.expert, part.bias);
    const std::int64_t rows = part.rows, columns = part.columns(), numbers = rows * columns;
    if (numbers != elements_of(part.tensor_shape)) {
      // Of several products in one tensor, which only those have that are whole on every rank.
      to_.put(*whole_.source()->find(tensor_of(part)), tensor_of(part));
      return;
    }
    StoredTensor t{part.tensor, view.type, part.tensor_shape, view.data,
                   numbers / block_elements(view.type) * block_bytes(view.type)};
    if (numbers != view.rows * view.columns) {
      if (part.bias || columns == view.columns)
        t.data += rank_ * t.bytes;  // its rows, in one piece
      else
        t.data = columns_of(part, view, columns);
    } else if (part.bias && added_up(part.role) && rank_ > 0) {
      std::byte* const zeros = to_.room(t.bytes);  // it is added once
      std::memset(zeros, 0, static_cast<std::size_t>(t.bytes));
      t.data = zeros;
    }
    to_.put(std::move(t), tensor_of(part));
  }

 private:
  static std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }

  /// Whether the products of all ranks are.
  static bool added_up(WeightRole role) {
    return role == WeightRole::o || role == WeightRole::down || role == WeightRole::expert_down;
  }

  const std::byte* columns_of(const WeightEntry& part, const WeightView& view,
                              std::int64_t columns) {
    const std::int64_t block = block_elements(view.type);
    if (columns % block != 0)
      throw ConfigError(fmt::format(
          "{}: tensor '{}' is stored as {}, in blocks of {} numbers, and {} ranks have {} of its "
          "{} columns each; start fewer ranks, or take weights in float",
          whole_.source()->file_of(tensor_of(part)).string(), tensor_of(part), name_of(view.type),
          block, ranks_, columns, view.columns));
    const std::int64_t bytes = columns / block * block_bytes(view.type);
    std::byte* const out = to_.room(view.rows * bytes);
    const std::byte* const from = view.data + rank_ * bytes;
    parallel_for(view.rows, [&](std::int64_t row) {
      std::memcpy(out + row * bytes, from + row * view.row_bytes(),
                  static_cast<std::size_t>(bytes));
    });
    return out;
  }

  /// Name of the tensor of the whole that has the weight.
  const std::string& tensor_of(const WeightEntry& part) const { return *names_.at(key_of(part)); }

  using Key = std::tuple<std::int64_t, std::int64_t, WeightRole, bool>;
  static Key key_of(const WeightEntry& e) { return {e.layer, e.expert, e.role, e.bias}; }

  const PlannedWeights& whole_;
  int rank_, ranks_;
  ShareOfTensors& to_;
  std::map<Key, const std::string*> names_;
};

}  // namespace

ModelConfig share_of(const ModelConfig& whole, int rank, int ranks) {
  ModelConfig c = whole;
  if (ranks == 1) return c;
  for (std::int64_t l = 0; l < c.n_layers; ++l) {
    require_divided(c, l);
    LayerSpec& s = c.layers[static_cast<std::size_t>(l)];
    // whole query groups: a rank has the key/value heads of its queries
    if (s.mixer == Mixer::attention) {  // what stands in its place is whole on every rank
      s.n_kv_heads = divided(s.n_kv_heads, ranks, l, "key/value heads");
      s.n_heads = divided(s.n_heads, ranks, l, "query heads");
    }
    if (!s.mixture || s.dense_beside)
      s.intermediate_size = divided(s.intermediate_size, ranks, l, "feed-forward channels");
    if (s.mixture) {
      s.mixture.width = divided(s.mixture.width, ranks, l, "channels of an expert");
      s.mixture.shared_width =
          divided(s.mixture.shared_width, ranks, l, "channels of the shared expert");
      s.mixture.tensors = MixtureTensors::qwen;
    }
    s.fused_qkv = s.fused_gate_up = false;  // each part is a tensor of its own
  }
  c.n_heads /= ranks;
  c.n_kv_heads /= ranks;
  c.intermediate_size /= ranks;
  c.ranks = ranks;
  c.rank = rank;
  return c;
}

void take_share(OpenModel& model, std::shared_ptr<Group> group) {
  if (!group || group->size() == 1) return;
  if (!model.adapters.empty() && !model.merged)
    throw ConfigError(
        "tensor parallel: an adapter beside the weights is not divided among ranks; merge it into "
        "them (merge_lora)");
  const ModelConfig share = share_of(model.config, group->rank(), group->size());
  const PlannedWeights whole(model.config, model.tensors);
  auto tensors = std::make_shared<ShareOfTensors>(model.tensors);
  Slicer slicer(whole, group->rank(), group->size(), *tensors);
  for (const WeightEntry& part : weight_plan(share)) slicer.cut(part);
  if (!model.stored) model.stored = model.tensors;
  model.tensors = std::move(tensors);
  model.config = share;
  model.group = std::move(group);
}

}  // namespace episodic
