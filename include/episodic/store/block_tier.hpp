// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `BlockTier`: where the blocks of memories lie that several machines have in common, a shared
/// folder say. Blocks are named by their content, so none ever changes, and memories that have a
/// part in common have its blocks in common. What does change is one small value for each memory,
/// its head, which is exchanged whole or not at all. docs/network.md says how memories use it.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/base/io.hpp"

namespace EPISODIC_NAMESPACE {

/// The name of a block: XXH3 of its bytes, 128 bits. It tells of accidents, not of attackers: who
/// may write to a tier can change what others read.
struct BlockHash {
  std::uint64_t high = 0, low = 0;
  auto operator<=>(const BlockHash&) const = default;
  /// 32 hexadecimal digits.
  std::string text() const;
  static BlockHash of(std::span<const std::byte> bytes);
  /// Nothing for what is no such name.
  static std::optional<BlockHash> parse(std::string_view text);
};

/// One tier. Calls may come from several threads at once. A call that fails throws a FileError that
/// names the tier, within a time that the tier bounds; nothing is then half done, and the same call
/// may be made again.
class BlockTier {
 public:
  using Bytes = std::vector<std::byte>;

  struct Block {
    BlockHash name;
    std::span<const std::byte> bytes;
  };
  /// What stands under a name, and how often it was exchanged. Without bytes nothing stands there:
  /// never has (version 0), or no longer.
  struct Head {
    Bytes bytes;
    std::int64_t version = 0;
  };
  /// The right of one writer to a name, for so many seconds.
  struct Lease {
    std::string token;   ///< a number that no other writer has
    std::string holder;  ///< for people: host and process
    double seconds = 0;
  };

  virtual ~BlockTier() = default;
  /// For messages.
  virtual std::string where() const = 0;

  /// The bytes of many blocks; nothing for those that are not there. Not checked: see get_blocks.
  virtual std::vector<std::optional<Bytes>> get(std::span<const BlockHash> names) = 0;
  /// Which of them are there; those are in use from now on (`unused`).
  virtual std::vector<bool> has(std::span<const BlockHash> names) = 0;
  /// Returns when they are durable. Those that are there already stay as they are.
  /// \throws io::DiskFullError where there is no room
  virtual void put(std::span<const Block> blocks) = 0;
  /// Blocks that nothing names any more; those that are not there are no failure.
  virtual void drop(std::span<const BlockHash> names) = 0;

  /// Blocks that were neither put nor asked for by `has` for so many seconds. Names under which
  /// nothing stands any more are forgotten here, or before.
  virtual std::vector<BlockHash> unused(double seconds) = 0;

  /// The names under which something stands.
  virtual std::vector<std::string> names() = 0;
  virtual Head head(const std::string& name) = 0;
  /// Puts the next head in place of the one of this version. \param version 0: where there is none
  /// \param next empty: nothing stands there any more. Who read the last head cannot exchange it
  /// then. At least an hour later the name may begin anew, at version 0
  /// \return false if another one stands there: nothing has changed then
  virtual bool exchange(const std::string& name, std::int64_t version,
                        std::span<const std::byte> next) = 0;

  /// Takes the lease of a name, or renews it. It is to be had where nobody has it, where its time
  /// has run out, and for its own token.
  /// \return nothing if it is now `mine`, else the lease of another one, which stands
  virtual std::optional<Lease> take_lease(const std::string& name, const Lease& mine) = 0;
  /// Gives it back, if it is still this one's.
  virtual void end_lease(const std::string& name, const std::string& token) = 0;
};

/// Gets blocks and checks that they are what their names say.
/// \throws FileError naming the tier and the block that is missing or damaged
std::vector<BlockTier::Bytes> get_blocks(BlockTier& tier, std::span<const BlockHash> names);

/// A folder that several machines see (NFS, Lustre, a volume of a cluster). It needs hard links
/// and renames that are atomic, and no locks.
/// \param root must exist: a file system that is not mounted is no empty tier
std::shared_ptr<BlockTier> make_shared_folder(const std::filesystem::path& root,
                                              io::Syscalls& calls = io::system_calls());

/// Where a memory lies on a tier, as it is written in place of a folder: "shared:DIR/NAME", or with
/// options "shared:DIR/NAME?cache=DIR,cache_bytes=20GB,lease_seconds=60".
struct TierPlace {
  std::string scheme;           ///< "shared"
  std::string at;               ///< what the scheme finds the tier by: a folder
  std::string name;             ///< of the memory: letters, digits, and . _ - behind the first
  std::filesystem::path cache;  ///< folder of this machine for blocks that were read
  std::int64_t cache_bytes = std::int64_t{8} << 30;  ///< most that they take; 0: none are kept
  double lease_seconds = 30;    ///< after which another writer may go on if this one does not
  double timeout_seconds = 10;  ///< within which a server must answer

  std::string options;  ///< as they were written: "cache=DIR,lease_seconds=60"

  /// "shared:DIR/NAME", or "shared:DIR" for a tier
  std::string text() const;
  /// With its options, to be given where a folder stands.
  std::filesystem::path path() const;
  /// Another memory on the same tier, with the same options.
  TierPlace with_name(const std::string& other) const;
  bool same_tier(const TierPlace& other) const { return scheme == other.scheme && at == other.at; }
  /// Nothing for the path of a folder. \throws ConfigError for a place that cannot be one
  static std::optional<TierPlace> parse(const std::filesystem::path& path);
  /// The same for a whole tier, "shared:DIR": its name is empty.
  static std::optional<TierPlace> parse_tier(const std::filesystem::path& path);
};

/// Makes the tier of a place.
using TierOpener =
    std::function<std::shared_ptr<BlockTier>(const TierPlace& place, io::Syscalls& calls)>;

/// Gives a scheme to places: `shared` has one from the start. A program calls it before it opens
/// memories.
void add_tier_scheme(const std::string& scheme, TierOpener open);

/// \throws NotBuiltError for a scheme that this program has not, FileError
std::shared_ptr<BlockTier> open_tier(const TierPlace& place, io::Syscalls& calls);

}  // namespace EPISODIC_NAMESPACE
