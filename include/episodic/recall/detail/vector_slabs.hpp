// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rows of floats that never move: a growing index does not copy what it holds.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// Dot product of n floats; the same bits as cpu::Kernels::dots, whatever the rows around.
float dot(const float* a, const float* b, std::int64_t n);

/// Rows of `width` floats, appended and cut at the end, in slabs of `rows_per_slab()` rows.
class VectorSlabs {
 public:
  static constexpr std::int64_t kMostRows = 1024;  ///< of a slab

  explicit VectorSlabs(std::int64_t width);

  /// Appends a row and returns where to write it.
  float* append();
  void truncate(std::int64_t n_rows);

  float* row(std::int64_t i) {
    return slabs_[static_cast<std::size_t>(i / rows_per_slab_)].get() + i % rows_per_slab_ * width_;
  }
  const float* row(std::int64_t i) const {
    return slabs_[static_cast<std::size_t>(i / rows_per_slab_)].get() + i % rows_per_slab_ * width_;
  }
  std::int64_t width() const { return width_; }
  std::int64_t size() const { return size_; }
  std::int64_t rows_per_slab() const { return rows_per_slab_; }
  /// Of the slabs that are held.
  std::int64_t bytes() const {
    return held_ * static_cast<std::int64_t>(sizeof(float)) * rows_per_slab_ * width_;
  }

  /// Gives a slab's memory back; its rows may not be asked for until `hold`, which takes them
  /// [rows_per_slab, width] back in.
  void release(std::int64_t slab);
  void hold(std::int64_t slab, const float* rows);
  /// Appends n slabs that are not held. \pre the last one is full
  void skip_slabs(std::int64_t n);
  /// A slab that is not held becomes another's of the same number, which gives it up.
  void take(std::int64_t slab, VectorSlabs& from) noexcept;
  bool held(std::int64_t slab) const { return slabs_[static_cast<std::size_t>(slab)] != nullptr; }

 private:
  // Mapped, not allocated: a slab that is released goes back to the system, whatever lies around it
  // in the heap. As an index grows past its budget, most of its rows are.
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(float* slab) const;
  };
  using Slab = std::unique_ptr<float[], Unmap>;
  Slab map_slab() const;

  std::int64_t width_, rows_per_slab_, size_ = 0, held_ = 0;
  std::vector<Slab> slabs_;
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/vector_slabs.hpp"
#endif
