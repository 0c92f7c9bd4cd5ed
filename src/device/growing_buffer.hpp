// SPDX-License-Identifier: Apache-2.0
#pragma once
// Device memory that keeps its addresses while more of it is taken: a range of addresses is
// reserved, and memory is mapped behind parts of it as they are needed. Memory that is not written
// any more can lie behind several ranges.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "pieces.hpp"

namespace episodic::device {

/// What memory comes in on most devices; where none is asked, it is taken for it.
inline constexpr std::int64_t kUsualGranule = std::int64_t{2} << 20;

class GrowingBuffer {
 public:
  using Part = Pieces::Part;

  /// Bytes that memory is mapped by on a device. 0: it cannot be mapped there (no such calls in the
  /// driver, or a device that refuses them), and all is to be taken at once.
  static std::int64_t granule_of(int device);

  GrowingBuffer() = default;
  /// All of it at once. \throws BudgetError as DeviceBuffer
  GrowingBuffer(std::int64_t bytes, const char* what, const char* budget)
      : whole_(bytes, what, budget) {}
  /// Addresses alone, of the current device; nothing may be read or written before it is held.
  /// \return nothing where the device refuses
  static std::optional<GrowingBuffer> reserve(std::int64_t bytes, int device, std::int64_t granule);
  /// Whatever uses it must have ended: unlike cudaFree this does not wait.
  ~GrowingBuffer();
  GrowingBuffer(GrowingBuffer&& other) noexcept { *this = std::move(other); }
  GrowingBuffer& operator=(GrowingBuffer&& other) noexcept;

  std::byte* data() const { return base_ ? base_ : whole_.data(); }
  /// Bytes of device memory, in whole granules where it grows; without what another range shared.
  std::int64_t held() const { return base_ ? pieces_.held() - borrowed_ : whole_.bytes(); }
  bool grows() const { return base_ != nullptr; }
  std::int64_t granule() const { return pieces_.piece(); }

  /// Puts memory behind parts of the range, unless it is there; its content is whatever it was.
  /// What has memory keeps it and its content. The host may do so while kernels run.
  /// \param most bytes that may be held in all; 0: no bound
  /// \return false where the bound or the device has no room: a part of it may be held then
  /// \throws DeviceError
  bool hold(std::span<const Part> parts, std::int64_t most);

  /// Puts the memory of another range behind the same places of this one: of each piece that was
  /// taken there at once (kMostAtOnce granules at most), if it lies within one of these parts. It
  /// ends with the last range that has it, and neither may write there from here on.
  /// \param parts of a range of as many bytes, apart; nothing of them is held here
  /// \return what is shared, in order; nothing where the driver shares no memory
  /// \throws DeviceError, with some of it shared
  std::vector<Part> share(GrowingBuffer& other, std::vector<Part> parts);
  bool has_shared() const { return !shared_.empty(); }
  /// Gives back what is shared, either way: it is missing then. Whatever uses it must have ended.
  void drop_shared();

  /// Granules that are taken at once: what is shared, or is not, together.
  static constexpr std::int64_t kMostAtOnce = 4;

 private:
  struct Driver;
  bool take(const Driver& driver, const Part& piece);
  bool map(const Driver& driver, unsigned long long memory, const Part& piece);
  bool open(const Driver& driver, const Part& run);

  DeviceBuffer whole_;         // where it does not grow
  std::byte* base_ = nullptr;  // where it does
  std::int64_t bytes_ = 0;
  int device_ = 0;
  Pieces pieces_;                                // granules
  std::map<std::int64_t, std::int64_t> mapped_;  // begins and ends, as they were mapped
  std::set<std::int64_t> shared_;  // begins of those that other ranges have or had too
  std::int64_t borrowed_ = 0;      // bytes of what others took
};

}  // namespace episodic::device
