// SPDX-License-Identifier: Apache-2.0
#include "episodic/store/disk_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "block_cache.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "read_queue.hpp"
#include "segment_file.hpp"

namespace episodic {
namespace {

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
// From this size on O_DIRECT is the faster way to read a block; below, the page cache.
constexpr std::int64_t kDirectBytes = std::int64_t{64} << 10;

void check_shape(const StoreShape& shape, std::int64_t max_block, std::int64_t lease_tokens) {
  if (shape.n_layers < 1 || shape.n_kv_heads < 1 || shape.head_dim < 1 || max_block < 1 ||
      lease_tokens < 1)
    throw ConfigError(fmt::format(
        "disk store: {} layers, {} key/value heads, {} channels, max_block {}, lease_tokens {}; "
        "each must be at least 1",
        shape.n_layers, shape.n_kv_heads, shape.head_dim, max_block, lease_tokens));
}

/// How host_bytes are divided. All of it is one reservation of address space.
struct HostPlan {
  std::int64_t lease_bytes = 0;   ///< for what an acquire could not put into the cache
  std::int64_t gather_bytes = 0;  ///< to write neighbouring blocks at once; not of a small budget
  std::int64_t slot_bytes = 0, n_slots = 0;
  std::int64_t n_buckets = 0;
  std::int64_t arena_bytes = 0;

  HostPlan(const StoreShape& shape, std::int64_t max_block, std::int64_t lease_tokens,
           std::int64_t host_bytes, std::int64_t read_depth) {
    const std::int64_t block = block_stride(shape, max_block);
    // Of all ways to cut the tokens of a lease into events, single tokens take the most.
    lease_bytes =
        round_up(std::max(lease_tokens * round_up(block_bytes(shape, 1), kLine), block), kPage);
    slot_bytes = round_up(block, kPage) + kPage;  // a block in the pages around it
    n_slots = std::clamp((host_bytes - lease_bytes) / 8 / slot_bytes, kLeastSlots,
                         kSlotsPerRead * read_depth);
    gather_bytes = host_bytes >= 32 * kGatherBytes ? kGatherBytes : 0;
    const std::int64_t rest = host_bytes - lease_bytes - gather_bytes - n_slots * slot_bytes;
    const auto likely = static_cast<std::uint64_t>(std::max(rest, std::int64_t{0}) /
                                                   (block_stride(shape, (max_block + 3) / 4)));
    n_buckets = static_cast<std::int64_t>(std::bit_ceil(std::max<std::uint64_t>(likely, 64)));
    arena_bytes = (rest - n_buckets * std::int64_t{sizeof(std::uint32_t)}) / kLine * kLine;
  }
};

struct Unmap {
  void* base = nullptr;
  std::size_t bytes = 0;
  void operator()(std::byte*) const { ::munmap(base, bytes); }
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

/// Address space, aligned to the large pages that it is asked to be made of: a read into memory
/// that lies in one piece is one piece to the device, whose queue then holds many of them.
Mapping reserve_memory(std::int64_t bytes) {
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  const auto used = static_cast<std::size_t>(bytes), mapped = used + kLargePage;
  void* const base = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw BudgetError(
        fmt::format("disk store: the system refused host_bytes = {}; set host_bytes lower", bytes));
  void* at = base;
  std::size_t space = mapped;
  std::align(kLargePage, used, at, space);
  ::madvise(at, used / kLargePage * kLargePage, MADV_HUGEPAGE);  // a hint
  return Mapping(static_cast<std::byte*>(at), Unmap{base, mapped});
}

struct Segment {
  std::uint64_t id = 0;
  std::filesystem::path path;  ///< empty: without a name
  io::File write;              ///< closed in a file that was opened, which is never written
  io::File read;
  bool direct = false;  ///< `read` is opened with O_DIRECT
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
  std::int32_t segment = -1;  ///< -1: forgotten
  std::int64_t offset = 0;
  std::int64_t last_recall = -1;
  std::int64_t recalls = 0;
  bool pinned = false;
};

/// Bytes of a file that no event uses and that may hold anything: zeroed before they are committed.
struct Hole {
  std::size_t segment = 0;
  std::int64_t offset = 0, bytes = 0;
};

class Store final : public DiskStore {
 public:
  Store(const StoreShape& shape, const DiskStoreOptions& options, std::filesystem::path new_dir)
      : shape_(shape),
        options_(options),
        dir_(std::move(new_dir)),
        calls_(options.calls ? *options.calls : io::system_calls()) {
    options_.lease_tokens = std::max(options.lease_tokens, options.max_block);
    check_shape(shape, options.max_block, options.lease_tokens < 0 ? 0 : options_.lease_tokens);
    if (options.read_depth < 1 || options.read_depth > kMostReads)
      throw ConfigError(fmt::format("disk store: read_depth = {}, must be from 1 to {}",
                                    options.read_depth, kMostReads));
    if (options.host_bytes < 0 || options.disk_bytes < 0)
      throw ConfigError(fmt::format("disk store: host_bytes = {}, disk_bytes = {}, must be >= 0",
                                    options.host_bytes, options.disk_bytes));
    const std::int64_t least = least_host_bytes(shape, options.max_block, options_.lease_tokens);
    if (options.host_bytes == 0) options_.host_bytes = std::max(least, kDefaultHostBytes);
    if (options_.host_bytes < least)
      throw BudgetError(fmt::format(
          "disk store: host_bytes = {} cannot hold events of max_block = {} tokens and a recall of "
          "{} tokens; set host_bytes to at least {} (0: a default), or lower max_block",
          options.host_bytes, options.max_block, options_.lease_tokens, least));
    if (const std::int64_t one = file_bytes(record_bytes(options.max_block)) + kPage;
        options.disk_bytes > 0 && options.disk_bytes < one)
      throw BudgetError(fmt::format(
          "disk store: disk_bytes = {} cannot hold one event of max_block = {} tokens; set "
          "disk_bytes to at least {} (0: no bound), or lower max_block",
          options.disk_bytes, options.max_block, one));
    roll_bytes_ = options.disk_bytes == 0
                      ? kSegmentBytes
                      : std::clamp(options.disk_bytes / 16, kLeastSegmentBytes, kSegmentBytes);
    // Maps of extents: a page, and one more for each 64 MiB if they are in many pieces.
    overhead_ = kPage * (1 + roll_bytes_ / kExtentBytes);
    want_direct_ = options.direct == DirectIo::on ||
                   (options.direct == DirectIo::automatic &&
                    block_stride(shape, (options.max_block + 1) / 2) >= kDirectBytes);

    const HostPlan plan(shape, options.max_block, options_.lease_tokens, options_.host_bytes,
                        options_.read_depth);
    memory_ = reserve_memory(options_.host_bytes);
    std::byte* at = memory_.get();
    slots_.resize(static_cast<std::size_t>(plan.n_slots));
    for (Slot& slot : slots_) {
      slot.read.to = at;
      at += plan.slot_bytes;
    }
    overflow_ = {at, static_cast<std::size_t>(plan.lease_bytes)};
    at += plan.lease_bytes;
    gathered_ = {at, static_cast<std::size_t>(plan.gather_bytes)};
    at += plan.gather_bytes;
    batch_.reserve(kMostInBatch);
    const std::span<std::byte> arena(at, static_cast<std::size_t>(plan.arena_bytes));
    at += plan.arena_bytes;
    cache_.emplace(arena, std::span(reinterpret_cast<std::uint32_t*>(at),
                                    static_cast<std::size_t>(plan.n_buckets)));
    leases_.resize(static_cast<std::size_t>(shape.n_layers));
    queue_ = make_read_queue(options.engine, calls_, std::min(plan.n_slots, options_.read_depth));
    try {
      writer_ = std::thread([this] { write_behind(); });
    } catch (const std::system_error& e) {
      throw ConfigError(fmt::format("disk store: no thread to write with: {}", e.what()));
    }
  }

  ~Store() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    writer_.join();
    drop_prefetched();
    // What no image names is of no use to anyone.
    for (const auto& s : segments_)
      if (s && s->own && !s->path.empty()) {
        if (s->frozen == 0)
          calls_.unlink(io::Kind::segment, s->path.c_str());
        else if (s->allocated > s->frozen)
          calls_.truncate(io::Kind::segment, s->write.fd(), s->frozen);
      }
  }

  void load(const StoreImage& image) {
    const std::lock_guard lock(mutex_);
    for (const SegmentRef& ref : image.segments) open_segment(ref);
    events_.reserve(image.events.size());
    for (std::size_t i = 0; i < image.events.size(); ++i) {
      const StoreImage::Event& e = image.events[i];
      Event event{e.range, e.segment, e.offset, e.last_recall, e.recalls, e.pinned};
      if (e.segment >= 0) {
        if (static_cast<std::size_t>(e.segment) >= segments_.size())
          throw FileError(fmt::format("{}: event {} lies in segment {} of {}; restore from a copy",
                                      options_.dir.string(), i, e.segment, segments_.size()));
        Segment& s = *segments_[static_cast<std::size_t>(e.segment)];
        if (e.range.size() < 1 || e.range.size() > options_.max_block || e.offset < kPage ||
            e.offset % kLine != 0 || e.offset > s.length ||
            record_bytes(e.range.size()) > s.length - e.offset)
          throw FileError(fmt::format(
              "{}: event {} of {} tokens (max_block {}) at byte {} does not fit; restore from a "
              "copy",
              s.path.string(), i, e.range.size(), options_.max_block, e.offset));
        count_in(event);
      }
      events_.push_back(event);
    }
    first_pending_ = static_cast<EventId>(events_.size());
    if (options_.keep) find_orphans();
  }

  void append(std::span<const TokenRange> events) override {
    for (const TokenRange& range : events)
      if (range.size() < 1 || range.size() > options_.max_block)
        throw DataError(
            fmt::format("disk store: an event of {} tokens; events have 1 to {} (max_block)",
                        range.size(), options_.max_block));
    retry_writes();
    if (all_written()) forget_pending();
    const std::size_t n_events = events_.size(), n_segments = segments_.size();
    const std::size_t n_pending = pending_.size();
    const std::size_t current = current_;
    const bool closed = current != kNoSegment && segments_[current]->closed;
    const std::int64_t allocated = current != kNoSegment ? segments_[current]->allocated : 0;
    try {
      for (std::size_t i = 0; i < events.size(); ++i) {
        Event event{events[i], -1, 0, -1, 0, false};
        place(event, events.subspan(i));
        const std::lock_guard lock(mutex_);
        count_in(event);
        events_.push_back(event);
        pending_.resize(pending_.size() + static_cast<std::size_t>(shape_.n_layers));
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      while (events_.size() > n_events) {
        give_back(events_.back());
        events_.pop_back();
      }
      if (pending_.size() > n_pending) pending_.resize(n_pending);
      while (segments_.size() > n_segments) {
        remove_file(*segments_.back());
        segments_.pop_back();
      }
      current_ = current;
      if (current != kNoSegment) {
        Segment& s = *segments_[current];
        s.closed = closed;
        // A file that was rolled has lost its reserve, one that grew has got more of it.
        cut(s, std::min(allocated, s.allocated));
      }
      throw;
    }
  }

  void write(EventId event, std::int64_t layer, const RingView& source) override {
    check_event(event);
    check_layer(layer);
    const Event& e = at(event);
    if (e.segment < 0) throw DataError(fmt::format("disk store: event {} was forgotten", event));
    if (event < first_pending_)
      throw DataError(fmt::format(
          "disk store: event {} is written already; keys and values do not change", event));
    std::uint32_t block;
    {
      std::unique_lock lock(mutex_);
      block = cache_->find(event, layer);
      if (block != BlockCache::kNone) {
        if ((*cache_)[block].leases > 0)
          throw Error(fmt::format("disk store: event {} is leased by layer {}; release it first",
                                  event, layer));
        withdraw(lock, block);
      } else {
        block = make_room(lock, e, event, layer);
      }
    }
    std::byte* const data = cache_->data(block);
    try {
      encode_block(shape_, e.range, source, data + kLine);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      abandon(block);
      pending_[pending_at(event, layer)] = 0;
      throw;
    }
    segment_file::seal_block(shape_, name(event, layer), data);
    {
      const std::lock_guard lock(mutex_);
      enqueue(block);
      pending_[pending_at(event, layer)] = 1;
    }
    work_.notify_one();
  }

  void acquire(std::int64_t layer, std::span<const EventId> events,
               std::vector<KvSegment>& out) override {
    check_layer(layer);
    std::int64_t tokens = 0;
    for (const EventId event : events) {
      check_event(event);
      if (at(event).segment < 0)
        throw DataError(fmt::format("disk store: event {} was forgotten", event));
      tokens += at(event).range.size();
    }
    if (tokens > options_.lease_tokens)
      throw BudgetError(fmt::format(
          "disk store: a recall of {} tokens, but lease_tokens = {}; raise lease_tokens", tokens,
          options_.lease_tokens));
    Lease& lease = leases_[static_cast<std::size_t>(layer)];
    if (lease.held)
      throw Error(
          fmt::format("disk store: layer {} still holds its last lease; release it first", layer));
    out.clear();
    out.reserve(events.size());
    lease.blocks.clear();
    lease.blocks.reserve(events.size());
    misses_.clear();
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < events.size(); ++i) {
        const std::uint32_t block = cache_->find(events[i], layer);
        if (block == BlockCache::kNone) {
          misses_.push_back({i, nullptr});
          out.emplace_back();
          continue;
        }
        take(lease, block);
        out.push_back(segment_of(shape_, at(events[i]).range, cache_->data(block) + kLine));
      }
    }
    const std::int64_t overflow_used = overflow_used_;
    try {
      read_misses(layer, events, lease, out);
    } catch (...) {
      for (Miss& miss : misses_)
        if (miss.slot) free_slot(*miss.slot);
      const std::lock_guard lock(mutex_);
      for (const std::uint32_t block : lease.blocks) --(*cache_)[block].leases;
      lease.blocks.clear();
      overflow_used_ = overflow_used;
      out.clear();
      throw;
    }
    {
      // What was there before and what was read stand in the order given.
      const std::lock_guard lock(mutex_);
      if (!misses_.empty())
        for (const EventId event : events)
          if (const std::uint32_t block = cache_->find(event, layer); block != BlockCache::kNone)
            cache_->touch(block);
    }
    lease.overflow = overflow_used_ > overflow_used;
    lease.held = true;
    n_overflowing_ += lease.overflow;
    for (const EventId event : events) {
      at(event).last_recall = step_;
      ++at(event).recalls;
    }
    counters_.acquires += static_cast<std::int64_t>(events.size());
    counters_.hits += static_cast<std::int64_t>(events.size() - misses_.size());
  }

  void release(std::int64_t layer) override {
    check_layer(layer);
    Lease& lease = leases_[static_cast<std::size_t>(layer)];
    if (!lease.held)
      throw Error(fmt::format("disk store: layer {} holds no lease to release", layer));
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t block : lease.blocks) --(*cache_)[block].leases;
    lease.blocks.clear();
    n_overflowing_ -= lease.overflow;
    if (n_overflowing_ == 0) overflow_used_ = 0;
    lease.held = lease.overflow = false;
  }

  void prefetch(std::int64_t layer, std::span<const EventId> events) override {
    if (layer < 0 || layer >= shape_.n_layers) return;
    bool begun = false;
    for (const EventId event : events) {
      if (event < 0 || event >= n_events() || at(event).segment < 0 || find_slot(event, layer))
        continue;
      {
        const std::lock_guard lock(mutex_);
        if (cache_->find(event, layer) != BlockCache::kNone) continue;
      }
      if (event >= first_pending_ && !pending_[pending_at(event, layer)]) continue;
      Slot* const slot =
          free_slot_or([&](Slot& s) { return s.layer != layer && queue_->done(s.read); });
      if (!slot) break;
      begin_read(*slot, event, layer, Slot::Use::prefetched);
      begun = true;
    }
    if (begun) queue_->start();
  }

  void forget(EventId event) override {
    check_event(event);
    check_unleased("forget an event");
    Event& e = at(event);
    if (e.segment < 0) return;
    drop_prefetched();
    std::unique_lock lock(mutex_);
    drop_blocks(lock, event);
    give_back(e);
    for (std::int64_t layer = 0; event >= first_pending_ && layer < shape_.n_layers; ++layer)
      pending_[pending_at(event, layer)] = 1;  // nothing is missing of it any more
    release_empty_segments();
  }

  void truncate(std::int64_t n) override {
    if (n < 0 || n > n_events())
      throw DataError(fmt::format("disk store: cannot truncate {} events to {}", n_events(), n));
    check_unleased("truncate");
    drop_prefetched();
    std::unique_lock lock(mutex_);
    while (n_events() > n) {
      const EventId last = n_events() - 1;
      drop_blocks(lock, last);
      give_back(events_.back());
      events_.pop_back();
      if (last >= first_pending_)
        pending_.resize(pending_.size() - static_cast<std::size_t>(shape_.n_layers));
    }
    first_pending_ = std::min(first_pending_, n);
    release_empty_segments();
  }

  void pin(EventId event, bool pinned) override {
    check_event(event);
    if (at(event).pinned == pinned) return;
    at(event).pinned = pinned;
    const std::lock_guard lock(mutex_);
    for (std::int64_t layer = 0; layer < shape_.n_layers; ++layer)
      if (const std::uint32_t block = cache_->find(event, layer); block != BlockCache::kNone)
        cache_->pin(block, pinned);
  }

  std::int64_t last_recall(EventId event) const override {
    check_event(event);
    return at(event).last_recall;
  }
  std::int64_t recalls(EventId event) const override {
    check_event(event);
    return at(event).recalls;
  }
  bool pinned(EventId event) const override {
    check_event(event);
    return at(event).pinned;
  }

  const char* tier(EventId event) const override {
    check_event(event);
    const std::lock_guard lock(mutex_);
    for (std::int64_t layer = 0; layer < shape_.n_layers; ++layer) {
      if (event >= first_pending_ && !pending_[pending_at(event, layer)]) return "host";
      if (const std::uint32_t block = cache_->find(event, layer);
          block != BlockCache::kNone && (*cache_)[block].state != BlockCache::State::clean)
        return "host";
    }
    return "disk";
  }

  std::uint64_t digest(EventId event) override {
    std::uint64_t sum = 0;
    for (std::int64_t layer = 0; layer < shape_.n_layers; ++layer)
      with_stored(event, layer,
                  [&](std::span<const std::byte> block) { sum = checksum(block, sum); });
    return sum;
  }

  void read(EventId event, std::int64_t layer, std::byte* block) override {
    with_stored(event, layer, [&](std::span<const std::byte> stored) {
      std::memcpy(block, stored.data(), stored.size());
    });
  }

  void begin_step(std::int64_t step) override { step_ = step; }

  StoreImage sync() override {
    if (!all_written()) {
      const auto missing = static_cast<std::int64_t>(
          std::find_if(pending_.begin(), pending_.end(), [](std::uint8_t b) { return b == 0; }) -
          pending_.begin());
      throw Error(
          fmt::format("disk store: layer {} of event {} was never written; write all layers "
                      "of an event before sync",
                      missing % shape_.n_layers, first_pending_ + missing / shape_.n_layers));
    }
    drain();
    forget_pending();
    release_empty_segments();
    if (options_.keep) {
      bool names = false;
      const auto changed = [](const std::unique_ptr<Segment>& s) {
        return s && s->own && s->live_events > 0 && s->length > s->frozen;
      };
      for (std::size_t i = 0; i < segments_.size(); ++i)
        if (changed(segments_[i])) {
          freeze(*segments_[i], i);
          names |= segments_[i]->frozen == 0;
        }
      if (names) io::sync_directory(calls_, dir_);
      for (const auto& s : segments_)
        if (changed(s)) s->frozen = s->length;
    }
    return image();
  }

  void committed(const StoreImage& image) override {
    const auto named = [&](std::uint64_t id) {
      return std::any_of(image.segments.begin(), image.segments.end(),
                         [&](const SegmentRef& ref) { return ref.id == id; });
    };
    if (!options_.keep) return;
    int failed = 0;
    std::filesystem::path where;
    const auto remove = [&](const std::filesystem::path& path) {
      const int r = calls_.unlink(io::Kind::segment, path.c_str());
      if (r >= 0 || r == -ENOENT) return true;
      failed = -r;
      where = path;
      return false;
    };
    drop_prefetched();
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < segments_.size(); ++i)
      if (const auto& s = segments_[i];
          s && s->live_events == 0 && s->frozen > 0 && !named(s->id) && remove(s->path))
        forget_file(i);
    std::erase_if(orphans_, [&](const auto& orphan) {
      if (!remove(orphan.first)) return false;
      taken_ -= orphan.second;
      return true;
    });
    if (failed != 0)
      io::fail(failed, where, "remove it",
               "it is not needed any more; the next commit tries again");
  }

  void compact(double dead_share) override {
    if (!(dead_share > 0.0 && dead_share <= 1.0))
      throw ConfigError(
          fmt::format("disk store: compact at a dead share of {}; must be in (0, 1]", dead_share));
    if (!all_written())
      throw Error("disk store: compact before all layers of all events were written");
    drain();
    drop_prefetched();
    const std::size_t n = segments_.size();
    for (std::size_t i = 0; i < n; ++i) {
      if (!segments_[i] || segments_[i]->live_events == 0) continue;
      const Segment& s = *segments_[i];
      const double dead = static_cast<double>(s.length - kPage - s.live_bytes);
      if (s.length > kPage && dead >= dead_share * static_cast<double>(s.length - kPage))
        move_out(i);
    }
    const std::lock_guard lock(mutex_);
    release_empty_segments();
  }

  StoreCounters counters() const override {
    const std::lock_guard lock(mutex_);
    StoreCounters c = counters_;
    c.bytes_reserved = options_.host_bytes;
    c.host_blocks = cache_->blocks();
    c.disk_bytes = taken_;
    return c;
  }

 private:
  static constexpr std::size_t kNoSegment = std::numeric_limits<std::size_t>::max();

  /// A buffer to read one block into.
  struct Slot {
    enum class Use : std::uint8_t { free, prefetched, taken };
    PendingRead read;
    EventId event = -1;
    std::int64_t layer = -1;
    std::int64_t skip = 0;  ///< of the block in the buffer
    Use use = Use::free;
  };
  struct Miss {
    std::size_t i = 0;  ///< in the list of events
    Slot* slot = nullptr;
  };
  /// A block on its way to a file.
  struct Dirty {
    std::uint32_t block = 0;
    io::File* file = nullptr;
    std::int64_t offset = 0, bytes = 0;
  };
  struct Lease {
    std::vector<std::uint32_t> blocks;
    bool held = false, overflow = false;
  };

  // ---- small things
  // ------------------------------------------------------------------------------

  std::int64_t n_events() const { return static_cast<std::int64_t>(events_.size()); }
  Event& at(EventId event) { return events_[static_cast<std::size_t>(event)]; }
  const Event& at(EventId event) const { return events_[static_cast<std::size_t>(event)]; }
  Segment& segment_of_event(const Event& e) {
    return *segments_[static_cast<std::size_t>(e.segment)];
  }
  std::int64_t record_bytes(std::int64_t n) const {
    return shape_.n_layers * block_stride(shape_, n);
  }
  static std::int64_t file_bytes(std::int64_t records) { return kPage + round_up(records, kPage); }
  segment_file::BlockName name(EventId event, std::int64_t layer) {
    return {segment_of_event(at(event)).id, event, layer, at(event).range};
  }

  void check_event(EventId event) const {
    if (event < 0 || event >= n_events())
      throw DataError(fmt::format("disk store: no event {} among {}", event, n_events()));
  }
  void check_layer(std::int64_t layer) const {
    if (layer < 0 || layer >= shape_.n_layers)
      throw DataError(fmt::format("disk store: no layer {} among {}", layer, shape_.n_layers));
  }
  void check_unleased(const char* what) const {
    for (std::size_t layer = 0; layer < leases_.size(); ++layer)
      if (leases_[layer].held)
        throw Error(fmt::format(
            "disk store: cannot {} while layer {} holds a lease; release it first", what, layer));
  }

  std::size_t pending_at(EventId event, std::int64_t layer) const {
    return static_cast<std::size_t>((event - first_pending_) * shape_.n_layers + layer);
  }
  bool all_written() const {
    const std::lock_guard lock(mutex_);
    return std::find(pending_.begin(), pending_.end(), 0) == pending_.end();
  }
  void forget_pending() {
    pending_.clear();
    first_pending_ = n_events();
  }

  void count_in(const Event& e) {
    Segment& s = segment_of_event(e);
    ++s.live_events;
    s.live_bytes += record_bytes(e.range.size());
    s.length = std::max(s.length, e.offset + record_bytes(e.range.size()));
    ++counters_.events;
    counters_.bytes_used += shape_.n_layers * block_bytes(shape_, e.range.size());
  }

  /// Takes an event out of its segment; the room at a segment's end that no image names is used
  /// again.
  void give_back(Event& e) {
    if (e.segment < 0) return;
    const auto index = static_cast<std::size_t>(e.segment);
    Segment& s = *segments_[index];
    const std::int64_t bytes = record_bytes(e.range.size());
    --s.live_events;
    s.live_bytes -= bytes;
    if (e.offset >= s.frozen && s.own) {
      if (s.length == e.offset + bytes)
        s.length = e.offset;
      else if (options_.keep)
        holes_.push_back({index, e.offset, bytes});
    }
    --counters_.events;
    counters_.bytes_used -= shape_.n_layers * block_bytes(shape_, e.range.size());
    e.segment = -1;
  }

  // ---- files
  // -------------------------------------------------------------------------------------

  /// Opens a file to read from: with O_DIRECT where that is wanted and works. A file of our own
  /// that cannot is read through the descriptor that it is written with.
  void open_reader(Segment& s) {
    if (want_direct_) {
      // Through the descriptor, for a file without a name has no other way.
      const std::filesystem::path path =
          s.write ? std::filesystem::path(fmt::format("/proc/self/fd/{}", s.write.fd())) : s.path;
      int why = calls_.open(io::Kind::segment, path.c_str(), O_RDONLY | O_DIRECT);
      if (why >= 0) {
        io::File file = io::File::adopt(calls_, io::Kind::segment, path, why);
        const std::int64_t got =
            calls_.read(io::Kind::segment, file.fd(), scratch_page(), kPage, 0);
        why = got < 0 ? static_cast<int>(got) : -EIO;
        if (got == kPage) {
          s.read = std::move(file);
          s.direct = true;
          return;
        }
      }
      if (options_.direct == DirectIo::on)
        io::fail(-why, s.path.empty() ? dir_ : s.path, "read it with O_DIRECT",
                 "set direct to automatic");
    }
    if (!s.own) s.read = io::File(calls_, io::Kind::segment, s.path, O_RDONLY);
  }

  void open_segment(const SegmentRef& ref) {
    auto s = std::make_unique<Segment>();
    s->id = ref.id;
    s->path = options_.dir / segment_name(ref.id);
    s->closed = true;
    s->length = s->frozen = ref.bytes;
    open_reader(*s);
    std::int64_t size = s->read.size();
    if (ref.bytes < kPage || size < ref.bytes)
      throw FileError(
          fmt::format("{}: {} bytes long, {} were committed; it is truncated: restore from a copy",
                      s->path.string(), size, ref.bytes));
    // A crash leaves a tail that nothing names. The file may be another memory's too.
    if (struct stat info{}; options_.keep && size > ref.bytes &&
                            ::fstat(s->read.fd(), &info) == 0 && info.st_nlink == 1) {
      io::File writable(calls_, io::Kind::segment, s->path, O_WRONLY);
      writable.truncate(ref.bytes);
      size = ref.bytes;
    }
    std::byte* const page = scratch_page();
    s->read.read({page, static_cast<std::size_t>(kPage)}, 0);
    if (const std::string fault = segment_file::header_fault(shape_, ref.id, page); !fault.empty())
      throw FileError(fmt::format("{}: {}; restore from a copy", s->path.string(), fault));
    if (options_.keep) {
      s->allocated = round_up(size, kPage);
      s->overhead = overhead_;
      taken_ += s->allocated + s->overhead;
    }
    segments_.push_back(std::move(s));
  }

  /// Segment files in the folder that the image does not name: of commits that were not finished.
  void find_orphans() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(options_.dir, error)) {
      const std::string file = entry.path().filename().string();
      if (file.size() != segment_name(0).size() || !file.starts_with("kv-") ||
          !file.ends_with(".seg"))
        continue;
      if (std::none_of(segments_.begin(), segments_.end(),
                       [&](const auto& s) { return s->path.filename() == file; }))
        add_orphan(entry.path());
    }
  }

  void add_orphan(const std::filesystem::path& path) {
    struct stat info {};
    const std::int64_t bytes = ::stat(path.c_str(), &info) == 0 ? info.st_size : 0;
    orphans_.emplace_back(path, round_up(bytes, kPage));
    taken_ += orphans_.back().second;
  }

  /// Room in files for an event. \param rest it and all events still to be placed
  void place(Event& event, std::span<const TokenRange> rest) {
    const std::int64_t bytes = record_bytes(event.range.size());
    if (current_ == kNoSegment || !segments_[current_] || segments_[current_]->closed ||
        (segments_[current_]->length > kPage &&
         segments_[current_]->length + bytes > roll_bytes_)) {
      if (current_ != kNoSegment && segments_[current_]) {
        Segment& full = *segments_[current_];
        full.closed = true;
        cut(full, round_up(full.length, kPage));
      }
      begin_segment(bytes, rest);
    }
    Segment& s = *segments_[current_];
    reserve(s, round_up(s.length + bytes, kPage), rest);
    event.segment = static_cast<std::int32_t>(current_);
    event.offset = s.length;
  }

  void begin_segment(std::int64_t bytes, std::span<const TokenRange> rest) {
    auto s = std::make_unique<Segment>();
    s->own = true;
    if (options_.disk_bytes > 0 && taken_ + overhead_ > options_.disk_bytes) refuse(rest);
    std::random_device random;
    s->id = (std::uint64_t{random()} << 32) | random();
    try {
      if (options_.keep) {
        s->path = dir_ / segment_name(s->id);
        s->write = io::File(calls_, io::Kind::segment, s->path, O_RDWR | O_CREAT | O_EXCL);
      } else {
        s->write = unnamed_file(s->id);
      }
      s->overhead = overhead_;
      taken_ += overhead_;
      reserve(*s, file_bytes(bytes), rest);
      std::byte* const page = scratch_page();
      segment_file::fill_header(shape_, s->id, page);
      s->write.write({page, static_cast<std::size_t>(kPage)}, 0);
      open_reader(*s);
      const std::lock_guard lock(mutex_);
      segments_.push_back(std::move(s));
      current_ = segments_.size() - 1;
    } catch (...) {
      if (s && s->write) remove_file(*s);
      throw;
    }
  }

  io::File unnamed_file(std::uint64_t id) {
#ifdef O_TMPFILE
    const int fd = calls_.open(io::Kind::segment, dir_.c_str(), O_RDWR | O_TMPFILE);
    if (fd >= 0) return io::File::adopt(calls_, io::Kind::segment, dir_, fd);
    if (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -ENOENT && fd != -EINVAL)
      io::fail(-fd, dir_, "create a segment file in it");
#endif
    const std::filesystem::path path = dir_ / segment_name(id);
    io::File file(calls_, io::Kind::segment, path, O_RDWR | O_CREAT | O_EXCL);
    if (const int r = calls_.unlink(io::Kind::segment, path.c_str()); r < 0)
      io::fail(-r, path, "take its name away");
    return file;
  }

  /// Takes room from the file system up to `end`, and ahead of it what is likely to be needed.
  void reserve(Segment& s, std::int64_t end, std::span<const TokenRange> rest) {
    if (end <= s.allocated) return;
    const std::int64_t needed = end - s.allocated;
    std::int64_t extent =
        std::max(needed, std::clamp(s.allocated, kLeastExtentBytes, kExtentBytes));
    extent = std::max(needed, std::min(extent, round_up(roll_bytes_, kPage) - s.allocated));
    if (options_.disk_bytes > 0) {
      const std::int64_t left = (options_.disk_bytes - taken_) / kPage * kPage;
      if (needed > left) refuse(rest);
      // A sixteenth of a small budget at most lies idle.
      extent = std::max(needed, std::min({extent, left, options_.disk_bytes / 16 / kPage * kPage}));
    }
    int result = calls_.allocate(io::Kind::segment, s.write.fd(), s.allocated, extent);
    if ((result == -ENOSPC || result == -EDQUOT) && extent > needed) {
      calls_.truncate(io::Kind::segment, s.write.fd(), s.allocated);
      extent = needed;
      result = calls_.allocate(io::Kind::segment, s.write.fd(), s.allocated, extent);
    }
    if (result < 0) {
      calls_.truncate(io::Kind::segment, s.write.fd(), s.allocated);
      std::int64_t bytes = 0;
      for (const TokenRange& range : rest) bytes += record_bytes(range.size());
      io::fail(-result, s.path.empty() ? dir_ : s.path,
               fmt::format("reserve {} bytes for {} events", bytes, rest.size()),
               result == -ENOSPC || result == -EDQUOT
                   ? fmt::format("free at least {} bytes on its file system; what was stored stays",
                                 bytes)
                   : "");
    }
    s.allocated += extent;
    taken_ += extent;
  }

  [[noreturn]] void refuse(std::span<const TokenRange> rest) const {
    std::int64_t missing = 0;
    for (const TokenRange& range : rest)
      missing += file_bytes(record_bytes(range.size())) + overhead_;
    throw BudgetError(fmt::format(
        "disk store: disk_bytes = {} is used up ({} bytes taken) and {} more bytes are needed for "
        "{} events; set disk_bytes to at least {} (0: no bound)",
        options_.disk_bytes, taken_, missing, rest.size(), taken_ + missing));
  }

  /// Gives back what a file of our own has reserved beyond `bytes`. A hint: a refusal costs room.
  void cut(Segment& s, std::int64_t bytes) {
    if (s.allocated <= bytes) return;
    if (calls_.truncate(io::Kind::segment, s.write.fd(), bytes) < 0) return;
    taken_ -= s.allocated - bytes;
    s.allocated = bytes;
  }

  void remove_file(Segment& s) {
    if (!s.path.empty()) calls_.unlink(io::Kind::segment, s.path.c_str());
    taken_ -= s.allocated + s.overhead;
    s.allocated = s.overhead = 0;
  }

  void forget_file(std::size_t index) {
    std::erase_if(holes_, [&](const Hole& h) { return h.segment == index; });
    taken_ -= segments_[index]->allocated + segments_[index]->overhead;
    segments_[index].reset();
    if (current_ == index) current_ = kNoSegment;
  }

  /// Files of our own that no image can name go at once. One whose name cannot be removed stays,
  /// and is tried again.
  void release_empty_segments() {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (!segments_[i]) continue;
      Segment& s = *segments_[i];
      if (!s.own || s.live_events > 0 || s.frozen > 0) continue;
      if (i == current_ && !s.closed) {  // begin it anew
        s.length = kPage;
        std::erase_if(holes_, [&](const Hole& h) { return h.segment == i; });
      } else if (s.path.empty() || calls_.unlink(io::Kind::segment, s.path.c_str()) >= 0) {
        forget_file(i);
      }
    }
  }

  /// Makes a file of our own durable up to its length, rounded up to a page.
  void freeze(Segment& s, std::size_t index) {
    static constexpr std::byte kZeros[kPage] = {};
    const auto zero = [&](std::int64_t offset, std::int64_t bytes) {
      for (; bytes > 0; offset += kPage, bytes -= kPage)
        s.write.write(std::span(kZeros).first(static_cast<std::size_t>(std::min(bytes, kPage))),
                      offset);
    };
    for (const Hole& hole : holes_)
      if (hole.segment == index) zero(hole.offset, hole.bytes);
    const std::int64_t end = round_up(s.length, kPage);
    zero(s.length, end - s.length);
    cut(s, end);
    s.write.sync();
    std::erase_if(holes_, [&](const Hole& h) { return h.segment == index; });
    s.length = end;
  }

  StoreImage image() const {
    StoreImage image;
    std::vector<std::int32_t> number(segments_.size(), -1);
    for (std::size_t i = 0; i < segments_.size(); ++i)
      if (segments_[i] && segments_[i]->live_events > 0) {
        number[i] = static_cast<std::int32_t>(image.segments.size());
        image.segments.push_back({segments_[i]->id, segments_[i]->length});
      }
    image.events.reserve(events_.size());
    for (const Event& e : events_)
      image.events.push_back({e.range,
                              e.segment < 0 ? -1 : number[static_cast<std::size_t>(e.segment)],
                              e.segment < 0 ? 0 : e.offset, e.last_recall, e.recalls, e.pinned});
    return image;
  }

  /// Copies the live events of a file to where new ones go. All or nothing.
  void move_out(std::size_t index) {
    std::vector<std::pair<EventId, Event>> moved;
    segments_[index]->closed = true;
    try {
      for (EventId id = 0; id < n_events(); ++id) {
        if (at(id).segment != static_cast<std::int32_t>(index)) continue;
        Event event = at(id);
        place(event, std::span(&event.range, 1));
        {
          const std::lock_guard lock(mutex_);
          count_in(event);
          moved.emplace_back(id, event);
        }
        Segment& to = segment_of_event(event);
        const std::int64_t stride = block_stride(shape_, event.range.size());
        for (std::int64_t layer = 0; layer < shape_.n_layers; ++layer)
          with_block(id, layer, [&](std::byte* block) {
            segment_file::seal_block(shape_, {to.id, id, layer, event.range}, block);
            to.write.write({block, static_cast<std::size_t>(stride)},
                           event.offset + layer * stride);
          });
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      for (; !moved.empty(); moved.pop_back()) give_back(moved.back().second);
      throw;
    }
    const std::lock_guard lock(mutex_);
    for (auto& [id, event] : moved) {
      std::swap(at(id), event);
      give_back(event);
      counters_.written_bytes += record_bytes(at(id).range.size());
    }
  }

  // ---- writing behind
  // ----------------------------------------------------------------------------

  /// A block to fill, waiting for others to be written if it must.
  std::uint32_t make_room(std::unique_lock<std::mutex>& lock, const Event& e, EventId event,
                          std::int64_t layer) {
    for (;;) {
      const std::uint32_t block =
          cache_->insert(event, layer, block_stride(shape_, e.range.size()), e.pinned);
      if (block != BlockCache::kNone) {
        ++n_unclean_;
        return block;
      }
      if (cache_->evict()) {
        ++counters_.evictions;
        continue;
      }
      if (error_) std::rethrow_exception(error_);
      if (n_unclean_ == 0)
        throw BudgetError(fmt::format(
            "disk store: host_bytes = {} are all leased; release layers before events are written, "
            "or set host_bytes higher",
            options_.host_bytes));
      written_.wait(lock);
    }
  }

  void enqueue(std::uint32_t block) {
    (*cache_)[block].state = BlockCache::State::dirty;
    (*cache_)[block].queue = BlockCache::kNone;
    (last_dirty_ == BlockCache::kNone ? first_dirty_ : (*cache_)[last_dirty_].queue) = block;
    last_dirty_ = block;
  }

  void unqueue(std::uint32_t block) {
    std::uint32_t before = BlockCache::kNone, here = first_dirty_;
    while (here != block) {
      before = here;
      here = (*cache_)[here].queue;
    }
    const std::uint32_t after = (*cache_)[block].queue;
    (before == BlockCache::kNone ? first_dirty_ : (*cache_)[before].queue) = after;
    if (last_dirty_ == block) last_dirty_ = before;
  }

  /// Takes a block off the writer, to fill it anew or to forget it.
  void withdraw(std::unique_lock<std::mutex>& lock, std::uint32_t block) {
    ++(*cache_)[block].leases;  // others may evict meanwhile
    written_.wait(lock, [&] { return (*cache_)[block].state != BlockCache::State::writing; });
    --(*cache_)[block].leases;
    if ((*cache_)[block].state == BlockCache::State::dirty)
      unqueue(block);
    else
      ++n_unclean_;
    (*cache_)[block].state = BlockCache::State::filling;
  }

  void abandon(std::uint32_t block) {
    cache_->erase(block);
    --n_unclean_;
    written_.notify_all();
  }

  void drop_blocks(std::unique_lock<std::mutex>& lock, EventId event) {
    for (std::int64_t layer = 0; layer < shape_.n_layers; ++layer)
      if (const std::uint32_t block = cache_->find(event, layer); block != BlockCache::kNone) {
        withdraw(lock, block);
        abandon(block);
      }
  }

  /// Waits until all is written. \throws what a write failed with; nothing is lost then
  void drain() {
    std::unique_lock lock(mutex_);
    error_ = nullptr;
    work_.notify_one();
    written_.wait(lock, [&] { return n_unclean_ == 0 || error_; });
    if (error_) std::rethrow_exception(error_);
  }

  void retry_writes() {
    {
      const std::lock_guard lock(mutex_);
      if (!error_) return;
    }
    drain();
  }

  void write_behind() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return stopping_ || (first_dirty_ != BlockCache::kNone && !error_); });
      if (stopping_) return;
      gather_batch();
      lock.unlock();
      std::size_t written = 0;
      std::exception_ptr error;
      try {
        while (written < batch_.size()) written = write_run(written);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      for (std::size_t i = 0; i < batch_.size(); ++i) {
        if (i >= written) {
          enqueue(batch_[i].block);
          continue;
        }
        (*cache_)[batch_[i].block].state = BlockCache::State::clean;
        --n_unclean_;
        counters_.written_bytes += batch_[i].bytes;
      }
      if (error) error_ = error;
      written_.notify_all();
    }
  }

  /// Takes blocks off the queue, in the order of their places in the files.
  void gather_batch() {
    batch_.clear();
    while (first_dirty_ != BlockCache::kNone && batch_.size() < kMostInBatch) {
      const std::uint32_t block = first_dirty_;
      first_dirty_ = (*cache_)[block].queue;
      (*cache_)[block].state = BlockCache::State::writing;
      // Place and size only: the store's user changes the rest without the lock.
      const Event& event = at((*cache_)[block].event);
      const std::int64_t stride = block_stride(shape_, event.range.size());
      batch_.push_back({block, &segment_of_event(event).write,
                        event.offset + (*cache_)[block].layer * stride, stride});
    }
    if (first_dirty_ == BlockCache::kNone) last_dirty_ = BlockCache::kNone;
    std::sort(batch_.begin(), batch_.end(), [](const Dirty& a, const Dirty& b) {
      return a.file != b.file ? std::less<>()(a.file, b.file) : a.offset < b.offset;
    });
  }

  /// Writes the blocks of the batch from `first` on that lie end to end, at once: one large write
  /// costs little more than a small one. \return the first block after them
  std::size_t write_run(std::size_t first) {
    const Dirty& run = batch_[first];
    std::size_t end = first + 1;
    std::int64_t bytes = run.bytes;
    while (end < batch_.size() && batch_[end].file == run.file &&
           batch_[end].offset == run.offset + bytes &&
           bytes + batch_[end].bytes <= static_cast<std::int64_t>(gathered_.size()))
      bytes += batch_[end++].bytes;
    const std::byte* from = cache_->data(run.block);
    if (end > first + 1) {
      std::byte* to = gathered_.data();
      for (std::size_t i = first; i < end; to += batch_[i++].bytes)
        std::memcpy(to, cache_->data(batch_[i].block), static_cast<std::size_t>(batch_[i].bytes));
      from = gathered_.data();
    }
    run.file->write({from, static_cast<std::size_t>(bytes)}, run.offset);
    return end;
  }

  // ---- reading
  // -----------------------------------------------------------------------------------

  Slot* find_slot(EventId event, std::int64_t layer) {
    for (Slot& slot : slots_)
      if (slot.use == Slot::Use::prefetched && slot.event == event && slot.layer == layer)
        return &slot;
    return nullptr;
  }

  /// A free slot, else a prefetched one that `may_go`; null if there is none.
  template <class MayGo>
  Slot* free_slot_or(MayGo&& may_go) {
    for (Slot& slot : slots_)
      if (slot.use == Slot::Use::free) return &slot;
    for (Slot& slot : slots_)
      if (slot.use == Slot::Use::prefetched && may_go(slot)) {
        free_slot(slot);
        return &slot;
      }
    return nullptr;
  }

  void free_slot(Slot& slot) {
    queue_->wait(slot.read);
    slot.use = Slot::Use::free;
  }

  void drop_prefetched() {
    for (Slot& slot : slots_)
      if (slot.use == Slot::Use::prefetched) free_slot(slot);
  }

  /// A page to work with, when no acquire is under way.
  std::byte* scratch_page() {
    free_slot(slots_.front());
    return slots_.front().read.to;
  }

  void begin_read(Slot& slot, EventId event, std::int64_t layer, Slot::Use use) {
    const Event& e = at(event);
    const Segment& s = segment_of_event(e);
    const std::int64_t stride = block_stride(shape_, e.range.size());
    const std::int64_t grain = s.direct ? kPage : 1, from = e.offset + layer * stride;
    slot.event = event;
    slot.layer = layer;
    slot.use = use;
    slot.read.fd = s.read ? s.read.fd() : s.write.fd();
    slot.read.grain = grain;
    slot.read.offset = from / grain * grain;
    slot.skip = from - slot.read.offset;
    slot.read.bytes = round_up(slot.skip + stride, grain);
    counters_.read_bytes += slot.read.bytes;
    queue_->submit(slot.read);
  }

  /// The block that a slot was to read, verified. \throws FileError
  std::byte* finish_read(Slot& slot) {
    const std::int64_t stride = block_stride(shape_, at(slot.event).range.size());
    std::byte* const block = slot.read.to + slot.skip;
    std::string fault;
    int failed = 0;
    // What went wrong may have done so on the way: it is read once more.
    for (int tries = 0; tries < 2; ++tries) {
      if (tries > 0) {
        queue_->submit(slot.read);
        queue_->start();
      }
      queue_->wait(slot.read);
      failed = 0;
      if (slot.read.result < 0) {
        failed = static_cast<int>(-slot.read.result);
        continue;
      }
      fault = slot.read.result < slot.skip + stride
                  ? "is cut short by the end of the file"
                  : segment_file::block_fault(shape_, name(slot.event, slot.layer), block);
      if (fault.empty()) return block;
      ++counters_.read_errors;
    }
    const Segment& s = segment_of_event(at(slot.event));
    const std::filesystem::path path = s.path.empty() ? dir_ / segment_name(s.id) : s.path;
    const std::int64_t offset = slot.read.offset + slot.skip;
    if (failed != 0)
      io::fail(failed, path,
               fmt::format("read event {}, layer {} at byte {}", slot.event, slot.layer, offset),
               "run episodic verify; restore from a copy");
    throw FileError(fmt::format(
        "{}: event {}, layer {} at byte {} {}; run episodic verify; restore from a copy",
        path.string(), slot.event, slot.layer, offset, fault));
  }

  /// Calls use(block) with a verified block read from its file, header and all.
  template <class Use>
  void with_block(EventId event, std::int64_t layer, Use&& use) {
    Slot* const slot = free_slot_or([](const Slot&) { return true; });
    begin_read(*slot, event, layer, Slot::Use::taken);
    queue_->start();
    try {
      use(finish_read(*slot));
    } catch (...) {
      free_slot(*slot);
      throw;
    }
    free_slot(*slot);
  }

  /// Calls use(bytes) with one layer of an event as it is stored, wherever it lies.
  template <class Use>
  void with_stored(EventId event, std::int64_t layer, Use&& use) {
    check_event(event);
    const Event& e = at(event);
    if (e.segment < 0) throw DataError(fmt::format("disk store: event {} was forgotten", event));
    const auto bytes = static_cast<std::size_t>(block_bytes(shape_, e.range.size()));
    {
      const std::lock_guard lock(mutex_);
      if (const std::uint32_t block = cache_->find(event, layer); block != BlockCache::kNone) {
        use(std::span<const std::byte>(cache_->data(block) + kLine, bytes));
        return;
      }
    }
    if (event >= first_pending_ && !pending_[pending_at(event, layer)])
      throw DataError(
          fmt::format("disk store: layer {} of event {} was never written", layer, event));
    with_block(event, layer, [&](const std::byte* block) {
      use(std::span<const std::byte>(block + kLine, bytes));
    });
  }

  void take(Lease& lease, std::uint32_t block) {
    ++(*cache_)[block].leases;
    cache_->touch(block);
    lease.blocks.push_back(block);
  }

  void read_misses(std::int64_t layer, std::span<const EventId> events, Lease& lease,
                   std::vector<KvSegment>& out) {
    for (Miss& miss : misses_) {
      const EventId event = events[miss.i];
      if (event >= first_pending_ && !pending_[pending_at(event, layer)])
        throw DataError(
            fmt::format("disk store: layer {} of event {} was never written", layer, event));
      miss.slot = find_slot(event, layer);
      if (!miss.slot) continue;
      miss.slot->use = Slot::Use::taken;
      ++counters_.prefetched;
    }
    // Those on their way come first, so that the slot that is waited for next is never taken by a
    // later one.
    std::partition(misses_.begin(), misses_.end(), [](const Miss& m) { return m.slot != nullptr; });
    std::size_t begun = 0;
    for (std::size_t i = 0; i < misses_.size(); ++i) {
      bool more = false;
      for (; begun < misses_.size(); ++begun) {
        Miss& next = misses_[begun];
        if (next.slot) continue;
        next.slot = free_slot_or([](const Slot&) { return true; });
        if (!next.slot) break;
        begin_read(*next.slot, events[next.i], layer, Slot::Use::taken);
        more = true;
      }
      if (more) queue_->start();
      Miss& miss = misses_[i];
      out[miss.i] = keep(lease, events[miss.i], layer, finish_read(*miss.slot));
      free_slot(*std::exchange(miss.slot, nullptr));
    }
  }

  /// Puts a block that was read where it can be leased.
  KvSegment keep(Lease& lease, EventId event, std::int64_t layer, const std::byte* from) {
    constexpr int kMostEvictions = 64;
    const Event& e = at(event);
    const std::int64_t stride = block_stride(shape_, e.range.size());
    const std::lock_guard lock(mutex_);
    std::uint32_t block = cache_->find(event, layer);
    if (block == BlockCache::kNone) {
      block = cache_->insert(event, layer, stride, e.pinned);
      for (int i = 0; block == BlockCache::kNone && i < kMostEvictions && cache_->evict(); ++i) {
        ++counters_.evictions;
        block = cache_->insert(event, layer, stride, e.pinned);
      }
      if (block == BlockCache::kNone) {
        const std::int64_t bytes = stride - kLine;
        if (overflow_used_ + bytes > static_cast<std::int64_t>(overflow_.size()))
          throw BudgetError(fmt::format(
              "disk store: host_bytes = {} cannot hold the leases of several layers at once; set "
              "host_bytes higher, or release a layer before the next is acquired",
              options_.host_bytes));
        std::byte* const to = overflow_.data() + overflow_used_;
        std::memcpy(to, from + kLine, static_cast<std::size_t>(bytes));
        overflow_used_ += bytes;
        return segment_of(shape_, e.range, to);
      }
      std::memcpy(cache_->data(block), from, static_cast<std::size_t>(stride));
      (*cache_)[block].state = BlockCache::State::clean;
    }
    take(lease, block);
    return segment_of(shape_, e.range, cache_->data(block) + kLine);
  }

  StoreShape shape_;
  DiskStoreOptions options_;
  std::filesystem::path dir_;  ///< of new files
  io::Syscalls& calls_;
  std::int64_t roll_bytes_ = 0;
  std::int64_t overhead_ = 0;  ///< of one segment
  bool want_direct_ = false;
  Mapping memory_;
  std::vector<Slot> slots_;
  std::span<std::byte> overflow_;
  std::int64_t overflow_used_ = 0, n_overflowing_ = 0;
  std::vector<Lease> leases_;
  std::vector<Miss> misses_;
  std::int64_t step_ = 0;

  // The mutex is for the cache, the queue of writes, and what the writer looks up: events and
  // segments are changed under it, by the store's one user.
  mutable std::mutex mutex_;
  std::condition_variable work_;     ///< for the writer: something to write
  std::condition_variable written_;  ///< from the writer: a block was written, or could not be
  std::optional<BlockCache> cache_;
  std::vector<Event> events_;
  std::vector<std::unique_ptr<Segment>> segments_;  ///< null: removed
  std::size_t current_ = kNoSegment;                ///< where the next event goes
  std::vector<Hole> holes_;
  std::vector<std::pair<std::filesystem::path, std::int64_t>> orphans_;  ///< and their bytes
  std::int64_t taken_ = 0;  ///< bytes taken from the file system
  /// Of the events from first_pending_ on, layer by layer: whether it was written.
  std::vector<std::uint8_t> pending_;
  EventId first_pending_ = 0;
  std::uint32_t first_dirty_ = BlockCache::kNone, last_dirty_ = BlockCache::kNone;
  std::vector<Dirty> batch_;       ///< the writer's own
  std::span<std::byte> gathered_;  ///< the writer's own
  std::int64_t n_unclean_ = 0;     ///< blocks that are not `clean`
  std::exception_ptr error_;       ///< what the last background write failed with
  bool stopping_ = false;
  StoreCounters counters_;

  std::unique_ptr<ReadQueue> queue_;
  std::thread writer_;
};

}  // namespace

std::unique_ptr<DiskStore> make_disk_store(const StoreShape& shape,
                                           const DiskStoreOptions& options) {
  return std::make_unique<Store>(shape, options, options.dir);
}

std::unique_ptr<DiskStore> open_disk_store(const StoreShape& shape, const DiskStoreOptions& options,
                                           const StoreImage& image,
                                           const std::filesystem::path& scratch_dir) {
  auto store = std::make_unique<Store>(
      shape, options, options.keep || scratch_dir.empty() ? options.dir : scratch_dir);
  store->load(image);
  return store;
}

std::int64_t disk_bytes_needed(const StoreShape& shape, std::int64_t n_events,
                               std::int64_t n_tokens) {
  if (n_events < 1) return 0;
  // A block is a part per event and a part per token.
  const std::int64_t per_token = block_bytes(shape, 2) - block_bytes(shape, 1);
  const std::int64_t per_event = block_bytes(shape, 1) - per_token;
  const std::int64_t records =
      shape.n_layers * (n_events * (per_event + 2 * kLine) + n_tokens * per_token);
  const std::int64_t files = records / kSegmentBytes + 1;
  return round_up(records, kPage) + files * (3 * kPage + kSegmentBytes / kExtentBytes * kPage);
}

std::int64_t default_host_bytes(const StoreShape& shape, std::int64_t max_block,
                                std::int64_t lease_tokens) {
  return std::max(least_host_bytes(shape, max_block, lease_tokens), kDefaultHostBytes);
}

std::int64_t least_host_bytes(const StoreShape& shape, std::int64_t max_block,
                              std::int64_t lease_tokens) {
  check_shape(shape, max_block, lease_tokens);
  const HostPlan fixed(shape, max_block, std::max(lease_tokens, max_block), 0, 1);
  const std::int64_t arena =
      4 * (block_stride(shape, max_block) + BlockCache::kOverhead + kLine) + 2 * kLine;
  // The table takes less than a fifteenth of the arena beyond its least size.
  const std::int64_t table = arena / 15 + 64 * std::int64_t{sizeof(std::uint32_t)} + kLine;
  return round_up(fixed.lease_bytes + kLeastSlots * fixed.slot_bytes + arena + table, kPage);
}

}  // namespace episodic
