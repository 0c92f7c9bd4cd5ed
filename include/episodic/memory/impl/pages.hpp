// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/detail/pages.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/detail/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <limits>
#include <new>
#include <utility>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace pages_detail {

/// \return null for no bytes \throws std::bad_alloc
inline std::byte* map_zeros(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(at);
}

}  // namespace pages_detail

EPISODIC_INLINE Pages::Pages(std::size_t bytes)
    : data_(pages_detail::map_zeros(bytes)), size_(bytes) {}

EPISODIC_INLINE Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

EPISODIC_INLINE Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

EPISODIC_INLINE std::int64_t Pages::most_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages < 1 || page < 1) return std::numeric_limits<std::int64_t>::max();  // nobody knows
  return static_cast<std::int64_t>(pages) * page;
}

EPISODIC_INLINE Pages::~Pages() {
  if (data_) munmap(data_, size_);
}

}  // namespace EPISODIC_NAMESPACE::detail
