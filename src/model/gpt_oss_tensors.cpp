// SPDX-License-Identifier: Apache-2.0
#include "gpt_oss_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic {
namespace {

using ExpertShape = std::vector<std::int64_t>;

constexpr std::int64_t kMxfp4Block = 32, kMxfp4Codes = 16;  // of MXFP4: numbers, and their bytes

std::size_t at_size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// A matrix of each expert as a checkpoint has it. Its rows alternate between `parts` products.
struct StoredMatrix {
  const StoredTensor *floats = nullptr, *blocks = nullptr, *scales = nullptr;
  const StoredTensor* bias = nullptr;
  std::int64_t experts = 0, out = 0, in = 0;  // of one part
  std::int64_t parts = 1;

  TensorType type() const { return blocks ? TensorType::mxfp4 : floats->type; }
  std::int64_t row_bytes() const { return in / block_elements(type()) * block_bytes(type()); }

  /// Numbers 2 j and 2 j + 1 in byte j become numbers j and j + 16.
  static void put_block(std::byte scale, const std::byte* codes, std::byte* to) {
    to[0] = scale;
    const auto code = [&](std::int64_t i) {
      const auto both = std::to_integer<unsigned>(codes[i / 2]);
      return i % 2 == 0 ? both & 15u : both >> 4;
    };
    for (std::int64_t i = 0; i < kMxfp4Codes; ++i)
      to[1 + i] = static_cast<std::byte>(code(i) | code(i + kMxfp4Codes) << 4);
  }

  void put_row(std::int64_t expert, std::int64_t row, std::byte* to) const {
    if (blocks) {
      const std::int64_t in_blocks = in / kMxfp4Block,
                         first = (expert * parts * out + row) * in_blocks;
      for (std::int64_t b = 0; b < in_blocks; ++b)
        put_block(scales->data[first + b], blocks->data + (first + b) * kMxfp4Codes,
                  to + b * block_bytes(TensorType::mxfp4));
      return;
    }
    // outputs lie side by side there
    const std::int64_t element = block_bytes(floats->type), outputs = parts * out;
    const std::byte* from = floats->data + (expert * in * outputs + row) * element;
    for (std::int64_t c = 0; c < in; ++c)
      std::memcpy(to + c * element, from + c * outputs * element, at_size(element));
  }

  /// [experts, out, in]
  std::vector<std::byte> weights_of(std::int64_t part) const {
    std::vector<std::byte> bytes(at_size(experts * out * row_bytes()));
    parallel_for(experts * out, [&](std::int64_t i) {
      put_row(i / out, i % out * parts + part, bytes.data() + i * row_bytes());
    });
    return bytes;
  }

  /// [experts, out]
  std::vector<std::byte> biases_of(std::int64_t part) const {
    const std::int64_t element = block_bytes(bias->type);
    std::vector<std::byte> bytes(at_size(experts * out * element));
    for (std::int64_t i = 0; i < experts * out; ++i)
      std::memcpy(bytes.data() + i * element, bias->data + (i * parts + part) * element,
                  at_size(element));
    return bytes;
  }
};

/// What was computed of a checkpoint, and the rest of it under its own names or others.
class StackedExperts final : public TensorSource {
 public:
  StackedExperts(std::shared_ptr<const TensorSource> base, const ModelConfig& config)
      : base_(std::move(base)) {
    for (const StoredTensor* t : base_->tensors()) add(t->name, *t);
    std::vector<std::pair<std::string, StoredMatrix>> found;  // by prefix: all are looked at first
    for (std::int64_t l = 0; l < config.n_layers; ++l) {
      const MixtureSpec& m = config.layers[at_size(l)].mixture;
      if (!m) continue;
      const std::string mlp = fmt::format("model.layers.{}.mlp.", l);
      rename(mlp + "router.weight", mlp + "gate.weight");
      rename(mlp + "router.bias", mlp + "gate.bias");
      const std::string experts = mlp + "experts.";
      if (base_->find(experts + "down_proj.weight")) continue;
      found.emplace_back(experts + "gate_up_proj",
                         look(experts + "gate_up_proj", m.experts, m.width, config.hidden_size, 2));
      found.emplace_back(experts + "down_proj",
                         look(experts + "down_proj", m.experts, config.hidden_size, m.width, 1));
    }
    for (const auto& [name, stored] : found) {
      for (const char* end : {"", "_blocks", "_scales", "_bias"}) places_.erase(name + end);
      const std::string experts = name.substr(0, name.rfind('.') + 1);
      const char* const parts[] = {stored.parts == 2 ? "gate_proj" : "down_proj", "up_proj"};
      for (std::int64_t part = 0; part < stored.parts; ++part) {
        const std::string to = experts + parts[part];
        put(to + ".weight", stored.type(), {stored.experts, stored.out, stored.in},
            stored.weights_of(part), name);
        put(to + ".bias", stored.bias->type, {stored.experts, stored.out}, stored.biases_of(part),
            name);
      }
    }
  }

  const StoredTensor* find(std::string_view name) const override {
    const auto it = places_.find(name);
    return it == places_.end() ? nullptr : &it->second.view;
  }
  std::vector<const StoredTensor*> tensors() const override {
    std::vector<const StoredTensor*> all;
    for (const auto& [name, place] : places_) all.push_back(&place.view);
    return all;
  }
  std::filesystem::path file_of(std::string_view name) const override {
    const auto it = places_.find(name);
    return base_->file_of(it == places_.end() ? name : std::string_view(it->second.stored_as));
  }

 private:
  struct Place {
    StoredTensor view;
    std::string stored_as;
    std::vector<std::byte> bytes;  // of what was computed
  };

  void add(const std::string& stored_as, StoredTensor view) {
    std::string name = view.name;
    places_.insert_or_assign(std::move(name), Place{std::move(view), stored_as, {}});
  }

  void rename(const std::string& from, const std::string& to) {
    const StoredTensor* t = base_->find(from);
    if (!t || base_->find(to)) return;
    places_.erase(from);
    StoredTensor view = *t;
    view.name = to;
    add(from, std::move(view));
  }

  void put(const std::string& name, TensorType type, ExpertShape shape,
           std::vector<std::byte> bytes, const std::string& stored_as) {
    Place place{{name, type, std::move(shape), nullptr, static_cast<std::int64_t>(bytes.size())},
                stored_as,
                std::move(bytes)};
    place.view.data = place.bytes.data();
    places_.insert_or_assign(name, std::move(place));
  }

  StoredMatrix look(const std::string& name, std::int64_t experts, std::int64_t out,
                    std::int64_t in, std::int64_t parts) const {
    StoredMatrix s;
    s.experts = experts, s.out = out, s.in = in, s.parts = parts;
    if (base_->find(name + "_blocks") || base_->find(name + "_scales")) {
      if (in % kMxfp4Block != 0)
        throw FileError(
            fmt::format("{}: tensor '{}_blocks' is of MXFP4, whose rows are multiples "
                        "of {} numbers; config.json gives rows of {}",
                        file(name + "_blocks"), printable(name), kMxfp4Block, in));
      s.blocks = need(name + "_blocks", {experts, parts * out, in / kMxfp4Block, kMxfp4Codes},
                      {TensorType::u8});
      s.scales = need(name + "_scales", {experts, parts * out, in / kMxfp4Block},
                      {TensorType::u8, TensorType::f8_e8m0});
    } else {
      s.floats = need(name, {experts, in, parts * out},
                      {TensorType::f32, TensorType::f16, TensorType::bf16});
    }
    s.bias = need(name + "_bias", {experts, parts * out},
                  {TensorType::f32, TensorType::f16, TensorType::bf16});
    return s;
  }

  const StoredTensor* need(const std::string& name, const ExpertShape& shape,
                           std::initializer_list<TensorType> types) const {
    const StoredTensor* t = base_->find(name);
    if (!t)
      throw FileError(fmt::format("{}: tensor '{}' is missing; fetch the weights again", file(name),
                                  printable(name)));
    if (t->shape != shape)
      throw FileError(fmt::format(
          "{}: tensor '{}' has shape [{}], config.json calls for [{}] by num_local_experts, "
          "intermediate_size and hidden_size; weights and config.json must be of one model",
          file(name), printable(name), fmt::join(t->shape, ", "), fmt::join(shape, ", ")));
    for (const TensorType type : types)
      if (t->type == type) return t;
    std::vector<const char*> names;
    for (const TensorType type : types) names.push_back(name_of(type));
    throw FileError(fmt::format("{}: tensor '{}' is stored as {}, expected {}", file(name),
                                printable(name), name_of(t->type), fmt::join(names, " or ")));
  }

  std::string file(const std::string& name) const { return base_->file_of(name).string(); }

  std::shared_ptr<const TensorSource> base_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace

std::shared_ptr<const TensorSource> with_stacked_experts(
    std::shared_ptr<const TensorSource> tensors, const ModelConfig& config) {
  return std::make_shared<StackedExperts>(std::move(tensors), config);
}

}  // namespace episodic
