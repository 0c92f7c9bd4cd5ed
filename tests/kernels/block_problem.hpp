// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random matrices in blocks, as files and as a device have them, and what they are in float64.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "episodic/base/rules/fp8.hpp"
#include "episodic/base/tensor_type.hpp"
#include "episodic/cpu/weights.hpp"
#include "kernels/blocks.hpp"
#include "kernels/device.hpp"

namespace block_problem {

using episodic::TensorType;
using episodic::kernels::BlockMatrix;
using episodic::kernels::BlockPlanes;
using episodic::kernels::BlockType;
using episodic_test::DeviceArray;

struct Kind {
  BlockType type;
  TensorType stored;
};
inline constexpr Kind kKinds[] = {
    {BlockType::q4_0, TensorType::q4_0},  {BlockType::q4_1, TensorType::q4_1},
    {BlockType::q5_0, TensorType::q5_0},  {BlockType::q5_1, TensorType::q5_1},
    {BlockType::q8_0, TensorType::q8_0},  {BlockType::q4_k, TensorType::q4_k},
    {BlockType::q5_k, TensorType::q5_k},  {BlockType::q6_k, TensorType::q6_k},
    {BlockType::mxfp4, TensorType::mxfp4}};

inline std::size_t size(std::int64_t a, std::int64_t b = 1) {
  return static_cast<std::size_t>(a * b);
}

/// Random bits, with scales such that numbers are of about size 1, or a power of two of it.
inline std::vector<unsigned char> random_blocks(TensorType type, std::int64_t rows, std::int64_t in,
                                                std::mt19937& random, int log2_size = 0) {
  const std::int64_t block = episodic::block_bytes(type);
  std::vector<unsigned char> bytes(size(rows, in / episodic::block_elements(type) * block));
  for (unsigned char& b : bytes) b = static_cast<unsigned char>(random());
  std::uniform_real_distribution<float> factor(-1.0f, 1.0f);
  const auto put = [&](std::size_t at, float scale) {
    const std::uint16_t half = episodic::to_float16(std::ldexp(scale * factor(random), log2_size));
    std::memcpy(bytes.data() + at, &half, sizeof(half));
  };
  for (std::size_t at = 0; at < bytes.size(); at += size(block)) switch (type) {
      case TensorType::q4_k:
      case TensorType::q5_k:
        put(at, 0.004f);
        put(at + 2, 0.05f);
        break;
      case TensorType::q6_k:
        put(at + 208, 0.0006f);
        break;
      case TensorType::q2_k:
        put(at + 80, 0.05f);
        put(at + 82, 0.05f);
        break;
      case TensorType::mxfp4:
        bytes[at] = static_cast<unsigned char>(122 + log2_size + static_cast<int>(random() % 6));
        break;
      case TensorType::q4_1:
      case TensorType::q5_1:
        put(at + 2, 1.0f);
        [[fallthrough]];
      default:
        put(at, type == TensorType::q8_0 || type == TensorType::iq4_nl ? 0.02f : 0.2f);
    }
  return bytes;
}

/// Rows of one type.
class Rows {
 public:
  Rows(Kind kind, std::int64_t rows, std::int64_t in, std::mt19937& random)
      : stored_(random_blocks(kind.stored, rows, in, random)), of_(kind), rows_(rows) {
    numbers.resize(size(rows, in));
    const std::size_t row = stored_.size() / size(rows);
    for (std::int64_t r = 0; r < rows; ++r)
      episodic::cpu::widen_row(kind.stored, stored_.data() + size(r) * row, in,
                               numbers.data() + size(r, in));
    const BlockPlanes plane = episodic::kernels::block_planes(kind.type, in);
    const auto end = [&](std::int64_t of_row) {
      return episodic::kernels::plane_bytes(of_row, rows);
    };
    std::vector<unsigned char> planes(
        size(episodic::kernels::block_matrix_bytes(kind.type, rows, in)));
    unsigned char *const codes = planes.data(), *const high = codes + end(plane.codes),
                         *const scales = high + end(plane.high),
                         *const base = scales + end(plane.scales);
    episodic::kernels::pack_block_rows(kind.type, stored_.data(), rows, in,
                                       {codes, high, scales, base});
    device_ = std::make_shared<const DeviceArray<unsigned char>>(planes);
  }
  /// Of E4M3, with a scale a row.
  Rows(std::int64_t rows, std::int64_t in, std::mt19937& random)
      : of_{BlockType::fp8, TensorType::f8_e4m3}, rows_(rows) {
    stored_.resize(size(rows, in));
    numbers.resize(size(rows, in));
    std::vector<float> scale(size(rows));
    std::uniform_real_distribution<float> factor(0.001f, 0.01f);
    for (float& s : scale) s = factor(random);
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      do stored_[i] = static_cast<unsigned char>(random());
      while ((stored_[i] & 127) == 127);
      numbers[i] = episodic::rules::from_fp8(stored_[i]) * scale[i / size(in)];
    }
    std::vector<unsigned char> planes(
        size(episodic::kernels::block_matrix_bytes(BlockType::fp8, rows, in)));
    REQUIRE(episodic::kernels::pack_fp8_rows(
        stored_.data(), scale.data(), rows, in,
        {planes.data(), nullptr, nullptr, planes.data() + size(rows, in)}));
    device_ = std::make_shared<const DeviceArray<unsigned char>>(planes);
  }

  BlockMatrix matrix() const { return {of_.type, rows_, device_->data()}; }
  const std::vector<unsigned char>& stored() const { return stored_; }
  Kind kind() const { return of_; }

  std::vector<float> numbers;  // [rows, in]

 private:
  std::vector<unsigned char> stored_;
  Kind of_;
  std::int64_t rows_;
  std::shared_ptr<const DeviceArray<unsigned char>> device_;
};

/// A row of activations as the host rounds it (cpu/weights.hpp), in float64.
inline std::vector<double> rounded(const float* x, std::int64_t in) {
  std::vector<double> out(size(in));
  for (std::int64_t first = 0; first < in; first += 32) {
    float largest = 0;
    for (std::int64_t c = first; c < first + 32; ++c) largest = std::max(largest, std::abs(x[c]));
    for (std::int64_t c = first; c < first + 32; ++c)
      out[size(c)] = largest >= 1e-30f
                         ? std::nearbyint(static_cast<double>(x[c] * (127.0f / largest))) *
                               static_cast<double>(largest / 127.0f)
                         : 0.0;
  }
  return out;
}

}  // namespace block_problem
