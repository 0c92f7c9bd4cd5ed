// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Inner loops of the CPU, compiled once per instruction set and chosen at run time. An internal
/// room: callers check shapes; no loop throws, allocates or starts threads.
///
/// Layouts of the blocked attention kernels ("lane": one query row of a tile):
/// - panel: [rows][panel_lanes], the lanes of one panel side by side, so that softmax and masks run
///   without a horizontal operation;
/// - staged rows: [ceil(d / 32)][capacity][32], keys or values cut into strips of 32 channels, so
///   that the micro-kernels address them with constant offsets whatever d and the source's strides.
/// Scores are in units of log2: queries are packed with scale * log2(e), and e = 2^(s - max).

#include <cstdint>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::cpu {

inline constexpr std::int64_t kStrip = 32;  ///< channels of a strip of staged rows

/// A float16, which the type tells from a bfloat16.
struct Half {
  std::uint16_t bits;
};

/// An E4M3 (base/rules/fp8.hpp), which the type tells from other bytes.
struct Fp8 {
  std::uint8_t bits;
};

/// Rows of one dtype in place, and the rows that will be read after them (or null): they are
/// fetched ahead of time. int8 and fp8 are read as the number that the code is: its scale is the
/// caller's, who applies it to scores and probabilities.
struct Rows {
  const void* base = nullptr;
  DType dtype = DType::float32;
  std::int64_t stride = 0, n = 0;
  const void* next = nullptr;  ///< of the same dtype and stride
  std::int64_t next_n = 0;
};

/// What a machine must have; each has what those before it have.
enum class InstructionSet { portable, avx2, avx512 };

/// See Kernels::add_exp. The start is finite, so that -inf minus it is -inf and never NaN.
inline constexpr std::int64_t kExpStretch = 1024;
inline constexpr float kLowestExp = -3.0e38f;

struct Kernels {
  const char* name;           ///< "avx512", "avx2" or "portable"
  InstructionSet set;         ///< loops that lie elsewhere follow it
  std::int64_t panel_lanes;   ///< lanes of a panel
  std::int64_t key_multiple;  ///< staged blocks whose length is a multiple of this waste nothing

  // -- rows --------------------------------------------------------------------------------------

  /// out[i] = q . rows[i * row_stride ...], i < n. The sum's order does not depend on i or n: equal
  /// rows give equal bits.
  void (*dots)(const float* q, const float* rows, std::int64_t n, std::int64_t width,
               std::int64_t row_stride, float* out);
  /// A sum of exponentials that goes on: *sum = sum_i exp(x[i] - *max) over all elements so far,
  /// *max a finite value not below any of them. Begins with *max = kLowestExp and *sum = 0. NaN or
  /// +inf anywhere makes the sum NaN. One pass; relative error below 5e-7. Cut at multiples of
  /// kExpStretch elements, a row gives the same bits as whole.
  void (*add_exp)(const float* x, std::int64_t n, float* max, double* sum);
  /// float32 -> bfloat16, to nearest even, NaN stays NaN.
  void (*narrow)(const float* x, std::int64_t n, std::uint16_t* y);
  /// float32 -> float16, to nearest even, NaN stays NaN, beyond the range infinity.
  void (*narrow_half)(const float* x, std::int64_t n, std::uint16_t* y);
  /// float32, bfloat16 or float16 (int8, fp8: the codes) -> float32, exact.
  void (*to_float)(const void* x, DType dtype, std::int64_t n, float* y);
  /// max |x[i]|, 0 for n = 0, NaN if any is NaN.
  float (*max_magnitude)(const float* x, std::int64_t n);
  /// y[i] = x[i] * inverse_scale to the nearest integer, even at ties; the products are in
  /// [-127.5, 127.5].
  void (*quantize)(const float* x, std::int64_t n, float inverse_scale, std::int8_t* y);
  /// y[i] = x[i] * inverse_scale as rules::to_fp8 rounds it; no NaN.
  void (*quantize_fp8)(const float* x, std::int64_t n, float inverse_scale, Fp8* y);
  /// (y[c], y[c + half]) = (x[c], x[c + half]) rotated by (cos[c], sin[c]), c < half. x == y is
  /// fine.
  void (*rotate)(const float* x, const float* cos, const float* sin, std::int64_t half, float* y);
  /// The same for the pairs (x[2 c], x[2 c + 1]).
  void (*rotate_interleaved)(const float* x, const float* cos, const float* sin, std::int64_t half,
                             float* y);
  /// s[i] = cap * tanh(s[i]); NaN stays NaN. Relative error below 5e-7.
  void (*soft_cap)(float* s, std::int64_t n, float cap);

  // -- few queries: keys and values read in place ------------------------------------------------

  /// s[r * s_stride + i] = q[r * q_stride ...] . key row i, r < n_rows.
  void (*dot_rows)(const float* q, std::int64_t q_stride, std::int64_t n_rows, const Rows& keys,
                   std::int64_t d, float* s, std::int64_t s_stride);
  /// out[r * out_stride + c] += sum_i p[r * p_stride + i] * value row i [c].
  void (*add_rows)(const float* p, std::int64_t p_stride, std::int64_t n_rows, const Rows& values,
                   std::int64_t d, float* out, std::int64_t out_stride);
  /// to[i * to_stride + r] += p[r * p_stride + i] * weights[r * weight_stride], i < n, r < n_rows:
  /// a rounded product and a rounded sum, whatever the instruction set.
  void (*add_column_sums)(const float* p, std::int64_t p_stride, std::int64_t n_rows,
                          const float* weights, std::int64_t weight_stride, std::int64_t n,
                          float* to, std::int64_t to_stride);
  float (*max_row)(const float* s, std::int64_t n);  ///< at least -3e38
  float (*sum_row)(const float* s, std::int64_t n);  ///< in an order that depends on n alone
  /// s[i] = 2^(s[i] - max), 0 below 2^-126; returns their sum.
  float (*exp2_row)(float* s, std::int64_t n, float max);

  // -- many queries: blocked products ------------------------------------------------------------

  /// Rows 0 .. n - 1 of src, of any dtype (int8, fp8: the codes), times weight, into staged rows at
  /// row 0; channels past d become 0.
  void (*stage)(const void* src, DType dtype, std::int64_t row_stride, std::int64_t n,
                std::int64_t d, float weight, float* dst, std::int64_t capacity);
  /// panel s [n] = staged keys [n, d] times panel q [d].
  void (*scores)(const float* q, std::int64_t d, const float* keys, std::int64_t capacity,
                 std::int64_t n, float* s);
  /// s = -inf where the lane's query number is outside [low[i], high[i]) of its row i.
  void (*mask)(float* s, std::int64_t n, const std::int32_t* low, const std::int32_t* high,
               const std::int32_t* lane_query);
  /// One block of a running softmax: new max per lane, s becomes 2^(s - max), sum and alpha (the
  /// factor of what was accumulated before) are updated. max starts at -3e38, sum at 0.
  void (*softmax)(float* s, std::int64_t n, float* max, float* sum, float* alpha);
  /// panel out [d] = alpha * out + (staged values [n, d])^T times panel e [n].
  void (*accumulate)(const float* e, std::int64_t n, const float* values, std::int64_t capacity,
                     std::int64_t d, const float* alpha, float* out);
  /// weight[lane] = 2^(block_max - max) * inverse_sum.
  void (*block_weight)(const float* block_max, const float* max, const float* inverse_sum,
                       std::int64_t lanes, float* weight);
  /// out[i] = sum over n_panels panels and their lanes of e[i, lane] * weight[lane], i < n.
  void (*column_sums)(const float* e, std::int64_t panel_stride, std::int64_t n_panels,
                      const float* weight, std::int64_t n, float* out);
  /// out[lane] = sum over rows i < n of panel e[i, lane].
  void (*lane_sums)(const float* e, std::int64_t n, float* out);
  /// panel q [d] from lanes rows of floats, row l at rows[l]; times factor; absent lanes are 0.
  void (*pack)(const float* const* rows, std::int64_t lanes, std::int64_t d, float factor,
               float* q);
  /// rows[l][c] = out[c, l] * factor[l], the way back.
  void (*unpack)(const float* out, std::int64_t lanes, std::int64_t d, const float* factor,
                 float* const* rows);
};

/// The best table this machine runs, or the one named by the environment variable EPISODIC_CPU
/// (portable, avx2, avx512) when the process first asks; its best one where it cannot run that.
/// \throws ConfigError for another name, at every call
const Kernels& kernels();

/// The i-th table this machine runs, best first; null past the last.
const Kernels* available_kernels(int i);

/// For tests: use `table` from now on (null: the default again). Not while other threads compute.
void use_kernels(const Kernels* table);

}  // namespace EPISODIC_NAMESPACE::cpu

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/cpu/impl/kernels.hpp"
#endif
