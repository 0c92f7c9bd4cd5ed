// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Vectors by the digest of the text that they are of, counted by those who hold them.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "episodic/session/window_vectors.hpp"

namespace episodic {

/// 128 bits that stand for a text: two texts that anybody meets have different ones.
struct TextDigest {
  std::uint64_t low = 0, high = 0;

  static TextDigest of(std::string_view text);
  auto operator<=>(const TextDigest&) const = default;
};

/// A vector in float16. It stays as it is, and where it is, while it is held.
struct HeldVector {
  std::vector<std::uint16_t> numbers;

 private:
  friend class WindowStore;
  std::int64_t holders_ = 0;
  std::list<TextDigest>::iterator unused_;  // where nobody holds it
};

/// May be used from several threads.
class WindowStore {
 public:
  /// \param width numbers of a vector \param most bytes
  WindowStore(std::int64_t width, std::int64_t most) : width_(width), most_(most) {}

  /// Null where it is not known. Else it is held until `release`.
  const HeldVector* hold(const TextDigest& digest);
  /// The same where it is known, else it is taken in. Null where there is no room.
  /// \param numbers [width]
  const HeldVector* add(const TextDigest& digest, std::span<const std::uint16_t> numbers);
  /// \param digest of `vector`, which may be null
  void release(const TextDigest& digest, const HeldVector* vector);
  /// Whether one more can be taken in.
  bool has_room();
  /// Bytes that a vector takes, what stands around it included.
  std::int64_t bytes_of_one() const;

  void count_encoded(std::int64_t windows);
  void count_reused(std::int64_t windows);
  void count_refused(std::int64_t windows);
  WindowVectorsCounters counters() const;

 private:
  struct Hash {
    std::size_t operator()(const TextDigest& d) const { return static_cast<std::size_t>(d.low); }
  };
  bool make_room();

  const std::int64_t width_, most_;
  mutable std::mutex mutex_;
  std::unordered_map<TextDigest, HeldVector, Hash> vectors_;
  std::list<TextDigest> unused_;  // those that nobody holds, the longest unused first
  WindowVectorsCounters counters_;
};

/// A lock whose holders come in the order in which they asked: who takes it again at once does not
/// keep the others waiting.
class Turns {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = asked_++;
    next_.wait(lock, [&] { return served_ == mine; });
  }
  void unlock() {
    const std::lock_guard lock(mutex_);
    ++served_;
    next_.notify_all();
  }
  /// Those that hold it or wait for it.
  std::uint64_t taken() const {
    const std::lock_guard lock(mutex_);
    return asked_ - served_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable next_;
  std::uint64_t asked_ = 0, served_ = 0;
};

struct WindowVectors::Impl {
  std::shared_ptr<const SentenceEncoder> encoder;
  WindowStore store;
  Turns encoding{};  // of a few windows at a time
};

}  // namespace episodic
