// SPDX-License-Identifier: Apache-2.0
#include "block_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "episodic/base/error.hpp"
#include "episodic/base/rules/fp8.hpp"
#include "episodic/model/activations.hpp"
#include "kernels/product.hpp"
#include "model/elementwise.hpp"

namespace episodic::device {

using kernels::BlockMatrix;
using kernels::BlockPlanes;
using kernels::BlockType;
using kernels::BlockWeights;

std::optional<BlockType> block_type_of(TensorType type) {
  switch (type) {
    case TensorType::q4_0:
      return BlockType::q4_0;
    case TensorType::q4_1:
      return BlockType::q4_1;
    case TensorType::q5_0:
      return BlockType::q5_0;
    case TensorType::q5_1:
      return BlockType::q5_1;
    case TensorType::q8_0:
      return BlockType::q8_0;
    case TensorType::q4_k:
      return BlockType::q4_k;
    case TensorType::q5_k:
      return BlockType::q5_k;
    case TensorType::q6_k:
      return BlockType::q6_k;
    case TensorType::mxfp4:
      return BlockType::mxfp4;
    default:
      return std::nullopt;
  }
}

bool keeps_blocks() { return activations() != cpu::Activations::exact; }

BlockWeights plan_blocks(std::span<const WeightView> weights, bool gated, bool fp8) {
  BlockWeights blocks;
  for (const WeightView& w : weights) {
    const bool plain = block_elements(w.type) == 1;
    const std::optional<BlockType> type = plain && fp8     ? BlockType::fp8
                                          : keeps_blocks() ? block_type_of(w.type)
                                                           : std::nullopt;
    if (!type || w.offset != 0) return {};
    if (blocks.n_parts > 0 && blocks.part[blocks.n_parts - 1].type == *type) {
      blocks.part[blocks.n_parts - 1].rows += w.rows;
      continue;
    }
    if (blocks.n_parts == kernels::kMostBlockParts) return {};
    blocks.part[blocks.n_parts++] = {*type, w.rows, nullptr};
  }
  if (blocks.n_parts == 0 || (gated && !kernels::of_one_type(blocks)) ||
      !kernels::takes_product(blocks, 1, weights.front().columns))
    return {};
  return blocks;
}

void lay_out_blocks(Layout& c, BlockWeights& blocks, std::int64_t in) {
  for (int i = 0; i < blocks.n_parts; ++i) {
    BlockMatrix& part = blocks.part[i];
    part.data = c.take(kernels::block_matrix_bytes(part.type, part.rows, in));
  }
}

void BlockLoader::round_row(const WeightView& from, std::int64_t row,
                            const kernels::BlockPlanesAt& to) {
  wide_.resize(static_cast<std::size_t>(from.columns));
  codes_.resize(wide_.size());
  episodic::widen(from.type, from.data + row * from.row_bytes(), from.columns, wide_.data());
  float largest = 0.0f;
  for (const float x : wide_) {
    if (!std::isfinite(x))
      throw DataError(
          fmt::format("fp8_weights: row {} of a matrix of {} columns has a number that "
                      "is not finite; fetch the weights again",
                      row, from.columns));
    largest = std::max(largest, std::abs(x));
  }
  const float scale = largest / rules::kLargestFp8;
  // of numbers too small for a scale there is nothing left
  const bool usable = scale >= std::numeric_limits<float>::min();
  for (std::size_t i = 0; i < wide_.size(); ++i)
    codes_[i] = usable ? rules::to_fp8(wide_[i] / scale) : std::uint8_t{0};
  static_cast<void>(
      kernels::pack_fp8_rows(codes_.data(), &scale, 1, from.columns, to));  // none is NaN's
}

void BlockLoader::load(const BlockWeights& to, std::int64_t first, const WeightView& from,
                       std::int64_t count,
                       const std::function<std::int64_t(std::int64_t)>& source) {
  int part = 0;
  while (first >= to.part[part].rows) first -= to.part[part++].rows;
  const BlockMatrix& matrix = to.part[part];
  const std::int64_t in = from.columns;
  const BlockPlanes row = kernels::block_planes(matrix.type, in);
  constexpr std::int64_t kBytes = 4 << 20;  // that are packed at once
  const std::int64_t row_bytes = row.codes + row.high + row.scales + row.base;
  const std::int64_t at_once = std::clamp<std::int64_t>(kBytes / row_bytes, 1, count);
  planes_.resize(static_cast<std::size_t>(at_once * row_bytes));
  for (std::int64_t r = 0; r < count; r += at_once) {
    const std::int64_t rows = std::min(at_once, count - r);
    std::byte *const codes = planes_.data(), *const high = codes + rows * row.codes,
                     *const scales = high + rows * row.high,
                     *const base = scales + rows * row.scales;
    for (std::int64_t i = 0; i < rows; ++i) {
      const kernels::BlockPlanesAt at{codes + i * row.codes, high + i * row.high,
                                      scales + i * row.scales, base + i * row.base};
      if (matrix.type == BlockType::fp8)
        round_row(from, source(r + i), at);
      else
        kernels::pack_block_rows(matrix.type, from.data + source(r + i) * from.row_bytes(), 1, in,
                                 at);
    }
    auto* plane = static_cast<std::byte*>(const_cast<void*>(matrix.data));
    const auto send = [&](const std::byte* bytes, std::int64_t of_row) {
      if (of_row > 0) copy_(plane + (first + r) * of_row, bytes, rows * of_row);
      plane += kernels::plane_bytes(of_row, matrix.rows);
    };
    send(codes, row.codes);
    send(high, row.high);
    send(scales, row.scales);
    send(base, row.base);
  }
}

}  // namespace episodic::device
