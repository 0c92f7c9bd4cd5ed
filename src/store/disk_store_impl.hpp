// SPDX-License-Identifier: Apache-2.0
#pragma once
// The disk store's one class, for the sources that share its work: what it is made of and its small
// parts (disk_store.cpp), its files (disk_store_files.cpp), writing behind
// (disk_store_writing.cpp), reading (disk_store_reading.cpp).

#include <fmt/format.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "block_cache.hpp"
#include "episodic/base/error.hpp"
#include "episodic/store/disk_store.hpp"
#include "read_queue.hpp"
#include "segment_file.hpp"

namespace episodic::disk_store {

using segment_file::block_stride;
using segment_file::kLine;
using segment_file::kPage;
using segment_file::round_up;

constexpr std::int64_t kSegmentBytes = std::int64_t{1} << 30;  // a file is rolled at
constexpr std::int64_t kLeastSegmentBytes = std::int64_t{1} << 20;
constexpr std::int64_t kExtentBytes = std::int64_t{64} << 20;  // reserved ahead at most
constexpr std::int64_t kLeastExtentBytes = std::int64_t{256} << 10;
constexpr std::int64_t kDefaultHostBytes = std::int64_t{256} << 20;
constexpr std::int64_t kLeastSlots = 2;    // to read into
constexpr std::int64_t kSlotsPerRead = 2;  // the medium goes on while what came is looked at
constexpr std::int64_t kMostReads = 1024;
constexpr std::int64_t kGatherBytes = std::int64_t{1} << 20;  // written at once at most
constexpr std::size_t kMostInBatch = 1024;                    // blocks the writer takes at a time
constexpr std::int64_t kSector = 512;                         // what most media read at the least
// From this size on O_DIRECT is the faster way to read a block; below, the page cache.
constexpr std::int64_t kDirectBytes = std::int64_t{64} << 10;

struct Unmap {
  void* base = nullptr;
  std::size_t bytes = 0;
  void operator()(std::byte*) const { ::munmap(base, bytes); }
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

struct Segment {
  std::uint64_t id = 0;
  std::string name;  ///< empty: without one
  io::File write;    ///< closed in a file that was opened, which is never written
  io::File read;
  /// What offset and length of a read must be multiples of: more than 1 with O_DIRECT.
  std::int64_t grain = 1;
  bool own = false;     ///< made by this store
  bool closed = false;  ///< nothing more is appended
  std::int64_t length = kPage;
  std::int64_t frozen = 0;     ///< what a crash may come back to: never written again
  std::int64_t allocated = 0;  ///< taken from the file system
  std::int64_t overhead = 0;   ///< what the file system may take beside for its own account of it
  std::int64_t live_events = 0, live_bytes = 0;
};

struct Event {
  TokenRange range;
  LaneRange lanes;
  std::int32_t segment = -1;  ///< -1: forgotten
  std::int64_t offset = 0;
  std::int64_t last_recall = -1;
  std::int64_t recalls = 0;
  bool pinned = false;
  std::size_t flags = 0;  ///< first of its lanes' flags in `pending_`, until all is written
};

/// Bytes of a file that no event uses and that may hold anything: zeroed before they are committed.
struct Hole {
  std::size_t segment = 0;
  std::int64_t offset = 0, bytes = 0;
};

class Store final : public DiskStore {
 public:
  Store(const StoreShape& shape, const DiskStoreOptions& options,
        const std::filesystem::path& new_dir);
  ~Store() override;
  void load(const StoreImage& image);
  using EventStore::append;
  void append(std::span<const TokenRange> events, LaneRange lanes) override;
  std::int64_t n_lanes() const override { return shape_.n_lanes; }
  void write(EventId event, std::int64_t lane, const RingView& source) override;
  void acquire(std::int64_t lane, std::span<const EventId> events,
               std::vector<KvSegment>& out) override;
  void release(std::int64_t lane) override;
  void prefetch(std::int64_t lane, std::span<const EventId> events) override;
  void forget(EventId event) override;
  void truncate(std::int64_t n) override;
  void pin(EventId event, bool pinned) override;
  std::int64_t last_recall(EventId event) const override;
  std::int64_t recalls(EventId event) const override;
  bool pinned(EventId event) const override;
  const char* tier(EventId event) const override;
  std::uint64_t digest(EventId event) override;
  void read(EventId event, std::int64_t lane, std::byte* block) override;
  void begin_step(std::int64_t step) override { step_ = step; }

  StoreImage sync() override;
  void committed(const StoreImage& image) override;
  void compact(double dead_share) override;
  EventId size() const override { return n_events(); }
  std::unique_ptr<StoreReader> reader() const override;
  StoreCounters counters() const override;

 private:
  static constexpr std::size_t kNoSegment = std::numeric_limits<std::size_t>::max();

  /// A block on its way to a file.
  struct Dirty {
    std::uint32_t block = 0;
    io::File* file = nullptr;
    std::int64_t offset = 0, bytes = 0;
  };
  class Reader;

  // ---- small things
  // ------------------------------------------------------------------------------

  std::int64_t n_events() const { return static_cast<std::int64_t>(events_.size()); }
  Event& at(EventId event) { return events_[static_cast<std::size_t>(event)]; }
  const Event& at(EventId event) const { return events_[static_cast<std::size_t>(event)]; }
  Segment& segment_of_event(const Event& e) {
    return *segments_[static_cast<std::size_t>(e.segment)];
  }
  const Segment& segment_of_event(const Event& e) const {
    return *segments_[static_cast<std::size_t>(e.segment)];
  }
  /// Of an event of n tokens in so many lanes.
  std::int64_t record_bytes(std::int64_t n, std::int64_t n_lanes) const {
    return n_lanes * block_stride(shape_, n);
  }
  std::int64_t record_bytes(const Event& e) const {
    return record_bytes(e.range.size(), e.lanes.count);
  }
  /// Of one lane of an event, in its file.
  std::int64_t block_offset(const Event& e, std::int64_t lane) const {
    return e.offset + (lane - e.lanes.first) * block_stride(shape_, e.range.size());
  }
  static std::int64_t file_bytes(std::int64_t records) { return kPage + round_up(records, kPage); }
  segment_file::BlockName name(EventId event, std::int64_t lane) const {
    return {segment_of_event(at(event)).id, event, lane, at(event).range};
  }

  void check_event(EventId event) const;
  void check_event(EventId event, std::int64_t lane) const;
  void check_lane(std::int64_t lane) const;
  bool written(EventId event, std::int64_t lane) const {
    return event < first_pending_ || pending_[pending_at(event, lane)];
  }
  void check_written(EventId event, std::int64_t lane) const;
  bool lanes_are(LaneRange lanes) const {
    return lanes.first >= 0 && lanes.count >= 1 && lanes.first <= shape_.n_lanes - lanes.count;
  }
  std::size_t pending_at(EventId event, std::int64_t lane) const {
    return at(event).flags + static_cast<std::size_t>(lane - at(event).lanes.first);
  }
  bool all_written() const;
  void forget_pending();
  void count_in(const Event& e);

  /// Takes an event out of its segment; the room at a segment's end that no image names is used
  /// again.
  void give_back(Event& e);

  // ---- files
  // -------------------------------------------------------------------------------------

  /// Opens a file to read from: with O_DIRECT where that is wanted and works. A file of our own
  /// that cannot is read through the descriptor that it is written with.
  void open_reader(Segment& s);
  void open_segment(const io::Directory& folder, const SegmentRef& ref);

  /// Segment files in the folder that the image does not name: of commits that were not finished.
  void find_orphans();

  /// Room in files for an event. \param rest it and all events still to be placed
  void place(Event& event, std::span<const TokenRange> rest);
  void begin_segment(const Event& event, std::span<const TokenRange> rest);

  /// Takes room from the file system up to `end`, and ahead of it what is likely to be needed.
  /// \param n_lanes of each event of `rest`
  void reserve(Segment& s, std::int64_t end, std::span<const TokenRange> rest,
               std::int64_t n_lanes);
  [[noreturn]] void refuse(std::span<const TokenRange> rest, std::int64_t n_lanes) const;

  /// Gives back what a file of our own has reserved beyond `bytes`. A hint: a refusal costs room.
  void cut(Segment& s, std::int64_t bytes);
  void remove_file(Segment& s);
  /// What errors name.
  static const std::filesystem::path& where(const Segment& s) {
    return s.write ? s.write.path() : s.read.path();
  }
  void forget_file(std::size_t index);

  /// Files of our own that no image can name go at once. One whose name cannot be removed stays,
  /// and is tried again.
  void release_empty_segments();

  /// Makes a file of our own durable up to its length, rounded up to a page.
  void freeze(Segment& s, std::size_t index);
  StoreImage image() const;

  /// Copies the live events of a file to where new ones go. All or nothing.
  void move_out(std::size_t index);

  // ---- writing behind
  // ----------------------------------------------------------------------------

  /// A block to fill, waiting for others to be written if it must.
  std::uint32_t make_room(std::unique_lock<std::mutex>& lock, const Event& e, EventId event,
                          std::int64_t lane);
  void enqueue(std::uint32_t block);
  void unqueue(std::uint32_t block);

  /// Takes a block off the writer, to fill it anew or to forget it.
  void withdraw(std::unique_lock<std::mutex>& lock, std::uint32_t block);
  void abandon(std::uint32_t block);
  void drop_blocks(std::unique_lock<std::mutex>& lock, EventId event);

  /// Waits until all is written. \throws what a write failed with; nothing is lost then
  void drain();
  void retry_writes();
  void write_behind();

  /// Takes blocks off the queue, in the order of their places in the files.
  void gather_batch();

  /// Writes the blocks of the batch from `first` on that lie end to end, at once: one large write
  /// costs little more than a small one. \return the first block after them
  std::size_t write_run(std::size_t first);

  StoreShape shape_;
  DiskStoreOptions options_;
  io::Syscalls& calls_;
  io::Directory folder_;  ///< of new files; of all files that have names here
  std::int64_t roll_bytes_ = 0;
  std::int64_t overhead_ = 0;  ///< of one segment
  bool want_direct_ = false;
  Mapping memory_;
  std::int64_t step_ = 0;

  // The mutex is for the cache, the queue of writes, and what the writer looks up: events and
  // segments are changed under it, by the store's one user.
  mutable std::mutex mutex_;
  std::condition_variable work_;     ///< for the writer: something to write
  std::condition_variable written_;  ///< from the writer: a block was written, or could not be
  mutable std::optional<BlockCache> cache_;  ///< mutable: no part of what the store holds
  std::vector<Event> events_;
  std::vector<std::unique_ptr<Segment>> segments_;  ///< null: removed
  std::size_t current_ = kNoSegment;                ///< where the next event goes
  std::vector<Hole> holes_;
  std::vector<std::pair<std::string, std::int64_t>> orphans_;  ///< and their bytes
  std::int64_t taken_ = 0;                                     ///< bytes taken from the file system
  /// Of the events from first_pending_ on, each of their lanes: whether it was written.
  std::vector<std::uint8_t> pending_;
  EventId first_pending_ = 0;
  std::uint32_t first_dirty_ = BlockCache::kNone, last_dirty_ = BlockCache::kNone;
  std::vector<Dirty> batch_;       ///< the writer's own
  std::span<std::byte> gathered_;  ///< the writer's own
  std::int64_t n_unclean_ = 0;     ///< blocks that are not `clean`
  std::exception_ptr error_;       ///< what the last background write failed with
  bool stopping_ = false;
  StoreCounters counters_;

  std::unique_ptr<Reader> own_;  ///< of the store's one user
  std::thread writer_;
};

/// One that reads blocks, in the cache that all share or from their files: leases, buffers to read
/// into, reads under way. The store's user has one; while nobody changes the store others may read
/// too, each on a thread of its own.
class Store::Reader final : public StoreReader {
 public:
  /// \param memory reader_bytes of it, of the caller's
  Reader(const Store& store, std::byte* memory);
  /// With memory of its own.
  Reader(const Store& store, Mapping memory);
  ~Reader() override;

  void acquire(std::int64_t lane, std::span<const EventId> events,
               std::vector<KvSegment>& out) override;
  void release(std::int64_t lane) override;
  void prefetch(std::int64_t lane, std::span<const EventId> events) override;
  void read(EventId event, std::int64_t lane, std::byte* block) override;
  StoreCounters counters() const override;

  void check_unleased(const char* what) const;
  void drop_prefetched();

  /// A page to work with, when no acquire is under way.
  std::byte* scratch_page();

  /// Calls use(block) with a verified block read from its file, header and all.
  template <class Use>
  void with_block(EventId event, std::int64_t lane, Use&& use);

  /// Calls use(bytes) with one lane of an event as it is stored, wherever it lies.
  template <class Use>
  void with_stored(EventId event, std::int64_t lane, Use&& use);

 private:
  /// A buffer to read one block into.
  struct Slot {
    enum class Use : std::uint8_t { free, prefetched, taken };
    PendingRead read;
    EventId event = -1;
    std::int64_t lane = -1;
    std::int64_t skip = 0;  ///< of the block in the buffer
    Use use = Use::free;
  };
  struct Miss {
    std::size_t i = 0;  ///< in the list of events
    Slot* slot = nullptr;
  };
  struct Lease {
    std::vector<std::uint32_t> blocks;
    bool held = false, overflow = false;
  };

  Slot* find_slot(EventId event, std::int64_t lane);

  /// A free slot, else a prefetched one that `may_go`; null if there is none.
  template <class MayGo>
  Slot* free_slot_or(MayGo&& may_go);
  void free_slot(Slot& slot);
  void begin_read(Slot& slot, EventId event, std::int64_t lane, Slot::Use use);

  /// The block that a slot was to read, verified. \throws FileError
  std::byte* finish_read(Slot& slot);

  void take(Lease& lease, std::uint32_t block);
  void read_misses(std::int64_t lane, std::span<const EventId> events, Lease& lease,
                   std::vector<KvSegment>& out);

  /// Puts a block that was read where it can be leased.
  KvSegment keep(Lease& lease, EventId event, std::int64_t lane, const std::byte* from);

  const Store& store_;
  Mapping memory_;
  std::vector<Slot> slots_;
  std::span<std::byte> overflow_;
  std::int64_t overflow_used_ = 0, n_overflowing_ = 0;
  std::vector<Lease> leases_;
  std::vector<Miss> misses_;
  StoreCounters counters_;
  std::unique_ptr<ReadQueue> queue_;
};

template <class MayGo>
Store::Reader::Slot* Store::Reader::free_slot_or(MayGo&& may_go) {
  for (Slot& slot : slots_)
    if (slot.use == Slot::Use::free) return &slot;
  for (Slot& slot : slots_)
    if (slot.use == Slot::Use::prefetched && may_go(slot)) {
      free_slot(slot);
      return &slot;
    }
  return nullptr;
}

template <class Use>
void Store::Reader::with_block(EventId event, std::int64_t lane, Use&& use) {
  Slot* slot = find_slot(event, lane);
  if (slot) {
    slot->use = Slot::Use::taken;
    ++counters_.prefetched;
  } else {
    slot = free_slot_or([](const Slot&) { return true; });
    begin_read(*slot, event, lane, Slot::Use::taken);
    queue_->start();
  }
  try {
    use(finish_read(*slot));
  } catch (...) {
    free_slot(*slot);
    throw;
  }
  free_slot(*slot);
}

template <class Use>
void Store::Reader::with_stored(EventId event, std::int64_t lane, Use&& use) {
  store_.check_event(event, lane);
  const Event& e = store_.at(event);
  if (e.segment < 0) throw DataError(fmt::format("disk store: event {} was forgotten", event));
  const auto bytes = static_cast<std::size_t>(block_bytes(store_.shape_, e.range.size()));
  {
    const std::lock_guard lock(store_.mutex_);
    if (const std::uint32_t block = store_.cache_->find(event, lane); block != BlockCache::kNone) {
      use(std::span<const std::byte>(store_.cache_->data(block) + kLine, bytes));
      return;
    }
  }
  store_.check_written(event, lane);
  with_block(event, lane, [&](const std::byte* block) {
    use(std::span<const std::byte>(block + kLine, bytes));
  });
}

}  // namespace episodic::disk_store
