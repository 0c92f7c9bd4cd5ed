// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/kept_folder.hpp"

#include <fmt/format.h>

#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/model.hpp"

namespace episodic {

namespace fs = std::filesystem;

namespace {

EpisodicMemory opened(const MemoryIdentity& identity, const ModelConfig& model,
                      const KeptFolder& folder) {
  KeepOptions keep;
  keep.dir = folder.dir;
  keep.identity = identity;
  keep.checkpoints = folder.checkpoints;
  EpisodicMemory memory = EpisodicMemory::open(
      keep, folder.mode, nullptr, folder.budgets ? &*folder.budgets : nullptr, folder.at_token);
  // a rotary table may depend on the memory's n_local, which only the folder knows
  const MemoryShape now = memory_shape(model, memory.config().n_local);
  if (const std::string what = difference(memory.shape(), now); !what.empty())
    throw ConfigError(
        fmt::format("{}: the memory was made for another model: {}; open it with the "
                    "model it was made with",
                    folder.dir.string(), what));
  return memory;
}

EpisodicMemory created(const MemoryIdentity& identity, const ModelConfig& model,
                       const KeptFolder& folder, const MemoryConfig& config,
                       std::vector<std::int64_t> given) {
  KeepOptions keep;
  keep.dir = folder.dir;
  keep.identity = identity;
  keep.checkpoints = folder.checkpoints;
  const MemoryShape shape = memory_shape(model, config.n_local);
  require_host_room(config, shape);
  return EpisodicMemory::create(keep, config, shape, std::move(given));
}

}  // namespace

EpisodicMemory open_memory(const fs::path& model_dir, const KeptFolder& folder,
                           const ModelOptions& options) {
  return opened(identity_of(model_dir, options), load_model_config(model_dir), folder);
}

EpisodicMemory open_memory(const Model& model, const KeptFolder& folder) {
  return opened(model.identity(), model.config(), folder);
}

EpisodicMemory create_memory(const fs::path& model_dir, const KeptFolder& folder,
                             const MemoryConfig& config, const ModelOptions& options,
                             std::vector<std::int64_t> given) {
  return created(identity_of(model_dir, options), load_model_config(model_dir), folder, config,
                 std::move(given));
}

EpisodicMemory create_memory(const Model& model, const KeptFolder& folder,
                             const MemoryConfig& config, std::vector<std::int64_t> given) {
  return created(model.identity(), model.config(), folder, config, std::move(given));
}

}  // namespace episodic
