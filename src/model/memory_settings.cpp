// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/memory_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/presets.hpp"
#include "episodic/base/units.hpp"
#include "episodic/memory/plan.hpp"

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
  std::ifstream in(file, std::ios::binary);
  constexpr std::size_t kLongest = 1 << 20;
  std::string text(kLongest + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad() || !in.is_open() || text.size() > kLongest)
    throw FileError(
        fmt::format("{}: cannot be read as memory settings; it must be a JSON file of "
                    "at most {} bytes",
                    file.string(), kLongest));
  return text;
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

MemoryConfig memory_config_of(const fs::path& model_dir) {
  const fs::path file = model_dir / "memory.json";
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  return change_memory_config({}, settings_text(file), file.string());
}

std::string window_warning(const MemoryConfig& config, const ModelConfig& model) {
  // Recalled tokens stand at the distance n_local from every query (spec 5): nothing is further.
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
  throw BudgetError(fmt::format(
      "n_local = {}, n_init = {}: the windows of {} layers take {}, and {} of memory are "
      "available; "
      "lower n_local",
      config.n_local, config.n_init, shape.n_layers, bytes_text(needed), bytes_text(available)));
}

}  // namespace episodic
