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

/// How often a long reading is made durable: whichever comes first.
struct CommitPace {
  std::int64_t tokens = 65536;
  double seconds = 60;  ///< 0: by tokens alone
};

/// Reads ids, calling `commit` at this pace and at the end. \param group whose first rank has the
/// clock; null: one process
void read_and_commit(Session& session, std::span<const std::int64_t> ids, CommitPace pace,
                     const ProgressCallback& progress, const std::function<void()>& commit,
                     Group* group = nullptr);

/// The note that `ingest` leaves beside a memory while it reads, and that stays where it is cut off
/// (reading.json): what it reads, and how many tokens there will be at the end.
struct ReadingNote {
  static constexpr const char* kName = "reading.json";

  std::string text;
  std::int64_t tokens = 0;

  /// \throws FileError
  void leave(const std::filesystem::path& dir) const;
  static void remove(const std::filesystem::path& dir);
  /// Nothing where there is no note, or none that can be read: it only helps people.
  static std::optional<ReadingNote> of(const std::filesystem::path& dir);
};

/// Whether some process holds the memory open to write. False where the system does not say.
bool is_being_written(const std::filesystem::path& dir);

/// A sentence about a memory that is not finished, for who asks it now; empty if it is finished and
/// nobody writes. \param ours whether this process is the one that may write
std::string unfinished_text(const std::filesystem::path& dir, std::int64_t tokens, bool ours);

/// What the programs say of an engine's memory: tokens, events, bytes of each tier. Null with full
/// attention.
Json memory_json(const Engine& engine);

/// Checks that a path is what a memory's folder could be. \throws FileError saying what it is
void require_memory_dir(const std::filesystem::path& dir);

/// "A:B" or "A" as tokens [A, B) or [A, A + 1). \throws ConfigError naming the flag
TokenRange parse_range(const std::string& text, const char* flag);

}  // namespace episodic::tools
