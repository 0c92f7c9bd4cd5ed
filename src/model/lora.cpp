// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/lora.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "base/strict_json.hpp"
#include "changed_tensors.hpp"
#include "elementwise.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/safetensors.hpp"
#include "json_object.hpp"
#include "lora_scale.hpp"
#include "mixture_plan.hpp"
#include "row_order.hpp"
#include "take_end.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::int64_t kMostRank = 1 << 16;

/// Whether a module is the one that a name means: itself, or the end of its path.
bool is_meant(std::string_view module, std::string_view name) {
  return module == name || (module.size() > name.size() && module.ends_with(name) &&
                            module[module.size() - name.size() - 1] == '.');
}

/// The products of a model by the names of PEFT's modules: parts of one tensor belong to one.
using Modules = std::map<std::string, std::vector<WeightEntry>, std::less<>>;

Modules modules_of(const ModelConfig& config) {
  Modules modules;
  for (WeightEntry& e : weight_plan(config)) {
    if (e.bias || !info_of(e.role).product || info_of(e.role).block == WeightBlock::mixture)
      continue;
    std::string_view name = e.tensor;
    take_end(name, ".weight");
    // the tensor of a tied head is the embedding's; its module is not
    std::string module(e.role == WeightRole::head ? info_of(e.role).hugging_face : name);
    modules[std::move(module)].push_back(std::move(e));
  }
  return modules;
}

// -- adapter_config.json --------------------------------------------------------------------------

/// A number for modules with certain names (rank_pattern, alpha_pattern).
struct Pattern {
  std::string name;
  double value = 0;
};

struct LoraConfig {
  std::int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;
  std::vector<Pattern> ranks, alphas;
  /// Ends of module names; nothing if a pattern says which, for then the tensors do.
  std::optional<std::vector<std::string>> targets;
  std::optional<std::set<std::int64_t>> layers;  // nothing: all
};

class ConfigReader {
 public:
  ConfigReader(const Json& json, const std::string& file) : json_(json), in_(json, file) {}

  LoraConfig read() const {
    if (const std::string type = in_.string("peft_type", "LORA"); type != "LORA")
      in_.unsupported("peft_type", type, "LORA");
    refuse_the_unknown();
    check_initialisation();
    LoraConfig c;
    c.rank = in_.integer("r", 1, kMostRank);
    c.alpha = in_.positive("lora_alpha");
    c.rslora = in_.boolean("use_rslora", false);
    in_.boolean("fan_in_fan_out", false);  // says how GPT-2's layers lie, and nothing of these
    if (const std::string bias = in_.string("bias", "none"); bias != "none")
      in_.unsupported("bias", bias, "none");
    c.ranks = patterns("rank_pattern");
    c.alphas = patterns("alpha_pattern");
    c.layers = layers();
    c.targets = targets();
    return c;
  }

 private:
  /// What is neither read nor known to be without effect must be switched off.
  void refuse_the_unknown() const {
    static const std::set<std::string, std::less<>> known{
        "peft_type", "r", "lora_alpha", "use_rslora", "fan_in_fan_out", "bias", "rank_pattern",
        "alpha_pattern", "target_modules", "exclude_modules", "task_type", "layers_to_transform",
        "layers_pattern", "init_lora_weights",
        // without effect on what is computed
        "auto_mapping", "base_model_name_or_path", "eva_config", "inference_mode", "lora_dropout",
        "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config"};
    for (const auto& [key, value] : json_.items()) {
      const bool off = value.is_null() || value == false ||
                       ((value.is_array() || value.is_object()) && value.empty());
      if (!off && !known.count(key))
        in_.fail(printable(key),
                 fmt::format("= {} is not supported: without it the adapter is not what was "
                             "trained; save one without it",
                             printable_value(value)));
    }
  }

  /// Some ways to begin change the weights that the adapter is for.
  void check_initialisation() const {
    const auto it = json_.find("init_lora_weights");
    if (it == json_.end() || it->is_null() || it->is_boolean()) return;
    const std::string how = in_.string("init_lora_weights", "");
    if (how != "gaussian" && how != "eva" && how != "orthogonal")
      in_.fail(
          "init_lora_weights",
          fmt::format("= '{}' is not supported, for it changes the weights beside the adapter; "
                      "save the adapter converted to a plain one "
                      "(path_initial_model_for_weight_conversion)",
                      printable(how)));
  }

  std::vector<Pattern> patterns(const char* key) const {
    std::vector<Pattern> all;
    const auto it = json_.find(key);
    if (it == json_.end() || it->is_null()) return all;
    if (!it->is_object()) in_.fail(key, "expected an object");
    for (const auto& [name, value] : it->items()) {
      const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
      });
      if (!plain)
        in_.fail(key, fmt::format("has '{}': patterns are not supported, names of modules are",
                                  printable(name)));
      if (!value.is_number() || !(value.get<double>() > 0) || !(value.get<double>() <= 1e9))
        in_.fail(key, fmt::format("'{}' is {}, expected a number above 0", printable(name),
                                  printable_value(value)));
      all.push_back({name, value.get<double>()});
    }
    return all;
  }

  std::optional<std::set<std::int64_t>> layers() const {
    if (const auto it = json_.find("layers_pattern"); it != json_.end() && !it->is_null()) {
      const Json list = it->is_array() ? *it : Json::array({*it});
      for (const Json& name : list)
        if (name != "layers" && name != "")
          in_.fail("layers_pattern", fmt::format("= {} is not supported; these models' layers are "
                                                 "in \"layers\"",
                                                 printable_value(name)));
    }
    const auto it = json_.find("layers_to_transform");
    if (it == json_.end() || it->is_null()) return std::nullopt;
    std::set<std::int64_t> layers;
    for (const Json& layer : it->is_array() ? *it : Json::array({*it})) {
      if (!layer.is_number_integer())
        in_.fail("layers_to_transform",
                 fmt::format("has {}, expected numbers of layers", printable_value(layer)));
      layers.insert(layer.get<std::int64_t>());
    }
    return layers;
  }

  std::optional<std::vector<std::string>> targets() const {
    const auto it = json_.find("target_modules");
    if (it == json_.end() || it->is_null() || it->is_string()) return std::nullopt;
    if (in_.has("exclude_modules")) return std::nullopt;
    std::vector<std::string> names;
    if (!it->is_array()) in_.fail("target_modules", "expected a list of names, or one pattern");
    for (const Json& name : *it) {
      if (!name.is_string() || name.get_ref<const std::string&>().empty())
        in_.fail("target_modules",
                 fmt::format("has {}, expected names of modules", printable_value(name)));
      names.push_back(name);
    }
    return names;
  }

  const Json& json_;
  JsonObject in_;
};

double value_for(const std::vector<Pattern>& patterns, std::string_view module, double otherwise,
                 const std::string& file) {
  const Pattern* found = nullptr;
  for (const Pattern& p : patterns) {
    if (!is_meant(module, p.name)) continue;
    if (found && found->value != p.value)
      throw FileError(
          fmt::format("{}: '{}' and '{}' both mean {} and say different numbers; keep "
                      "one of them",
                      file, found->name, p.name, module));
    found = &p;
  }
  return found ? found->value : otherwise;
}

}  // namespace

// -- adapter_model.safetensors --------------------------------------------------------------------

class LoraAdapter::Reader {
 public:
  Reader(const fs::path& dir, const OpenModel& model)
      : config_file_((dir / "adapter_config.json").string()),
        config_(read_config(dir)),
        file_(tensors_of(dir)),
        model_(model),
        modules_(modules_of(model.config)) {}

  std::shared_ptr<LoraAdapter> read() {
    for (const StoredTensor& t : file_.tensors()) sort_in(t);
    if (pairs_.empty()) fail("holds no adapter's tensors (lora_A, lora_B); save the adapter again");
    require_all_targets();
    std::shared_ptr<LoraAdapter> adapter(new LoraAdapter);
    ByteWriter all;
    for (const auto& [module, pair] : pairs_) {
      const std::vector<WeightEntry>& parts = modules_.find(module)->second;
      const auto rank = static_cast<std::int64_t>(
          value_for(config_.ranks, module, static_cast<double>(config_.rank), config_file_));
      const double alpha = value_for(config_.alphas, module, config_.alpha, config_file_);
      const auto r = static_cast<double>(rank);
      const double scaling = alpha / (config_.rslora ? std::sqrt(r) : r);
      const std::int64_t out = parts[0].tensor_shape[0], in = parts[0].tensor_shape[1];
      const float* a = floats(*adapter, module, pair.a, "lora_A", {rank, in});
      const float* b = floats(*adapter, module, pair.b, "lora_B", {out, rank});
      all.put_string(module);
      all.put(scaling);
      all.put_vector(adapter->factors_[adapter->factors_.size() - 2]);
      all.put_vector(adapter->factors_.back());
      for (const WeightEntry& part : parts)
        order_rows(part, adapter->factors_.back().data() + part.first_row * rank, rank);
      for (const WeightEntry& part : parts)
        adapter->products_.push_back(
            {part.role, part.layer, rank, in, part.rows, a, b + part.first_row * rank, scaling});
    }
    adapter->fingerprint_ = fmt::format("{:016x}", checksum(all.bytes()));
    return adapter;
  }

 private:
  struct Pair {
    const StoredTensor *a = nullptr, *b = nullptr;
  };

  static LoraConfig read_config(const fs::path& dir) {
    std::error_code ignored;
    if (!fs::is_directory(dir, ignored))
      throw FileError(
          fmt::format("{}: {}; give the directory that PEFT saved an adapter to", dir.string(),
                      fs::exists(dir, ignored) ? "is no directory" : "there is no such directory"));
    const MappedFile file(dir / "adapter_config.json");
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
    const std::string name = file.path().string();
    Json json = parse_strict(text, name, {.bytes = 16 << 20, .python_numbers = true});
    const JsonGuard guard(json);
    return ConfigReader(json, name).read();
  }

  static fs::path tensors_of(const fs::path& dir) {
    std::error_code ignored;
    if (!fs::exists(dir / "adapter_model.safetensors", ignored) &&
        fs::exists(dir / "adapter_model.bin", ignored))
      throw FileError(
          fmt::format("{}: is not read, for it may hold programs; save the adapter with "
                      "safe_serialization=True",
                      (dir / "adapter_model.bin").string()));
    return dir / "adapter_model.safetensors";
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", file_.path().string(), what));
  }

  /// Finds the place of a tensor by its name.
  void sort_in(const StoredTensor& t) {
    std::string_view name = t.name;
    const bool prefixed = name.starts_with(kPrefix);
    if (prefixed) name.remove_prefix(kPrefix.size());
    if (name.find(".lora_embedding_") != std::string_view::npos)
      fail(
          fmt::format("tensor '{}' is of an embedding's adapter, which is not supported; train it "
                      "without embed_tokens among target_modules",
                      printable(t.name)));
    const bool a = take_end(name, ".lora_A.weight"), b = !a && take_end(name, ".lora_B.weight");
    const bool base = !a && !b && take_end(name, ".base_layer.weight");
    if (prefixed && !a && !b) {
      if (!base) take_end(name, ".weight");
      if (const StoredTensor* own = embedding_or_head(name)) return check_base(t, *own);
    }
    if (!prefixed || (!a && !b && !base))
      fail(
          fmt::format("tensor '{}' is not known; expected are {}MODULE.lora_A.weight and "
                      "lora_B.weight",
                      printable(t.name), kPrefix));
    const auto module = modules_.find(name);
    if (module == modules_.end() && model_.config.has_mixture() && names_a_mixture(name))
      fail(
          fmt::format("tensor '{}' is of an adapter of experts or their router, which is not "
                      "supported; train one of the other products",
                      printable(t.name)));
    if (module == modules_.end())
      fail(
          fmt::format("tensor '{}' has no place in a model of model_type \"{}\" with {} layers; "
                      "the adapter is of another model",
                      printable(t.name), model_.config.model_type, model_.config.n_layers));
    if (base) return check_base(t, *model_.tensors->find(module->second[0].tensor));
    if (!is_target(module->first, module->second))
      fail(fmt::format("tensor '{}' is none that {} calls for; both must be of one adapter",
                       printable(t.name), config_file_));
    Pair& pair = pairs_[module->first];
    (a ? pair.a : pair.b) = &t;
  }

  /// The model's embedding or head by the name of its module; null for another module.
  const StoredTensor* embedding_or_head(std::string_view module) const {
    const bool head = module == "lm_head";
    if (!head && module != "model.embed_tokens") return nullptr;
    const bool own = head && !model_.config.tie_word_embeddings;
    return model_.tensors->find(own ? "lm_head.weight" : "model.embed_tokens.weight");
  }

  /// PEFT saves the model's own embedding and head beside an adapter where the head is among its
  /// targets, and where it was told to (save_embedding_layers). Weights that were trained are not
  /// an adapter.
  void check_base(const StoredTensor& t, const StoredTensor& own) const {
    bool same = t.shape == own.shape && t.shape.size() == 2 && cpu::is_weight_type(t.type) &&
                block_elements(t.type) == 1 && cpu::is_weight_type(own.type);
    const std::int64_t columns = same ? t.shape[1] : 0;
    std::vector<float> theirs(static_cast<std::size_t>(columns)), ours(theirs.size());
    // a type of fewer bits was rounded to; a block type says a row only about
    const bool blocks = same && block_elements(own.type) > 1;
    const float rounding = !same || t.type == own.type ? 0.0f : 1.0f / 256;
    for (std::int64_t row = 0; same && row < t.shape[0]; ++row) {
      cpu::widen_row(t.type, t.data + row * cpu::row_bytes(t.type, columns), columns,
                     theirs.data());
      cpu::widen_row(own.type, own.data + row * cpu::row_bytes(own.type, columns), columns,
                     ours.data());
      float off = 0, sum = 0;
      for (std::size_t c = 0; c < ours.size(); ++c) {
        const float distance = std::abs(theirs[c] - ours[c]);
        off += distance;
        sum += std::abs(theirs[c]);
        same = same && (blocks || distance <= rounding * std::abs(theirs[c]));
      }
      same = same && off <= 0.5f * sum;
    }
    if (!same)
      fail(
          fmt::format("tensor '{}' is not what the model has (of shape [{}] where the model has "
                      "[{}]): the adapter is of another model, or was trained with this weight, "
                      "which is not supported",
                      printable(t.name), fmt::join(t.shape, ", "), fmt::join(own.shape, ", ")));
  }

  /// Adapters are in Hugging Face's order of rows; the weights of some GGUF files are not.
  void order_rows(const WeightEntry& part, float* rows, std::int64_t rank) const {
    const ModelConfig& c = model_.config;
    const std::int64_t heads = part.role == WeightRole::q   ? c.n_heads
                               : part.role == WeightRole::k ? c.n_kv_heads
                                                            : 0;
    if (heads == 0 || !c.pairs_moved) return;
    const auto bytes = static_cast<std::size_t>(part.rows * rank) * sizeof(float);
    std::memcpy(rows, pairs_together(rows, bytes, part.rows, heads).data(), bytes);
  }

  bool is_target(std::string_view module, const std::vector<WeightEntry>& parts) const {
    // layers_to_transform leaves out what is in no layer, the head, as PEFT does
    if (config_.layers && !config_.layers->count(parts[0].layer)) return false;
    return !config_.targets ||
           std::any_of(config_.targets->begin(), config_.targets->end(),
                       [&](const std::string& name) { return is_meant(module, name); });
  }

  void require_all_targets() const {
    for (const auto& [module, parts] : modules_) {
      const auto found = pairs_.find(module);
      const bool there = found != pairs_.end();
      if (there ? found->second.a && found->second.b
                : !config_.targets || !is_target(module, parts))
        continue;
      const char* missing = there && found->second.a ? "lora_B" : "lora_A";
      fail(
          fmt::format("has no tensor '{}{}.{}.weight', which adapter_config.json calls for; save "
                      "the adapter again",
                      kPrefix, module, missing));
    }
  }

  /// The tensor as float32, kept by the adapter. \throws FileError for another shape or no numbers
  const float* floats(LoraAdapter& to, const std::string& module, const StoredTensor* t,
                      const char* which, const std::vector<std::int64_t>& shape) const {
    if (t->shape != shape)
      fail(fmt::format("tensor '{}' has shape [{}], expected [{}] for {} of this model with r = {}",
                       t->name, fmt::join(t->shape, ", "), fmt::join(shape, ", "), module,
                       std::string_view(which) == "lora_A" ? shape[0] : shape[1]));
    std::vector<float>& out = to.factors_.emplace_back(static_cast<std::size_t>(t->elements()));
    if (block_elements(t->type) != 1 || !widen(t->type, t->data, t->elements(), out.data()))
      fail(fmt::format("tensor '{}' is stored as {}; store it as F32, F16 or BF16", t->name,
                       name_of(t->type)));
    if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }))
      fail(fmt::format("tensor '{}' holds NaN or infinity; train or save the adapter again",
                       t->name));
    return out.data();
  }

  std::string config_file_;
  LoraConfig config_;
  SafetensorsFile file_;
  const OpenModel& model_;
  Modules modules_;
  std::map<std::string, Pair, std::less<>> pairs_;
};

std::shared_ptr<const LoraAdapter> LoraAdapter::load(const fs::path& dir, const OpenModel& model) {
  std::shared_ptr<LoraAdapter> adapter = Reader(dir, model).read();
  adapter->dir_ = dir;
  return adapter;
}

std::string LoraAdapter::name() const { return fs::weakly_canonical(dir_).filename().string(); }

std::int64_t LoraAdapter::bytes() const {
  std::size_t floats = 0;
  for (const std::vector<float>& f : factors_) floats += f.size();
  return static_cast<std::int64_t>(floats * sizeof(float));
}

// -- merging --------------------------------------------------------------------------------------

namespace {

/// row += factor * b A, b being one row of B.
void add_row(const LoraProduct& p, std::int64_t row, double factor, std::vector<float>& sum,
             float* to) {
  std::fill(sum.begin(), sum.end(), 0.0f);
  const float* b = p.b + row * p.rank;
  for (std::int64_t r = 0; r < p.rank; ++r) add_scaled(b[r], p.a + r * p.in, sum.data(), p.in);
  add_scaled(static_cast<float>(factor), sum.data(), to, p.in);
}

/// One tensor with all that the adapters add to it.
class Merging {
 public:
  Merging(const OpenModel& model, const std::string& tensor)
      : file_(model.tensors->file_of(tensor)), view_(*model.tensors->find(tensor)) {
    if (block_elements(view_.type) != 1)
      throw ConfigError(
          fmt::format("{}: tensor '{}' is stored as {}, which no adapter can be "
                      "merged into; use the adapter beside the weights",
                      file_.string(), tensor, name_of(view_.type)));
    bytes_.assign(view_.data, view_.data + view_.bytes);
  }

  void add(const LoraProduct& p, std::int64_t first_row, double factor) {
    const std::int64_t row_bytes = cpu::row_bytes(view_.type, p.in);
    parallel_for(p.out, [&](std::int64_t row) {
      std::vector<float> numbers(static_cast<std::size_t>(p.in)), sum(numbers.size());
      std::byte* at = bytes_.data() + (first_row + row) * row_bytes;
      widen(view_.type, at, p.in, numbers.data());
      add_row(p, row, factor, sum, numbers.data());
      cpu::quantize_row(view_.type, numbers.data(), p.in, at);
    });
  }

  void finish(const std::string& name, ChangedTensors& to) {
    const std::int64_t columns = view_.shape[1];
    std::vector<float> numbers(static_cast<std::size_t>(columns));
    for (std::int64_t row = 0; row < view_.shape[0]; ++row) {
      widen(view_.type, bytes_.data() + row * cpu::row_bytes(view_.type, columns), columns,
            numbers.data());
      if (!std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }))
        throw DataError(
            fmt::format("{}: tensor '{}' with its adapters is not finite as {}; lower "
                        "the adapter's scale or use it beside the weights",
                        file_.string(), name, name_of(view_.type)));
    }
    to.put(name, view_.type, view_.shape, std::move(bytes_));
  }

 private:
  fs::path file_;
  const StoredTensor& view_;
  std::vector<std::byte> bytes_;
};

}  // namespace

void merge_lora(OpenModel& model, std::span<const AppliedLora> adapters) {
  if (adapters.empty()) return;
  // Several adapters may add to one tensor, and to several parts of it: each is rounded for itself
  // in a type of 16 bits, as PEFT does.
  std::map<std::pair<WeightRole, std::int64_t>, WeightEntry> entries;
  for (WeightEntry& e : weight_plan(model.config))
    if (!e.bias) entries[{e.role, e.layer}] = std::move(e);
  auto changed = std::make_shared<ChangedTensors>(model.tensors);
  std::map<std::string, Merging> merging;
  bool untie = false;
  for (const AppliedLora& applied : adapters) {
    require_scale(applied.adapter->dir(), applied.scale);
    for (const LoraProduct& p : applied.adapter->products()) {
      const WeightEntry& e = entries.at({p.role, p.layer});
      const bool own_head = p.role == WeightRole::head && model.config.tie_word_embeddings;
      untie = untie || own_head;
      const std::string name = own_head ? "lm_head.weight" : e.tensor;
      auto it = merging.find(name);
      if (it == merging.end()) it = merging.emplace(name, Merging(model, e.tensor)).first;
      it->second.add(p, e.first_row, applied.scale * p.scaling);
    }
  }
  for (auto& [name, tensor] : merging) tensor.finish(name, *changed);
  if (untie) model.config.tie_word_embeddings = false;
  model.tensors = std::move(changed);
}

}  // namespace episodic
