// SPDX-License-Identifier: Apache-2.0
#pragma once
// How snapshots share rings in device memory with the sequence that goes on. A ring has more rows
// than a sequence reads, so that some tokens may come behind a snapshot before a row that it needs
// is overwritten: until then nothing is copied. Behind those, rows are copied to host memory before
// they are overwritten, and back when the sequence goes back. So a snapshot costs what the steps
// behind it overwrite, whatever the length of the window. The host's twin is a RowLog.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace episodic::device {

class KeptRows {
 public:
  /// [heads, capacity, row_bytes] in device memory: token t has row t % capacity of each head.
  struct Ring {
    std::byte* data = nullptr;
    std::int64_t heads = 0, capacity = 0, row_bytes = 0;
    /// Of the last tokens: those that a sequence may still read, <= capacity.
    std::int64_t needed_rows = 0;
  };

  /// The rings of a sequence as they were, a snapshot's part. It may outlive the rings and end on
  /// any thread.
  class Mark;

  KeptRows() = default;
  explicit KeptRows(std::vector<Ring> rings) : rings_(std::move(rings)) {}

  /// Of the sequence as it is now, which has so many tokens.
  std::shared_ptr<Mark> mark(std::int64_t tokens);
  /// Before n tokens come behind `tokens`: copies what they overwrite and a mark needs, some rows
  /// ahead. Waits where there is any. \throws DeviceError, std::bad_alloc: nothing has changed
  void before_step(std::int64_t tokens, std::int64_t n, cudaStream_t stream);
  /// Goes back. Marks of more tokens than this one has are of no use from here on. Waits where
  /// something was overwritten. \throws DeviceError
  /// \pre the sequence did not go back behind the mark since, nor become another one
  void restore(Mark& mark, cudaStream_t stream);
  /// The rings become another sequence's: no mark is of use any more.
  void forget_marks() { marks_.clear(); }

 private:
  /// Tokens whose rows go where a mark needs what is there.
  struct Overwriting {
    std::int64_t first, end;
  };
  static Overwriting overwriting(const Ring& ring, const Mark& mark, std::int64_t first,
                                 std::int64_t end);
  template <class F>
  void for_pieces(const Mark& mark, std::int64_t first, std::int64_t end, F&& f) const;
  void keep(Mark& mark, std::int64_t end, cudaStream_t stream) const;

  std::vector<Ring> rings_;
  std::vector<std::weak_ptr<Mark>> marks_;  // those of use
};

}  // namespace episodic::device
