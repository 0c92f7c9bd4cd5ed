// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/memory_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/base/presets.hpp"
#include "episodic/base/units.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/model/weight_plan.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Settings are a flat object; anything deeper or longer is no settings file.
Json parse_object(std::string_view text, std::string_view label) {
  const std::string name(label.empty() ? std::string_view("memory configuration") : label);
  Json json;
  try {
    json = parse_strict(text, name, {.depth = 4, .array_length = 1 << 16});
  } catch (const FileError& e) {
    throw ConfigError(e.what());
  }
  if (!json.is_object())
    throw ConfigError(
        fmt::format("{}: expected a JSON object, for example {{\"n_local\": 256}}", name));
  return json;
}

std::string settings_text(const fs::path& file) {
  constexpr std::size_t kLongest = 1 << 20;
  const MappedFile mapped(file);  // refuses what would be waited for: a pipe
  if (mapped.bytes().size() > kLongest)
    throw FileError(
        fmt::format("{}: cannot be read as memory settings; it must be a JSON file of "
                    "at most {} bytes",
                    file.string(), kLongest));
  return {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()};
}

/// Numbers in the weights, by the configuration alone.
std::int64_t weights_of(const ModelConfig& model) {
  std::int64_t elements = 0;
  std::set<std::pair<std::string, std::int64_t>> seen;  // a tied head is the embedding's tensor
  for (const WeightEntry& e : weight_plan(model))
    if (seen.emplace(e.tensor, e.first_row).second) elements += e.rows * e.columns();
  return elements;
}

bool has_weights(const fs::path& model) {
  std::error_code error;
  return is_model_file(model) || fs::exists(model / "model.safetensors", error) ||
         fs::exists(model / "model.safetensors.index.json", error);
}

std::int64_t trained_tokens(const ModelConfig& model) {
  std::int64_t tokens = model.max_positions;
  for (const std::int64_t l : model.memory_layers())
    if (const std::int64_t window = model.layers[static_cast<std::size_t>(l)].window; window > 0)
      tokens = tokens > 0 ? std::min(tokens, window) : window;
  return tokens;
}

/// Keys and values need no more digits than the weights that made them.
DType kv_dtype_for(const ModelFacts& facts) {
  if (!facts.stored) return DType::bfloat16;  // as nearly all models come
  if (block_elements(*facts.stored) > 1) return DType::int8;
  switch (*facts.stored) {
    case TensorType::f32:
    case TensorType::f64:
      return DType::float32;
    case TensorType::f16:
      return DType::float16;
    default:
      return DType::bfloat16;
  }
}

/// The number in a file of the control group; -1 if there is none, or "max".
std::int64_t number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t bytes = -1;
  return in >> bytes ? bytes : -1;
}

}  // namespace

MemoryConfig change_memory_config(const MemoryConfig& base, std::string_view json,
                                  std::string_view label) {
  Json changes = parse_object(json, label);
  MemoryConfig start = base;
  try {
    if (const auto preset = changes.find("preset"); preset != changes.end()) {
      if (!preset->is_string())
        throw ConfigError("memory configuration: preset must be one of " + preset_names());
      apply_preset(start, preset->get_ref<const std::string&>());
      changes.erase(preset);
    }
    Json all = parse_object(to_json(start), label);
    for (auto& [key, value] : changes.items()) {
      if (key.ends_with("_bytes") && value.is_string())
        value = parse_bytes(value.get_ref<const std::string&>(), key);
      all[key] = value;
    }
    return parse_memory_config(all.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const ConfigError& e) {
    if (label.empty()) throw;
    throw ConfigError(fmt::format("{}: {}", label, e.what()));
  }
}

bool brings_memory_settings(const fs::path& model_dir) {
  std::error_code error;
  return fs::exists(model_dir / "memory.json", error);
}

std::string settings_origin(const fs::path& model_dir) {
  return brings_memory_settings(model_dir) ? (model_dir / "memory.json").string() : std::string();
}

void rethrow_naming(std::string_view origin) {
  if (origin.empty()) throw;
  try {
    throw;
  } catch (const ConfigError& e) {
    throw ConfigError(fmt::format("{}: {}", origin, e.what()));
  } catch (const BudgetError& e) {
    throw BudgetError(fmt::format("{}: {}", origin, e.what()));
  }
}

MemoryConfig memory_config_of(const fs::path& model_dir) {
  if (!brings_memory_settings(model_dir)) return {};
  const fs::path file = model_dir / "memory.json";
  return change_memory_config({}, settings_text(file), file.string());
}

ModelFacts model_facts(const fs::path& model, const ModelOptions& options) {
  ModelFacts facts;
  if (!has_weights(model)) {
    const ModelConfig config = load_model_config(model);
    facts.trained_tokens = trained_tokens(config);
    facts.weights = weights_of(config);
  } else {
    const OpenModel opened = open_model(model);  // nothing large is read
    facts.trained_tokens = trained_tokens(opened.config);
    std::map<TensorType, std::int64_t> of_type;
    for (const StoredTensor* t : opened.tensors->tensors()) {
      facts.weights += t->elements();
      of_type[t->type] += t->elements();
    }
    const auto most =
        std::max_element(of_type.begin(), of_type.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != of_type.end()) facts.stored = most->first;
  }
  if (options.quantize) facts.stored = options.quantize;
  return facts;
}

DefaultMemory default_memory(const ModelFacts& facts) {
  // The lengths of the paper are for 7 billion weights: attention over them costs a quarter of the
  // products there. To a model of 0.1 billion it is more than all of its products.
  constexpr std::int64_t kSmall = 1'000'000'000, kMiddle = 4'000'000'000;
  const MemoryConfig paper;
  DefaultMemory chosen;
  MemoryConfig& c = chosen.config;
  c.n_local = facts.weights < kSmall    ? std::int64_t{1024}
              : facts.weights < kMiddle ? std::int64_t{2048}
                                        : paper.n_local;
  // Half of the trained length: a model is weak where it has seldom been.
  if (facts.trained_tokens > 0)
    c.n_local = std::clamp<std::int64_t>(facts.trained_tokens / 2, 1, c.n_local);
  c.n_mem = std::min(paper.n_mem, c.n_local);
  c.n_init = std::min(paper.n_init, c.n_local / 16);
  c.chunk = std::min(paper.chunk, c.n_local);
  c.max_block = std::min(paper.max_block, std::max<std::int64_t>(1, c.n_local / 2));
  c.min_block = std::min(paper.min_block, c.max_block);
  c.kv_dtype = kv_dtype_for(facts);
  const std::string trained = facts.trained_tokens > 0
                                  ? fmt::format("trained on {} tokens", facts.trained_tokens)
                                  : std::string("which does not say how long its texts were");
  chosen.why = fmt::format(
      "n_local {}, n_mem {} for a model of {:.2g} billion weights, {}; kv_dtype {} beside weights "
      "{}",
      c.n_local, c.n_mem, static_cast<double>(facts.weights) / 1e9, trained, name_of(c.kv_dtype),
      facts.stored ? fmt::format("in {}", name_of(*facts.stored))
                   : std::string("that are not here yet"));
  return chosen;
}

std::string window_warning(const MemoryConfig& config, const ModelConfig& model) {
  // Recalled tokens stand at the distance n_local from every query (EM 3.1): nothing is further.
  if (model.max_positions <= 0 || config.n_local <= model.max_positions) return {};
  return fmt::format(
      "n_local = {} reaches further than the {} positions that the model was trained on, and its "
      "text will be poor; set n_local to at most {}",
      config.n_local, model.max_positions, model.max_positions);
}

std::int64_t available_host_bytes() {
  std::int64_t available = -1;
  std::ifstream in("/proc/meminfo");
  std::string key, rest;
  for (std::int64_t kilobytes = 0; in >> key >> kilobytes; std::getline(in, rest))
    if (key == "MemAvailable:") available = kilobytes * 1024;
  const fs::path group = "/sys/fs/cgroup";
  const std::int64_t most = number_in(group / "memory.max"),
                     used = number_in(group / "memory.current");
  if (most < 0 || used < 0) return available;
  // What the group's files take of the page cache can be given back.
  std::int64_t cached = 0;
  std::ifstream stat(group / "memory.stat");
  for (std::int64_t bytes = 0; stat >> key >> bytes;)
    if (key == "inactive_file") cached = bytes;
  const std::int64_t left = std::max<std::int64_t>(0, most - used + cached);
  return available < 0 ? left : std::min(available, left);
}

void require_host_room(const MemoryConfig& config, const MemoryShape& shape) {
  MemoryConfig unbounded = config;  // only what does not depend on the text is looked at
  unbounded.host_bytes = unbounded.repr_bytes = unbounded.disk_bytes = 0;
  const std::int64_t needed = plan_memory(unbounded, shape, 0, 0, false).host.windows;
  const std::int64_t available = available_host_bytes();
  if (available < 0 || needed <= available) return;
  const auto [length, name] =
      std::max({std::pair(config.n_local, "n_local"), std::pair(config.n_init, "n_init"),
                std::pair(config.max_block, "max_block")},
               [](const auto& a, const auto& b) { return a.first < b.first; });
  throw BudgetError(
      fmt::format("{0} = {1}: the windows of {2} layers take {3}, and {4} of memory are available; "
                  "lower {0}",
                  name, length, shape.n_layers, bytes_text(needed), bytes_text(available)));
}

}  // namespace episodic
