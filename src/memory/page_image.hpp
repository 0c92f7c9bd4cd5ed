// SPDX-License-Identifier: Apache-2.0
#pragma once
// What several arrays began with, one behind the other; it does not change.

#include <cstddef>
#include <span>
#include <vector>

#include "episodic/memory/detail/pages.hpp"

namespace episodic::detail {

class PageImage {
 public:
  /// A copy of these arrays. \throws std::bad_alloc
  explicit PageImage(std::span<const std::span<const std::byte>> arrays);
  ~PageImage();
  PageImage(const PageImage&) = delete;
  PageImage& operator=(const PageImage&) = delete;

  /// The i-th array: its pages are the image's until they are written to. From several threads at
  /// once. \throws std::bad_alloc
  Pages array(std::size_t i) const;

 private:
  struct Place {
    std::size_t offset = 0, bytes = 0;
  };
  /// False where the system has no files in memory, or no room for this one.
  bool write(std::span<const std::span<const std::byte>> arrays, std::size_t bytes);

  int file_ = -1;
  std::vector<Place> places_;  // in the file
  std::vector<Pages> copies_;  // instead of a file
};

}  // namespace episodic::detail
