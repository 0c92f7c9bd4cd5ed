// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of a kept memory: lock, manifest and state files. What the files mean is the memory's.

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "episodic/memory/kept_memory.hpp"

namespace episodic::detail {

/// A folder that this process may write to (it holds the lock), or only reads.
class MemoryDirectory {
 public:
  /// Makes the folder if needed and takes its lock. Left-overs of a creation that did not come to
  /// its first commit are removed.
  /// \throws FileError if it holds a memory or something else, or another process has it
  static MemoryDirectory create(const std::filesystem::path& dir, io::Syscalls& calls);
  /// \throws FileError also if a file that the manifest counts on is missing or cut short
  static MemoryDirectory open(const std::filesystem::path& dir, OpenMode mode, io::Syscalls& calls);

  const std::filesystem::path& dir() const { return folder_.path(); }
  io::Syscalls& calls() const { return folder_.calls(); }
  bool writable() const { return static_cast<bool>(lock_); }
  bool has_manifest() const { return manifest_.generation > 0; }
  const MemoryManifest& manifest() const { return manifest_; }

  /// That nobody else has had the folder since it was opened or last committed: its path leads to
  /// it, `lock` is the file that is held, and the manifest is the last one that was read or written
  /// here. Programs that do not ask for locks may have changed it, or let another writer in.
  /// \pre writable() \throws FileError saying which of them is not so
  void check_undisturbed() const;

  /// Removes files of ours that the manifest does not name: what a crash left behind. Not caches.
  void remove_unnamed();
  /// \throws FileError for one that stays
  void remove_caches();

  /// Writes the state, then the manifest that names it: from then on that is what an open finds.
  /// \param next identity, config, checkpoints and files of the new manifest; the rest is filled in
  /// \param without_caches removes caches: they hold something of what is no longer there
  /// \param of_rank whether the state names the rank whose it is (kSharesOfRanks)
  /// \throws FileError (also as check_undisturbed, and if one of the files is gone), DiskFullError:
  /// then what was committed before still is
  void commit(MemoryManifest next, std::span<const std::byte> state, std::int64_t tokens,
              std::int64_t events, bool without_caches, bool of_rank);

 private:
  MemoryDirectory() = default;
  /// \throws FileError if another writer has it
  void take_locks();
  void check_lock() const;
  /// A new file under a name that nothing has, which goes into `next` with its generation.
  io::File create_state(MemoryManifest& next);

  io::Directory folder_;
  io::File lock_;
  MemoryManifest manifest_;
  // Checksums of the texts that may stand as the manifest: of the last one, and of those whose
  // commit failed when they may have been in its place. None: there is no manifest yet.
  std::vector<std::uint64_t> texts_;
  std::int64_t attempts_ = 0;          // generation of the last commit that was tried
  std::vector<std::string> doubtful_;  // state files of commits that failed late
};

/// Content of a state file.
struct StateFile {
  DType windows = DType::float32;  ///< of keys and values of windows and sinks in it
  std::uint32_t version = 0;
  std::vector<std::byte> bytes;
};
/// Reads and verifies one. \param config of its memory \throws FileError
StateFile read_state(const std::filesystem::path& dir, const MemoryManifest::State& state,
                     const MemoryConfig& config, io::Syscalls& calls);

/// How many ranks keep their parts of a memory in a folder; 0: none do.
int ranks_in(const std::filesystem::path& dir);

/// Leaves at most `most` of the states, the newer the denser, and none but the first that is less
/// than `apart` tokens behind the one before it.
void thin_checkpoints(std::vector<MemoryManifest::State>& states, std::int64_t tokens, int most,
                      std::int64_t apart);

}  // namespace episodic::detail
