// SPDX-License-Identifier: Apache-2.0
// The disk store's writing: blocks are filled in the cache and written behind.
#include <fmt/format.h>

#include <utility>

#include "disk_store_impl.hpp"
#include "episodic/base/error.hpp"

namespace episodic::disk_store {

void Store::write(EventId event, std::int64_t lane, const RingView& source) {
  check_event(event, lane);
  const Event& e = at(event);
  if (e.segment < 0) throw DataError(fmt::format("disk store: event {} was forgotten", event));
  if (event < first_pending_)
    throw DataError(fmt::format(
        "disk store: event {} is written already; keys and values do not change", event));
  io::WriteQueue::Ready ready(1);
  std::uint32_t block;
  {
    auto lock = this->lock();
    block = cache_->find(event, lane);
    if (block != BlockCache::kNone) {
      if ((*cache_)[block].leases > 0)
        throw Error(fmt::format("disk store: event {} is leased by lane {}; release it first",
                                event, lane));
      withdraw(lock, block);
    } else {
      block = make_room(lock, e, event, lane);
    }
  }
  std::byte* const data = cache_->data(block);
  try {
    encode_block(shape_, e.range, source, data + kLine);
  } catch (...) {
    const auto lock = this->lock();
    abandon(block);
    pending_[pending_at(event, lane)] = 0;
    throw;
  }
  segment_file::seal_block(shape_, name(event, lane), data);
  ready.front().bytes = {data, static_cast<std::size_t>(block_stride(shape_, e.range.size()))};
  ready.front().tag = block;
  const auto lock = this->lock();
  (*cache_)[block].state = BlockCache::State::dirty;
  pending_[pending_at(event, lane)] = 1;
  files_->write(lock, block_place(e, lane), std::move(ready));
}

/// A block to fill, waiting for others to be written if it must.
std::uint32_t Store::make_room(io::WriteQueue::Lock& lock, const Event& e, EventId event,
                               std::int64_t lane) {
  for (;;) {
    const std::uint32_t block =
        cache_->insert(event, lane, block_stride(shape_, e.range.size()), e.pinned);
    if (block != BlockCache::kNone) {
      ++n_unclean_;
      return block;
    }
    if (cache_->evict()) {
      ++counters_.evictions;
      continue;
    }
    if (n_unclean_ == 0)
      throw BudgetError(fmt::format(
          "disk store: host_bytes = {} are all leased; release lanes before events are written, "
          "or set host_bytes higher",
          options_.host_bytes));
    files_->queue().progress(lock);
  }
}

/// Takes a block off the writer, to fill it anew or to forget it.
void Store::withdraw(io::WriteQueue::Lock& lock, std::uint32_t block) {
  BlockCache::Block& b = (*cache_)[block];
  const Event& e = at(b.event);
  ++b.leases;  // others may evict meanwhile
  files_->withdraw(lock, block_place(e, b.lane), block_stride(shape_, e.range.size()));
  --b.leases;
  if (b.state == BlockCache::State::clean) ++n_unclean_;
  b.state = BlockCache::State::filling;
}

void Store::abandon(std::uint32_t block) {
  cache_->erase(block);
  --n_unclean_;
  files_->queue().wake();
}

void Store::drop_blocks(io::WriteQueue::Lock& lock, EventId event) {
  for (std::int64_t lane = at(event).lanes.first; at(event).lanes.holds(lane); ++lane)
    if (const std::uint32_t block = cache_->find(event, lane); block != BlockCache::kNone) {
      withdraw(lock, block);
      abandon(block);
    }
}

}  // namespace episodic::disk_store
