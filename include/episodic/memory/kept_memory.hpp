// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A memory kept in a folder: what its manifest says, and what can be done with the folder without
/// computing anything. Reading and growing it is `EpisodicMemory::create`, `open` and `commit`.
///
/// The folder holds `manifest.json`, which alone says what counts; a state file (windows, queues,
/// tables); segment files (keys and values of events), vector files (representatives) and token
/// files, to all of which is only ever appended; and `lock`. docs/format.md describes them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/io.hpp"

namespace EPISODIC_NAMESPACE {

/// Whose memory it is. Fingerprints are compared when it is opened; an empty one is not compared.
struct MemoryIdentity {
  std::string model;      ///< for people: the model's directory name
  std::string weights;    ///< of config.json and all weights
  std::string tokenizer;  ///< of tokenizer.json
  bool operator==(const MemoryIdentity&) const = default;
};

/// Where a memory is kept.
struct KeepOptions {
  std::filesystem::path dir;
  MemoryIdentity identity{};
  /// Earlier states that stay beside the last one, spaced out in time: rewinding starts from them.
  int checkpoints = 4;
  io::Syscalls* calls = nullptr;  ///< null: the real ones
};

/// read: the folder is not changed; what comes is kept in unnamed temporary files and lost.
enum class OpenMode : std::uint8_t { read, write };

/// What a model carries of a sequence beside its memory: the windows of layers that the memory does
/// not serve, say. It is kept, opened and shared with the memory (EpisodicMemory::keep_beside).
class BesideMemory {
 public:
  virtual ~BesideMemory() = default;
  /// Of the sequence that it has seen.
  virtual std::int64_t tokens() const = 0;
  virtual void save(ByteWriter& to) const = 0;
  /// Takes over what another one like it saved. \throws FileError for what is damaged or of another
  /// model; it is then as it was
  virtual void load(ByteReader& from) = 0;
};

/// What `manifest.json` says.
struct MemoryManifest {
  static constexpr int kVersion = 3;  ///< of the format; all others are refused by name

  struct State {
    std::string file;
    std::int64_t bytes = 0;
    std::uint64_t checksum = 0;
    std::int64_t tokens = 0, events = 0;
  };
  struct FileEntry {
    std::string name;
    std::int64_t bytes = 0;  ///< of it that count
  };

  std::uint64_t id = 0, parent = 0;  ///< of this memory and of the one it was forked from (0: none)
  std::int64_t generation = 0;       ///< commits so far
  MemoryIdentity identity{};
  MemoryConfig config;
  State state;
  std::vector<State> checkpoints;  ///< earlier states, oldest first
  std::vector<FileEntry> files;    ///< all others

  /// \throws FileError naming the file and the remedy if there is none, if it is damaged, or if a
  /// newer version wrote it
  static MemoryManifest read(const std::filesystem::path& dir,
                             io::Syscalls& calls = io::system_calls());
};

/// True if the folder holds a kept memory (which may be damaged).
bool holds_memory(const std::filesystem::path& dir);

/// Where a rank of a group keeps its part of a memory: `dir`/rank-I-of-N.
/// \throws ConfigError if `dir` is the memory of one process, or of another number of ranks
std::filesystem::path folder_of_rank(const std::filesystem::path& dir, int rank, int ranks);

/// Whether a name in a memory's folder is that of a cache, "encoded-<16 hexadecimal digits>.win":
/// of what can be computed again from the memory (session/window_vectors.hpp). No manifest names
/// one. Forks share caches; the commit after something was forgotten or gone back behind removes
/// them.
bool is_cache_file(std::string_view name);

/// What verify_memory found.
struct VerifyReport {
  struct Damage {
    std::filesystem::path file;  ///< at fault; `what` does not name it again
    std::string what;
  };
  std::vector<Damage> damages;
  /// Files that the manifest does not name: left by a crash. No caches.
  std::vector<std::string> unnamed;
  std::int64_t files = 0, bytes = 0;  ///< read
};

/// Reads every byte of a kept memory and checks every checksum. Needs no model.
/// \throws nothing for damage: it is in the report
VerifyReport verify_memory(const std::filesystem::path& dir,
                           io::Syscalls& calls = io::system_calls());

/// What sweep_tier found.
struct SweepReport {
  std::int64_t memories = 0, removed = 0;  ///< blocks that were removed
};

/// Removes the blocks of a tier that no memory names: earlier states, what was compacted away, what
/// a crash left. Others may read and write meanwhile. \param place of any memory on the tier
/// \param seconds only blocks that nobody put or asked for so long: longer than any commit takes. A
/// program that has read a memory for longer than that may have to open it anew
/// \throws ConfigError for a folder; FileError: a head that cannot be read leaves all as it is
SweepReport sweep_tier(const std::filesystem::path& place, double seconds,
                       io::Syscalls& calls = io::system_calls());

/// Removes a memory from its tier, at once and whole. Who reads it goes on reading until its blocks
/// are swept; forks stay. \return false if there was none
/// \throws ConfigError for a folder; LockedError while another program writes to it; FileError
bool remove_from_tier(const std::filesystem::path& place, io::Syscalls& calls = io::system_calls());

/// Makes `to` a second memory with the same content. Files are shared (hard links, where the file
/// system has them) and never written again by either, so both go on independently. Neither model
/// nor lock is needed.
/// \throws FileError, also for a `to` within `from`; `to` is then as before
void fork_memory(const std::filesystem::path& from, const std::filesystem::path& to,
                 io::Syscalls& calls = io::system_calls());

}  // namespace EPISODIC_NAMESPACE
