// SPDX-License-Identifier: Apache-2.0
#pragma once
// For one source of a test that replaces operator new: those that do not throw, as the standard
// library has them. A sanitizer would put its own in their place, beside the test's delete.

#include <cstddef>
#include <new>

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
