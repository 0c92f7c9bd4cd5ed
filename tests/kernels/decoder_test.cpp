// SPDX-License-Identifier: Apache-2.0
#include "kernels/decoder.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device.hpp"

namespace {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

/// Half a unit in the last place of what is stored, and some for float32's own sums.
double tolerance(DType dtype) {
  return dtype == DType::float32 ? 4e-6 : dtype == DType::float16 ? 6e-4 : 5e-3;
}

void check_close(const std::vector<float>& got, const std::vector<double>& expected, DType dtype) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    REQUIRE(std::abs(static_cast<double>(got[i]) - expected[i]) <=
            tolerance(dtype) * (1 + std::abs(expected[i])));
}

}  // namespace

TEST_CASE("decoder kernels agree with float64 in every dtype, size and order") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  for (const DType dtype : kDTypes)
    for (const std::int64_t width : {1, 40, 300})
      for (const std::int64_t n : {1, 3}) {
        const auto w = static_cast<std::size_t>(width), rows = static_cast<std::size_t>(n);
        const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
        const std::vector<float> x = episodic_test::normal_floats(rows * w, random, 3.0f);
        const std::vector<float> weight = episodic_test::normal_floats(w, random);
        std::vector<float> gate_up = episodic_test::normal_floats(rows * 2 * w, random, 3.0f);
        std::vector<float> table = episodic_test::normal_floats(7 * w, random);
        std::vector<std::int64_t> ids(rows);
        for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % 7);
        const DeviceArray<float> d_x(x), d_weight(weight);
        const DeviceArray<unsigned char> d_gate_up(episodic_test::stored(gate_up, dtype)),
            d_table(episodic_test::stored(table, dtype));
        const DeviceArray<std::int64_t> d_ids(ids);

        std::vector<double> normed(x.size()), silu(x.size()), biased(x.size());
        for (std::size_t i = 0; i < rows; ++i) {
          double squares = 0;
          for (std::size_t c = 0; c < w; ++c)
            squares += static_cast<double>(x[i * w + c]) * static_cast<double>(x[i * w + c]);
          for (std::size_t c = 0; c < w; ++c) {
            const auto at = i * w + c;
            normed[at] = static_cast<double>(x[at]) /
                         std::sqrt(squares / static_cast<double>(w) + 1e-5) *
                         static_cast<double>(weight[c]);
            const double gate = static_cast<double>(gate_up[i * 2 * w + c]);
            silu[at] =
                gate / (1 + std::exp(-gate)) * static_cast<double>(gate_up[i * 2 * w + w + c]);
            biased[at] = gate + static_cast<double>(weight[c]);
          }
        }
        episodic_test::in_every_order([&] {
          const DeviceArray<float> hidden(rows * w);
          REQUIRE(embed_tokens({dtype, d_table.data(), 7, width, d_ids.data(), n, hidden.data()},
                               nullptr) == cudaSuccess);
          const std::vector<float> embedded = hidden.host();
          for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t c = 0; c < w; ++c)
              REQUIRE(embedded[i * w + c] == table[static_cast<std::size_t>(ids[i]) * w + c]);

          const DeviceArray<unsigned char> y(rows * w * element);
          REQUIRE(rms_norm({dtype, d_x.data(), d_weight.data(), n, width, 1e-5f, y.data()},
                           nullptr) == cudaSuccess);
          check_close(episodic_test::floats(y.host(), dtype), normed, dtype);

          REQUIRE(silu_times({dtype, d_gate_up.data(), n, width, y.data()}, nullptr) ==
                  cudaSuccess);
          check_close(episodic_test::floats(y.host(), dtype), silu, dtype);

          std::vector<float> gates(rows * w);
          for (std::size_t i = 0; i < rows * w; ++i) gates[i] = gate_up[i / w * 2 * w + i % w];
          const DeviceArray<unsigned char> d_gates(episodic_test::stored(gates, dtype));
          REQUIRE(add_bias({dtype, d_weight.data(), n, width, d_gates.data()}, nullptr) ==
                  cudaSuccess);
          check_close(episodic_test::floats(d_gates.host(), dtype), biased, dtype);
        });
      }
}

TEST_CASE("decoder kernels show an unknown id as NaNs, in its row alone") {
  EPISODIC_NEEDS_DEVICE();
  const DeviceArray<float> table(std::vector<float>(12, 2.0f)), hidden(12);
  const DeviceArray<std::int64_t> ids(std::vector<std::int64_t>{1, 3, -1});
  REQUIRE(embed_tokens({DType::float32, table.data(), 3, 4, ids.data(), 3, hidden.data()},
                       nullptr) == cudaSuccess);
  const std::vector<float> out = hidden.host();
  for (std::size_t i = 0; i < 12; ++i) REQUIRE(std::isnan(out[i]) == (i >= 4));
}

TEST_CASE("decoder kernels refuse parameters that make no sense, without a device") {
  EmbedParams embed;
  RmsNormParams norm;
  SiluParams silu;
  BiasParams bias;
  REQUIRE(embed_tokens(embed, nullptr) == cudaErrorInvalidValue);
  REQUIRE(rms_norm(norm, nullptr) == cudaErrorInvalidValue);
  REQUIRE(silu_times(silu, nullptr) == cudaErrorInvalidValue);
  REQUIRE(add_bias(bias, nullptr) == cudaErrorInvalidValue);
  embed.width = embed.vocab = norm.width = silu.width = bias.width = 4;
  REQUIRE(embed_tokens(embed, nullptr) == cudaSuccess);  // no rows
  REQUIRE(rms_norm(norm, nullptr) == cudaSuccess);
  REQUIRE(silu_times(silu, nullptr) == cudaSuccess);
  REQUIRE(add_bias(bias, nullptr) == cudaSuccess);
  embed.n = norm.n = silu.n = bias.n = 1;  // null pointers
  REQUIRE(embed_tokens(embed, nullptr) == cudaErrorInvalidValue);
  REQUIRE(rms_norm(norm, nullptr) == cudaErrorInvalidValue);
  REQUIRE(silu_times(silu, nullptr) == cudaErrorInvalidValue);
  REQUIRE(add_bias(bias, nullptr) == cudaErrorInvalidValue);
}
