// SPDX-License-Identifier: Apache-2.0
#include "episodic/store/disk_store.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <system_error>
#include <utility>

#include "disk_store_impl.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace disk_store {
namespace {

void check_shape(const StoreShape& shape, std::int64_t max_block, std::int64_t lease_tokens) {
  if (shape.n_lanes < 1 || shape.n_kv_heads < 1 || shape.head_dim < 1 || max_block < 1 ||
      lease_tokens < 1)
    throw ConfigError(fmt::format(
        "disk store: {} lanes, {} key/value heads, {} channels, max_block {}, lease_tokens {}; "
        "each must be at least 1",
        shape.n_lanes, shape.n_kv_heads, shape.head_dim, max_block, lease_tokens));
  // A block's number of tokens and lane are kept in 32 bits; products of the rest are lengths.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr double kMostBytes = 1125899906842624.0;  // 2^50
  const double token = 2.0 * static_cast<double>(shape.n_kv_heads) *
                           static_cast<double>(shape.head_dim) * size_of(shape.dtype) +
                       8.0 * static_cast<double>(shape.n_kv_heads) + 256;
  if (shape.n_lanes > kMost || max_block > kMost ||
      static_cast<double>(shape.n_lanes) * static_cast<double>(max_block) * token > kMostBytes ||
      static_cast<double>(lease_tokens) * token > kMostBytes)
    throw ConfigError(fmt::format(
        "disk store: {} lanes of {} key/value heads of {} channels: events of max_block = {} "
        "tokens, or a recall of {}, are more than any machine holds; lower max_block or n_mem",
        shape.n_lanes, shape.n_kv_heads, shape.head_dim, max_block, lease_tokens));
}

/// What a store takes of host memory whatever host_bytes are.
struct FixedPlan {
  std::int64_t lease_bytes = 0;  ///< for what an acquire could not put into the cache
  std::int64_t slot_bytes = 0;   ///< to read a block into
  std::int64_t least_bytes = 0;  ///< with the fewest slots and the smallest cache

  FixedPlan(const StoreShape& shape, std::int64_t max_block, std::int64_t lease_tokens) {
    const std::int64_t block = block_stride(shape, max_block);
    // Of all ways to cut the tokens of a lease into events, single tokens take the most.
    lease_bytes =
        round_up(std::max(lease_tokens * round_up(block_bytes(shape, 1), kLine), block), kPage);
    slot_bytes = round_up(block, kPage) + kPage;  // a block in the pages around it
    const std::int64_t arena = 4 * (block + BlockCache::kOverhead + kLine) + 2 * kLine;
    // The table takes less than a fifteenth of the arena beyond its least size.
    const std::int64_t table = arena / 15 + 64 * std::int64_t{sizeof(std::uint32_t)} + kLine;
    least_bytes = round_up(lease_bytes + kLeastSlots * slot_bytes + arena + table, kPage);
  }
};

/// How host_bytes are divided. All of it is one reservation of address space.
/// \pre host_bytes >= least_bytes
struct HostPlan : FixedPlan {
  std::int64_t gather_bytes = 0;  ///< to write neighbouring blocks at once; not of a small budget
  std::int64_t n_slots = 0;
  std::int64_t n_buckets = 0;
  std::int64_t arena_bytes = 0;
  /// Of one that reads.
  std::int64_t reader_bytes() const { return n_slots * slot_bytes + lease_bytes; }

  HostPlan(const StoreShape& shape, std::int64_t max_block, std::int64_t lease_tokens,
           std::int64_t host_bytes, std::int64_t read_depth)
      : FixedPlan(shape, max_block, lease_tokens) {
    // Gathering is for speed alone: it takes of what is to spare.
    if (host_bytes >= 32 * kGatherBytes && host_bytes - least_bytes >= kGatherBytes)
      gather_bytes = kGatherBytes;
    // Slots beyond the fewest take an eighth of what is left, so that the cache keeps the most.
    const std::int64_t divided = host_bytes - lease_bytes - gather_bytes;
    n_slots = std::clamp(divided / 8 / slot_bytes, kLeastSlots, kSlotsPerRead * read_depth);
    const std::int64_t rest = std::min(divided - n_slots * slot_bytes, BlockCache::kMostBytes);
    const auto likely = static_cast<std::uint64_t>(rest / block_stride(shape, (max_block + 3) / 4));
    n_buckets = static_cast<std::int64_t>(
        std::bit_ceil(std::clamp<std::uint64_t>(likely, 64, kMostBuckets)));
    arena_bytes = (rest - n_buckets * std::int64_t{sizeof(std::uint32_t)}) / kLine * kLine;
  }
};

/// Address space, aligned to the large pages that it is asked to be made of: a read into memory
/// that lies in one piece is one piece to the device, whose queue then holds many of them.
Mapping reserve_memory(std::int64_t bytes) {
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  const auto used = static_cast<std::size_t>(bytes), mapped = used + kLargePage;
  void* const base = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw BudgetError(fmt::format(
        "disk store: the system refused host_bytes = {}; set host_bytes lower, or n_mem, "
        "whose events must have room there",
        bytes));
  void* at = base;
  std::size_t space = mapped;
  std::align(kLargePage, used, at, space);
  ::madvise(at, used / kLargePage * kLargePage, MADV_HUGEPAGE);  // a hint
  return Mapping(static_cast<std::byte*>(at), Unmap{base, mapped});
}

}  // namespace

Store::Store(const StoreShape& shape, const DiskStoreOptions& options,
             const std::filesystem::path& new_dir)
    : shape_(shape),
      options_(options),
      calls_(options.calls ? *options.calls : io::system_calls()) {
  options_.lease_tokens = std::max(options.lease_tokens, options.max_block);
  check_shape(shape, options.max_block, options.lease_tokens < 0 ? 0 : options_.lease_tokens);
  if (options.read_depth < 1 || options.read_depth > kMostReads)
    throw ConfigError(fmt::format("disk store: read_depth = {}, must be from 1 to {}",
                                  options.read_depth, kMostReads));
  if (options.host_bytes < 0 || options.disk_bytes < 0)
    throw ConfigError(fmt::format("disk store: host_bytes = {}, disk_bytes = {}, must be >= 0",
                                  options.host_bytes, options.disk_bytes));
  const std::int64_t least = FixedPlan(shape, options.max_block, options_.lease_tokens).least_bytes;
  if (options.host_bytes == 0) options_.host_bytes = std::max(least, kDefaultHostBytes);
  if (options_.host_bytes < least)
    throw BudgetError(fmt::format(
        "disk store: host_bytes = {} cannot hold events of max_block = {} tokens and a recall of "
        "{} tokens; set host_bytes to at least {} (0: a default), or lower max_block",
        options.host_bytes, options.max_block, options_.lease_tokens, least));
  if (const std::int64_t one = file_bytes(record_bytes(options.max_block, shape.n_lanes)) + kPage;
      options.disk_bytes > 0 && options.disk_bytes < one)
    throw BudgetError(fmt::format(
        "disk store: disk_bytes = {} cannot hold one event of max_block = {} tokens; set "
        "disk_bytes to at least {} (0: no bound), or lower max_block",
        options.disk_bytes, options.max_block, one));
  io::AppendFiles::Options files;
  files.keep = options.keep;
  files.counted = options.counted;
  files.page = kPage;
  files.zero_holes = true;
  files.unit = "events";
  files.most_bytes = options.disk_bytes;
  if (options.disk_bytes > 0)
    files.roll_bytes = std::clamp(options.disk_bytes / 16, kLeastSegmentBytes, files.roll_bytes);
  // Maps of extents: a page, and one more for each 64 MiB if they are in many pieces.
  files.overhead = kPage * (1 + files.roll_bytes / io::AppendFiles::kExtentBytes);
  files.queue_bytes = 0;  // what waits lies in the cache, which has a bound
  files.opened = [this](Segment& s) { open_reader(s); };
  files.written = [this](const io::WriteQueue::Write& w) {
    (*cache_)[static_cast<std::uint32_t>(w.tag)].state = BlockCache::State::clean;
    --n_unclean_;
    counters_.written_bytes += static_cast<std::int64_t>(w.bytes.size());
  };
  want_direct_ = options.direct == DirectIo::on ||
                 (options.direct == DirectIo::automatic &&
                  block_stride(shape, (options.max_block + 1) / 2) >= kDirectBytes);

  const HostPlan plan(shape, options.max_block, options_.lease_tokens, options_.host_bytes,
                      options_.read_depth);
  memory_ = reserve_memory(options_.host_bytes);
  std::byte* at = memory_.get();
  std::byte* const for_reader = at;
  at += plan.reader_bytes();
  files.gather = {at, static_cast<std::size_t>(plan.gather_bytes)};
  at += plan.gather_bytes;
  const std::span<std::byte> arena(at, static_cast<std::size_t>(plan.arena_bytes));
  at += plan.arena_bytes;
  cache_.emplace(arena, std::span(reinterpret_cast<std::uint32_t*>(at),
                                  static_cast<std::size_t>(plan.n_buckets)));
  files_.emplace(segment_file::format_of(shape), std::move(files), io::Directory(calls_, new_dir));
  own_ = std::make_unique<Reader>(*this, for_reader);
}

Store::~Store() { own_->drop_prefetched(); }

Store::Reader::Reader(const Store& store, std::byte* memory) : store_(store) {
  const HostPlan plan(store.shape_, store.options_.max_block, store.options_.lease_tokens,
                      store.options_.host_bytes, store.options_.read_depth);
  slots_.resize(static_cast<std::size_t>(plan.n_slots));
  for (Slot& slot : slots_) {
    slot.read.to = memory;
    memory += plan.slot_bytes;
  }
  overflow_ = {memory, static_cast<std::size_t>(plan.lease_bytes)};
  leases_.resize(static_cast<std::size_t>(store.shape_.n_lanes));
  queue_ = make_read_queue(store.options_.engine, store.calls_,
                           std::min(plan.n_slots, store.options_.read_depth));
}

Store::Reader::Reader(const Store& store, Mapping memory) : Reader(store, memory.get()) {
  memory_ = std::move(memory);
}

Store::Reader::~Reader() {
  drop_prefetched();
  const auto lock = store_.lock();
  for (const Lease& lease : leases_)
    for (const std::uint32_t block : lease.blocks) --(*store_.cache_)[block].leases;
}

std::unique_ptr<StoreReader> Store::reader() const {
  const HostPlan plan(shape_, options_.max_block, options_.lease_tokens, options_.host_bytes,
                      options_.read_depth);
  return std::make_unique<Reader>(*this, reserve_memory(plan.reader_bytes()));
}

StoreCounters Store::Reader::counters() const {
  StoreCounters c = counters_;
  c.bytes_reserved = memory_ ? static_cast<std::int64_t>(memory_.get_deleter().bytes) : 0;
  return c;
}

void Store::forget(EventId event) {
  check_event(event);
  own_->check_unleased("forget an event");
  Event& e = at(event);
  if (e.segment < 0) return;
  own_->drop_prefetched();
  auto lock = this->lock();
  files_->reserve_holes(lock, 1);
  drop_blocks(lock, event);
  give_back(lock, e);
  if (event >= first_pending_)  // nothing is missing of it any more
    std::fill_n(pending_.begin() + static_cast<std::ptrdiff_t>(e.flags), e.lanes.count,
                std::uint8_t{1});
  files_->release_empty(lock);
}

void Store::truncate(std::int64_t n) {
  if (n < 0 || n > n_events())
    throw DataError(fmt::format("disk store: cannot truncate {} events to {}", n_events(), n));
  own_->check_unleased("truncate");
  own_->drop_prefetched();
  auto lock = this->lock();
  files_->reserve_holes(lock, static_cast<std::size_t>(n_events() - n));  // then nothing can fail
  while (n_events() > n) {
    const EventId last = n_events() - 1;
    drop_blocks(lock, last);
    give_back(lock, events_.back());
    if (last >= first_pending_) pending_.resize(events_.back().flags);
    events_.pop_back();
  }
  first_pending_ = std::min(first_pending_, n);
  files_->release_empty(lock);
}

void Store::pin(EventId event, bool pinned) {
  check_event(event);
  if (at(event).pinned == pinned) return;
  at(event).pinned = pinned;
  const auto lock = this->lock();
  for (std::int64_t lane = at(event).lanes.first; at(event).lanes.holds(lane); ++lane)
    if (const std::uint32_t block = cache_->find(event, lane); block != BlockCache::kNone)
      cache_->pin(block, pinned);
}

std::int64_t Store::last_recall(EventId event) const {
  check_event(event);
  return at(event).last_recall;
}

std::int64_t Store::recalls(EventId event) const {
  check_event(event);
  return at(event).recalls;
}

void Store::set_recalls(EventId event, std::int64_t recalls, std::int64_t last_recall) {
  check_event(event);
  at(event).recalls = recalls;
  at(event).last_recall = last_recall;
}

bool Store::pinned(EventId event) const {
  check_event(event);
  return at(event).pinned;
}

const char* Store::tier(EventId event) const {
  check_event(event);
  const auto lock = this->lock();
  for (std::int64_t lane = at(event).lanes.first; at(event).lanes.holds(lane); ++lane) {
    if (event >= first_pending_ && !pending_[pending_at(event, lane)]) return "host";
    if (const std::uint32_t block = cache_->find(event, lane);
        block != BlockCache::kNone && (*cache_)[block].state != BlockCache::State::clean)
      return "host";
  }
  return "disk";
}

StoreCounters Store::counters() const {
  const auto lock = this->lock();
  const StoreCounters own = own_->counters();
  StoreCounters c = counters_;
  c.acquires = own.acquires;
  c.hits = own.hits;
  c.prefetched = own.prefetched;
  c.evictions += own.evictions;
  c.read_bytes = own.read_bytes;
  c.read_errors = own.read_errors;
  c.bytes_reserved = options_.host_bytes;
  c.host_blocks = cache_->blocks();
  c.disk_bytes = files_->taken();
  return c;
}

void Store::check_event(EventId event) const {
  if (event < 0 || event >= n_events())
    throw DataError(fmt::format("disk store: no event {} among {}", event, n_events()));
}

void Store::check_lane(std::int64_t lane) const {
  if (lane < 0 || lane >= shape_.n_lanes)
    throw DataError(fmt::format("disk store: no lane {} among {}", lane, shape_.n_lanes));
}

void Store::Reader::check_unleased(const char* what) const {
  for (std::size_t lane = 0; lane < leases_.size(); ++lane)
    if (leases_[lane].held)
      throw Error(fmt::format("disk store: cannot {} while lane {} holds a lease; release it first",
                              what, lane));
}

void Store::check_written(EventId event, std::int64_t lane) const {
  if (!written(event, lane))
    throw DataError(fmt::format("disk store: lane {} of event {} was never written", lane, event));
}

void Store::check_event(EventId event, std::int64_t lane) const {
  check_event(event);
  check_lane(lane);
  if (!at(event).lanes.holds(lane))
    throw DataError(fmt::format("disk store: event {} is none of lane {}", event, lane));
}

bool Store::all_written() const {
  const auto lock = this->lock();
  return std::find(pending_.begin(), pending_.end(), 0) == pending_.end();
}

void Store::forget_pending() {
  pending_.clear();
  first_pending_ = n_events();
}

void Store::count_in(const Event& e) {
  ++counters_.events;
  counters_.bytes_used += e.lanes.count * block_bytes(shape_, e.range.size());
}

/// Takes an event out of its segment; the room at a segment's end that no image names is used
/// again.
void Store::give_back(io::WriteQueue::Lock& lock, Event& e) {
  if (e.segment < 0) return;
  files_->give_back(lock, {static_cast<std::size_t>(e.segment), e.offset}, record_bytes(e));
  --counters_.events;
  counters_.bytes_used -= e.lanes.count * block_bytes(shape_, e.range.size());
  e.segment = -1;
}

}  // namespace disk_store

using namespace disk_store;

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
      shape.n_lanes * (n_events * (per_event + 2 * kLine) + n_tokens * per_token);
  using Files = io::AppendFiles;
  const std::int64_t files = records / Files::kRollBytes + 1;
  return round_up(records, kPage) +
         files * (3 * kPage + Files::kRollBytes / Files::kExtentBytes * kPage);
}

std::int64_t default_host_bytes(const StoreShape& shape, std::int64_t max_block,
                                std::int64_t lease_tokens) {
  return std::max(least_host_bytes(shape, max_block, lease_tokens), kDefaultHostBytes);
}

std::int64_t least_host_bytes(const StoreShape& shape, std::int64_t max_block,
                              std::int64_t lease_tokens) {
  check_shape(shape, max_block, lease_tokens);
  return FixedPlan(shape, max_block, std::max(lease_tokens, max_block)).least_bytes;
}

}  // namespace episodic
