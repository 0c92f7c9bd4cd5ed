// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "emulated_device.hpp"

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int kThreads, BlockScanAlgorithm = BLOCK_SCAN_RAKING>
class BlockScan {
 public:
  struct TempStorage {
    T items[kThreads + 1];
  };
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}
  void ExclusiveSum(T item, T& before, T& total) {
    storage_.items[threadIdx.x] = item;
    __syncthreads();
    if (threadIdx.x == 0) {
      T sum{};
      for (int i = 0; i < kThreads; ++i) {
        const T next = sum + storage_.items[i];
        storage_.items[i] = sum;
        sum = next;
      }
      storage_.items[kThreads] = sum;
    }
    __syncthreads();
    before = storage_.items[threadIdx.x];
    total = storage_.items[kThreads];
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
