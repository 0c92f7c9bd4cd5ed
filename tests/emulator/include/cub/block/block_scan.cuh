// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "emulated_device.hpp"

namespace cub {

template <class T, int kThreads>
class BlockScan {
 public:
  struct TempStorage {
    T items[kThreads], sums[kThreads + 1];
  };
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}
  void ExclusiveSum(T item, T& before, T& total) {
    storage_.items[threadIdx.x] = item;
    __syncthreads();
    if (threadIdx.x == 0) {
      storage_.sums[0] = T{};
      for (int i = 0; i < kThreads; ++i)
        storage_.sums[i + 1] = storage_.sums[i] + storage_.items[i];
    }
    __syncthreads();
    before = storage_.sums[threadIdx.x];
    total = storage_.sums[kThreads];
  }
  void ExclusiveSum(T item, T& before) {
    T total;
    ExclusiveSum(item, before, total);
  }
  void InclusiveSum(T item, T& upto) {
    ExclusiveSum(item, upto);
    upto += item;
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
