// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kept memories as the programs use them.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "common.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/session/engine.hpp"

namespace episodic::tools {

/// Opens the memory in `dir` for the model in `flags.model`; --memory changes its budgets.
EpisodicMemory open_kept(const ModelFlags& flags, const std::filesystem::path& dir, OpenMode mode);

/// Opens it to look at it or to edit it, without its model.
EpisodicMemory open_kept(const std::filesystem::path& dir, OpenMode mode);

/// Reads ids, calling `commit` about every `commit_every` tokens and at the end.
void read_and_commit(Session& session, std::span<const std::int64_t> ids, std::int64_t commit_every,
                     const ProgressCallback& progress, const std::function<void()>& commit);

/// What the programs say of an engine's memory: tokens, events, bytes of each tier. Null with full
/// attention.
Json memory_json(const Engine& engine);

/// Checks that a path is what a memory's folder could be. \throws FileError saying what it is
void require_memory_dir(const std::filesystem::path& dir);

/// "A:B" or "A" as tokens [A, B) or [A, A + 1). \throws ConfigError naming the flag
TokenRange parse_range(const std::string& text, const char* flag);

}  // namespace episodic::tools
