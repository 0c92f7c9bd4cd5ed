// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arrays in pages of the system, which many can begin with one and the same content (PageImage, in
// the compiled library): each gets a page to itself when it first writes to it.

#include <cstddef>
#include <cstdint>
#include <span>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// The bytes of one array. What was never written to takes no memory.
class Pages {
 public:
  Pages() = default;
  /// Zeros. \throws std::bad_alloc
  explicit Pages(std::size_t bytes);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Memory that the machine has, whoever uses it.
  static std::int64_t most_bytes();
  std::span<const std::byte> span() const { return {data_, size_}; }

 private:
  friend class PageImage;
  std::byte* data_ = nullptr;  // mapped, or null
  std::size_t size_ = 0;
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/pages.hpp"
#endif
