// SPDX-License-Identifier: Apache-2.0
#pragma once
// The disk store's one class, for the sources that share its work: what it is made of and its small
// parts (disk_store.cpp), its files (disk_store_files.cpp), writing behind
// (disk_store_writing.cpp), reading (disk_store_reading.cpp).

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/append_files.hpp"
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

constexpr std::int64_t kLeastSegmentBytes = std::int64_t{1} << 20;  // a file is rolled at
constexpr std::int64_t kDefaultHostBytes = std::int64_t{256} << 20;
constexpr std::int64_t kLeastSlots = 2;    // to read into
constexpr std::int64_t kSlotsPerRead = 2;  // the medium goes on while what came is looked at
constexpr std::int64_t kMostReads = 1024;
constexpr std::uint64_t kMostBuckets = std::uint64_t{1} << 26;  // the table is written at the start
constexpr std::int64_t kGatherBytes = std::int64_t{1} << 20;    // written at once at most
constexpr std::int64_t kSector = 512;                           // what most media read at the least
// From this size on O_DIRECT is the faster way to read a block; below, the page cache.
constexpr std::int64_t kDirectBytes = std::int64_t{64} << 10;

struct Unmap {
  void* base = nullptr;
  std::size_t bytes = 0;
  void operator()(std::byte*) const { ::munmap(base, bytes); }
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

using Segment = io::AppendFiles::File;

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

class Store final : public DiskStore, public io::MergesFiles {
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
  void set_recalls(EventId event, std::int64_t recalls, std::int64_t last_recall) override;
  bool pinned(EventId event) const override;
  const char* tier(EventId event) const override;
  std::uint64_t digest(EventId event) override;
  void read(EventId event, std::int64_t lane, std::byte* block) override;
  void begin_step(std::int64_t step) override { step_ = step; }

  StoreImage sync() override;
  void committed(const StoreImage& image) override;
  void compact(double dead_share) override;
  bool merge_files(std::size_t most) override;
  EventId size() const override { return n_events(); }
  std::unique_ptr<StoreReader> reader() const override;
  StoreCounters counters() const override;

 private:
  class Reader;

  // ---- small things
  // ------------------------------------------------------------------------------

  std::int64_t n_events() const { return static_cast<std::int64_t>(events_.size()); }
  Event& at(EventId event) { return events_[static_cast<std::size_t>(event)]; }
  const Event& at(EventId event) const { return events_[static_cast<std::size_t>(event)]; }
  const Segment& segment_of_event(const Event& e) const {
    return files_->file(static_cast<std::size_t>(e.segment));
  }
  io::WriteQueue::Lock lock() const { return files_->lock(); }
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
  io::AppendFiles::Place block_place(const Event& e, std::int64_t lane) const {
    return {static_cast<std::size_t>(e.segment), block_offset(e, lane)};
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
  void give_back(io::WriteQueue::Lock& lock, Event& e);

  // ---- files
  // -------------------------------------------------------------------------------------

  /// Opens a file once more to read from it with O_DIRECT, where that is wanted and works.
  void open_reader(Segment& s);
  /// Room in files for an event. \param need it and all events still to be placed
  void place(Event& event, io::AppendFiles::Need need);
  StoreImage image() const;
  /// Waits for what is being written and read, before events are moved.
  void settle();
  /// Copies the live events of a file to where new ones go. All or nothing.
  void move_out(std::size_t index);

  // ---- writing behind
  // ----------------------------------------------------------------------------

  /// A block to fill, waiting for others to be written if it must.
  std::uint32_t make_room(io::WriteQueue::Lock& lock, const Event& e, EventId event,
                          std::int64_t lane);
  /// Takes a block off the writer, to fill it anew or to forget it.
  void withdraw(io::WriteQueue::Lock& lock, std::uint32_t block);
  void abandon(std::uint32_t block);
  void drop_blocks(io::WriteQueue::Lock& lock, EventId event);

  StoreShape shape_;
  DiskStoreOptions options_;
  io::Syscalls& calls_;
  bool want_direct_ = false;
  Mapping memory_;
  std::int64_t step_ = 0;

  // The lock of the files is for the cache too, and for what the writer looks up: events and
  // segments are changed under it, by the store's one user.
  mutable std::optional<BlockCache> cache_;  ///< mutable: no part of what the store holds
  std::vector<Event> events_;
  /// Of the events from first_pending_ on, each of their lanes: whether it was written.
  std::vector<std::uint8_t> pending_;
  EventId first_pending_ = 0;
  std::int64_t n_unclean_ = 0;  ///< blocks that are not `clean`
  StoreCounters counters_;
  std::optional<io::AppendFiles> files_;  ///< ends before what it writes from
  std::unique_ptr<Reader> own_;           ///< of the store's one user
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
    const auto lock = store_.lock();
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
