// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inner loops over stored weights, compiled once per instruction set. weights.cpp chooses.

#include <cstdint>

#include "episodic/base/tensor_type.hpp"

namespace episodic::cpu {

/// An activation row rounded to 8 bits: x[c] = codes[c] * scale of its block of 32. One buffer of
/// `bytes`, zero from `in` to `padded`; `sums` are what a loop of the instruction set subtracts for
/// weights whose codes were shifted to be unsigned.
struct RoundedLayout {
  std::int64_t padded = 0;      ///< elements, a multiple of 128
  std::int64_t sums = 0;        ///< byte offset: sums of neighbouring codes, negated (2 or 4 codes)
  std::int64_t scales = 0;      ///< byte offset: float [padded / 4], each block's scale 8 times
  std::int64_t block_sums = 0;  ///< byte offset: float [padded / 32], scale times sum of codes
  std::int64_t block_scales = 0;  ///< byte offset: float [padded / 32], each block's scale once
  std::int64_t half_sums = 0;     ///< byte offset: as block_sums, of halves of blocks
  std::int64_t tile = 0;  ///< byte offset: codes, then sums, in the order of lanes that tiles of
                          ///< several rows take; not written where that is the order of all
  std::int64_t bytes = 0;

  explicit constexpr RoundedLayout(std::int64_t in)
      : padded((in + 127) / 128 * 128),
        sums(padded),
        scales(2 * padded),
        block_sums(3 * padded),
        block_scales(3 * padded + padded / 8),
        half_sums(3 * padded + padded / 4),
        tile(3 * padded + (padded / 2 + 63) / 64 * 64),
        bytes(tile + 2 * padded) {}
};

/// Products of a few rows x with `out` rows of weights: y[r * y_stride + o], overwritten.
struct FewRows {
  const unsigned char* weight;
  std::int64_t row_bytes, out, in;
  std::int64_t n;
  float* y;
  std::int64_t y_stride;
};

/// Float loops. Each sum's order depends on `in` only.
struct FloatLoops {
  void (*widen)(TensorType type, const unsigned char* row, std::int64_t n, float* y);
  /// F32, F16 and BF16.
  void (*few)(TensorType type, const FewRows& product, const float* x, std::int64_t x_stride);
};

/// Loops over rounded activations; each instruction set rounds for itself (RoundedLayout::sums).
struct IntegerLoops {
  const char* name;
  std::int64_t few_rows;  ///< with more rows, panels are faster
  bool (*knows)(TensorType type);
  void (*round)(const float* x, std::int64_t in, unsigned char* row);
  void (*few)(TensorType type, const FewRows& product, const unsigned char* rows);

  // Many rows. A panel is `width` rows of weights, unpacked so that a vector holds four
  // neighbouring codes of each; 64-byte aligned.
  std::int64_t width;
  /// Whether there are such panels of a type.
  bool (*packs)(TensorType type);
  /// The weights of `product` as panels, one after another.
  void (*pack)(TensorType type, const FewRows& product, unsigned char* panels);
  /// Products of the packed weights with any number of rows.
  void (*many)(TensorType type, const FewRows& product, const unsigned char* panels,
               const unsigned char* rows);

  /// No panel takes more: codes, and a scale and a minimum for each 16 of them.
  std::int64_t most_panel_bytes(std::int64_t in) const {
    return (in + 255) / 256 * 256 * width * 3 / 2;
  }
};

/// y[r * y_stride + o] (+)= sum_c x[r, c] * w[o, c], all of bfloat16, sums in float32.
struct MatrixProduct {
  std::int64_t n, out, in;
  const std::uint16_t* x;  ///< tiles of rounded rows; x_stride elements from 16 rows to the next 16
  std::int64_t x_stride;
  const std::uint16_t* w;  ///< packed weights
  float* y;
  std::int64_t y_stride;
  bool add;  ///< add to what y holds instead of overwriting it
};

/// Loops over the machine's matrix units. Tiles are 16 rows of 32 elements, one after another, zero
/// beyond what is there; those of the same 16 rows lie together. 64-byte aligned.
struct MatrixLoops {
  static constexpr std::int64_t kRows = 16, kDepth = 32;
  static constexpr std::int64_t depth(std::int64_t in) {
    return (in + kDepth - 1) / kDepth * kDepth;
  }
  static constexpr std::int64_t rows(std::int64_t n) { return (n + kRows - 1) / kRows * kRows; }

  /// Rounds rows of activations to nearest even (numbers below float's normal range to zero).
  /// \param tiles [rows(n) * depth(in)]
  void (*round)(std::int64_t n, std::int64_t in, const float* x, std::int64_t x_stride,
                std::uint16_t* tiles);
  /// Weights as the second factor: a row of a tile has 16 outputs' pairs of elements.
  /// \param tiles [rows(outs) * depth(in)]
  void (*pack)(std::int64_t outs, std::int64_t in, const std::uint16_t* w, std::int64_t w_stride,
               std::uint16_t* tiles);
  void (*multiply)(const MatrixProduct& product);
};

/// Null where the machine or the system has none.
const MatrixLoops* matrix_loops_amx();

}  // namespace episodic::cpu
