// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arrays in pages of the system, of which many can have one and the same content: each gets a page
// to itself when it first writes to it.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace episodic::detail {

/// What several arrays began with, one behind the other; it does not change.
class PageImage;

/// Floats that lie in pages of their own.
class Pages {
 public:
  Pages() = default;
  /// Zeros. \throws std::bad_alloc
  explicit Pages(std::size_t floats);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  float* data() { return data_; }
  const float* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const float> span() const { return {data_, size_}; }

 private:
  friend class PageImage;
  float* data_ = nullptr;
  std::size_t size_ = 0;
};

class PageImage {
 public:
  /// A copy of these arrays. \throws std::bad_alloc
  explicit PageImage(std::span<const std::span<const float>> arrays);
  ~PageImage();
  PageImage(const PageImage&) = delete;
  PageImage& operator=(const PageImage&) = delete;

  /// The i-th array: its pages are the image's until they are written to. From several threads at
  /// once. \throws std::bad_alloc
  Pages array(std::size_t i) const;

 private:
  struct Place {
    std::size_t offset = 0, floats = 0;
  };
  /// False where the system has no files in memory, or no room for this one.
  bool write(std::span<const std::span<const float>> arrays, std::size_t bytes);

  int file_ = -1;
  std::vector<Place> places_;  // in the file
  std::vector<Pages> copies_;  // instead of a file
};

}  // namespace episodic::detail
