// SPDX-License-Identifier: Apache-2.0
#pragma once
// Page-locked host memory that keeps its addresses while more of it is locked: a range of addresses
// is reserved, and pages behind parts of it are opened and locked as they are needed, or ahead of
// that on a thread, for locking a part takes longer than a step.

#include <cstddef>
#include <cstdint>
#include <future>
#include <optional>
#include <span>
#include <vector>

#include "cuda.hpp"
#include "pieces.hpp"

namespace episodic::device {

/// What is locked in one call is a part of its own. Kernels read and write across parts, as across
/// pages; one copy of the runtime must lie within one part (docs/kernels.md).
class GrowingPinned {
 public:
  using Part = Pieces::Part;

  GrowingPinned() = default;
  /// All of it at once. \throws BudgetError as PinnedBuffer
  GrowingPinned(std::int64_t bytes, const char* what, const char* budget)
      : whole_(bytes, what, budget), whole_bytes_(bytes) {}
  /// Addresses alone; nothing may be read or written before it is held. \param device reads it
  /// \param piece bytes that are locked at a time, whole pages
  /// \return nothing where the device reads locked memory at other addresses than the host's, or
  /// the system gives none
  static std::optional<GrowingPinned> reserve(std::int64_t bytes, int device, std::int64_t piece);
  /// Whatever uses it must have ended.
  ~GrowingPinned();
  GrowingPinned(GrowingPinned&& other) noexcept { *this = std::move(other); }
  GrowingPinned& operator=(GrowingPinned&& other) noexcept;

  std::byte* data() const { return base_ ? base_ : whole_.as<std::byte>(); }
  /// Bytes that are locked, as far as it is known: what the thread locks counts once it was needed.
  std::int64_t held() const { return base_ ? pieces_.held() : whole_bytes_; }
  bool grows() const { return base_ != nullptr; }
  std::int64_t piece() const { return pieces_.piece(); }

  /// Locks parts of the range, unless they are; waits for the thread if it has to.
  /// \return false where the system locks no more: a part of it may be held then
  bool hold(std::span<const Part> parts);
  /// Begins to do so on a thread, unless it still works. What it cannot lock is left to `hold`.
  void hold_ahead(std::span<const Part> parts);
  bool holds(std::span<const Part> parts) const { return pieces_.missing(parts).empty(); }

 private:
  static bool lock(std::byte* base, int device, const Part& run);
  void take_over();

  PinnedBuffer whole_;  // where it does not grow
  std::int64_t whole_bytes_ = 0;
  std::byte* base_ = nullptr;  // where it does
  std::int64_t bytes_ = 0;
  int device_ = 0;
  Pieces pieces_;
  std::vector<Part> locked_;                // as they were registered
  std::future<std::vector<Part>> working_;  // what the thread has locked, once it ends
};

}  // namespace episodic::device
