// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Memories in folders, as a model opens and makes them. Torch-free.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic {

class Model;

/// A memory that is kept in a folder, as a model opens it.
struct KeptFolder {
  std::filesystem::path dir;
  OpenMode mode = OpenMode::write;
  /// device_bytes, host_bytes, repr_bytes and disk_bytes of this run; absent: as they were kept.
  std::optional<MemoryConfig> budgets = {};
  int checkpoints = 4;         ///< earlier states that stay, for `rewind`
  std::int64_t at_token = -1;  ///< the newest state with at most this many tokens; -1: the last
};

/// Opens the memory in a folder for the model in a directory. Reads the weights once, to compare
/// their fingerprint.
/// \param options adapters and rounding of the model: a memory made with others is another memory
/// \throws as EpisodicMemory::open
EpisodicMemory open_memory(const std::filesystem::path& model_dir, const KeptFolder& folder,
                           const ModelOptions& options = {});
/// The same for a model that is loaded, which reads its weights at the first call only.
EpisodicMemory open_memory(const Model& model, const KeptFolder& folder);

/// Makes an empty memory in a new or empty folder. \param given boundaries, only for segmenter
/// `given` \throws as EpisodicMemory::create
EpisodicMemory create_memory(const std::filesystem::path& model_dir, const KeptFolder& folder,
                             const MemoryConfig& config, const ModelOptions& options = {},
                             std::vector<std::int64_t> given = {});
EpisodicMemory create_memory(const Model& model, const KeptFolder& folder,
                             const MemoryConfig& config, std::vector<std::int64_t> given = {});

}  // namespace episodic
