// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that is kept and used again, aligned for every vector.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace episodic {

/// Memory at a multiple of 64 bytes, uninitialised. It grows only, and loses what it held then.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  /// At least n bytes; valid until the next call that asks for more. \throws std::bad_alloc, the
  /// buffer being empty then
  unsigned char* bytes(std::int64_t n) {
    if (n > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<unsigned char*>(
          std::aligned_alloc(64, (static_cast<std::size_t>(n) + 63) / 64 * 64)));
      if (!memory_) throw std::bad_alloc();
      size_ = n;
    }
    return memory_.get();
  }
  float* floats(std::int64_t n) { return reinterpret_cast<float*>(bytes(n * 4)); }
  std::uint16_t* halves(std::int64_t n) { return reinterpret_cast<std::uint16_t*>(bytes(n * 2)); }

  /// What the last call gave, null before the first.
  float* floats() { return reinterpret_cast<float*>(memory_.get()); }
  const float* floats() const { return reinterpret_cast<const float*>(memory_.get()); }
  std::int64_t size() const { return size_; }  ///< bytes that may be used

  AlignedBuffer copy() const {
    AlignedBuffer other;
    if (size_ > 0) std::memcpy(other.bytes(size_), memory_.get(), static_cast<std::size_t>(size_));
    return other;
  }

 private:
  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  std::unique_ptr<unsigned char, Free> memory_;
  std::int64_t size_ = 0;
};

}  // namespace episodic
