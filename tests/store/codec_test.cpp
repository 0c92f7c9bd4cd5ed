// SPDX-License-Identifier: Apache-2.0
#include "episodic/store/codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/cpu/kernels.hpp"
#include "support/fp8_reference.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

constexpr DType kDTypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::int8,
                             DType::fp8};

// Keys and values of tokens in a ring of `capacity`, rows and heads padded with NaN.
struct Ring {
  StoreShape shape;
  std::int64_t capacity, row, head;
  std::vector<float> key, value;

  Ring(const StoreShape& s, std::int64_t size, std::mt19937& rng, float sigma)
      : shape(s), capacity(size), row(s.head_dim + 2), head(size * row + 1) {
    std::normal_distribution<float> draw(0.0f, sigma);
    for (auto* side : {&key, &value}) {
      side->assign(static_cast<std::size_t>(s.n_kv_heads * head),
                   std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t g = 0; g < s.n_kv_heads; ++g)
        for (std::int64_t i = 0; i < size; ++i)
          for (std::int64_t c = 0; c < s.head_dim; ++c)
            (*side)[static_cast<std::size_t>(g * head + i * row + c)] = draw(rng);
    }
  }
  float& at(bool of_value, std::int64_t g, std::int64_t token, std::int64_t c) {
    return (of_value ? value
                     : key)[static_cast<std::size_t>(g * head + token % capacity * row + c)];
  }
  RingView view() const { return {key.data(), value.data(), capacity, head, row}; }
};

struct Block {
  std::vector<float> memory;  // aligned as a float is
  std::byte* data() { return reinterpret_cast<std::byte*>(memory.data()); }
  explicit Block(std::int64_t bytes) : memory(static_cast<std::size_t>(bytes / 4 + 8), -7.0f) {}
};

double decoded(const KvSegment& s, bool of_value, std::int64_t g, std::int64_t i, std::int64_t c) {
  const void* base = of_value ? s.value : s.key;
  const std::int64_t at = g * s.head_stride + i * s.row_stride + c;
  switch (s.dtype) {
    case DType::float32:
      return static_cast<const float*>(base)[at];
    case DType::bfloat16:
      return from_bfloat16(static_cast<const std::uint16_t*>(base)[at]);
    case DType::float16:
      return from_float16(static_cast<const std::uint16_t*>(base)[at]);
    case DType::int8:
    case DType::fp8:
      break;
  }
  const double number = s.dtype == DType::fp8
                            ? testing::fp8_number(static_cast<const std::uint8_t*>(base)[at])
                            : static_cast<const std::int8_t*>(base)[at];
  return static_cast<double>((of_value ? s.value_scale : s.key_scale)[g]) * number;
}

// Half a unit in the last place, or half a code.
double allowed(DType dtype, double x, double largest) {
  switch (dtype) {
    case DType::float32:
      return 0.0;
    case DType::bfloat16:
      return std::abs(x) / 256;
    case DType::float16:
      return std::max(std::abs(x) / 2048, std::ldexp(1.0, -25));
    case DType::fp8:
      return std::max(std::abs(x) / 16, std::ldexp(largest / 224, -10));
    case DType::int8:
      break;
  }
  return largest / 127 * 0.5001;
}

// What encoding says; empty if the event is taken.
std::string refusal(const StoreShape& shape, const TokenRange& event, const Ring& ring) {
  Block block(block_bytes(shape, event.size()));
  try {
    encode_block(shape, event, ring.view(), block.data());
  } catch (const DataError& e) {
    return e.what();
  }
  return {};
}

bool has(const std::string& message, const std::string& word) {
  return message.find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("an encoded block is within half a unit of what was in the ring") {
  std::mt19937 rng(31);
  for (int t = 0; const cpu::Kernels* table = cpu::available_kernels(t); ++t) {
    cpu::use_kernels(table);
    for (const DType dtype : kDTypes)
      for (const std::int64_t d : {1, 3, 16, 33, 80})
        for (const std::int64_t n : {1, 7, 20})
          for (const std::int64_t heads : {1, 3}) {
            CAPTURE(table->name, name_of(dtype), d, n, heads);
            const StoreShape shape{2, heads, d, dtype};
            Ring ring(shape, 23, rng, d == 3 ? 1e-6f : 3.0f);
            const TokenRange event{40, 40 + n};  // wraps at 46
            const std::int64_t bytes = block_bytes(shape, n);
            Block block(bytes);
            const Block untouched(0);
            encode_block(shape, event, ring.view(), block.data());
            REQUIRE(std::memcmp(block.data() + bytes, untouched.memory.data(), 16) == 0);
            const KvSegment s = segment_of(shape, event, block.data());
            REQUIRE(s.dtype == dtype);
            for (const bool value : {false, true})
              for (std::int64_t g = 0; g < heads; ++g) {
                double largest = 0.0;
                for (std::int64_t i = 0; i < n; ++i)
                  for (std::int64_t c = 0; c < d; ++c)
                    largest = std::max(
                        largest,
                        std::abs(static_cast<double>(ring.at(value, g, event.start + i, c))));
                for (std::int64_t i = 0; i < n; ++i)
                  for (std::int64_t c = 0; c < d; ++c) {
                    const double x = ring.at(value, g, event.start + i, c);
                    const double error = std::abs(decoded(s, value, g, i, c) - x);
                    if (!(error <= allowed(dtype, x, largest))) FAIL(x << " is off by " << error);
                  }
              }
          }
  }
  cpu::use_kernels(nullptr);
}

TEST_CASE("bytes of a block") {
  CHECK(block_bytes({4, 2, 10, DType::float32}, 7) == 2 * 7 * 2 * 10 * 4);
  CHECK(block_bytes({4, 2, 10, DType::bfloat16}, 7) == 2 * 7 * 2 * 10 * 2);
  CHECK(block_bytes({4, 2, 10, DType::float16}, 7) == 2 * 7 * 2 * 10 * 2);
  CHECK(block_bytes({4, 2, 10, DType::int8}, 7) == 64 + 320);   // 280 codes
  CHECK(block_bytes({4, 8, 16, DType::int8}, 1) == 64 + 256);   // 16 scales fill their line
  CHECK(block_bytes({4, 9, 16, DType::int8}, 1) == 128 + 320);  // 18 do not fit one
  CHECK(block_bytes({4, 2, 10, DType::fp8}, 7) == 64 + 320);
}

TEST_CASE("int8: scales, zeros and equal bytes for equal events") {
  std::mt19937 rng(32);
  const StoreShape shape{1, 3, 5, DType::int8};
  Ring ring(shape, 16, rng, 1.0f);
  const TokenRange event{3, 10};
  for (std::int64_t t = event.start; t < event.end; ++t)
    for (std::int64_t c = 0; c < 5; ++c) {
      ring.at(false, 1, t, c) = 0.0f;
      ring.at(true, 2, t, c) = 1e-40f;  // its scale would be subnormal
    }
  ring.at(false, 0, 4, 2) = -254.0f;
  const std::int64_t bytes = block_bytes(shape, event.size());
  Block block(bytes), again(bytes);
  std::fill(again.memory.begin(), again.memory.end(), 9.0f);
  encode_block(shape, event, ring.view(), block.data());
  encode_block(shape, event, ring.view(), again.data());
  REQUIRE(std::memcmp(block.data(), again.data(), static_cast<std::size_t>(bytes)) == 0);
  const KvSegment s = segment_of(shape, event, block.data());
  CHECK(s.key_scale[0] == 2.0f);
  CHECK(decoded(s, false, 0, 1, 2) == -254.0);
  CHECK(s.key_scale[1] == 0.0f);
  CHECK(s.value_scale[2] == 0.0f);
  CHECK(s.value_scale[0] > 0.0f);
  for (std::int64_t c = 0; c < 5; ++c) {
    CHECK(static_cast<const std::int8_t*>(s.key)[s.head_stride + c] == 0);
    CHECK(static_cast<const std::int8_t*>(s.value)[2 * s.head_stride + c] == 0);
  }
}

TEST_CASE("fp8: the codes and scales of the definition, for all numbers that a float has") {
  std::mt19937 rng(39);
  std::uniform_real_distribution<float> exponent(-20.0f, 0.0f);
  for (int t = 0; const cpu::Kernels* table = cpu::available_kernels(t); ++t) {
    cpu::use_kernels(table);
    for (const float largest : {0.0f, 1e-44f, 5.2e-36f, 1e-30f, 0.437f, 1.0f, 1.75f, 1.76f, 448.0f,
                                3e4f, 65504.0f, 2.9e38f, 3.0e38f, 3.4e38f}) {
      CAPTURE(table->name, largest);
      const StoreShape shape{1, 2, 21, DType::fp8};
      Ring ring(shape, 16, rng, 1.0f);
      const TokenRange event{9, 16};
      for (std::int64_t i = event.start; i < event.end; ++i)
        for (std::int64_t c = 0; c < 21; ++c)
          ring.at(false, 1, i, c) =
              largest * std::exp2(exponent(rng)) * (rng() % 2 == 0 ? 1.0f : -1.0f);
      ring.at(false, 1, 12, 20) = -largest;
      const std::int64_t bytes = block_bytes(shape, event.size());
      Block block(bytes), again(bytes);
      std::fill(again.memory.begin(), again.memory.end(), 9.0f);
      encode_block(shape, event, ring.view(), block.data());
      encode_block(shape, event, ring.view(), again.data());
      REQUIRE(std::memcmp(block.data(), again.data(), static_cast<std::size_t>(bytes)) == 0);
      const KvSegment s = segment_of(shape, event, block.data());
      const double scale = testing::fp8_scale_of(largest);
      REQUIRE(s.key_scale[1] == scale);
      for (std::int64_t i = 0; i < event.size(); ++i)
        for (std::int64_t c = 0; c < 21; ++c) {
          const double x = ring.at(false, 1, event.start + i, c);
          const std::uint8_t want = scale == 0.0 ? 0 : testing::nearest_fp8(x / scale);
          const std::uint8_t got =
              static_cast<const std::uint8_t*>(s.key)[s.head_stride + i * s.row_stride + c];
          if (got != want) FAIL(x << " has the code " << int{got});
          REQUIRE(std::isfinite(static_cast<float>(decoded(s, false, 1, i, c))));
        }
    }
  }
  cpu::use_kernels(nullptr);
}

TEST_CASE("codes and scales of a block make the same block again") {
  std::mt19937 rng(38);
  const DType dtype = GENERATE(DType::int8, DType::fp8);
  for (const std::int64_t heads : {1, 3})
    for (const std::int64_t n : {1, 7}) {
      const StoreShape shape{1, heads, 5, dtype};
      const Ring ring(shape, 16, rng, 2.0f);
      const TokenRange event{30, 30 + n};
      Block block(block_bytes(shape, n)), again(block_bytes(shape, n));
      encode_block(shape, event, ring.view(), block.data());
      const KvSegment s = segment_of(shape, event, block.data());
      // as a ring of n tokens, in which the event begins at 30 % n
      std::vector<std::int8_t> codes[2];
      for (const auto& [side, from] : {std::pair{0, s.key}, std::pair{1, s.value}}) {
        codes[side].resize(static_cast<std::size_t>(heads * n * 5));
        for (std::int64_t g = 0; g < heads; ++g)
          for (std::int64_t i = 0; i < n; ++i)
            std::copy_n(static_cast<const std::int8_t*>(from) + (g * n + i) * 5, 5,
                        codes[side].begin() + (g * n + (30 + i) % n) * 5);
      }
      RingView view{codes[0].data(), codes[1].data(), n, n * 5, 5, dtype,
                    s.key_scale,     s.value_scale};
      encode_block(shape, event, view, again.data());
      REQUIRE(std::memcmp(block.data(), again.data(),
                          static_cast<std::size_t>(block_bytes(shape, n))) == 0);
      // They are of no other dtype, and nothing without their scales.
      for (const DType as : {DType::float32, dtype == DType::fp8 ? DType::int8 : DType::fp8}) {
        const StoreShape wide{1, heads, 5, as};
        Block other(block_bytes(wide, n));
        REQUIRE_THROWS_AS(encode_block(wide, event, view, other.data()), DataError);
      }
      view.value_scale = nullptr;
      REQUIRE_THROWS_AS(encode_block(shape, event, view, again.data()), DataError);
    }
}

TEST_CASE("what a dtype cannot hold is refused by name") {
  std::mt19937 rng(33);
  const TokenRange event{5, 12};
  for (const DType dtype : kDTypes)
    for (const bool value : {false, true}) {
      CAPTURE(name_of(dtype), value);
      const StoreShape shape{1, 2, 9, dtype};
      Ring ring(shape, 8, rng, 1.0f);
      REQUIRE(refusal(shape, event, ring) == "");
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        ring.at(value, 1, 9, 8) = bad;
        const std::string message = refusal(shape, event, ring);
        CHECK(message.empty() == !is_code(dtype));
        if (is_code(dtype)) {
          for (const char* word : {value ? "value" : "key", "token 9", "head 1", "channel 8",
                                   std::isnan(bad) ? "nan" : "inf", "kv_dtype"})
            CHECK(has(message, word));
        } else {
          Block block(block_bytes(shape, event.size()));
          encode_block(shape, event, ring.view(), block.data());
          const double kept = decoded(segment_of(shape, event, block.data()), value, 1, 4, 8);
          CHECK((std::isnan(bad) ? std::isnan(kept) : kept == bad));
        }
      }
      // also beside an infinity in the same row, which is kept
      for (const float beside : {0.5f, INFINITY}) {
        if (is_code(dtype) && beside > 1.0f) continue;
        ring.at(value, 1, 9, 7) = beside;
        ring.at(value, 1, 9, 8) = -65519.0f;
        CHECK(refusal(shape, event, ring) == "");
        ring.at(value, 1, 9, 8) = -65520.0f;
        const std::string message = refusal(shape, event, ring);
        CHECK(message.empty() == (dtype != DType::float16));
        if (dtype == DType::float16) {
          for (const char* word : {"-65520", "token 9", "float16", "kv_dtype", "bfloat16"})
            CHECK(has(message, word));
        }
      }
    }
}

TEST_CASE("a ring of 16 bits gives the block that its numbers give in float32") {
  std::mt19937 rng(37);
  for (const DType from : {DType::bfloat16, DType::float16})
    for (const DType dtype : kDTypes)
      for (const std::int64_t d : {1, 16, 33})
        for (const std::int64_t heads : {1, 3}) {
          CAPTURE(name_of(from), name_of(dtype), d, heads);
          const StoreShape shape{1, heads, d, dtype};
          Ring ring(shape, 23, rng, 3.0f);
          std::vector<std::uint16_t> halves[2];
          for (std::size_t side = 0; side < 2; ++side)
            for (float& x : side == 0 ? ring.key : ring.value) {
              const bool brain = from == DType::bfloat16;
              halves[side].push_back(brain ? to_bfloat16(x) : to_float16(x));
              x = brain ? from_bfloat16(halves[side].back()) : from_float16(halves[side].back());
            }
          RingView view = ring.view();
          view.key = halves[0].data();
          view.value = halves[1].data();
          view.dtype = from;
          for (const std::int64_t n : {1, 20}) {
            const TokenRange event{40, 40 + n};  // 20 wrap at 46
            const std::int64_t bytes = block_bytes(shape, n);
            Block want(bytes), got(bytes);
            encode_block(shape, event, ring.view(), want.data());
            encode_block(shape, event, view, got.data());
            REQUIRE(std::memcmp(want.data(), got.data(), static_cast<std::size_t>(bytes)) == 0);
          }
          for (const DType codes : {DType::int8, DType::fp8}) {
            view.dtype = codes;
            Block block(block_bytes(shape, 1));
            REQUIRE_THROWS_AS(encode_block(shape, {40, 41}, view, block.data()), DataError);
          }
        }
}
