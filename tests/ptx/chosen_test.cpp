// SPDX-License-Identifier: Apache-2.0
// Which attention kernel a device gets: the tests of tests/kernels say nothing of the others.
#include <cmath>
#include <string>
#include <vector>

#include "device.hpp"
#include "kernels/attention.hpp"
#include "kernels/attention_plan.hpp"
#include "kernels/device.hpp"
#include "kernels/product.hpp"

namespace chosen_test {

using episodic::DType;
using episodic::kernels::AttentionParams;
using episodic_test::DeviceArray;

std::uint64_t launches(const std::string& kernel) {
  std::uint64_t n = 0;
  for (const auto& [name, counts] : ptx::kernel_counts())
    if (name.find(kernel) != std::string::npos) n += counts.launches;
  return n;
}

/// Attention of zeros, which is the values' mean, over a window of `n` tokens.
void attend(DType dtype, std::int64_t n) {
  constexpr std::int64_t kHeads = 2, kDim = 64;
  std::vector<float> zeros(static_cast<std::size_t>(n * kHeads * kDim)), ones = zeros;
  std::fill(ones.begin(), ones.end(), 1.0f);
  const DeviceArray<unsigned char> q(episodic_test::stored(zeros, dtype)),
      key(episodic_test::stored(zeros, dtype)), value(episodic_test::stored(ones, dtype)),
      out(q.size());
  const DeviceArray<std::int64_t> first(std::vector<std::int64_t>{0});
  AttentionParams p;
  p.dtype = dtype;
  p.n_queries = n;
  p.n_heads = p.n_kv_heads = kHeads;
  p.head_dim = kDim;
  p.n_local = n;
  p.q = q.data();
  p.q_row_stride = kHeads * kDim;
  p.first_position = first.data();
  p.local_key = key.data();
  p.local_value = value.data();
  p.ring_capacity = 2 * n - 1;
  p.ring_head_stride = 0;
  p.out = out.data();
  // (both heads read the same ring, of whose slots the first n are set)
  p.n_kv_heads = 1;
  const DeviceArray<float> columns(static_cast<std::size_t>((2 * n - 1) * kHeads));
  p.maybe_column_sums = columns.data();
  p.workspace_bytes = episodic::kernels::attention_workspace_bytes(p);
  const DeviceArray<unsigned char> workspace(p.workspace_bytes);
  p.workspace = workspace.data();
  REQUIRE(episodic::kernels::segmented_attention(p, nullptr) == cudaSuccess);
  for (const float x : episodic_test::floats(out.host(), dtype))
    REQUIRE(std::fabs(x - 1.0f) < 1e-2f);
}

TEST_CASE("attention takes wgmma on compute capability 9.0 alone, for many rows of 16 bits") {
  const ptx::Architecture before = ptx::current_architecture();
  for (const int major : {9, 10}) {
    ptx::set_architecture(ptx::architecture(major, 0));
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
      for (const std::int64_t n : {4, 40}) {
        INFO("on " << major << ".0, " << n << " queries, dtype " << static_cast<int>(dtype));
        const std::uint64_t wgmma = launches("WgmmaAttention"), mma = launches("MmaAttention"),
                            wgmma_sums = launches("WgmmaColumnSums"),
                            mma_sums = launches("MmaColumnSums"),
                            floats = launches("FloatAttention");
        attend(dtype, n);
        const bool many = n == 40 && dtype != DType::float32;
        REQUIRE(launches("WgmmaAttention") - wgmma == (many && major == 9 ? 1 : 0));
        REQUIRE(launches("WgmmaColumnSums") - wgmma_sums == (many && major == 9 ? 1 : 0));
        REQUIRE(launches("MmaColumnSums") - mma_sums == (many && major == 10 ? 1 : 0));
        REQUIRE(launches("MmaAttention") - mma ==
                (dtype != DType::float32 && !(many && major == 9) ? 1 : 0));
        REQUIRE(launches("FloatAttention") - floats == (dtype == DType::float32 ? 1 : 0));
      }
  }
  ptx::set_architecture(before);
}

std::uint64_t early_launches() {
  std::uint64_t n = 0;
  for (const auto& [name, counts] : ptx::kernel_counts()) n += counts.early_launches;
  return n;
}

TEST_CASE("kernels of a decoded token may begin before the launch before them has ended") {
  using namespace episodic::kernels;
  const DeviceArray<float> hidden(std::vector<float>(32, 1.0f)),
      weight(std::vector<float>(32 * 24, 0.5f)), sum(std::vector<float>(24, 2.0f));
  ProductParams p;
  p.dtype = DType::float32;
  p.n = 1;
  p.in = 32;
  p.out = 24;
  p.weight = weight.data();
  p.hidden = hidden.data();
  const std::uint64_t before = early_launches();
  REQUIRE(add_product(p, 1.0f, sum.data(), nullptr) == cudaSuccess);
  REQUIRE(add_product(p, 1.0f, sum.data(), nullptr) == cudaSuccess);  // reads what the first wrote
  for (const float x : sum.host()) REQUIRE(x == 34.0f);
  attend(DType::bfloat16, 4);
  const bool does = ptx::current_architecture().major >= 9;
  REQUIRE(early_launches() - before == (does ? 3 : 0));
  attend(DType::bfloat16, 40);  // many rows
  REQUIRE(early_launches() - before == (does ? 3 : 0));
}

}  // namespace chosen_test
