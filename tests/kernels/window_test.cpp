// SPDX-License-Identifier: Apache-2.0
#include "kernels/window.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "episodic/attention/rotary.hpp"
#include "kernels/device.hpp"

namespace window_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

using Bytes = std::vector<unsigned char>;

/// What is still there where nothing was written.
constexpr unsigned char kUntouched = 0x5a;

struct AppendCase {
  std::int64_t n, heads, d, rotary_dim, first, capacity, n_init, shift;
  bool interleaved = false;
  std::int64_t value_d = 0;  ///< channels of values; 0: d

  std::int64_t e() const { return value_d > 0 ? value_d : d; }
  std::int64_t row() const { return heads * d + shift; }  // elements between tokens
  std::int64_t value_row() const { return heads * e() + shift; }
  std::int64_t head_stride() const { return capacity * d + shift; }  // and between heads of rings
  std::int64_t value_head_stride() const {
    return value_d > 0 ? capacity * e() + 8 : head_stride();
  }
};

struct Window {
  Bytes key, rotated, value, sink_key, sink_value;
  bool operator==(const Window&) const = default;
};

/// Steps of the case's n tokens from token 0 on until `first` is done, on the device.
Window append(const AppendCase& c, DType dtype, const std::vector<float>& k,
              const std::vector<float>& v, const episodic::RotaryTable& table) {
  const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
  const std::int64_t half = c.rotary_dim / 2;
  const auto offset = static_cast<std::size_t>(c.shift) * element;
  const auto to_device = [&](std::vector<float> x) {
    Bytes bytes = episodic_test::stored(x, dtype);
    bytes.insert(bytes.begin(), offset, kUntouched);
    return bytes;
  };
  const DeviceArray<unsigned char> d_k(to_device(k)), d_v(to_device(v));
  const auto untouched = [&](std::int64_t elements) {
    return Bytes(offset + static_cast<std::size_t>(elements) * element, kUntouched);
  };
  const DeviceArray<unsigned char> ring_key(untouched(c.heads * c.head_stride())),
      ring_rotated(untouched(c.heads * c.head_stride())),
      ring_value(untouched(c.heads * c.value_head_stride())),
      sink_key(untouched(c.heads * c.n_init * c.d)),
      sink_value(untouched(c.heads * c.n_init * c.e()));
  const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{c.first});
  const DeviceArray<double> frequency(table.inverse_frequency);
  const DeviceArray<float> cos(static_cast<std::size_t>(c.n * half)),
      sin(static_cast<std::size_t>(c.n * half));
  RotaryAnglesParams angles;
  angles.n = c.n;
  angles.n_frequencies = half;
  angles.first_position = position.data();
  angles.inverse_frequency = frequency.data();
  angles.attention_factor = table.attention_factor;
  angles.cos = cos.data();
  angles.sin = sin.data();
  REQUIRE(rotary_angles(angles, nullptr) == cudaSuccess);
  AppendParams p;
  p.dtype = dtype;
  p.n = c.n;
  p.n_kv_heads = c.heads;
  p.head_dim = c.d;
  p.value_dim = c.value_d;
  p.rotary_dim = c.rotary_dim;
  p.interleaved = c.interleaved;
  p.first_position = position.data();
  p.k = d_k.data() + offset;
  p.v = d_v.data() + offset;
  p.k_row_stride = c.row();
  p.v_row_stride = c.value_row();
  p.cos = cos.data();
  p.sin = sin.data();
  p.ring_key = ring_key.data() + offset;
  p.ring_rotated_key = ring_rotated.data() + offset;
  p.ring_value = ring_value.data() + offset;
  p.ring_capacity = c.capacity;
  p.ring_head_stride = c.head_stride();
  p.value_head_stride = c.value_d > 0 ? c.value_head_stride() : 0;
  p.sink_key = sink_key.data() + offset;
  p.sink_value = sink_value.data() + offset;
  p.n_init = c.n_init;
  REQUIRE(append_window(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const auto from = [&](const DeviceArray<unsigned char>& a) {
    const Bytes all = a.host();
    return Bytes(all.begin() + static_cast<std::ptrdiff_t>(offset), all.end());
  };
  return {from(ring_key), from(ring_rotated), from(ring_value), from(sink_key), from(sink_value)};
}

TEST_CASE("append_window fills rings and sinks as the layer's CPU twin does") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(11);
  const AppendCase cases[] = {
      {1, 1, 8, 8, 0, 3, 2, 0},            // one token
      {5, 2, 16, 16, 4, 7, 6, 0},          // wraps; sinks end inside the step
      {7, 3, 64, 32, 9'999'990, 7, 4, 0},  // a full ring, partial rotation, no sinks left
      {6, 2, 10, 6, 3, 20, 5, 0},          // halves that no pack fits
      {3, 2, 16, 16, 1, 4, 2, 1},          // arrays and strides that no pack fits
      {4, 2, 24, 0, 2, 5, 0, 0},           // no rotation, no sinks
      {260, 1, 8, 8, 70, 300, 100, 0},     // several blocks
      {7, 3, 64, 32, 12, 9, 14, 0, true},  // pairs side by side, in packs
      {3, 2, 10, 6, 3, 20, 5, 0, true},    // and one by one
      // values narrower and wider than keys: in packs, in none, one channel, many to a key
      {5, 2, 48, 16, 4, 7, 6, 0, false, 32},
      {7, 3, 16, 16, 12, 9, 14, 0, true, 64},
      {6, 2, 16, 16, 3, 20, 5, 0, false, 13},
      {3, 2, 10, 6, 1, 4, 2, 1, false, 1},
      {1, 1, 8, 8, 0, 3, 2, 0, false, 16},
      {90, 2, 8, 0, 70, 100, 100, 0, false, 264},
  };
  for (const DType dtype : kDTypes)
    for (const AppendCase& c : cases) {
      const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
      std::vector<float> k =
          episodic_test::normal_floats(static_cast<std::size_t>(c.n * c.row()), random);
      std::vector<float> v =
          episodic_test::normal_floats(static_cast<std::size_t>(c.n * c.value_row()), random);
      episodic::RotaryTable table = episodic::plain_rotary(c.rotary_dim, 500000.0);
      table.attention_factor = 1.25;
      if (c.interleaved) table.pairs = episodic::RotaryPairs::interleaved;

      const Bytes k_bytes = episodic_test::stored(k, dtype),
                  v_bytes = episodic_test::stored(v, dtype);
      Window expected;
      const auto nothing = [&](std::int64_t elements) {
        return Bytes(static_cast<std::size_t>(elements) * element, kUntouched);
      };
      expected.key = nothing(c.heads * c.head_stride());
      expected.value = nothing(c.heads * c.value_head_stride());
      expected.sink_key = nothing(c.heads * c.n_init * c.d);
      expected.sink_value = nothing(c.heads * c.n_init * c.e());
      std::vector<float> rotated(static_cast<std::size_t>(c.n * c.heads * c.d));
      episodic::RotaryAngles angles;
      angles.compute(table, c.first, c.n);
      episodic::rotate(table, angles, c.n, c.heads, c.d, k.data(), c.row(), c.d, rotated.data(),
                       c.heads * c.d, c.d);
      const auto copy_row = [&](const Bytes& from, std::int64_t at, Bytes& to, std::int64_t to_at,
                                std::int64_t channels) {
        const std::int64_t bytes = episodic::size_of(dtype);
        std::copy_n(from.begin() + at * bytes, channels * bytes, to.begin() + to_at * bytes);
      };
      for (std::int64_t i = 0; i < c.n; ++i)
        for (std::int64_t g = 0; g < c.heads; ++g) {
          const std::int64_t token = c.first + i;
          const std::int64_t slot = token % c.capacity, sink = g * c.n_init + token;
          const std::int64_t key = i * c.row() + g * c.d, value = i * c.value_row() + g * c.e();
          copy_row(k_bytes, key, expected.key, g * c.head_stride() + slot * c.d, c.d);
          copy_row(v_bytes, value, expected.value, g * c.value_head_stride() + slot * c.e(), c.e());
          if (token >= c.n_init) continue;
          copy_row(k_bytes, key, expected.sink_key, sink * c.d, c.d);
          copy_row(v_bytes, value, expected.sink_value, sink * c.e(), c.e());
        }

      std::vector<Window> results;
      episodic_test::in_every_order([&] { results.push_back(append(c, dtype, k, v, table)); });
      for (const Window& result : results) {
        REQUIRE(result == results.front());
        REQUIRE(result.key == expected.key);
        REQUIRE(result.value == expected.value);
        REQUIRE(result.sink_key == expected.sink_key);
        REQUIRE(result.sink_value == expected.sink_value);
      }
      // The CPU's instruction sets differ in the last bit of a rotation: off by one rounding at
      // most.
      const std::vector<float> got = episodic_test::floats(results.front().rotated, dtype);
      const std::vector<float> untouched = episodic_test::floats(Bytes(element, kUntouched), dtype);
      const float unit = dtype == DType::float32   ? 0x1p-23f
                         : dtype == DType::float16 ? 0x1p-11f
                                                   : 0x1p-8f;
      std::vector<bool> written(got.size());
      for (std::int64_t i = 0; i < c.n; ++i)
        for (std::int64_t g = 0; g < c.heads; ++g)
          for (std::int64_t at = 0; at < c.d; ++at) {
            const auto to = static_cast<std::size_t>(g * c.head_stride() +
                                                     (c.first + i) % c.capacity * c.d + at);
            const auto from = static_cast<std::size_t>((i * c.heads + g) * c.d + at);
            written[to] = true;
            // pairs side by side are rotated on the CPU without FMA
            const float slack = c.interleaved ? 1.0f : 1e-2f;
            REQUIRE(std::abs(got[to] - rotated[from]) <= unit * (std::abs(rotated[from]) + slack));
            if (at >= c.rotary_dim) REQUIRE(got[to] == rotated[from]);
          }
      for (std::size_t i = 0; i < got.size(); ++i)
        if (!written[i]) REQUIRE(std::memcmp(&got[i], &untouched[0], 4) == 0);
    }
}

TEST_CASE(
    "rotary_angles are right to float32 rounding at ten million, and the same from any start") {
  EPISODIC_NEEDS_DEVICE();
  episodic::RotaryTable table = episodic::plain_rotary(36, 10000.0);
  table.attention_factor = 0.75;
  const std::int64_t half = table.rotary_dim() / 2;
  const DeviceArray<double> frequency(table.inverse_frequency);
  const auto angles = [&](std::int64_t first, std::int64_t n) {
    const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{first});
    const DeviceArray<float> cos(static_cast<std::size_t>(n * half)),
        sin(static_cast<std::size_t>(n * half));
    RotaryAnglesParams p;
    p.n = n;
    p.n_frequencies = half;
    p.first_position = position.data();
    p.inverse_frequency = frequency.data();
    p.attention_factor = table.attention_factor;
    p.cos = cos.data();
    p.sin = sin.data();
    REQUIRE(rotary_angles(p, nullptr) == cudaSuccess);
    episodic::RotaryAngles out;
    out.n = n;
    out.cos = cos.host();
    out.sin = sin.host();
    return out;
  };
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{61}, std::int64_t{10'000'003}}) {
    constexpr std::int64_t kRows = 70;
    const episodic::RotaryAngles got = angles(first, kRows);
    episodic::RotaryAngles twin;
    twin.compute(table, first, kRows);
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t c = 0; c < half; ++c) {
        const auto at = static_cast<std::size_t>(i * half + c);
        const long double angle =
            static_cast<long double>(first + i) *
            static_cast<long double>(table.inverse_frequency[static_cast<std::size_t>(c)]);
        const double cos = 0.75 * static_cast<double>(std::cos(angle));
        const double sin = 0.75 * static_cast<double>(std::sin(angle));
        // half a unit of the float, and what the product of two float64 loses at 10^7 radians
        REQUIRE(std::abs(static_cast<double>(got.cos[at]) - cos) < 3.1e-8);
        REQUIRE(std::abs(static_cast<double>(got.sin[at]) - sin) < 3.1e-8);
        REQUIRE(std::abs(got.cos[at] - twin.cos[at]) <= 6e-8f);
        REQUIRE(std::abs(got.sin[at] - twin.sin[at]) <= 6e-8f);
      }
    const episodic::RotaryAngles last = angles(first + kRows - 1, 1);
    REQUIRE(std::equal(last.cos.begin(), last.cos.end(), got.cos.end() - half));
    REQUIRE(std::equal(last.sin.begin(), last.sin.end(), got.sin.end() - half));
  }
}

TEST_CASE("mean_fixed_query is the mean of the rotated queries") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(5);
  struct Case {
    std::int64_t n, heads, d, rotary_dim, shift;
    bool interleaved = false;
  };
  const Case cases[] = {{1, 2, 16, 16, 0},       {32, 3, 8, 4, 0},   {33, 3, 24, 8, 0},
                        {77, 2, 72, 72, 8},      {77, 3, 10, 6, 1},  {2049, 1, 8, 8, 0},
                        {33, 2, 16, 8, 0, true}, {70, 5, 96, 96, 0}, {70, 3, 256, 64, 0}};
  for (const DType dtype : kDTypes)
    for (const Case& c : cases) {
      const std::int64_t width = c.heads * c.d, row = width + c.shift;
      // far from zero, so that an average in float32 would show
      std::vector<float> q =
          episodic_test::normal_floats(static_cast<std::size_t>(c.n * row), random);
      for (float& x : q) x += 8.0f;
      const episodic::RotaryTable table = episodic::plain_rotary(c.rotary_dim, 10000.0);
      episodic::RotaryAngles angle;
      angle.compute(table, 4095, 1);
      const DeviceArray<unsigned char> d_q(episodic_test::stored(q, dtype));
      const DeviceArray<float> cos(angle.cos), sin(angle.sin);
      MeanQueryParams p;
      p.dtype = dtype;
      p.n = c.n;
      p.n_heads = c.heads;
      p.head_dim = c.d;
      p.rotary_dim = c.rotary_dim;
      p.interleaved = c.interleaved;
      p.q = d_q.data();
      p.q_row_stride = row;
      p.fixed_cos = cos.data();
      p.fixed_sin = sin.data();
      p.workspace_bytes = mean_query_workspace_bytes(p);
      const DeviceArray<double> workspace(p.workspace_bytes / sizeof(double));
      p.workspace = workspace.data();
      const std::vector<std::uint32_t> none(static_cast<std::size_t>(c.heads), 0);
      const DeviceArray<std::uint32_t> arrived(none);
      std::vector<std::vector<float>> results;
      for (const bool in_one : {false, true})
        episodic_test::in_every_order([&] {
          p.maybe_arrived = in_one ? arrived.data() : nullptr;
          const DeviceArray<float> mean(static_cast<std::size_t>(width));
          p.mean = mean.data();
          REQUIRE(mean_fixed_query(p, nullptr) == cudaSuccess);
          REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
          results.push_back(mean.host());
          REQUIRE(arrived.host() == none);
        });
      for (const auto& result : results) REQUIRE(result == results.front());
      for (std::int64_t h = 0; h < c.heads; ++h)
        for (std::int64_t at = 0; at < c.d; ++at) {
          double sum = 0.0;
          const std::int64_t half = c.rotary_dim / 2;
          for (std::int64_t i = 0; i < c.n; ++i) {
            const float* x = q.data() + i * row + h * c.d;
            if (at >= c.rotary_dim) {
              sum += static_cast<double>(x[at]);
              continue;
            }
            const auto f = static_cast<std::size_t>(c.interleaved ? at / 2 : at % half);
            const std::size_t first = c.interleaved ? 2 * f : f;
            const std::size_t second =
                c.interleaved ? first + 1 : f + static_cast<std::size_t>(half);
            const double a = static_cast<double>(x[first]), b = static_cast<double>(x[second]);
            const double co = static_cast<double>(angle.cos[f]),
                         si = static_cast<double>(angle.sin[f]);
            const bool is_first = c.interleaved ? at % 2 == 0 : at < half;
            sum += is_first ? a * co - b * si : b * co + a * si;
          }
          sum /= static_cast<double>(c.n);
          REQUIRE(std::abs(
                      static_cast<double>(results.front()[static_cast<std::size_t>(h * c.d + at)]) -
                      sum) < 1.2e-6);
        }
    }
}

TEST_CASE("mean_query_workspace_bytes is never less for more queries") {
  MeanQueryParams p;
  p.n_heads = 2;
  p.head_dim = 8;
  p.q_row_stride = 16;
  std::size_t last = 0;
  for (p.n = 1; p.n <= 5000; ++p.n) {
    const std::size_t bytes = mean_query_workspace_bytes(p);
    REQUIRE(bytes >= last);
    last = bytes;
  }
  REQUIRE(last == 64 * 16 * sizeof(double));
}

TEST_CASE("window kernels refuse what makes no sense, before any launch") {
  alignas(16) float memory[64] = {};
  alignas(8) std::int64_t position = 0;
  AppendParams a;
  a.n = 2;
  a.n_kv_heads = 1;
  a.head_dim = 8;
  a.rotary_dim = 8;
  a.first_position = &position;
  a.k = a.v = memory;
  a.k_row_stride = a.v_row_stride = 8;
  a.cos = a.sin = memory;
  a.ring_key = a.ring_rotated_key = a.ring_value = memory;
  a.ring_capacity = 2;
  a.ring_head_stride = 16;
  const auto refused = [](AppendParams p, auto change, cudaError_t error = cudaErrorInvalidValue) {
    change(p);
    return append_window(p, nullptr) == error;
  };
  REQUIRE(refused(a, [](AppendParams& p) { p.ring_capacity = 1; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.ring_head_stride = 15; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.rotary_dim = 7; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.rotary_dim = 10; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.k_row_stride = 7; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.v_row_stride = 7; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.dtype = DType::int8; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.n = -1; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.n_init = 1; }));  // no sinks to write to
  REQUIRE(refused(a, [](AppendParams& p) { p.v = nullptr; }));
  REQUIRE(refused(a, [](AppendParams& p) { p.sin = nullptr; }));
  REQUIRE(refused(a, [](AppendParams& p) {
    p.n_kv_heads = std::int64_t{1} << 28;  // n G d beyond 2^31
    p.k_row_stride = p.v_row_stride = std::int64_t{1} << 31;
  }));
  REQUIRE(refused(
      a, [](AppendParams& p) { p.k = reinterpret_cast<const char*>(p.k) + 1; },
      cudaErrorMisalignedAddress));
  REQUIRE(refused(
      a, [](AppendParams& p) { p.n = 0; }, cudaSuccess));

  RotaryAnglesParams r;
  r.n = 1;
  r.n_frequencies = 4;
  REQUIRE(rotary_angles(r, nullptr) == cudaErrorInvalidValue);
  r.n = -1;
  REQUIRE(rotary_angles(r, nullptr) == cudaErrorInvalidValue);
  r.n = 0;
  REQUIRE(rotary_angles(r, nullptr) == cudaSuccess);

  MeanQueryParams m;
  m.n = 33;
  m.n_heads = 1;
  m.head_dim = 8;
  m.q = memory;
  m.q_row_stride = 8;
  m.mean = memory;
  m.workspace_bytes = mean_query_workspace_bytes(m);
  REQUIRE(m.workspace_bytes == 2 * 8 * sizeof(double));
  REQUIRE(mean_fixed_query(m, nullptr) == cudaErrorInvalidValue);  // no workspace
  m.workspace = reinterpret_cast<char*>(memory) + 8;
  REQUIRE(mean_fixed_query(m, nullptr) == cudaErrorMisalignedAddress);
  m.workspace = memory;
  --m.workspace_bytes;
  REQUIRE(mean_fixed_query(m, nullptr) == cudaErrorInvalidValue);
  m.workspace_bytes = 4096;
  m.q_row_stride = 7;
  REQUIRE(mean_fixed_query(m, nullptr) == cudaErrorInvalidValue);
  m.q_row_stride = m.head_dim = (1 << 24) + 1;
  REQUIRE(mean_query_workspace_bytes(m) == 0);
  REQUIRE(mean_fixed_query(m, nullptr) == cudaErrorInvalidValue);
  m.q_row_stride = m.head_dim = 8;
  m.n = 0;
  REQUIRE(mean_query_workspace_bytes(m) == 0);
}

}  // namespace window_test
