// SPDX-License-Identifier: Apache-2.0
#include "kernels/codes.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/device.hpp"
#include "support/same_bits.hpp"

namespace codes_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};
constexpr std::int8_t kUntouched = 99;

struct Codes {
  std::vector<std::int8_t> codes;  // [rows, code_stride(width)]
  std::vector<float> bounds;       // [rows, code_floats(width)]
  bool operator==(const Codes& other) const {
    return codes == other.codes && episodic_test::same_bits(bounds, other.bounds);
  }
};

/// New events in turn: the number of the first, how many there are.
struct Part {
  std::int64_t first;
  std::int32_t count;
};

/// What the kernel writes for the second of two layers; the first one has other vectors.
Codes encode(std::vector<float> vectors, DType dtype, std::int64_t width,
             const std::vector<Part>& parts, std::int64_t max_count, std::int64_t capacity) {
  const auto rows = static_cast<std::int64_t>(vectors.size()) / width;
  const DeviceArray<unsigned char> of_second(episodic_test::stored(vectors, dtype));
  std::vector<float> ones(vectors.size(), 1.0f);
  const DeviceArray<unsigned char> of_first(episodic_test::stored(ones, dtype));
  const std::vector<std::int8_t> no_codes(static_cast<std::size_t>(rows * code_stride(width)),
                                          kUntouched);
  const std::vector<float> no_bounds(static_cast<std::size_t>(rows * code_floats(width)), -77.0f);
  const DeviceArray<std::int8_t> codes(no_codes), other_codes(no_codes);
  const DeviceArray<float> bounds(no_bounds), other_bounds(no_bounds);
  const DeviceArray<CodeLayer> layers(
      std::vector<CodeLayer>{{of_first.data(), other_codes.data(), other_bounds.data()},
                             {of_second.data(), codes.data(), bounds.data()}});
  for (const Part& part : parts) {
    const DeviceArray<std::int32_t> count(std::vector<std::int32_t>{part.count});
    const DeviceArray<std::int64_t> first(std::vector<std::int64_t>{part.first});
    CodeParams p;
    p.events = {nullptr, nullptr, count.data(), first.data(), max_count};
    p.dtype = dtype;
    p.width = width;
    p.capacity = capacity;
    p.layers = layers.data();
    p.n_layers = 2;
    REQUIRE(encode_representatives(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  // Ones are their own mean: codes of 0 with scales of 0, wherever the second layer has codes.
  const std::vector<std::int8_t> zeros = other_codes.host(), second = codes.host();
  for (std::size_t i = 0; i < zeros.size(); ++i)
    REQUIRE((zeros[i] == 0 || (zeros[i] == kUntouched && second[i] == kUntouched)));
  return {second, bounds.host()};
}

/// Vectors with a large common part, and of each kind of row one in sixteen.
std::vector<float> some_vectors(std::int64_t rows, std::int64_t width, std::mt19937& random) {
  std::vector<float> x =
      episodic_test::normal_floats(static_cast<std::size_t>(rows * width), random);
  const std::vector<float> common =
      episodic_test::normal_floats(static_cast<std::size_t>(width), random, 5.0f);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      float& value = x[static_cast<std::size_t>(r * width + c)];
      value += common[static_cast<std::size_t>(c)];
      switch (r % 16) {
        case 1:
          value = 0.0f;
          break;
        case 2:
          value = common[static_cast<std::size_t>(c)];
          break;
        case 3:
          value *= 1000.0f;
          break;
        case 4:
          value *= 1e-30f;
          break;
        case 5:
          if (c == width / 2) value = 20'000.0f;  // one channel above all
          break;
        default:
          break;
      }
    }
  return x;
}

double length(const float* x, std::int64_t n) {
  double square = 0.0;
  for (std::int64_t c = 0; c < n; ++c)
    square += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  return std::sqrt(square);
}

TEST_CASE("codes of representatives bound every score from both sides") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(5);
  constexpr std::int64_t kRows = 2 * kCodeSlab;
  for (const std::int64_t width : {8, 40, 128, 136, 1040})
    for (const DType dtype : kDTypes) {
      std::vector<float> x = some_vectors(kRows, width, random);
      static_cast<void>(episodic_test::stored(x, dtype));
      const Codes coded =
          encode(x, dtype, width, {{0, static_cast<std::int32_t>(kRows)}}, kRows, kRows);
      std::vector<float> mean(static_cast<std::size_t>(width));
      for (std::int64_t c = 0; c < width; ++c) {
        double sum = 0.0;
        for (std::int64_t r = 0; r < kCodeSlab; ++r)
          sum += static_cast<double>(x[static_cast<std::size_t>(r * width + c)]);
        mean[static_cast<std::size_t>(c)] =
            static_cast<float>(sum / static_cast<double>(kCodeSlab));
      }
      for (int trial = 0; trial < 4; ++trial) {
        std::vector<float> q = episodic_test::normal_floats(static_cast<std::size_t>(width), random,
                                                            trial == 3 ? 1e-20f : 1.0f);
        // along what the codes leave of a row: there the bound is nearly reached
        const std::int64_t worst = 7 + trial;
        const std::int8_t* const its = coded.codes.data() + worst * code_stride(width);
        for (std::int64_t c = 0; trial < 3 && c < width; ++c) {
          const auto i = static_cast<std::size_t>(c);
          q[i] =
              x[static_cast<std::size_t>(worst * width + c)] - mean[i] -
              coded.bounds[static_cast<std::size_t>(worst * code_floats(width) + c / kCodeBlock)] *
                  static_cast<float>(its[c]);
        }
        const double norm = length(q.data(), width);
        for (std::int64_t r = 0; r < kRows; ++r) {
          const float* const row = x.data() + r * width;
          const float* const bounds = coded.bounds.data() + r * code_floats(width);
          double score = 0.0, value = 0.0, offset = 0.0, rest = 0.0, kept = 0.0;
          for (std::int64_t c = 0; c < width; ++c) {
            const auto i = static_cast<std::size_t>(c);
            const double code = coded.codes[static_cast<std::size_t>(r * code_stride(width) + c)];
            const double scale = bounds[c / kCodeBlock];
            REQUIRE(std::abs(code) <= 127.0);
            score += static_cast<double>(q[i]) * static_cast<double>(row[c]);
            offset += static_cast<double>(q[i]) * static_cast<double>(mean[i]);
            value += static_cast<double>(q[i]) * scale * code;
            const double left =
                static_cast<double>(row[c]) - static_cast<double>(mean[i]) - scale * code;
            rest += left * left;
            kept += scale * code * scale * code;
          }
          rest = std::sqrt(rest);
          const double reach = bounds[code_floats(width) - 1];
          CAPTURE(width, static_cast<int>(dtype), r, norm, reach, rest);
          REQUIRE(std::isfinite(score));
          // The difference in real numbers, which leaves room for float32's rounding.
          const double difference = std::abs(score - offset - value);
          const double rounding = static_cast<double>(width / 8 + 256) * 0x1p-24;
          const double norms = length(row, width) + length(mean.data(), width);
          const double of_query = episodic::rules::kQueryRest * std::sqrt(kept);
          REQUIRE(difference + (rounding * norms + of_query) * norm <=
                  norm * reach + static_cast<double>(kCodeFloor));
          // and not by much more than it must be
          REQUIRE(reach <= 1.001 * (rest + of_query) + 8.0 * rounding * (norms + rest));
          // half a step of the largest difference of its block
          for (std::int64_t c = code_stride(width); c-- > width;)
            REQUIRE(coded.codes[static_cast<std::size_t>(r * code_stride(width) + c)] == 0);
        }
      }
    }
}

TEST_CASE("codes come a full slab at a time, the same whatever steps filled it") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  constexpr std::int64_t kWidth = 40, kRows = 3 * kCodeSlab + 5;
  const std::vector<float> x = some_vectors(kRows, kWidth, random);
  const auto whole = [&](const std::vector<Part>& parts, std::int64_t max_count) {
    return encode(x, DType::float16, kWidth, parts, max_count, kRows);
  };
  const Codes all = whole({{0, kRows}}, kRows);
  const auto coded = [&](const Codes& codes) {  // rows
    std::int64_t n = 0;
    for (std::int64_t r = 0; r < kRows; ++r)
      n += codes.bounds[static_cast<std::size_t>((r + 1) * code_floats(kWidth) - 1)] >= 0.0f;
    return n;
  };
  REQUIRE(coded(all) == coded_rows(kRows));
  REQUIRE(coded_rows(kRows) == 3 * kCodeSlab);
  episodic_test::in_every_order([&] {
    REQUIRE(whole({{0, 63}, {63, 1}, {64, 0}, {64, 90}, {154, 43}}, 90) == all);
  });
  REQUIRE(coded(whole({{0, 63}}, 90)) == 0);
  REQUIRE(coded(whole({{0, 127}}, 64)) == 64);  // counts are the device's, up to max_count
  const Codes cut = encode(x, DType::float16, kWidth, {{0, 197}}, 197, 130);
  REQUIRE(coded(cut) == 128);  // rows that the arrays hold
  // gone back to 10 events and on with others: the mean is that of the rows as they are
  REQUIRE(whole({{0, 197}, {10, 187}}, 197) == all);
}

TEST_CASE("rows that no code can bound are bounded by nothing, and cost the others little") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(7);
  constexpr std::int64_t kWidth = 200, kRows = kCodeSlab;
  std::vector<float> x = episodic_test::normal_floats(kRows * kWidth, random);
  const std::size_t width = kWidth;
  x[3 * width + 150] = std::numeric_limits<float>::quiet_NaN();
  x[4 * width] = std::numeric_limits<float>::infinity();
  x[5 * width + 199] = -std::numeric_limits<float>::max();
  x[6 * width + 10] = 1e16f;
  const Codes coded = encode(x, DType::float32, kWidth, {{0, kRows}}, kRows, kRows);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const float reach = coded.bounds[static_cast<std::size_t>((r + 1) * code_floats(kWidth) - 1)];
    CAPTURE(r, reach);
    if (r >= 3 && r <= 6)
      REQUIRE(reach == std::numeric_limits<float>::infinity());
    else
      REQUIRE((reach > 0.0f && reach < 1.0f));
  }
}

TEST_CASE("encode_representatives refuses what makes no sense, before any launch") {
  alignas(16) std::int64_t number = 0;
  alignas(16) std::int32_t count = 0;
  const CodeLayer layer;
  CodeParams p;
  p.events = {nullptr, nullptr, &count, &number, 1};
  p.width = 8;
  p.capacity = 1;
  p.layers = &layer;
  p.n_layers = 1;
  const auto refused = [&](auto change, cudaError_t error = cudaErrorInvalidValue) {
    CodeParams changed = p;
    change(changed);
    return encode_representatives(changed, nullptr) == error;
  };
  REQUIRE(refused([](auto& x) { x.width = 12; }));
  REQUIRE(refused([](auto& x) { x.width = 0; }));
  REQUIRE(refused([](auto& x) { x.dtype = DType::int8; }));
  REQUIRE(refused([](auto& x) { x.capacity = -1; }));
  REQUIRE(refused([](auto& x) { x.capacity = std::int64_t{1} << 54; }));
  REQUIRE(refused([](auto& x) { x.n_layers = -1; }));
  REQUIRE(refused([](auto& x) { x.events.max_count = -1; }));
  REQUIRE(refused([](auto& x) { x.events.count = nullptr; }));
  REQUIRE(refused([](auto& x) { x.events.first_id = nullptr; }));
  REQUIRE(refused([](auto& x) { x.layers = nullptr; }));
  REQUIRE(refused(
      [&](auto& x) {
        x.events.first_id =
            reinterpret_cast<const std::int64_t*>(reinterpret_cast<const char*>(&number) + 4);
      },
      cudaErrorMisalignedAddress));
  REQUIRE(refused([](auto& x) { x.events.max_count = 0; }, cudaSuccess));
  REQUIRE(refused([](auto& x) { x.n_layers = 0; }, cudaSuccess));
}

}  // namespace codes_test
