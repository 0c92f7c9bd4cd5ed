// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `DiskStore`: events in segment files, with a cache in host memory above them (EM C.3). Also the
/// store of a memory that is kept: what it must remember between two runs is a `StoreImage`.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/io.hpp"
#include "episodic/store/event_store.hpp"

namespace EPISODIC_NAMESPACE {

/// How blocks are read back. The same results either way.
enum class ReadEngine : std::uint8_t { automatic, io_uring, threads };
/// Whether segment files are opened with O_DIRECT; `automatic` probes and falls back.
enum class DirectIo : std::uint8_t { automatic, on, off };

struct DiskStoreOptions {
  /// Folder of the segment files; it must exist.
  std::filesystem::path dir;
  /// Files with names, that the next run can open; otherwise they vanish with the store.
  bool keep = false;
  std::int64_t host_bytes = 0;  ///< of cache, write buffers and read buffers together; 0: a default
  std::int64_t disk_bytes = 0;  ///< of all segment files, with what is reserved ahead; 0: no bound
  std::int64_t max_block = 0;   ///< longest event, in tokens
  std::int64_t lease_tokens = 0;  ///< most tokens of leases held at once; max_block at least
  ReadEngine engine = ReadEngine::automatic;
  DirectIo direct = DirectIo::automatic;
  std::int64_t read_depth = 16;   ///< most reads that the medium is given at once, 1 to 1,024
  io::Syscalls* calls = nullptr;  ///< null: the real ones
  /// Lengths that other states of the folder count, by file name; never cut shorter.
  std::map<std::string, std::int64_t> counted = {};
};

/// A segment file and how much of it counts; its name: segment_name(id).
using SegmentRef = io::FileRef;

/// What a kept store is made of, beside the segment files themselves.
struct StoreImage {
  struct Event {
    TokenRange range;
    LaneRange lanes;
    std::int32_t segment = -1;  ///< number in `segments`; -1: forgotten
    std::int64_t offset = 0;    ///< of its first lane's block in the file
    std::int64_t last_recall = -1;
    std::int64_t recalls = 0;  ///< how often a lane recalled it
    bool pinned = false;
  };
  std::vector<SegmentRef> segments;
  std::vector<Event> events;

  void save(ByteWriter& to) const;
  static StoreImage load(ByteReader& from);
};

/// "kv-0123456789abcdef.seg"
std::string segment_name(std::uint64_t id);

class DiskStore : public EventStore {
 public:
  /// Ends all writes that are under way, makes the files durable and tells what a later open needs.
  /// \throws FileError, DiskFullError: nothing is lost, call again
  virtual StoreImage sync() = 0;

  /// Tells the store that an image is now the one that a crash would come back to: bytes it names
  /// are never written again, files that nothing names any more are removed.
  /// \throws FileError if one cannot be removed: the commit stands, the next call tries again
  virtual void committed(const StoreImage& image) = 0;

  /// Rewrites segments in which at least `dead_share` of the bytes belong to forgotten events, into
  /// new files; the old ones are removed by the next `committed`. Until then both take room.
  /// \param dead_share in (0, 1] \throws BudgetError, DiskFullError, FileError for a damaged block:
  /// the events stay where they are
  virtual void compact(double dead_share) = 0;

  virtual std::int64_t recalls(EventId event) const = 0;
  /// Takes over what was counted elsewhere.
  virtual void set_recalls(EventId event, std::int64_t recalls, std::int64_t last_recall) = 0;
  virtual bool pinned(EventId event) const = 0;
  /// Where an event's authoritative copy lies: "host" until it is written, then "disk".
  virtual const char* tier(EventId event) const = 0;
  /// Checksum over the stored bytes of an event, all its lanes, read from where they lie. It does
  /// not depend on files, tiers or offsets. \throws FileError for a damaged block
  virtual std::uint64_t digest(EventId event) = 0;
};

/// A new, empty store. \throws BudgetError naming host_bytes or disk_bytes and the least they must
/// be, FileError
std::unique_ptr<DiskStore> make_disk_store(const StoreShape& shape,
                                           const DiskStoreOptions& options);

/// A store over the segment files of an image. The files are not written to: what comes is appended
/// to new ones. With keep == false the image's files (in `options.dir`) stay as they are, and new
/// files are unnamed, in `scratch_dir`.
/// \throws FileError naming a file that is missing, too short or of another shape
std::unique_ptr<DiskStore> open_disk_store(const StoreShape& shape, const DiskStoreOptions& options,
                                           const StoreImage& image,
                                           const std::filesystem::path& scratch_dir = {});

/// Reads every byte that an image names. \param report called with (file, what is wrong) for each
/// damage found \return number of damages
std::int64_t verify_segments(
    const StoreShape& shape, const std::filesystem::path& dir, const StoreImage& image,
    io::Syscalls& calls,
    const std::function<void(const std::filesystem::path&, const std::string&)>& report);

/// Bytes of disk that n_events events of n_tokens tokens in all take at most, however the tokens
/// are divided among them, in a store without a bound.
std::int64_t disk_bytes_needed(const StoreShape& shape, std::int64_t n_events,
                               std::int64_t n_tokens);
/// What host_bytes = 0 means to a disk store.
std::int64_t default_host_bytes(const StoreShape& shape, std::int64_t max_block,
                                std::int64_t lease_tokens);
/// The least host_bytes a disk store can work with.
std::int64_t least_host_bytes(const StoreShape& shape, std::int64_t max_block,
                              std::int64_t lease_tokens);

}  // namespace EPISODIC_NAMESPACE
