// SPDX-License-Identifier: Apache-2.0
#pragma once
// What loops over rows of tokens share.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "episodic/attention/detail/rows.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// One row of float32, on the stack for the head sizes that models have.
class RowBuffer {
 public:
  explicit RowBuffer(std::int64_t d) {
    if (d <= kOnStack) return;
    heap_ = std::make_unique<float[]>(static_cast<std::size_t>(d));
    data_ = heap_.get();
  }
  RowBuffer(const RowBuffer&) = delete;
  RowBuffer& operator=(const RowBuffer&) = delete;
  float* data() { return data_; }

 private:
  static constexpr std::int64_t kOnStack = 1024;
  float stack_[kOnStack];
  std::unique_ptr<float[]> heap_;
  float* data_ = stack_;
};

/// body(begin, end) for runs of the n tokens, in parallel if there are many elements.
template <class Body>
void for_row_runs(std::int64_t n, std::int64_t elements, const Body& body) {
  constexpr std::int64_t kRows = 16;
  if (elements < kSerialElements) {
    body(0, n);
  } else {
    parallel_for((n + kRows - 1) / kRows,
                 [&](std::int64_t run) { body(run * kRows, std::min(n, (run + 1) * kRows)); });
  }
}

}  // namespace EPISODIC_NAMESPACE::detail
