// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

#include "emulated_device.hpp"

namespace cub {

/// Stable; items in blocked arrangement.
template <class Key, int kThreads, int kItems, class Value>
class BlockRadixSort {
 public:
  struct TempStorage {
    struct Pair {
      Key key;
      Value value;
    } pairs[kThreads * kItems];
  };
  explicit BlockRadixSort(TempStorage& storage) : storage_(storage) {}
  void Sort(Key (&keys)[kItems], Value (&values)[kItems]) { sort(keys, values, false); }
  void SortDescending(Key (&keys)[kItems], Value (&values)[kItems]) { sort(keys, values, true); }

 private:
  void sort(Key (&keys)[kItems], Value (&values)[kItems], bool descending) {
    for (int i = 0; i < kItems; ++i)
      storage_.pairs[threadIdx.x * kItems + static_cast<unsigned>(i)] = {keys[i], values[i]};
    __syncthreads();
    if (threadIdx.x == 0)
      std::stable_sort(storage_.pairs, storage_.pairs + kThreads * kItems,
                       [descending](const auto& a, const auto& b) {
                         return descending ? b.key < a.key : a.key < b.key;
                       });
    __syncthreads();
    for (int i = 0; i < kItems; ++i) {
      const auto& pair = storage_.pairs[threadIdx.x * kItems + static_cast<unsigned>(i)];
      keys[i] = pair.key;
      values[i] = pair.value;
    }
  }

  TempStorage& storage_;
};

}  // namespace cub
