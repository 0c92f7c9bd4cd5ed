// SPDX-License-Identifier: Apache-2.0
// The disk store's reading: recalls from the cache or from files, verified, and reading ahead.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "disk_store_impl.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"

namespace episodic::disk_store {

void Store::acquire(std::int64_t lane, std::span<const EventId> events,
                    std::vector<KvSegment>& out) {
  own_->acquire(lane, events, out);
  for (const EventId event : events) {
    at(event).last_recall = step_;
    ++at(event).recalls;
  }
}

void Store::release(std::int64_t lane) { own_->release(lane); }

void Store::prefetch(std::int64_t lane, std::span<const EventId> events) {
  own_->prefetch(lane, events);
}

void Store::read(EventId event, std::int64_t lane, std::byte* block) {
  own_->read(event, lane, block);
}

std::uint64_t Store::digest(EventId event) {
  check_event(event);
  std::uint64_t sum = 0;
  for (std::int64_t lane = at(event).lanes.first; at(event).lanes.holds(lane); ++lane)
    own_->with_stored(event, lane,
                      [&](std::span<const std::byte> block) { sum = checksum(block, sum); });
  return sum;
}

void Store::Reader::acquire(std::int64_t lane, std::span<const EventId> events,
                            std::vector<KvSegment>& out) {
  store_.check_lane(lane);
  std::int64_t tokens = 0;
  for (const EventId event : events) {
    store_.check_event(event, lane);
    if (store_.at(event).segment < 0)
      throw DataError(fmt::format("disk store: event {} was forgotten", event));
    tokens += store_.at(event).range.size();
  }
  if (tokens > store_.options_.lease_tokens)
    throw BudgetError(
        fmt::format("disk store: a recall of {} tokens, but lease_tokens = {}; raise lease_tokens",
                    tokens, store_.options_.lease_tokens));
  Lease& lease = leases_[static_cast<std::size_t>(lane)];
  if (lease.held)
    throw Error(
        fmt::format("disk store: lane {} still holds its last lease; release it first", lane));
  out.clear();
  out.reserve(events.size());
  lease.blocks.clear();
  lease.blocks.reserve(events.size());
  misses_.clear();
  misses_.reserve(events.size());
  {
    const auto lock = store_.lock();
    for (std::size_t i = 0; i < events.size(); ++i) {
      const std::uint32_t block = store_.cache_->find(events[i], lane);
      if (block == BlockCache::kNone) {
        misses_.push_back({i, nullptr});
        out.emplace_back();
        continue;
      }
      take(lease, block);
      out.push_back(segment_of(store_.shape_, store_.at(events[i]).range,
                               store_.cache_->data(block) + kLine));
    }
  }
  const std::int64_t overflow_used = overflow_used_;
  try {
    read_misses(lane, events, lease, out);
  } catch (...) {
    for (Miss& miss : misses_)
      if (miss.slot) free_slot(*miss.slot);
    const auto lock = store_.lock();
    for (const std::uint32_t block : lease.blocks) --(*store_.cache_)[block].leases;
    lease.blocks.clear();
    overflow_used_ = overflow_used;
    out.clear();
    throw;
  }
  {
    // What was there before and what was read stand in the order given.
    const auto lock = store_.lock();
    if (!misses_.empty())
      for (const EventId event : events)
        if (const std::uint32_t block = store_.cache_->find(event, lane);
            block != BlockCache::kNone)
          store_.cache_->touch(block);
  }
  lease.overflow = overflow_used_ > overflow_used;
  lease.held = true;
  n_overflowing_ += lease.overflow;
  counters_.acquires += static_cast<std::int64_t>(events.size());
  counters_.hits += static_cast<std::int64_t>(events.size() - misses_.size());
}

void Store::Reader::release(std::int64_t lane) {
  store_.check_lane(lane);
  Lease& lease = leases_[static_cast<std::size_t>(lane)];
  if (!lease.held) throw Error(fmt::format("disk store: lane {} holds no lease to release", lane));
  const auto lock = store_.lock();
  for (const std::uint32_t block : lease.blocks) --(*store_.cache_)[block].leases;
  lease.blocks.clear();
  n_overflowing_ -= lease.overflow;
  if (n_overflowing_ == 0) overflow_used_ = 0;
  lease.held = lease.overflow = false;
}

void Store::Reader::prefetch(std::int64_t lane, std::span<const EventId> events) {
  if (lane < 0 || lane >= store_.shape_.n_lanes) return;
  bool begun = false;
  for (const EventId event : events) {
    if (event < 0 || event >= store_.n_events() || store_.at(event).segment < 0 ||
        !store_.at(event).lanes.holds(lane) || find_slot(event, lane))
      continue;
    {
      const auto lock = store_.lock();
      if (store_.cache_->find(event, lane) != BlockCache::kNone) continue;
    }
    if (!store_.written(event, lane)) continue;
    Slot* const slot =
        free_slot_or([&](Slot& s) { return s.lane != lane && queue_->done(s.read); });
    if (!slot) break;
    begin_read(*slot, event, lane, Slot::Use::prefetched);
    begun = true;
  }
  if (begun) queue_->start();
}

void Store::Reader::read(EventId event, std::int64_t lane, std::byte* block) {
  with_stored(event, lane, [&](std::span<const std::byte> stored) {
    std::memcpy(block, stored.data(), stored.size());
  });
}

Store::Reader::Slot* Store::Reader::find_slot(EventId event, std::int64_t lane) {
  for (Slot& slot : slots_)
    if (slot.use == Slot::Use::prefetched && slot.event == event && slot.lane == lane) return &slot;
  return nullptr;
}

void Store::Reader::free_slot(Slot& slot) {
  queue_->wait(slot.read);
  slot.use = Slot::Use::free;
}

void Store::Reader::drop_prefetched() {
  for (Slot& slot : slots_)
    if (slot.use == Slot::Use::prefetched) free_slot(slot);
}

/// A page to work with, when no acquire is under way.
std::byte* Store::Reader::scratch_page() {
  free_slot(slots_.front());
  return slots_.front().read.to;
}

void Store::Reader::begin_read(Slot& slot, EventId event, std::int64_t lane, Slot::Use use) {
  const Event& e = store_.at(event);
  const Segment& s = store_.segment_of_event(e);
  const std::int64_t stride = block_stride(store_.shape_, e.range.size());
  const std::int64_t from = store_.block_offset(e, lane);
  slot.event = event;
  slot.lane = lane;
  slot.use = use;
  slot.read.fd = (s.direct ? s.direct : s.file).fd();
  slot.read.grain = s.grain;
  slot.read.offset = from / s.grain * s.grain;
  slot.skip = from - slot.read.offset;
  slot.read.bytes = round_up(slot.skip + stride, s.grain);
  counters_.read_bytes += slot.read.bytes;
  queue_->submit(slot.read);
}

/// The block that a slot was to read, verified. \throws FileError
std::byte* Store::Reader::finish_read(Slot& slot) {
  const std::int64_t stride = block_stride(store_.shape_, store_.at(slot.event).range.size());
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
      if (const std::string why = store_.calls_.why(io::Kind::segment, slot.read.fd); !why.empty())
        throw FileError(
            fmt::format("could not read event {}, lane {}: {}", slot.event, slot.lane, why));
      continue;
    }
    fault =
        slot.read.result < slot.skip + stride
            ? "is cut short by the end of the file"
            : segment_file::block_fault(store_.shape_, store_.name(slot.event, slot.lane), block);
    if (fault.empty()) return block;
    ++counters_.read_errors;
  }
  const std::filesystem::path path =
      store_.files_->path(static_cast<std::size_t>(store_.at(slot.event).segment));
  const std::int64_t offset = slot.read.offset + slot.skip;
  if (failed != 0)
    io::fail(failed, path,
             fmt::format("read event {}, lane {} at byte {}", slot.event, slot.lane, offset),
             "run episodic verify; restore from a copy");
  throw FileError(
      fmt::format("{}: event {}, lane {} at byte {} {}; run episodic verify; restore from a copy",
                  path.string(), slot.event, slot.lane, offset, fault));
}

void Store::Reader::take(Lease& lease, std::uint32_t block) {
  ++(*store_.cache_)[block].leases;
  store_.cache_->touch(block);
  lease.blocks.push_back(block);
}

void Store::Reader::read_misses(std::int64_t lane, std::span<const EventId> events, Lease& lease,
                                std::vector<KvSegment>& out) {
  for (Miss& miss : misses_) {
    const EventId event = events[miss.i];
    store_.check_written(event, lane);
    miss.slot = find_slot(event, lane);
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
      begin_read(*next.slot, events[next.i], lane, Slot::Use::taken);
      more = true;
    }
    if (more) queue_->start();
    Miss& miss = misses_[i];
    out[miss.i] = keep(lease, events[miss.i], lane, finish_read(*miss.slot));
    free_slot(*std::exchange(miss.slot, nullptr));
  }
}

/// Puts a block that was read where it can be leased.
KvSegment Store::Reader::keep(Lease& lease, EventId event, std::int64_t lane,
                              const std::byte* from) {
  constexpr int kMostEvictions = 64;
  const Event& e = store_.at(event);
  const std::int64_t stride = block_stride(store_.shape_, e.range.size());
  const auto lock = store_.lock();
  std::uint32_t block = store_.cache_->find(event, lane);
  if (block == BlockCache::kNone) {
    block = store_.cache_->insert(event, lane, stride, e.pinned);
    for (int i = 0; block == BlockCache::kNone && i < kMostEvictions && store_.cache_->evict();
         ++i) {
      ++counters_.evictions;
      block = store_.cache_->insert(event, lane, stride, e.pinned);
    }
    if (block == BlockCache::kNone) {
      const std::int64_t bytes = stride - kLine;
      if (overflow_used_ + bytes > static_cast<std::int64_t>(overflow_.size()))
        throw BudgetError(fmt::format(
            "disk store: host_bytes = {} cannot hold the leases of several lanes at once; set "
            "host_bytes higher, or release a lane before the next is acquired",
            store_.options_.host_bytes));
      std::byte* const to = overflow_.data() + overflow_used_;
      std::memcpy(to, from + kLine, static_cast<std::size_t>(bytes));
      overflow_used_ += bytes;
      return segment_of(store_.shape_, e.range, to);
    }
    std::memcpy(store_.cache_->data(block), from, static_cast<std::size_t>(stride));
    (*store_.cache_)[block].state = BlockCache::State::clean;
  }
  take(lease, block);
  return segment_of(store_.shape_, e.range, store_.cache_->data(block) + kLine);
}

}  // namespace episodic::disk_store
