// SPDX-License-Identifier: Apache-2.0
#include "window_store.hpp"

#include "episodic/base/checksum.hpp"

namespace episodic {
namespace {

constexpr std::uint64_t kHighSeed = 0x656e636f646564;  // any that is not 0
constexpr std::int64_t kAround =
    160;  // bytes of a vector's place in the table, and of its heap block

}  // namespace

TextDigest TextDigest::of(std::string_view text) {
  const std::span<const char> bytes(text.data(), text.size());
  return {checksum_of(bytes), checksum_of(bytes, kHighSeed)};
}

std::int64_t WindowStore::bytes_of_one() const {
  return width_ * static_cast<std::int64_t>(sizeof(std::uint16_t)) + kAround;
}

/// \pre the mutex is held
bool WindowStore::make_room() {
  while (counters_.bytes + bytes_of_one() > most_ && !unused_.empty()) {
    vectors_.erase(unused_.front());
    unused_.pop_front();
    --counters_.vectors;
    counters_.bytes -= bytes_of_one();
  }
  return counters_.bytes + bytes_of_one() <= most_;
}

bool WindowStore::has_room() {
  const std::lock_guard lock(mutex_);
  return make_room();
}

const HeldVector* WindowStore::hold(const TextDigest& digest) {
  const std::lock_guard lock(mutex_);
  const auto at = vectors_.find(digest);
  if (at == vectors_.end()) return nullptr;
  if (at->second.holders_++ == 0) unused_.erase(at->second.unused_);
  return &at->second;
}

const HeldVector* WindowStore::add(const TextDigest& digest,
                                   std::span<const std::uint16_t> numbers) {
  if (const HeldVector* known = hold(digest)) return known;
  HeldVector vector;
  vector.numbers.assign(numbers.begin(), numbers.end());
  const std::lock_guard lock(mutex_);
  auto at = vectors_.find(digest);  // another thread may have been quicker
  if (at == vectors_.end()) {
    if (!make_room()) return nullptr;
    at = vectors_.emplace(digest, std::move(vector)).first;
    ++counters_.vectors;
    counters_.bytes += bytes_of_one();
  } else if (at->second.holders_ == 0) {
    unused_.erase(at->second.unused_);
  }
  ++at->second.holders_;
  return &at->second;
}

void WindowStore::release(const TextDigest& digest, const HeldVector* vector) {
  if (!vector) return;
  const std::lock_guard lock(mutex_);
  HeldVector& held = vectors_.at(digest);
  if (--held.holders_ == 0) held.unused_ = unused_.insert(unused_.end(), digest);
}

void WindowStore::count_encoded(std::int64_t windows) {
  const std::lock_guard lock(mutex_);
  counters_.encoded += windows;
}

void WindowStore::count_reused(std::int64_t windows) {
  const std::lock_guard lock(mutex_);
  counters_.reused += windows;
}

void WindowStore::count_refused(std::int64_t windows) {
  const std::lock_guard lock(mutex_);
  counters_.refused += windows;
}

WindowVectorsCounters WindowStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace episodic
