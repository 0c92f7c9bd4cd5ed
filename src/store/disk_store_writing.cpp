// SPDX-License-Identifier: Apache-2.0
// The disk store's writing: blocks are filled in the cache and written behind by a thread.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
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
  std::uint32_t block;
  {
    std::unique_lock lock(mutex_);
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
    const std::lock_guard lock(mutex_);
    abandon(block);
    pending_[pending_at(event, lane)] = 0;
    throw;
  }
  segment_file::seal_block(shape_, name(event, lane), data);
  {
    const std::lock_guard lock(mutex_);
    enqueue(block);
    pending_[pending_at(event, lane)] = 1;
  }
  work_.notify_one();
}

/// A block to fill, waiting for others to be written if it must.
std::uint32_t Store::make_room(std::unique_lock<std::mutex>& lock, const Event& e, EventId event,
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
    if (error_) {  // told once; then it is tried again
      const std::exception_ptr error = std::exchange(error_, nullptr);
      work_.notify_one();
      std::rethrow_exception(error);
    }
    if (n_unclean_ == 0)
      throw BudgetError(fmt::format(
          "disk store: host_bytes = {} are all leased; release lanes before events are written, "
          "or set host_bytes higher",
          options_.host_bytes));
    written_.wait(lock);
  }
}

void Store::enqueue(std::uint32_t block) {
  (*cache_)[block].state = BlockCache::State::dirty;
  (*cache_)[block].queue = BlockCache::kNone;
  (last_dirty_ == BlockCache::kNone ? first_dirty_ : (*cache_)[last_dirty_].queue) = block;
  last_dirty_ = block;
}

void Store::unqueue(std::uint32_t block) {
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
void Store::withdraw(std::unique_lock<std::mutex>& lock, std::uint32_t block) {
  ++(*cache_)[block].leases;  // others may evict meanwhile
  written_.wait(lock, [&] { return (*cache_)[block].state != BlockCache::State::writing; });
  --(*cache_)[block].leases;
  if ((*cache_)[block].state == BlockCache::State::dirty)
    unqueue(block);
  else
    ++n_unclean_;
  (*cache_)[block].state = BlockCache::State::filling;
}

void Store::abandon(std::uint32_t block) {
  cache_->erase(block);
  --n_unclean_;
  written_.notify_all();
}

void Store::drop_blocks(std::unique_lock<std::mutex>& lock, EventId event) {
  for (std::int64_t lane = at(event).lanes.first; at(event).lanes.holds(lane); ++lane)
    if (const std::uint32_t block = cache_->find(event, lane); block != BlockCache::kNone) {
      withdraw(lock, block);
      abandon(block);
    }
}

/// Waits until all is written. \throws what a write failed with; nothing is lost then
void Store::drain() {
  std::unique_lock lock(mutex_);
  error_ = nullptr;
  work_.notify_one();
  written_.wait(lock, [&] { return n_unclean_ == 0 || error_; });
  if (error_) std::rethrow_exception(error_);
}

void Store::retry_writes() {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) return;
  }
  drain();
}

void Store::write_behind() {
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
void Store::gather_batch() {
  batch_.clear();
  while (first_dirty_ != BlockCache::kNone && batch_.size() < kMostInBatch) {
    const std::uint32_t block = first_dirty_;
    first_dirty_ = (*cache_)[block].queue;
    (*cache_)[block].state = BlockCache::State::writing;
    // Place and size only: the store's user changes the rest without the lock.
    const Event& event = at((*cache_)[block].event);
    const std::int64_t stride = block_stride(shape_, event.range.size());
    batch_.push_back({block, &segment_of_event(event).write,
                      block_offset(event, (*cache_)[block].lane), stride});
  }
  if (first_dirty_ == BlockCache::kNone) last_dirty_ = BlockCache::kNone;
  std::sort(batch_.begin(), batch_.end(), [](const Dirty& a, const Dirty& b) {
    return a.file != b.file ? std::less<>()(a.file, b.file) : a.offset < b.offset;
  });
}

/// Writes the blocks of the batch from `first` on that lie end to end, at once: one large write
/// costs little more than a small one. \return the first block after them
std::size_t Store::write_run(std::size_t first) {
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

}  // namespace episodic::disk_store
