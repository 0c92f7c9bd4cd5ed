// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/kept_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/tensor_parallel.hpp"
#include "episodic/session/model.hpp"

namespace episodic {

namespace fs = std::filesystem;

namespace {

/// The same number of every rank. \return the least \param all whether they are all alike
std::int64_t least_of(Group& group, std::int64_t mine, bool& all) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(group.size()));
  group.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(numbers)));
  const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
  all = *least == *most;
  return *least;
}

EpisodicMemory opened(const MemoryIdentity& identity, const ModelConfig& model,
                      const KeptFolder& folder);

/// The last commit that the folders of all ranks have: a rank may have ended within the one behind.
EpisodicMemory opened_by_ranks(const MemoryIdentity& identity, const ModelConfig& model,
                               KeptFolder folder, const std::shared_ptr<Group>& group) {
  return as_one(group.get(), [&] {
    bool alike = false;
    const std::int64_t committed = MemoryManifest::read(folder.dir).state.tokens;
    const std::int64_t least = least_of(*group, committed, alike);
    if (folder.at_token < 0 && committed > least) folder.at_token = least;
    EpisodicMemory memory = opened(identity, model, folder);
    least_of(*group, memory.tokens(), alike);
    if (!alike)
      throw DataError(
          fmt::format("{}: the folders of the ranks have no commit in common (this one is at {} "
                      "tokens); ingest "
                      "the text anew into another folder",
                      folder.dir.string(), memory.tokens()));
    return memory;
  });
}

EpisodicMemory opened(const MemoryIdentity& identity, const ModelConfig& model,
                      const KeptFolder& folder) {
  KeepOptions keep;
  keep.dir = folder.dir;
  keep.identity = identity;
  keep.checkpoints = folder.checkpoints;
  EpisodicMemory memory = EpisodicMemory::open(
      keep, folder.mode, nullptr, folder.budgets ? &*folder.budgets : nullptr, folder.at_token);
  // a rotary table may depend on the memory's n_local, which only the folder knows
  MemoryShape now = memory_shape(model, memory.config().n_local);
  if (now.ranks == memory.shape().ranks)  // which the settings of a rank do not say
    now.recall_together = memory.shape().recall_together;
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
  MemoryShape shape = memory_shape(model, config.n_local);
  const MemoryConfig mine = share_of(config, shape);
  require_host_room(mine, shape);
  return EpisodicMemory::create(keep, mine, shape, std::move(given));
}

/// \param model whole, or a rank's share of it
EpisodicMemory opened(const MemoryIdentity& identity, const ModelConfig& model,
                      const KeptFolder& folder, const std::shared_ptr<Group>& group) {
  if (!group || group->size() == 1) return opened(identity, model, folder);
  return opened_by_ranks(identity,
                         model.ranks == 1 ? share_of(model, group->rank(), group->size()) : model,
                         folder, group);
}

}  // namespace

EpisodicMemory open_memory(const fs::path& model_dir, const KeptFolder& folder,
                           const ModelOptions& options) {
  return opened(identity_of(model_dir, options), load_model_config(model_dir), folder,
                options.group);
}

EpisodicMemory open_memory(const Model& model, const KeptFolder& folder) {
  return opened(model.identity(), model.config(), folder, model.options().group);
}

EpisodicMemory create_memory(const fs::path& model_dir, const KeptFolder& folder,
                             const MemoryConfig& config, const ModelOptions& options,
                             std::vector<std::int64_t> given) {
  const Group* const group = options.group.get();
  const ModelConfig model = load_model_config(model_dir);
  return created(identity_of(model_dir, options),
                 group ? share_of(model, group->rank(), group->size()) : model, folder, config,
                 std::move(given));
}

EpisodicMemory create_memory(const Model& model, const KeptFolder& folder,
                             const MemoryConfig& config, std::vector<std::int64_t> given) {
  return created(model.identity(), model.config(), folder, config, std::move(given));
}

}  // namespace episodic
