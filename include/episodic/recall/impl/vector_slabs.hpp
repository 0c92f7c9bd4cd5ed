// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/detail/vector_slabs.hpp; how they become functions: base/inline.hpp.
#include "episodic/recall/detail/vector_slabs.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::detail {

EPISODIC_INLINE float dot(const float* a, const float* b, std::int64_t n) {
  float out;
  cpu::kernels().dots(a, b, 1, n, n, &out);
  return out;
}

EPISODIC_INLINE VectorSlabs::VectorSlabs(std::int64_t width)
    : width_(width),
      rows_per_slab_(std::clamp<std::int64_t>(
          (std::int64_t{1} << 18) / std::max<std::int64_t>(1, width), 16, kMostRows)) {}

EPISODIC_INLINE void VectorSlabs::Unmap::operator()(float* slab) const { ::munmap(slab, bytes); }

/// \throws std::bad_alloc
EPISODIC_INLINE VectorSlabs::Slab VectorSlabs::map_slab() const {
  const auto bytes = static_cast<std::size_t>(rows_per_slab_ * width_) * sizeof(float);
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return Slab(static_cast<float*>(at), Unmap{bytes});
}

EPISODIC_INLINE float* VectorSlabs::append() {
  if (size_ == static_cast<std::int64_t>(slabs_.size()) * rows_per_slab_) {
    slabs_.push_back(map_slab());
    ++held_;
  }
  const std::int64_t i = size_++;
  return slabs_[static_cast<std::size_t>(i / rows_per_slab_)].get() + i % rows_per_slab_ * width_;
}

EPISODIC_INLINE void VectorSlabs::truncate(std::int64_t n_rows) {
  size_ = std::min(size_, n_rows);
  slabs_.resize(static_cast<std::size_t>((size_ + rows_per_slab_ - 1) / rows_per_slab_));
  held_ = std::count_if(slabs_.begin(), slabs_.end(), [](const auto& s) { return s != nullptr; });
}

EPISODIC_INLINE void VectorSlabs::release(std::int64_t slab) {
  held_ -= held(slab);
  slabs_[static_cast<std::size_t>(slab)].reset();
}

EPISODIC_INLINE void VectorSlabs::hold(std::int64_t slab, const float* rows) {
  auto& to = slabs_[static_cast<std::size_t>(slab)];
  if (!to) {
    to = map_slab();
    ++held_;
  }
  std::copy_n(rows, rows_per_slab_ * width_, to.get());
}

EPISODIC_INLINE void VectorSlabs::skip_slabs(std::int64_t n) {
  slabs_.resize(slabs_.size() + static_cast<std::size_t>(n));
  size_ += n * rows_per_slab_;
}

EPISODIC_INLINE void VectorSlabs::take(std::int64_t slab, VectorSlabs& from) noexcept {
  const bool held = from.held(slab);
  slabs_[static_cast<std::size_t>(slab)] = std::move(from.slabs_[static_cast<std::size_t>(slab)]);
  held_ += held;
  from.held_ -= held;
}

}  // namespace EPISODIC_NAMESPACE::detail
