// SPDX-License-Identifier: Apache-2.0
#pragma once
// A memory on a tier, as a folder of this process: its files are empty, and what is read of them
// comes from the tier. Commits of the folder are published to the tier.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "episodic/memory/kept_memory.hpp"
#include "episodic/store/tier_lease.hpp"
#include "piece_cache.hpp"
#include "tier_calls.hpp"

namespace episodic::detail {

/// What the head of a memory says (docs/format.md).
struct TierHead {
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    BlockHash list;  ///< the block that lists its pieces
  };
  std::string manifest;  ///< the text of manifest.json
  std::vector<File> files;

  std::vector<std::byte> bytes() const;
  /// \throws FileError
  static TierHead parse(std::span<const std::byte> bytes, const std::string& where);
};

/// The text of a memory's manifest; nothing if the tier has no such memory. \throws FileError
std::optional<std::string> manifest_on_tier(const TierPlace& place, io::Syscalls& calls);

/// A folder that a process has to itself, and that goes with this.
class WorkFolder {
 public:
  /// \param in folder of such folders: those whose process has ended are removed
  explicit WorkFolder(const std::filesystem::path& in);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int owner_ = -1;
};

class TieredFolder {
 public:
  /// Null for the path of a folder. To write, it takes the lease of the name.
  /// \throws FileError where there is no such memory, or another one writes to it, naming it
  static std::shared_ptr<TieredFolder> open(const std::filesystem::path& path, OpenMode mode,
                                            io::Syscalls& calls);
  /// To read all of it from the tier, whatever this machine has kept of it.
  static std::shared_ptr<TieredFolder> open_apart(const TierPlace& place, io::Syscalls& calls);
  /// The same for a memory that is to be new. \throws FileError if there is one
  static std::shared_ptr<TieredFolder> create(const std::filesystem::path& path,
                                              io::Syscalls& calls);
  TieredFolder(const TieredFolder&) = delete;
  TieredFolder& operator=(const TieredFolder&) = delete;

  const TierPlace& place() const { return place_; }
  const std::filesystem::path& dir() const { return dir_; }
  io::Syscalls& calls() { return calls_; }
  TierCalls& tier_calls() { return calls_; }
  /// Of the last commit that others can see.
  std::int64_t tokens() const { return tokens_; }

  /// Whether the commit that was opened is still the last one.
  bool stands() const;
  /// That what the last commit names is there; it counts as used now. \throws FileError
  void require_pieces() const;

  /// That nobody else writes. \throws FileError naming who does
  void check_writer();
  /// Puts what the manifest in the folder names, then lets the head name it.
  /// \throws FileError, io::DiskFullError: others then see the commit before; call again
  void publish(const MemoryManifest& manifest);
  /// The pieces of another memory on the same tier: this one's files are the same.
  void take_pieces(const TieredFolder& from);

 private:
  /// \param apart blocks that were read go with this
  TieredFolder(const TierPlace& place, io::Syscalls& calls, bool apart = false);
  void begin(OpenMode mode);
  void take_lease();
  void fill(const TierHead& head);
  std::vector<Piece> put_pieces(const std::string& name, std::int64_t bytes);
  std::int64_t version_on_tier();

  TierPlace place_;
  std::shared_ptr<BlockTier> tier_;
  WorkFolder work_;
  PieceCache cache_;
  std::filesystem::path dir_;
  TierCalls calls_;
  std::map<std::string, std::int64_t> on_tier_;  // names of files there, and their bytes
  std::int64_t version_ = 0, tokens_ = 0;
  std::vector<BlockHash> doubtful_;  // heads that may stand, though their exchange failed

  std::unique_ptr<TierLease> lease_;  // of a writer
};

/// fork_memory where one of both lies on a tier.
void fork_over_tier(const std::filesystem::path& from, const std::filesystem::path& to,
                    io::Syscalls& calls);

}  // namespace episodic::detail
