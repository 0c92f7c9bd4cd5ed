// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random streams as a memory has them in the middle of a text, and all sets of loops to attend
// with.

#include "attend_reference.hpp"
#include "episodic/cpu/kernels.hpp"
#include "support/test.hpp"

namespace episodic::testing {

struct ForEachTable {
  template <class F>
  void operator()(const F& body) const {
    for (int i = 0; const cpu::Kernels* table = cpu::available_kernels(i); ++i) {
      INFO("kernels " << table->name);
      cpu::use_kernels(table);
      body();
    }
    cpu::use_kernels(nullptr);
  }
};
inline constexpr ForEachTable for_each_table;

// A stream at its chunk [first, first + n): sinks, events, pending tokens that may still be in
// some query's window, the window in two segments, and the chunk itself.
struct Stream {
  AttendShape shape;
  SegmentStore store;
  std::vector<std::vector<KvSegment>> lists;
  std::vector<std::span<const KvSegment>> spans;
  std::vector<float> q_relative, q_fixed;
  AttendInput input;

  Stream(Random& random, std::int64_t n, std::int64_t heads, std::int64_t kv_heads, std::int64_t d,
         std::int64_t first, std::int64_t n_local, std::int64_t n_lists = 1,
         DType dtype = DType::float32, float sharpness = 1.0f, DType local_dtype = DType::float32,
         std::int64_t value_dim = 0) {
    shape = {.n_queries = n,
             .n_heads = heads,
             .n_kv_heads = kv_heads,
             .head_dim = d,
             .first_position = first,
             .n_local = n_local,
             .value_dim = value_dim};
    q_relative = normal(random, n * heads * d, sharpness);
    q_fixed = normal(random, n * heads * d, sharpness);
    const std::int64_t start = std::max<std::int64_t>(0, first - n_local + 1);  // window of query 0
    const std::int64_t crossing = std::min(first + n, start + n);
    const auto make = [&](std::int64_t begin, std::int64_t end, Position position, float weight) {
      return store.make(random, kv_heads, d, end - begin, begin, position,
                        position == Position::fixed ? dtype : local_dtype,
                        uniform(random, 0, 1) * 5, weight, uniform(random, 0, 1) == 1, value_dim);
    };
    std::vector<KvSegment> local;
    const std::int64_t middle = (start + first) / 2;
    local.push_back(make(start, middle, Position::relative, 1.0f));
    local.push_back(make(middle, middle, Position::relative, 1.0f));  // empty
    local.push_back(make(middle, first + n, Position::relative, 1.0f));
    for (std::int64_t l = 0; l < n_lists; ++l) {
      auto& list = lists.emplace_back();
      const std::int64_t sinks = std::min<std::int64_t>(4, start);
      list.push_back(make(0, sinks, Position::fixed, 1.0f));
      for (std::int64_t t = sinks + l; t < start;) {
        const std::int64_t length = std::min(start - t, uniform(random, 0, 30));
        list.push_back(make(t, t + length, Position::fixed, 0.5f + 0.25f * (t % 3)));
        if (uniform(random, 0, 1) == 1) {  // a block of the group's own heads
          list.back() =
              store.make(random, kv_heads / n_lists, d, length, t, Position::fixed, dtype,
                         uniform(random, 0, 1) * 3, list.back().value_weight, false, value_dim);
          list.back().first_head = l * (kv_heads / n_lists);
        }
        t += length + uniform(random, 0, 3);
      }
      list.insert(list.end(), local.begin(), local.end());
      list.push_back(make(start, crossing, Position::fixed, 1.0f));
    }
    for (const auto& list : lists) spans.emplace_back(list);
    const TensorSizes sizes = shape.of_queries();
    input = {{q_relative.data(), sizes}, {q_fixed.data(), sizes}, spans};
  }
};

}  // namespace episodic::testing
