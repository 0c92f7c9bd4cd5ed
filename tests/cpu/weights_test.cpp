// SPDX-License-Identifier: Apache-2.0
#include "episodic/cpu/weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cpu/sgemm.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::cpu;

namespace {

using Bytes = std::vector<unsigned char>;

constexpr TensorType kTypes[] = {
    TensorType::f32,    TensorType::f16,    TensorType::bf16,    TensorType::q8_0,
    TensorType::q4_0,   TensorType::q4_1,   TensorType::q5_0,    TensorType::q5_1,
    TensorType::q2_k,   TensorType::q3_k,   TensorType::q4_k,    TensorType::q5_k,
    TensorType::q6_k,   TensorType::iq4_nl, TensorType::mxfp4,   TensorType::iq2_xxs,
    TensorType::iq2_xs, TensorType::iq2_s,  TensorType::iq3_xxs, TensorType::iq3_s,
    TensorType::iq1_s,  TensorType::iq1_m,  TensorType::iq4_xs,  TensorType::nvfp4};

bool is_block(TensorType type) { return block_elements(type) > 1; }

// -- the formats again, one element at a time, from the description of their layouts
// ----------------

int bits_at(const unsigned char* p, int first, int count) {
  int value = 0;
  for (int i = 0; i < count; ++i) value |= (p[(first + i) / 8] >> ((first + i) % 8) & 1) << i;
  return value;
}

float half_at(const unsigned char* p) {
  return from_float16(static_cast<std::uint16_t>(p[0] | p[1] << 8));
}

/// Element i of a block of 32: the low halves of the code bytes hold 0..15, the high ones 16..31.
int nibble(const unsigned char* codes, int i) { return bits_at(codes, i % 16 * 8 + i / 16 * 4, 4); }

/// Number j of the eight scales (part 0) or minima (part 1) of Q4_K and Q5_K.
int six_bits(const unsigned char* p, int j, int part) {
  if (j < 4) return bits_at(p, (part * 4 + j) * 8, 6);
  return bits_at(p, (8 + j - 4) * 8 + part * 4, 4) | bits_at(p, (part * 4 + j - 4) * 8 + 6, 2) << 4;
}

using std::uint16_t;
#include "cpu/codebooks.inc"

/// Number i of a group of eight, of which an entry of a codebook has two bits each.
float of_eight(uint16_t entry, int i, bool less) {
  const float numbers[] = {8, 25, 43};
  return (less ? -1.0f : 1.0f) * numbers[entry >> (2 * i) & 3];
}

/// Sign i of eight, of which seven are stored and the eighth makes their number even.
bool sign_of_seven(int stored, int i) {
  int set = 0;
  for (int j = 0; j < 7; ++j) set += stored >> j & 1;
  return i < 7 ? stored >> i & 1 : set % 2;
}

/// Element i of a block of one of the types with codebooks.
float element_of_codebook(TensorType type, const unsigned char* b, int i) {
  const int eight = i / 8, four = i / 4, s32 = i / 32, s16 = i / 16;
  const auto scaled = [&](float scale, float number) { return scale * number; };
  switch (type) {
    case TensorType::iq2_xxs: {
      const unsigned char* q = b + 2 + s32 * 8;
      const float scale = half_at(b) * (0.5f + static_cast<float>(bits_at(q, 60, 4))) / 4;
      const int signs = bits_at(q, 32 + eight % 4 * 7, 7);
      return scaled(scale, of_eight(kEightOf256[q[eight % 4]], i % 8, sign_of_seven(signs, i % 8)));
    }
    case TensorType::iq2_xs: {
      const float scale = half_at(b) * (0.5f + static_cast<float>(bits_at(b + 66, s16 * 4, 4))) / 4;
      const int signs = bits_at(b + 2, eight * 16 + 9, 7);
      return scaled(scale, of_eight(kEightOf512[bits_at(b + 2, eight * 16, 9)], i % 8,
                                    sign_of_seven(signs, i % 8)));
    }
    case TensorType::iq2_s: {
      const float scale = half_at(b) * (0.5f + static_cast<float>(bits_at(b + 74, s16 * 4, 4))) / 4;
      const int entry = b[2 + eight] + 256 * bits_at(b + 66, eight * 2, 2);
      return scaled(scale, of_eight(kEightOf1024[entry], i % 8, bits_at(b + 34, i, 1)));
    }
    case TensorType::iq3_xxs: {
      const float numbers[] = {4, 12, 20, 28, 36, 44, 52, 62};
      const unsigned char* rest = b + 66 + s32 * 4;
      const float scale = half_at(b) * (0.5f + static_cast<float>(bits_at(rest, 28, 4))) / 2;
      const float number = numbers[kFourOf256[b[2 + four]] >> (4 * (i % 4)) & 15];
      const bool less = sign_of_seven(bits_at(rest, eight % 4 * 7, 7), i % 8);
      return scaled(scale, less ? -number : number);
    }
    case TensorType::iq3_s: {
      const float scale = half_at(b) * static_cast<float>(1 + 2 * bits_at(b + 106, s32 * 4, 4));
      const int entry = b[2 + four] + 256 * bits_at(b + 66, four, 1);
      const float number = static_cast<float>(1 + 2 * (kFourOf512[entry] >> (4 * (i % 4)) & 15));
      return scaled(scale, bits_at(b + 74, i, 1) ? -number : number);
    }
    case TensorType::iq1_s: {
      const int high = bits_at(b + 34, s32 * 16, 16);
      const float scale = half_at(b) * static_cast<float>(1 + 2 * (high >> 12 & 7));
      const int entry = b[2 + eight] + 256 * (high >> (eight % 4 * 3) & 7);
      const int sign = (kSignsOf2048[entry] >> (2 * (i % 8)) & 3) - 1;
      return scaled(scale, static_cast<float>(sign) + (high & 0x8000 ? -0.125f : 0.125f));
    }
    default: {  // IQ1_M
      unsigned char d[2];
      for (int k = 0; k < 2; ++k)
        d[k] = static_cast<unsigned char>(bits_at(b + 48, 32 * k + 12, 4) |
                                          bits_at(b + 48, 32 * k + 28, 4) << 4);
      const int bits = bits_at(b + 48, s16 / 4 * 16 + s16 % 4 * 3, 3);
      const float scale = half_at(d) * static_cast<float>(1 + 2 * bits);
      const int entry = b[eight] + 256 * bits_at(b + 32, eight * 4, 3);
      const int sign = (kSignsOf2048[entry] >> (2 * (i % 8)) & 3) - 1;
      return scaled(
          scale, static_cast<float>(sign) + (bits_at(b + 32, eight * 4 + 3, 1) ? -0.125f : 0.125f));
    }
  }
}

float element(TensorType type, const unsigned char* b, int i) {
  const int half = i / 128, in_half = i % 128;  // of blocks of 256
  switch (type) {
    case TensorType::f32: {
      float x;
      std::memcpy(&x, b, 4);
      return x;
    }
    case TensorType::f16:
      return half_at(b);
    case TensorType::bf16:
      return from_bfloat16(static_cast<std::uint16_t>(b[0] | b[1] << 8));
    case TensorType::q8_0:
      return half_at(b) * static_cast<float>(static_cast<signed char>(b[2 + i]));
    case TensorType::q4_0:
      return half_at(b) * static_cast<float>(nibble(b + 2, i) - 8);
    case TensorType::q4_1: {
      const float scaled = half_at(b) * static_cast<float>(nibble(b + 4, i));
      return scaled + half_at(b + 2);
    }
    case TensorType::q5_0:
      return half_at(b) * static_cast<float>((nibble(b + 6, i) | bits_at(b + 2, i, 1) << 4) - 16);
    case TensorType::q5_1: {
      const float scaled =
          half_at(b) * static_cast<float>(nibble(b + 8, i) | bits_at(b + 4, i, 1) << 4);
      return scaled + half_at(b + 2);
    }
    case TensorType::iq4_nl: {
      const int values[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};
      return half_at(b) * static_cast<float>(values[nibble(b + 2, i)]);
    }
    case TensorType::mxfp4: {
      const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
      const int code = nibble(b + 1, i);
      return std::ldexp(code < 8 ? numbers[code] : -numbers[code - 8], b[0] - 127);
    }
    case TensorType::q2_k: {
      const float scale = half_at(b + 80) * static_cast<float>(b[i / 16] & 15);
      const float least = half_at(b + 82) * static_cast<float>(b[i / 16] >> 4);
      const int byte = 16 + half * 32 + in_half % 32;
      const float scaled = scale * static_cast<float>(bits_at(b, byte * 8 + in_half / 32 * 2, 2));
      return scaled - least;
    }
    case TensorType::q3_k: {
      const int s = i / 16;
      const int scale = bits_at(b + 96, s % 8 * 8 + s / 8 * 4, 4) |
                        bits_at(b + 104, s % 4 * 8 + s / 4 * 2, 2) << 4;
      const int low = bits_at(b + 32, (half * 32 + in_half % 32) * 8 + in_half / 32 * 2, 2);
      const int high = bits_at(b, i % 32 * 8 + i / 32, 1);
      return half_at(b + 108) * static_cast<float>(scale - 32) *
             static_cast<float>(low + 4 * high - 4);
    }
    case TensorType::q4_k: {
      const int s = i / 32;
      const float scale = half_at(b) * static_cast<float>(six_bits(b + 4, s, 0));
      const float least = half_at(b + 2) * static_cast<float>(six_bits(b + 4, s, 1));
      const float scaled =
          scale * static_cast<float>(bits_at(b + 16, (s / 2 * 32 + i % 32) * 8 + s % 2 * 4, 4));
      return scaled - least;
    }
    case TensorType::q5_k: {
      const int s = i / 32;
      const float scale = half_at(b) * static_cast<float>(six_bits(b + 4, s, 0));
      const float least = half_at(b + 2) * static_cast<float>(six_bits(b + 4, s, 1));
      const int code = bits_at(b + 48, (s / 2 * 32 + i % 32) * 8 + s % 2 * 4, 4) |
                       bits_at(b + 16, i % 32 * 8 + s, 1) << 4;
      const float scaled = scale * static_cast<float>(code);
      return scaled - least;
    }
    case TensorType::q6_k: {
      const int low = bits_at(b, (half * 64 + in_half % 64) * 8 + in_half / 64 * 4, 4);
      const int high = bits_at(b + 128, (half * 32 + in_half % 32) * 8 + in_half / 32 * 2, 2);
      const float scale =
          half_at(b + 208) * static_cast<float>(static_cast<signed char>(b[192 + i / 16]));
      return scale * static_cast<float>((low | high << 4) - 32);
    }
    case TensorType::iq4_xs: {
      const int values[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};
      const int s = i / 32, scale = bits_at(b + 4, s * 4, 4) | bits_at(b + 2, s * 2, 2) << 4;
      return half_at(b) * static_cast<float>(scale - 32) *
             static_cast<float>(values[nibble(b + 8 + s * 16, i % 32)]);
    }
    case TensorType::nvfp4: {
      const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
      const int code = bits_at(b + 4 + i / 16 * 8, i % 8 * 8 + i % 16 / 8 * 4, 4);
      const int mantissa = b[i / 16] & 7, exponent = b[i / 16] >> 3 & 15;
      const float e4m3 = exponent == 0
                             ? std::ldexp(static_cast<float>(mantissa), -9)
                             : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      const float scale = b[i / 16] == 127 ? 0.0f : e4m3;
      return scale * (code < 8 ? numbers[code] : -numbers[code - 8]);
    }
    default:
      return element_of_codebook(type, b, i);
  }
}

std::vector<float> reference_row(TensorType type, const unsigned char* row, std::int64_t n) {
  std::vector<float> out;
  const std::int64_t elements = block_elements(type);
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(
        element(type, row + i / elements * block_bytes(type), static_cast<int>(i % elements)));
  return out;
}

// -- random weights
// --------------------------------------------------------------------------------

/// Rows of random bytes with scales of a sensible size.
Bytes random_weights(std::mt19937& random, TensorType type, std::int64_t out, std::int64_t in) {
  Bytes bytes(static_cast<std::size_t>(out * row_bytes(type, in)));
  std::normal_distribution<float> normal;
  if (!is_block(type)) {
    std::vector<float> x(static_cast<std::size_t>(out * in));
    for (float& v : x) v = normal(random);
    quantize_row(type, x.data(), out * in, bytes.data());
    return bytes;
  }
  for (unsigned char& b : bytes) b = static_cast<unsigned char>(random());
  if (type == TensorType::mxfp4) {
    for (std::size_t at = 0; at < bytes.size(); at += 17)
      bytes[at] = static_cast<unsigned char>(118 + random() % 5);
    return bytes;
  }
  if (type == TensorType::nvfp4) {
    for (std::size_t at = 0; at < bytes.size(); at += 36)
      for (std::size_t s = 0; s < 4; ++s)
        bytes[at + s] = static_cast<unsigned char>(8 + random() % 24);
    return bytes;
  }
  if (type == TensorType::iq1_m) {  // the halves of its scale are where they can be
    for (std::size_t at = 0; at < bytes.size(); at += 56) {
      const std::uint16_t h = to_float16(0.02f * normal(random));
      for (std::size_t k = 0; k < 4; ++k) {
        unsigned char& high = bytes[at + 49 + 2 * k];
        high = static_cast<unsigned char>((high & 15) | (h >> (4 * k) & 15) << 4);
      }
    }
    return bytes;
  }
  std::vector<std::int64_t> halves{0};
  if (type == TensorType::q4_1 || type == TensorType::q5_1 || type == TensorType::q4_k ||
      type == TensorType::q5_k)
    halves = {0, 2};
  if (type == TensorType::q2_k) halves = {80, 82};
  if (type == TensorType::q3_k) halves = {108};
  if (type == TensorType::q6_k) halves = {208};
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(block_bytes(type)))
    for (const std::int64_t half : halves) {
      const std::uint16_t h = to_float16(0.02f * normal(random));
      std::memcpy(bytes.data() + at + half, &h, 2);
    }
  return bytes;
}

/// Numbers that 8 bits with a scale for each 32 hold without loss.
std::vector<float> eight_bit_numbers(std::mt19937& random, std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(random() % 255) - 127) / 16;
  for (std::size_t i = 0; i < x.size(); i += 32) x[i] = random() % 2 ? 127.0f / 16 : -127.0f / 16;
  return x;
}

void plain_sgemm(std::int64_t n, std::int64_t out, std::int64_t in, const float* x,
                 std::int64_t x_stride, const float* w, std::int64_t w_stride, float beta, float* y,
                 std::int64_t y_stride) {
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = beta != 0 ? beta * y[r * y_stride + o] : 0.0;
      for (std::int64_t c = 0; c < in; ++c)
        sum += static_cast<double>(x[r * x_stride + c]) * w[o * w_stride + c];
      y[r * y_stride + o] = static_cast<float>(sum);
    }
}

/// Sizes of one product, its operands, and what it must give in float64.
struct Case {
  std::int64_t n, out, in;
  Bytes weights;
  std::vector<float> x, bias, before;
  std::int64_t x_stride, y_stride;
  TensorType type;

  Case(std::mt19937& random, TensorType t, std::int64_t rows, std::int64_t outs, std::int64_t ins)
      : n(rows),
        out(outs),
        in(ins),
        x_stride((ins + 31) / 32 * 32 + 32),
        y_stride(outs + 3),
        type(t) {
    weights = random_weights(random, type, out, in);
    x = eight_bit_numbers(random, n * x_stride);
    bias = eight_bit_numbers(random, out);
    before = eight_bit_numbers(random, n * y_stride);
  }

  WeightProduct product(std::vector<float>& y, bool with_bias, bool add) const {
    y = before;
    return {.type = type,
            .weight = weights.data(),
            .out = out,
            .in = in,
            .bias = with_bias ? bias.data() : nullptr,
            .x = x.data(),
            .x_stride = x_stride,
            .y = y.data(),
            .y_stride = y_stride,
            .add = add};
  }

  void check(const std::vector<float>& y, bool with_bias, bool add) const {
    for (std::int64_t o = 0; o < out; ++o) {
      const auto w = reference_row(type, weights.data() + o * row_bytes(type, in), in);
      for (std::int64_t r = 0; r < n; ++r) {
        const std::size_t at = static_cast<std::size_t>(r * y_stride + o);
        double want =
            (with_bias ? bias[static_cast<std::size_t>(o)] : 0.0) + (add ? before[at] : 0.0);
        double size = 1;
        for (std::int64_t c = 0; c < in; ++c) {
          const double part = static_cast<double>(w[static_cast<std::size_t>(c)]) *
                              x[static_cast<std::size_t>(r * x_stride + c)];
          want += part;
          size += std::abs(part);
        }
        if (!(std::abs(y[at] - want) <= 2e-6 * size)) {  // NaN too
          INFO(name_of(type) << " n " << n << " out " << out << " in " << in << " row " << r
                             << " output " << o << ": " << y[at] << ", expected " << want);
          REQUIRE(std::abs(y[at] - want) <= 2e-6 * size);
        }
      }
    }
    for (std::size_t i = 0; i < y.size(); ++i)  // what lies between rows stays
      if (static_cast<std::int64_t>(i) % y_stride >= out && y[i] != before[i])
        REQUIRE(y[i] == before[i]);
  }
};

class Threads {
 public:
  explicit Threads(int n) : before_(max_threads()) { set_max_threads(n); }
  ~Threads() { set_max_threads(before_); }

 private:
  int before_;
};

struct Record {
  std::vector<float> numbers;
  Bytes blocks;
};

/// Numbers as a plain type has them.
Bytes as_type(TensorType type, const std::vector<float>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  Bytes bytes(static_cast<std::size_t>(row_bytes(type, n)));
  REQUIRE(quantize_row(type, x.data(), n, bytes.data()));
  return bytes;
}

/// vectors/blocks.bin, which make_vectors.py writes.
std::map<std::string, Record> records() {
  std::ifstream file(std::string(EPISODIC_SOURCE_DIR) + "/tests/cpu/vectors/blocks.bin",
                     std::ios::binary);
  const Bytes all{std::istreambuf_iterator<char>(file), {}};
  std::map<std::string, Record> out;
  for (std::size_t at = 0; at + 16 <= all.size();) {
    const std::string name(reinterpret_cast<const char*>(all.data() + at));
    std::uint32_t elements, bytes;
    std::memcpy(&elements, all.data() + at + 8, 4);
    std::memcpy(&bytes, all.data() + at + 12, 4);
    at += 16;
    Record& record = out[name];
    record.blocks.assign(all.begin() + static_cast<long>(at),
                         all.begin() + static_cast<long>(at + bytes));
    record.numbers.resize(elements);
    std::memcpy(record.numbers.data(), all.data() + at + bytes, elements * 4);
    at += bytes + elements * 4;
  }
  return out;
}

}  // namespace

TEST_CASE("weights: every block type reads as the reference package reads it") {
  const auto all = records();
  REQUIRE(all.size() == 26);
  int types = 0;
  for (const TensorType type : kTypes) {
    const auto at = all.find(name_of(type));
    if (at == all.end()) continue;
    ++types;
    const Record& r = at->second;
    const auto n = static_cast<std::int64_t>(r.numbers.size());
    REQUIRE(row_bytes(type, n) == static_cast<std::int64_t>(r.blocks.size()));
    for (int i = 0; const Kernels* table = available_kernels(i); ++i) {
      use_kernels(table);
      std::vector<float> got(r.numbers.size());
      widen_row(type, r.blocks.data(), n, got.data());
      INFO(name_of(type) << " " << table->name);
      REQUIRE(got == r.numbers);
    }
    use_kernels(nullptr);
    REQUIRE(reference_row(type, r.blocks.data(), n) == r.numbers);
  }
  REQUIRE(types == 23);  // all but F32
}

TEST_CASE("weights: every entry of a codebook reads as the reference package reads it") {
  std::ifstream file(std::string(EPISODIC_SOURCE_DIR) + "/tests/cpu/vectors/codebooks.txt");
  std::string name, want;
  int types = 0;
  while (file >> name >> want) {
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](TensorType t) { return name_of(t) == name; });
    REQUIRE(type != std::end(kTypes));
    ++types;
    // the bytes of make_vectors.py: more blocks than any codebook has entries
    constexpr std::int64_t kBlocks = 1024;
    const std::int64_t bytes = block_bytes(*type), elements = block_elements(*type);
    Bytes blocks(static_cast<std::size_t>(kBlocks * bytes));
    std::uint32_t state = 1;
    for (unsigned char& b : blocks) {
      state = state * 1664525u + 1013904223u;
      b = static_cast<unsigned char>(state >> 24);
    }
    for (std::int64_t at = 0; at < kBlocks * bytes; at += bytes) {
      unsigned char* block = blocks.data() + at;
      if (*type == TensorType::iq1_m) {
        for (int k = 0; k < 4; ++k)
          block[49 + 2 * k] =
              static_cast<unsigned char>((block[49 + 2 * k] & 15) | 0x2e66 >> 4 * k << 4);
      } else {
        block[0] = 0x66;
        block[1] = 0x2e;
      }
    }
    std::vector<float> got(static_cast<std::size_t>(kBlocks * elements));
    for (int i = 0; const Kernels* table = available_kernels(i); ++i) {
      use_kernels(table);
      widen_row(*type, blocks.data(), kBlocks * elements, got.data());
      std::uint64_t hash = 14695981039346656037u;  // FNV-1a
      const auto* raw = reinterpret_cast<const unsigned char*>(got.data());
      for (std::size_t b = 0; b < 4 * got.size(); ++b) hash = (hash ^ raw[b]) * 1099511628211u;
      INFO(name << " " << table->name);
      REQUIRE(std::to_string(hash) == want);
    }
    use_kernels(nullptr);
  }
  REQUIRE(types == 8);
}

TEST_CASE("weights: rows of random blocks, at any address") {
  std::mt19937 random(1);
  for (const TensorType type : kTypes)
    for (const std::int64_t n : {std::int64_t{0}, block_elements(type), 5 * block_elements(type),
                                 std::int64_t{is_block(type) ? 512 : 1037}}) {
      const Bytes row = random_weights(random, type, 1, n);
      const std::vector<float> want = reference_row(type, row.data(), n);
      for (std::size_t shift : {0, 1}) {
        Bytes moved(row.size() + shift + 1);
        std::copy(row.begin(), row.end(), moved.begin() + static_cast<long>(shift));
        std::vector<float> got(want.size());
        widen_row(type, moved.data() + shift, n, got.data());
        INFO(name_of(type) << " " << n);
        REQUIRE(got == want);
      }
    }
}

TEST_CASE("weights: quantised as the reference package quantises") {
  const auto all = records();
  for (const auto& [type, name] :
       {std::pair{TensorType::q8_0, "q8_0in"}, std::pair{TensorType::q4_0, "q4_0in"},
        std::pair{TensorType::mxfp4, "mxfp4in"}}) {
    const Record& r = all.at(name);
    Bytes got(r.blocks.size());
    REQUIRE(quantize_row(type, r.numbers.data(), static_cast<std::int64_t>(r.numbers.size()),
                         got.data()));
    REQUIRE(got == r.blocks);
  }
  float x = 1;
  REQUIRE_FALSE(quantize_row(TensorType::q4_k, &x, 0, &x));
  // a scale of MXFP4 that stands for nothing makes no numbers
  unsigned char block[17] = {255, 0x21};
  std::vector<float> nothing(32);
  for (int i = 0; const Kernels* table = available_kernels(i); ++i) {
    use_kernels(table);
    widen_row(TensorType::mxfp4, block, 32, nothing.data());
    for (const float v : nothing) REQUIRE(std::isnan(v));
  }
  use_kernels(nullptr);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(320);
  for (float& v : numbers) v = normal(random);
  for (const auto& [type, share] :
       {std::pair{TensorType::q8_0, 0.5f / 127}, std::pair{TensorType::q4_0, 1.0f / 8}}) {
    Bytes row(static_cast<std::size_t>(row_bytes(type, 320)));
    std::vector<float> back(320);  // half a unit, and the scale is itself rounded to float16
    quantize_row(type, numbers.data(), 320, row.data());
    widen_row(type, row.data(), 320, back.data());
    for (std::size_t b = 0; b < 320; b += 32) {
      float most = 0;
      for (std::size_t i = b; i < b + 32; ++i) most = std::max(most, std::abs(numbers[i]));
      for (std::size_t i = b; i < b + 32; ++i)
        REQUIRE(std::abs(back[i] - numbers[i]) <= most * share * 1.15f);
    }
  }
}

TEST_CASE("weights: products of every type, any number of rows") {
  std::mt19937 random(3);
  for (const TensorType type : kTypes)
    for (const std::int64_t n : {1, 2, 3, 5, 8, 15, 17, 33})
      for (const std::int64_t blocks : {1, 3, 8}) {
        const std::int64_t in = is_block(type) ? blocks * block_elements(type) : blocks * 17 - 10;
        const Case c(random, type, n, blocks == 1 ? 1 : n == 5 ? 131 : 7, in);
        std::vector<float> y;
        for (const Activations how : {Activations::rounded, Activations::exact})
          for (const RowClass rows : {RowClass::by_count, RowClass::few, RowClass::many}) {
            const bool with_bias = random() % 2, add = random() % 2;
            const WeightProduct p = c.product(y, with_bias, add);
            multiply_weights(n, {&p, 1}, {.activations = how, .rows = rows});
            c.check(y, with_bias, add);
          }
      }
}

TEST_CASE("weights: panels of several pieces") {
  std::mt19937 random(4);
  for (const TensorType type : {TensorType::bf16, TensorType::q4_0, TensorType::q6_k}) {
    const Case c(random, type, 20, 150, 1280);
    std::vector<float> y;
    for (const bool with_bias : {false, true})
      for (const bool add : {false, true}) {
        const WeightProduct p = c.product(y, with_bias, add);
        multiply_weights(20, {&p, 1}, {.activations = Activations::exact});
        c.check(y, with_bias, add);
      }
  }
}

TEST_CASE("weights: matrix units give the products of what was rounded to bfloat16") {
  if (!has_matrix_units()) EPISODIC_SKIP("this machine has no AMX with bfloat16");
  std::mt19937 random(8);
  // Numbers that bfloat16 has: their products are exact, sums as in float32. Every edge of a tile.
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16})
    for (const std::int64_t n : {16, 17, 32, 47, 100})
      for (const std::int64_t out : {1, 16, 31, 33, 150})
        for (const std::int64_t in : {7, 32, 100, 512, 1030}) {
          Case c(random, type, n, out, in);
          c.weights = as_type(type, eight_bit_numbers(random, out * in));
          std::vector<float> y;
          const bool with_bias = random() % 2, add = random() % 2;
          const WeightProduct p = c.product(y, with_bias, add);
          multiply_weights(n, {&p, 1}, {.activations = Activations::bfloat16});
          c.check(y, with_bias, add);
        }
}

TEST_CASE("weights: matrix units round both factors to bfloat16, and nothing else") {
  if (!has_matrix_units()) EPISODIC_SKIP("this machine has no AMX with bfloat16");
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const TensorType type : kTypes) {
    Case c(random, type, 20, 40, 768), rounded(random, TensorType::f32, 20, 40, 768);
    for (float& v : c.x) v = normal(random);
    std::vector<float> y, want, wide;
    for (std::int64_t o = 0; o < c.out; ++o)
      for (const float w : reference_row(type, c.weights.data() + o * row_bytes(type, c.in), c.in))
        wide.push_back(from_bfloat16(to_bfloat16(w)));
    rounded.weights = as_type(TensorType::f32, wide);
    rounded.bias = c.bias;
    rounded.before = c.before;
    for (std::size_t i = 0; i < c.x.size(); ++i) rounded.x[i] = from_bfloat16(to_bfloat16(c.x[i]));
    const WeightProduct p = c.product(y, true, false);
    multiply_weights(20, {&p, 1}, {.activations = Activations::bfloat16});
    INFO(name_of(type));
    rounded.check(y, true, false);
    // the same bits with other threads, and in other company
    std::vector<float> again, few;
    const WeightProduct q = c.product(again, true, false);
    WeightProduct less = c.product(few, true, false);
    {
      const Threads threads(1);
      multiply_weights(20, {&q, 1}, {.activations = Activations::bfloat16});
    }
    REQUIRE(again == y);
    less.x += 3 * c.x_stride;
    less.y += 3 * c.y_stride;
    const WeightProduct both[] = {p, less};
    multiply_weights(16, {both + 1, 1}, {.activations = Activations::bfloat16});
    for (std::int64_t r = 3; r < 19; ++r)
      for (std::int64_t o = 0; o < c.out; ++o)
        REQUIRE(few[static_cast<std::size_t>(r * c.y_stride + o)] ==
                y[static_cast<std::size_t>(r * c.y_stride + o)]);
  }
}

TEST_CASE("weights: several products at once, of the same rows and of others") {
  std::mt19937 random(5);
  const Case a(random, TensorType::q8_0, 3, 9, 256), b(random, TensorType::q4_k, 3, 300, 512);
  const Case d(random, TensorType::f16, 3, 40, 64);
  std::vector<float> ya, yb, yc, yd;
  WeightProduct products[] = {a.product(ya, true, false), b.product(yb, false, true),
                              a.product(yc, false, false), d.product(yd, false, false)};
  multiply_weights(3, products);
  a.check(ya, true, false);
  b.check(yb, false, true);
  a.check(yc, false, false);
  d.check(yd, false, false);
  multiply_weights(0, products);
  multiply_weights(3, {});
}

TEST_CASE("weights: the same bits with any number of threads and in any company") {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (const TensorType type : kTypes) {
    Case c(random, type, 8, 700, 1024);
    for (float& v : c.x) v = normal(random);
    std::vector<float> one, many, alone;
    const WeightProduct p = c.product(one, true, false), q = c.product(many, true, false);
    {
      const Threads threads(1);
      multiply_weights(8, {&p, 1}, {.rows = RowClass::few});
    }
    {
      const Threads threads(4);
      multiply_weights(8, {&q, 1}, {.rows = RowClass::few});
    }
    INFO(name_of(type));
    REQUIRE(one == many);
    WeightProduct row = c.product(alone, true, false);
    for (std::int64_t r = 0; r < 8; ++r) {
      row.x = c.x.data() + r * c.x_stride;
      row.y = alone.data() + r * c.y_stride;
      multiply_weights(1, {&row, 1}, {.parallel = false});
    }
    REQUIRE(one == alone);
  }
}

TEST_CASE("weights: many rows of blocks have the same bits with any threads and any other rows") {
  std::mt19937 random(16);
  std::normal_distribution<float> normal;
  for (const TensorType type : kTypes) {
    if (!is_block(type)) continue;
    INFO(name_of(type));
    Case c(random, type, 43, 150, 768);
    for (float& v : c.x) v = normal(random);
    std::vector<float> one, many, part;
    const WeightProduct p = c.product(one, true, false), q = c.product(many, true, false);
    {
      const Threads threads(1);
      multiply_weights(43, {&p, 1});
    }
    {
      const Threads threads(4);
      multiply_weights(43, {&q, 1});
    }
    REQUIRE(one == many);
    WeightProduct rest = c.product(part, true, false);  // rows 14 and on, alone
    rest.x += 14 * rest.x_stride;
    rest.y += 14 * rest.y_stride;
    multiply_weights(29, {&rest, 1});
    const auto from = 14 * c.y_stride;
    REQUIRE(std::equal(one.begin() + from, one.end(), part.begin() + from));
  }
}

TEST_CASE("weights: own products of many rows of floats, at any size and stride") {
  Sgemm sgemm = sgemm_portable;
#if defined(__x86_64__)
  if (kernels().set == InstructionSet::avx2) sgemm = sgemm_avx2;
  if (kernels().set == InstructionSet::avx512) sgemm = sgemm_avx512;
#endif
  std::mt19937 random(19);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t count) {
    std::vector<float> v(static_cast<std::size_t>(count));
    for (float& x : v) x = normal(random);
    return v;
  };
  for (const std::int64_t n : {1, 2, 5, 7, 13, 14, 15, 31, 100})
    for (const std::int64_t out : {1, 7, 9, 15, 16, 17, 32, 33, 150})
      for (const std::int64_t in : {0, 1, 7, 9, 15, 16, 17, 255, 257, 511, 512, 513, 1040})
        for (const float beta : {0.0f, 1.0f}) {
          INFO(n << " rows, " << out << " outputs of " << in << " numbers, beta " << beta);
          const std::int64_t x_stride = in + 3, w_stride = in + 5, y_stride = out + 7;
          const auto x = draw(n * x_stride), w = draw(out * w_stride);
          auto y = draw(n * y_stride);
          // what does not count may be anything, and what lies between the rows stays
          if (beta == 0) std::fill(y.begin(), y.end(), std::numeric_limits<float>::quiet_NaN());
          for (std::int64_t r = 0; r < n; ++r)
            for (std::int64_t i = out; i < y_stride; ++i) y[r * y_stride + i] = 7;
          auto expected = y, part = y;
          plain_sgemm(n, out, in, x.data(), x_stride, w.data(), w_stride, beta, expected.data(),
                      y_stride);
          sgemm(n, out, in, x.data(), x_stride, w.data(), w_stride, beta, y.data(), y_stride);
          // sums of `in` products of normal numbers, each rounded once
          const double bound = 1e-6 * (10 + static_cast<double>(in));
          bool near = true;
          for (std::size_t i = 0; i < y.size(); ++i)
            near = near && std::abs(static_cast<double>(y[i]) - expected[i]) <= bound;
          REQUIRE(near);
          // a row's bits do not depend on the rows beside it
          const std::int64_t last = n - 1;
          sgemm(1, out, in, x.data() + last * x_stride, x_stride, w.data(), w_stride, beta,
                part.data() + last * y_stride, y_stride);
          REQUIRE(std::equal(y.begin() + last * y_stride, y.end(), part.begin() + last * y_stride));
        }
}

TEST_CASE(
    "weights: a row's bits depend on its class, not on the rows, outputs and products beside it") {
  std::mt19937 random(23);
  std::normal_distribution<float> normal;
  const auto up_to = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  };
  for (const TensorType type : kTypes)
    for (const Activations how : {Activations::rounded, Activations::exact, Activations::bfloat16})
      for (const RowClass rows : {RowClass::few, RowClass::many})
        for (int trial = 0; trial < 3; ++trial) {
          const std::int64_t n = trial == 0 ? 70 : up_to(40), out = up_to(300);
          // longer than what is unpacked at a time
          const std::int64_t in = is_block(type)
                                      ? up_to(1280 / block_elements(type)) * block_elements(type)
                                      : up_to(1300);
          INFO(name_of(type) << ", activations " << static_cast<int>(how) << ", class "
                             << static_cast<int>(rows) << ": " << n << " rows, " << out
                             << " outputs of " << in);
          Case c(random, type, n, out, in);
          for (float& v : c.x) v = normal(random);
          const bool with_bias = random() % 2, add = random() % 2;
          const WeightOptions options{.activations = how, .rows = rows};
          std::vector<float> whole, part, beside;
          const WeightProduct p = c.product(whole, with_bias, add);
          multiply_weights(n, {&p, 1}, options);
          // some rows of some outputs, beside another product
          for (int piece = 0; piece < 4; ++piece) {
            const std::int64_t first = up_to(n) - 1, count = piece == 0 ? 1 : up_to(n - first);
            const std::int64_t from = up_to(out) - 1, outputs = up_to(out - from);
            WeightProduct products[] = {c.product(part, with_bias, add),
                                        c.product(beside, false, false)};
            for (WeightProduct& q : products) {
              q.x += first * c.x_stride;
              q.y += first * c.y_stride;
            }
            WeightProduct& q = products[piece % 2];
            q = products[0];
            if (piece % 2) products[0] = c.product(beside, false, false);
            q.y += from;
            q.out = outputs;
            q.weight = static_cast<const unsigned char*>(q.weight) + from * row_bytes(type, in);
            if (q.bias != nullptr) q.bias += from;
            multiply_weights(count, products, options);
            bool same = true;
            for (std::int64_t r = first; r < first + count; ++r)
              for (std::int64_t o = from; o < from + outputs; ++o) {
                const auto at = static_cast<std::size_t>(r * c.y_stride + o);
                same = same && std::memcmp(&part[at], &whole[at], sizeof(float)) == 0;
              }
            REQUIRE(same);
          }
        }
}

TEST_CASE("weights: by_count takes few rows for few, and more for many") {
  std::mt19937 random(24);
  std::normal_distribution<float> normal;
  for (const TensorType type : kTypes)
    for (const Activations how : {Activations::rounded, Activations::exact}) {
      INFO(name_of(type));
      const std::int64_t border = few_rows(type, how);
      REQUIRE(border >= 1);
      Case c(random, type, border + 1, 70, 1024);
      for (float& v : c.x) v = normal(random);
      for (const std::int64_t n : {border, border + 1}) {
        std::vector<float> by_count, named;
        const WeightProduct p = c.product(by_count, true, false);
        const WeightProduct q = c.product(named, true, false);
        multiply_weights(n, {&p, 1}, {.activations = how});
        multiply_weights(n, {&q, 1},
                         {.activations = how, .rows = n > border ? RowClass::many : RowClass::few});
        REQUIRE(by_count == named);
      }
    }
}

TEST_CASE("weights: what rounding the activations costs is bounded") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const std::int64_t n : {2, 20})  // few rows, and panels of codes
    for (const TensorType type : kTypes) {
      if (!is_block(type)) continue;
      Case c(random, type, n, 50, 1024);
      for (float& v : c.x) v = normal(random);
      std::vector<float> rounded, exact;
      const WeightProduct p = c.product(rounded, false, false), q = c.product(exact, false, false);
      multiply_weights(n, {&p, 1});
      multiply_weights(n, {&q, 1}, {.activations = Activations::exact});
      double error = 0, size = 0;
      for (std::int64_t o = 0; o < c.out; ++o) {
        const auto w = reference_row(type, c.weights.data() + o * row_bytes(type, c.in), c.in);
        for (std::int64_t r = 0; r < n; ++r) {
          double bound = 1e-4, squares = 0;  // half a unit of each block's scale
          for (std::int64_t i = 0; i < c.in; i += 32) {
            double most = 0, sum = 0;
            for (std::int64_t j = i; j < i + 32; ++j) {
              const double x = c.x[static_cast<std::size_t>(r * c.x_stride + j)];
              const double weight = w[static_cast<std::size_t>(j)];
              most = std::max(most, std::abs(x));
              sum += std::abs(weight);
              squares += weight * weight * x * x;
            }
            bound += most / 254 * sum;
          }
          const std::size_t at = static_cast<std::size_t>(r * c.y_stride + o);
          const double off = static_cast<double>(rounded[at]) - exact[at];
          REQUIRE(std::abs(off) <= bound);
          error += off * off;
          size += squares;
        }
      }
      INFO(name_of(type) << ": " << std::sqrt(error / size));
      REQUIRE(std::sqrt(error / size) < 0.008);
    }
}

TEST_CASE("weights: a row without a number gives none, its neighbours do") {
  std::mt19937 random(8);
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const TensorType type : kTypes)
    for (const float value : bad)
      for (const std::int64_t n : {3, 12}) {  // few rows, and panels of codes
        Case c(random, type, n, 5, 256);
        c.x[static_cast<std::size_t>(c.x_stride + 77)] = value;
        std::vector<float> y;
        const WeightProduct p = c.product(y, false, false);
        multiply_weights(n, {&p, 1});
        INFO(name_of(type));
        for (std::int64_t o = 0; o < 5; ++o) {
          REQUIRE_FALSE(std::isfinite(y[static_cast<std::size_t>(c.y_stride + o)]));
          REQUIRE(std::isfinite(y[static_cast<std::size_t>(o)]));
          REQUIRE(std::isfinite(y[static_cast<std::size_t>(2 * c.y_stride + o)]));
        }
      }
}

TEST_CASE("weights: activations that are all zero, and very small ones") {
  std::mt19937 random(9);
  for (const TensorType type : kTypes) {
    Case c(random, type, 2, 5, 256);
    for (float& v : c.x) v = 0;
    c.x[static_cast<std::size_t>(c.x_stride)] = 1e-38f;
    std::vector<float> y;
    const WeightProduct p = c.product(y, false, false);
    multiply_weights(2, {&p, 1});
    for (std::int64_t o = 0; o < 5; ++o) {
      REQUIRE(y[static_cast<std::size_t>(o)] == 0.0f);
      REQUIRE(std::abs(y[static_cast<std::size_t>(c.y_stride + o)]) < 1e-30f);
    }
  }
}

TEST_CASE("weights: types that are no weights are known as such") {
  for (const TensorType type : kTypes) REQUIRE(is_weight_type(type));
  for (const TensorType type : {TensorType::boolean, TensorType::i8, TensorType::i64,
                                TensorType::f64, TensorType::f8_e4m3, TensorType::c64})
    REQUIRE_FALSE(is_weight_type(type));
}
