// SPDX-License-Identifier: Apache-2.0
#include "kernels/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device.hpp"

namespace decoder_test {

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

/// x[first, first + count) / sqrt(sum of squares / channels + eps) * weight, in place.
void norm(std::vector<double>& x, std::size_t first, std::size_t count, std::size_t channels,
          const std::vector<float>& weight, double eps) {
  double squares = 0;
  for (std::size_t c = 0; c < count; ++c) squares += x[first + c] * x[first + c];
  for (std::size_t c = 0; c < count; ++c)
    x[first + c] *=
        static_cast<double>(weight[c]) / std::sqrt(squares / static_cast<double>(channels) + eps);
}

std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

TEST_CASE("embed_tokens looks rows up in every dtype, and scales them") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  for (const DType dtype : kDTypes)
    for (const std::int64_t width : {1, 40, 300})
      for (const float multiplier : {1.0f, 5.5f}) {
        const auto w = static_cast<std::size_t>(width);
        std::vector<float> table = episodic_test::normal_floats(7 * w, random);
        const DeviceArray<unsigned char> d_table(episodic_test::stored(table, dtype));
        const std::vector<std::int64_t> ids{6, 0, 3};
        const DeviceArray<std::int64_t> d_ids(ids);
        const DeviceArray<float> hidden(3 * w);
        REQUIRE(embed_tokens(
                    {dtype, d_table.data(), 7, width, d_ids.data(), 3, hidden.data(), multiplier},
                    nullptr) == cudaSuccess);
        const std::vector<float> embedded = hidden.host();
        for (std::size_t i = 0; i < 3; ++i)
          for (std::size_t c = 0; c < w; ++c)
            REQUIRE(embedded[i * w + c] ==
                    multiplier * table[static_cast<std::size_t>(ids[i]) * w + c]);
      }
}

TEST_CASE("embed_tokens shows an unknown id as NaNs, in its row alone") {
  EPISODIC_NEEDS_DEVICE();
  const DeviceArray<float> table(std::vector<float>(12, 2.0f)), hidden(12);
  const DeviceArray<std::int64_t> ids(std::vector<std::int64_t>{1, 3, -1});
  REQUIRE(embed_tokens({DType::float32, table.data(), 3, 4, ids.data(), 3, hidden.data()},
                       nullptr) == cudaSuccess);
  const std::vector<float> out = hidden.host();
  for (std::size_t i = 0; i < 12; ++i) REQUIRE(std::isnan(out[i]) == (i >= 4));
}

TEST_CASE("add_norm is float64's in every dtype, with and without each of its parts") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  // Rows that stay in registers are of up to 8192 channels, a multiple of 4.
  for (const std::int64_t width : {1, 40, 300, 302, 4100, 8196})
    for (int parts = 0; parts < 16; ++parts) {
      if (width > 302 && parts % 5 != 0) continue;
      const bool adds = parts & 1, biased = parts & 2, behind = parts & 4, before = parts & 8;
      if (behind && !adds) continue;
      const DType dtype = kDTypes[parts % 3];
      const float multiplier = adds ? 0.25f : 1.0f;
      constexpr std::size_t kRows = 3;
      const auto w = static_cast<std::size_t>(width);
      const std::vector<float> x = episodic_test::normal_floats(kRows * w, random, 3.0f);
      const std::vector<float> added = episodic_test::normal_floats(kRows * w, random);
      const std::vector<float> bias = episodic_test::normal_floats(w, random);
      const std::vector<float> of_added = episodic_test::normal_floats(w, random);
      const std::vector<float> of_next = episodic_test::normal_floats(w, random);
      std::vector<double> sum(x.size());
      for (std::size_t i = 0; i < x.size(); ++i)
        sum[i] = (adds ? static_cast<double>(added[i]) : 0.0) +
                 (biased ? static_cast<double>(bias[i % w]) : 0.0);
      std::vector<double> stream = doubles(x);
      for (std::size_t i = 0; i < kRows; ++i) {
        if (behind) norm(sum, i * w, w, w, of_added, 1e-5);
        for (std::size_t c = 0; c < w; ++c)
          stream[i * w + c] += static_cast<double>(multiplier) * sum[i * w + c];
      }
      std::vector<double> expected = stream;
      if (before)
        for (std::size_t i = 0; i < kRows; ++i) norm(expected, i * w, w, w, of_next, 1e-5);

      const DeviceArray<float> d_added(added), d_bias(bias), d_of_added(of_added),
          d_of_next(of_next);
      episodic_test::in_every_order([&] {
        const DeviceArray<float> hidden(x);
        const DeviceArray<unsigned char> y(x.size() *
                                           static_cast<std::size_t>(episodic::size_of(dtype)));
        AddNormParams p;
        p.dtype = dtype;
        p.n = kRows;
        p.width = width;
        p.eps = 1e-5f;
        p.hidden = hidden.data();
        p.maybe_added = adds ? d_added.data() : nullptr;
        p.maybe_bias = biased ? d_bias.data() : nullptr;
        p.maybe_norm_of_added = behind ? d_of_added.data() : nullptr;
        p.multiplier = multiplier;
        p.maybe_norm = before ? d_of_next.data() : nullptr;
        p.y = y.data();
        REQUIRE(add_norm(p, nullptr) == cudaSuccess);
        check_close(hidden.host(), stream, DType::float32);
        check_close(episodic_test::floats(y.host(), dtype), expected, dtype);
      });
    }
}

TEST_CASE("add_norm takes arrays of any alignment") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::size_t kWidth = 40;
  std::mt19937 random(10);
  const std::vector<float> x = episodic_test::normal_floats(kWidth, random), weight(kWidth, 1.5f);
  std::vector<double> expected = doubles(x);
  norm(expected, 0, kWidth, kWidth, weight, 1e-5);
  for (const std::size_t shift : {0, 1}) {
    std::vector<float> moved(shift, 0.0f);
    moved.insert(moved.end(), x.begin(), x.end());
    const DeviceArray<float> hidden(moved), d_weight(weight), y(kWidth);
    AddNormParams p;
    p.dtype = DType::float32;
    p.n = 1;
    p.width = kWidth;
    p.eps = 1e-5f;
    p.hidden = hidden.data() + shift;
    p.maybe_norm = d_weight.data();
    p.y = y.data();
    REQUIRE(add_norm(p, nullptr) == cudaSuccess);
    check_close(y.host(), expected, DType::float32);
  }
}

TEST_CASE("add_norm's LayerNorm is float64's, with and without a bias") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(9);
  for (const DType dtype : kDTypes)
    for (const bool biased : {false, true})
      for (const std::size_t width : {1, 40, 302, 4100}) {
        constexpr std::size_t kRows = 3;
        std::vector<float> x = episodic_test::normal_floats(kRows * width, random, 3.0f);
        for (float& v : x) v += 5.0f;  // a mean that matters
        const std::vector<float> weight = episodic_test::normal_floats(width, random);
        const std::vector<float> bias = episodic_test::normal_floats(width, random);
        std::vector<double> expected = doubles(x);
        for (std::size_t i = 0; i < kRows; ++i) {
          double mean = 0;
          for (std::size_t c = 0; c < width; ++c) mean += expected[i * width + c];
          mean /= static_cast<double>(width);
          for (std::size_t c = 0; c < width; ++c) expected[i * width + c] -= mean;
          norm(expected, i * width, width, width, weight, 1e-5);
          for (std::size_t c = 0; biased && c < width; ++c)
            expected[i * width + c] += static_cast<double>(bias[c]);
        }
        const DeviceArray<float> d_weight(weight), d_bias(bias);
        episodic_test::in_every_order([&] {
          const DeviceArray<float> hidden(x);
          const DeviceArray<unsigned char> y(x.size() *
                                             static_cast<std::size_t>(episodic::size_of(dtype)));
          AddNormParams p;
          p.dtype = dtype;
          p.n = kRows;
          p.width = static_cast<std::int64_t>(width);
          p.eps = 1e-5f;
          p.hidden = hidden.data();
          p.maybe_norm = d_weight.data();
          p.layer_norm = true;
          p.maybe_norm_bias = biased ? d_bias.data() : nullptr;
          p.y = y.data();
          REQUIRE(add_norm(p, nullptr) == cudaSuccess);
          check_close(episodic_test::floats(y.host(), dtype), expected, dtype);
        });
      }
}

TEST_CASE("finish_qkv adds biases and norms heads or rows, padded ones too") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  constexpr std::size_t kHeads = 4, kKvHeads = 2, kDim = 24, kRows = 3;
  constexpr std::size_t kAll = kHeads + 2 * kKvHeads, kWidth = kAll * kDim;
  for (const DType dtype : kDTypes)
    for (const bool biased : {false, true})
      for (const int normed : {0, 1, 2})  // not, each head, whole rows
        for (const std::size_t channels : {kDim, std::size_t{10}}) {
          std::vector<float> qkv = episodic_test::normal_floats(kRows * kWidth, random, 3.0f);
          std::vector<float> bias = episodic_test::normal_floats(kWidth, random);
          for (std::size_t i = 0; i < qkv.size(); ++i)
            if (i % kDim >= channels) qkv[i] = bias[i % kWidth] = 0.0f;
          const bool rows = normed == 2;
          const std::vector<float> q_norm =
              episodic_test::normal_floats(rows ? kHeads * kDim : kDim, random);
          const std::vector<float> k_norm =
              episodic_test::normal_floats(rows ? kKvHeads * kDim : kDim, random);
          const DeviceArray<unsigned char> x(episodic_test::stored(qkv, dtype));
          std::vector<double> expected = doubles(qkv);
          for (std::size_t i = 0; biased && i < expected.size(); ++i)
            expected[i] += static_cast<double>(bias[i % kWidth]);
          for (std::size_t i = 0; i < kRows; ++i) {
            const std::size_t at = i * kWidth;
            if (rows) {
              norm(expected, at, kHeads * kDim, kHeads * channels, q_norm, 1e-5);
              norm(expected, at + kHeads * kDim, kKvHeads * kDim, kKvHeads * channels, k_norm,
                   1e-5);
            } else if (normed == 1) {
              for (std::size_t h = 0; h < kHeads + kKvHeads; ++h)
                norm(expected, at + h * kDim, kDim, channels, h < kHeads ? q_norm : k_norm, 1e-5);
            }
          }
          const DeviceArray<float> d_bias(bias), d_q(q_norm), d_k(k_norm);
          FinishQkvParams p;
          p.dtype = dtype;
          p.n = kRows;
          p.n_heads = kHeads;
          p.n_kv_heads = kKvHeads;
          p.head_dim = kDim;
          p.qkv = x.data();
          p.maybe_bias = biased ? d_bias.data() : nullptr;
          p.maybe_q_norm = normed > 0 ? d_q.data() : nullptr;
          p.maybe_k_norm = normed > 0 ? d_k.data() : nullptr;
          p.whole_rows = rows;
          p.normed_channels = static_cast<std::int64_t>(channels);
          p.eps = 1e-5f;
          REQUIRE(finish_qkv(p, nullptr) == cudaSuccess);
          check_close(episodic_test::floats(x.host(), dtype), expected, dtype);
        }
}

TEST_CASE("gate_times_up is float64's for both activations, with and without biases") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  for (const DType dtype : kDTypes)
    for (const GateActivation activation : {GateActivation::silu, GateActivation::gelu_tanh})
      for (const bool biased : {false, true})
        for (const std::int64_t width : {1, 300, 304}) {
          constexpr std::size_t kRows = 3;
          const auto w = static_cast<std::size_t>(width);
          std::vector<float> gate_up = episodic_test::normal_floats(kRows * 2 * w, random, 3.0f);
          gate_up[0] = 60.0f;  // where exponentials overflow
          gate_up[2 * w] = -60.0f;
          const std::vector<float> bias = episodic_test::normal_floats(2 * w, random);
          const DeviceArray<unsigned char> d_gate_up(episodic_test::stored(gate_up, dtype));
          const DeviceArray<float> d_bias(bias);
          std::vector<double> expected(kRows * w);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const std::size_t at = i / w * 2 * w + i % w;
            double gate = static_cast<double>(gate_up[at]);
            double up = static_cast<double>(gate_up[at + w]);
            if (biased) {
              gate += static_cast<double>(bias[i % w]);
              up += static_cast<double>(bias[w + i % w]);
            }
            constexpr double kFactor = 0.7978845608028654;  // sqrt(2 / pi)
            expected[i] =
                up * (activation == GateActivation::silu
                          ? gate / (1 + std::exp(-gate))
                          : 0.5 * gate *
                                (1 + std::tanh(kFactor * (gate + 0.044715 * gate * gate * gate))));
          }
          const DeviceArray<unsigned char> y(kRows * w *
                                             static_cast<std::size_t>(episodic::size_of(dtype)));
          REQUIRE(gate_times_up({dtype, activation, d_gate_up.data(),
                                 biased ? d_bias.data() : nullptr, kRows, width, y.data()},
                                nullptr) == cudaSuccess);
          check_close(episodic_test::floats(y.host(), dtype), expected, dtype);
        }
}

TEST_CASE("gate_rows is float64's, with and without a bias") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  for (const DType dtype : kDTypes)
    for (const bool biased : {false, true})
      for (const std::int64_t width : {1, 300}) {
        constexpr std::size_t kRows = 3;
        const auto w = static_cast<std::size_t>(width);
        std::vector<float> gate = episodic_test::normal_floats(kRows * w, random, 3.0f);
        gate[0] = 60.0f;  // where exponentials overflow
        gate[w] = -60.0f;
        std::vector<float> x = episodic_test::normal_floats(kRows * w, random);
        const std::vector<float> bias = episodic_test::normal_floats(w, random);
        const std::vector<unsigned char> x_as_stored = episodic_test::stored(x, dtype);
        const std::vector<unsigned char> gate_as_stored = episodic_test::stored(gate, dtype);
        const std::vector<float> rounded = episodic_test::floats(x_as_stored, dtype),
                                 gates = episodic_test::floats(gate_as_stored, dtype);
        const DeviceArray<unsigned char> d_x(x_as_stored), d_gate(gate_as_stored);
        const DeviceArray<float> d_bias(bias);
        std::vector<double> expected(kRows * w);
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i] = static_cast<double>(rounded[i]) /
                        (1 + std::exp(-static_cast<double>(gates[i]) -
                                      (biased ? static_cast<double>(bias[i % w]) : 0.0)));
        REQUIRE(gate_rows({dtype, kRows, width, d_gate.data(), biased ? d_bias.data() : nullptr,
                           d_x.data()},
                          nullptr) == cudaSuccess);
        check_close(episodic_test::floats(d_x.host(), dtype), expected, dtype);
      }
}

TEST_CASE("gate_times_up without a gate is float64's for every activation") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(7);
  const XieluParams xielu{0.9f, 0.7f, 0.5f, -1e-6f};
  for (const DType dtype : kDTypes)
    for (const GateActivation activation : {GateActivation::silu, GateActivation::gelu_tanh,
                                            GateActivation::relu_squared, GateActivation::xielu}) {
      constexpr std::size_t kRows = 3, kWidth = 300;
      std::vector<float> x = episodic_test::normal_floats(kRows * kWidth, random, 3.0f);
      const std::vector<float> bias = episodic_test::normal_floats(kWidth, random);
      const DeviceArray<unsigned char> d_x(episodic_test::stored(x, dtype));
      const DeviceArray<float> d_bias(bias);
      std::vector<double> expected(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double v = static_cast<double>(x[i]) + static_cast<double>(bias[i % kWidth]);
        const double beta = 0.5, eps = static_cast<double>(xielu.eps);
        if (activation == GateActivation::silu)
          expected[i] = v / (1 + std::exp(-v));
        else if (activation == GateActivation::gelu_tanh)
          expected[i] = 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
        else if (activation == GateActivation::relu_squared)
          expected[i] = v > 0 ? v * v : 0;
        else
          expected[i] = beta * v + (v > 0 ? static_cast<double>(xielu.positive) * v * v
                                          : static_cast<double>(xielu.negative) *
                                                (std::expm1(std::min(v, eps)) - v));
      }
      const DeviceArray<unsigned char> y(x.size() *
                                         static_cast<std::size_t>(episodic::size_of(dtype)));
      GateParams p{dtype, activation, d_x.data(), d_bias.data(), kRows, kWidth, y.data()};
      p.gated = false;
      p.xielu = xielu;
      REQUIRE(gate_times_up(p, nullptr) == cudaSuccess);
      check_close(episodic_test::floats(y.host(), dtype), expected, dtype);
    }
}

TEST_CASE("scale_queries multiplies rows by their positions, up to the last one") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  constexpr std::size_t kRows = 7, kWidth = 20, kStride = 24;
  std::vector<float> q = episodic_test::normal_floats(kRows * kStride, random);
  const DeviceArray<unsigned char> d_q(episodic_test::stored(q, DType::float32));
  const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{3});
  ScaleQueriesParams p;
  p.dtype = DType::float32;
  p.q = d_q.data();
  p.n = kRows;
  p.width = kWidth;
  p.row_stride = kStride;
  p.position = position.data();
  p.last_position = 8;
  p.original = 4;
  p.beta = 0.3f;
  REQUIRE(scale_queries(p, nullptr) == cudaSuccess);
  std::vector<double> expected = doubles(q);
  for (std::size_t i = 0; i < kRows; ++i)
    for (std::size_t c = 0; c < kWidth; ++c)
      expected[i * kStride + c] *=
          1 + 0.3 * std::log(1.0 + static_cast<double>(std::min<std::size_t>(3 + i, 8) / 4));
  check_close(episodic_test::floats(d_q.host(), DType::float32), expected, DType::float32);
}

TEST_CASE("decoder kernels refuse parameters that make no sense, without a device") {
  EmbedParams embed;
  AddNormParams add;
  FinishQkvParams heads;
  GateParams gate;
  REQUIRE(embed_tokens(embed, nullptr) == cudaErrorInvalidValue);
  REQUIRE(add_norm(add, nullptr) == cudaErrorInvalidValue);
  REQUIRE(finish_qkv(heads, nullptr) == cudaErrorInvalidValue);
  REQUIRE(gate_times_up(gate, nullptr) == cudaErrorInvalidValue);
  embed.width = embed.vocab = add.width = gate.width = 4;
  heads.n_heads = heads.n_kv_heads = heads.head_dim = 4;
  REQUIRE(embed_tokens(embed, nullptr) == cudaSuccess);  // no rows
  REQUIRE(add_norm(add, nullptr) == cudaSuccess);
  REQUIRE(finish_qkv(heads, nullptr) == cudaSuccess);
  REQUIRE(gate_times_up(gate, nullptr) == cudaSuccess);
  embed.n = add.n = gate.n = heads.n = 1;  // null pointers
  REQUIRE(embed_tokens(embed, nullptr) == cudaErrorInvalidValue);
  REQUIRE(add_norm(add, nullptr) == cudaErrorInvalidValue);
  REQUIRE(gate_times_up(gate, nullptr) == cudaErrorInvalidValue);
  REQUIRE(finish_qkv(heads, nullptr) == cudaSuccess);  // nothing to do
  float any = 0;
  heads.maybe_bias = &any;
  REQUIRE(finish_qkv(heads, nullptr) == cudaErrorInvalidValue);
  add.n = 0;
  add.multiplier = 0.5f;  // of nothing that is added
  REQUIRE(add_norm(add, nullptr) == cudaErrorInvalidValue);
  add.maybe_added = &any;
  REQUIRE(add_norm(add, nullptr) == cudaSuccess);
}

}  // namespace decoder_test
