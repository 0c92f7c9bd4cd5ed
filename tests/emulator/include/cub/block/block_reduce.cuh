// SPDX-License-Identifier: Apache-2.0
#pragma once
// cub::BlockReduce, BlockScan and BlockRadixSort as one thread would do them: every thread lays
// down its items, all wait, each computes what it is owed.
#include <vector>

#include "emulated_device.hpp"

namespace cub {

template <class T, int kThreads>
class BlockReduce {
 public:
  struct TempStorage {
    T items[kThreads];
  };
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}
  template <class Op>
  T Reduce(T item, Op op) {
    storage_.items[threadIdx.x] = item;
    __syncthreads();
    // as in CUB, the result is thread 0's alone
    T total = storage_.items[0];
    for (int i = 1; threadIdx.x == 0 && i < kThreads; ++i) total = op(total, storage_.items[i]);
    return total;
  }
  T Sum(T item) {
    return Reduce(item, [](T a, T b) { return a + b; });
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
