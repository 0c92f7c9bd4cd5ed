// SPDX-License-Identifier: Apache-2.0
// What kernels ask for a step must be enough for every shorter one. Only attention's need is not
// largest for the longest step (largest_attention_workspace_bytes, attention_test.cpp).
#include <algorithm>
#include <cstdint>
#include <random>

#include "kernels/attention.hpp"
#include "kernels/key_segmenter.hpp"
#include "kernels/recall.hpp"
#include "kernels/refine.hpp"
#include "kernels/window.hpp"
#include "support/test.hpp"

namespace {

using episodic::DType;
using namespace episodic::kernels;

/// \param bytes of a step of n tokens
template <class Bytes>
void enough_for_all_shorter(std::int64_t longest, Bytes&& bytes) {
  const std::size_t room = bytes(longest);
  std::size_t most = 0;
  for (std::int64_t n = 1; n <= longest; ++n) most = std::max(most, bytes(n));
  REQUIRE(most == room);
}

}  // namespace

TEST_CASE("the workspace of the longest step is enough for every shorter one") {
  std::mt19937 random(3);
  const auto any = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random()) % (most - least + 1);
  };
  for (int trial = 0; trial < 60; ++trial) {
    const std::int64_t longest = trial == 0 ? 1 : any(2, 1100);
    const DType dtype = trial % 2 ? DType::bfloat16 : DType::float32;
    MeanQueryParams mean;
    mean.dtype = dtype;
    mean.n_heads = any(1, 40);
    mean.head_dim = 8 * any(1, 32);
    mean.q_row_stride = mean.n_heads * mean.head_dim;
    enough_for_all_shorter(longest, [&](std::int64_t n) {
      mean.n = n;
      return mean_query_workspace_bytes(mean);
    });
    RefineParams refine;
    refine.objective = RefineObjective::conductance;
    refine.dtype = dtype;
    refine.n_layers = any(1, 40);
    refine.n_kv_heads = any(1, 16);
    refine.head_dim = 64;
    // of the step before, which may be as long whatever this one is
    refine.max_previous = longest;
    enough_for_all_shorter(longest, [&](std::int64_t n) {
      refine.n = n;
      const std::size_t bytes = refine_workspace_bytes(refine);
      REQUIRE(bytes > 0);
      return bytes;
    });
    refine.n_timelines = refine.n_layers * refine.n_kv_heads;
    enough_for_all_shorter(longest, [&](std::int64_t n) {
      refine.n = n;
      const std::size_t bytes = refine_workspace_bytes(refine);
      REQUIRE(bytes > 0);
      return bytes;
    });
    KeySegmenterParams keys;
    keys.n_layers = any(1, 40);
    keys.n_kv_heads = any(1, 16);
    keys.head_dim = 8 * any(1, 32);
    keys.min_count = any(0, 8);
    keys.per_head = trial % 3 == 0;
    enough_for_all_shorter(longest, [&](std::int64_t n) {
      keys.n = n;
      const std::size_t bytes = key_segmenter_workspace_bytes(keys);
      REQUIRE(bytes > 0);
      return bytes;
    });
    RecallParams recall;
    recall.max_events = any(1, 100'000);
    recall.n_local = recall.chunk = 512;
    recall.n_mem = 2048;
    recall.min_block = 8;
    recall.codes_from = trial % 2;
    enough_for_all_shorter(longest, [&](std::int64_t n) {
      recall.n = n;
      const std::size_t bytes = recall_workspace_bytes(recall);
      REQUIRE(bytes > 0);
      return bytes;
    });
    AttentionParams attention;
    attention.dtype = dtype;
    attention.n_kv_heads = any(1, 8);
    attention.n_heads = attention.n_kv_heads * any(1, 8);
    attention.head_dim = 64;
    attention.n_local = 512;
    attention.max_rows = any(0, 3000);
    attention.n_queries = longest;
    const std::size_t largest = largest_attention_workspace_bytes(attention);
    for (std::int64_t n = 1; n <= longest; ++n) {
      attention.n_queries = n;
      REQUIRE(attention_workspace_bytes(attention) <= largest);
    }
  }
}
