// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the arrays of a DeviceMemory lie: those that are there from the start, and behind them
// those that grow with the sequence.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/codes.hpp"
#include "layout.hpp"

namespace episodic::device {

/// What grows with the sequence: arrays of a row for each event, or for each token of closed ones.
/// They lie behind all others, and are counted in bytes from there.
struct GrowingArrays {
  struct Array {
    std::int64_t begin, row;
    std::int64_t final_by;  // rows of closed events are final once so many are; 0: they are not
  };
  std::vector<Array> arrays;
  std::int64_t most = 0;  // rows of a sequence of max_tokens
  std::int64_t held = 0;  // rows that all of them have memory for

  /// Rows that are taken beyond those needed: a sixteenth of what is there, so that most steps take
  /// none, a granule of the widest array at least, 16 at most.
  std::int64_t rows_ahead(std::int64_t granule) const {
    std::int64_t row = 1;
    for (const Array& a : arrays) row = std::max(row, a.row);
    return std::clamp(held * row / 16, granule, 16 * granule) / row;
  }
};

class MemoryLayout {
 public:
  /// \param events that the growing arrays have addresses for
  MemoryLayout(const Layout& fixed, const Layout& growing, std::int64_t events)
      : fixed_(fixed), growing_(growing), events_(events) {}

  /// The next array of what is there from the start.
  template <class T = std::byte>
  T* take(std::int64_t count) {
    return fixed_.take<T>(count);
  }

  /// When what an array has of closed events may still change.
  enum class Rows : std::int64_t {
    change = 0,     ///< with any step
    are_final = 1,  ///< never
    /// Of the last ones, until they are kCodeSlab.
    are_final_by_slab = kernels::kCodeSlab
  };
  /// [n_copies, events, row], where each of the copies grows by itself.
  template <class T>
  T* by_event(std::int64_t n_copies, std::int64_t row, Rows rows) {
    const std::int64_t row_bytes = size_product(row, static_cast<std::int64_t>(sizeof(T)));
    const std::int64_t copy_bytes = size_product(events_, row_bytes);
    for (std::int64_t i = 0; i < n_copies; ++i)
      of_events_.push_back({growing_.bytes() + size_product(i, copy_bytes), row_bytes,
                            static_cast<std::int64_t>(rows)});
    return growing_.take<T>(size_product(n_copies, size_product(events_, row)));
  }
  /// [n_copies, copy_bytes], each of which grows with the tokens of closed events.
  std::byte* by_token(std::int64_t n_copies, std::int64_t copy_bytes, std::int64_t token_bytes) {
    for (std::int64_t i = 0; i < n_copies; ++i)
      of_tokens_.push_back({growing_.bytes() + size_product(i, copy_bytes), token_bytes, 1});
    return growing_.take(size_product(n_copies, copy_bytes));
  }

  /// Bytes of all arrays since it was asked last.
  std::int64_t since() {
    const std::int64_t used = fixed_bytes() + growing_bytes();
    return used - std::exchange(mark_, used);
  }
  std::int64_t fixed_bytes() const { return fixed_.bytes(); }
  std::int64_t growing_bytes() const { return growing_.bytes(); }
  const std::vector<GrowingArrays::Array>& of_events() const { return of_events_; }
  const std::vector<GrowingArrays::Array>& of_tokens() const { return of_tokens_; }

 private:
  Layout fixed_, growing_;
  std::int64_t events_ = 0, mark_ = 0;
  std::vector<GrowingArrays::Array> of_events_, of_tokens_;
};

}  // namespace episodic::device
