// SPDX-License-Identifier: Apache-2.0
#include "base/write_queue.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

namespace episodic::io {
namespace {

constexpr std::size_t kMostInBatch = 1024;

std::int64_t size_of(const WriteQueue::Write& w) {
  return static_cast<std::int64_t>(w.bytes.size());
}

}  // namespace

WriteQueue::WriteQueue(std::int64_t most_bytes, std::span<std::byte> gather,
                       std::function<void(const Write&)> written)
    : most_bytes_(most_bytes), gather_(gather), on_written_(std::move(written)) {}

WriteQueue::~WriteQueue() { stop(); }

void WriteQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WriteQueue::admit(Lock& lock, std::int64_t bytes) {
  if (error_) drain(lock);
  while (most_bytes_ > 0 && queued_bytes_ > 0 && queued_bytes_ + bytes > most_bytes_)
    progress(lock);
}

void WriteQueue::push(const Lock&, Ready one) noexcept {
  queued_bytes_ += size_of(one.front());
  queue_.splice(queue_.end(), one);
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (...) {  // whoever waits writes; the next push tries again
    }
  }
  work_.notify_one();
}

void WriteQueue::withdraw(Lock& lock, const File& file, std::int64_t offset,
                          std::int64_t bytes) noexcept {
  const auto meant = [&](const Write& w) {
    return w.file == &file && w.offset < offset + bytes && offset < w.offset + size_of(w);
  };
  written_.wait(lock, [&] { return std::none_of(batch_.begin(), batch_.end(), meant); });
  for (auto w = queue_.begin(); w != queue_.end();) {
    const auto here = w++;
    if (!meant(*here)) continue;
    queued_bytes_ -= size_of(*here);
    queue_.erase(here);
  }
}

void WriteQueue::drain(Lock& lock) {
  try_again();
  while (!error_ && !(queue_.empty() && batch_.empty())) wait(lock);
  if (error_) tell();
}

void WriteQueue::progress(Lock& lock) {
  if (told_) try_again();
  if (!error_) wait(lock);
  if (error_) tell();
}

/// The error stays until the next call, and with it the thread idle: what it tried in between
/// would fail as before, and be told to a caller who has done something about it since.
void WriteQueue::tell() {
  told_ = true;
  std::rethrow_exception(error_);
}

void WriteQueue::try_again() {
  error_ = nullptr;
  told_ = false;
  work_.notify_one();
}

bool WriteQueue::copy(const Lock&, const File& file, std::int64_t offset,
                      std::span<std::byte> to) const {
  const auto n = static_cast<std::int64_t>(to.size());
  for (const auto* list : {&queue_, &batch_})
    for (const Write& w : *list)
      if (w.file == &file && w.offset <= offset && offset + n <= w.offset + size_of(w)) {
        if (n > 0) std::memcpy(to.data(), w.bytes.data() + (offset - w.offset), to.size());
        return true;
      }
  return false;
}

void WriteQueue::work() {
  Lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || (!queue_.empty() && batch_.empty() && !error_); });
    if (stopping_) return;
    write_batch(lock);
  }
}

void WriteQueue::wait(Lock& lock) {
  if (thread_.joinable() || !batch_.empty())
    written_.wait(lock);
  else
    write_batch(lock);
}

void WriteQueue::write_batch(Lock& lock) {
  const auto n = static_cast<std::ptrdiff_t>(std::min(queue_.size(), kMostInBatch));
  batch_.splice(batch_.end(), queue_, queue_.begin(), std::next(queue_.begin(), n));
  batch_.sort([](const Write& a, const Write& b) {
    return a.file != b.file ? std::less<>()(a.file, b.file) : a.offset < b.offset;
  });
  lock.unlock();
  std::exception_ptr error;
  auto end = batch_.begin();  // of what was written
  try {
    while (end != batch_.end()) end = write_run(end);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  for (auto w = batch_.begin(); w != end; w = batch_.erase(w)) {
    queued_bytes_ -= size_of(*w);
    if (on_written_) on_written_(*w);
  }
  queue_.splice(queue_.begin(), batch_);
  if (error) {
    error_ = error;
    told_ = false;
  }
  written_.notify_all();
  work_.notify_one();  // the thread may have begun while another wrote
}

/// Writes those from `first` on that lie end to end, at once: one large write costs little more
/// than a small one. \return the first one after them
std::list<WriteQueue::Write>::iterator WriteQueue::write_run(std::list<Write>::iterator first) {
  auto end = std::next(first);
  std::int64_t bytes = size_of(*first);
  while (end != batch_.end() && end->file == first->file && end->offset == first->offset + bytes &&
         bytes + size_of(*end) <= static_cast<std::int64_t>(gather_.size()))
    bytes += size_of(*end++);
  std::span<const std::byte> all = first->bytes;
  if (end != std::next(first)) {
    auto to = gather_.begin();
    for (auto w = first; w != end; ++w) to = std::copy(w->bytes.begin(), w->bytes.end(), to);
    all = gather_.first(static_cast<std::size_t>(bytes));
  }
  first->file->write(all, first->offset);
  return end;
}

}  // namespace episodic::io
