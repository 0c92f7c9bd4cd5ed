// SPDX-License-Identifier: Apache-2.0
#pragma once
// The instructions that kernels/ptx.cuh wraps, on the host: the fragment layouts are those of the
// PTX ISA (mma.m16n8k16, ldmatrix), written down here once more on purpose.

#include <cstdint>
#include <type_traits>

#include "emulated_device.hpp"

namespace episodic::kernels {

inline void copy_async_16(void* shared, const void* global, bool valid = true) {
  emulator::copy_async(shared, global, 16, valid);
}
inline void copy_async_8(void* shared, const void* global) {
  emulator::copy_async(shared, global, 8, true);
}
inline void commit_copies() { emulator::commit_copies(); }
template <int kGroupsLeft>
void wait_copies() {
  emulator::wait_copies(kGroupsLeft);
}
inline void prefetch_second(const void*) {}

inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }

namespace detail {

template <bool kTranspose>
void load_matrices(std::uint32_t (&out)[4], const void* row) {
  const emulator::LanePayload* lanes = emulator::rendezvous(0xffffffffu, &row, sizeof(row));
  const unsigned lane = emulator::lane();
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](unsigned r, unsigned c) {
      const auto* at = emulator::lane_value<const std::uint16_t*>(lanes[8 * matrix + r]);
      return static_cast<std::uint32_t>(at[c]);
    };
    const unsigned r = lane / 4, c = 2 * (lane % 4);
    out[matrix] = kTranspose ? element(c, r) | element(c + 1, r) << 16
                             : element(r, c) | element(r, c + 1) << 16;
  }
}

/// One lane's elements of both sides, in the order of its registers.
struct MmaOperands {
  float a[8], b[4];
};

template <class Half>
float element(std::uint32_t pair, unsigned i) {
  const auto bits = static_cast<std::uint16_t>(pair >> (16 * i));
  if constexpr (std::is_same_v<Half, __half>)
    return episodic::from_float16(bits);
  else
    return episodic::from_bfloat16(bits);
}

}  // namespace detail

inline void load_matrices_x4(std::uint32_t (&out)[4], const void* row) {
  detail::load_matrices<false>(out, row);
}
inline void load_matrices_x4_transposed(std::uint32_t (&out)[4], const void* row) {
  detail::load_matrices<true>(out, row);
}

template <class Half>
void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  detail::MmaOperands own;
  for (unsigned i = 0; i < 8; ++i) own.a[i] = detail::element<Half>(a[i / 2], i % 2);
  for (unsigned i = 0; i < 4; ++i) own.b[i] = detail::element<Half>(b[i / 2], i % 2);
  const emulator::LanePayload* lanes = emulator::rendezvous(0xffffffffu, &own, sizeof(own));
  const unsigned group = emulator::lane() / 4, pair = emulator::lane() % 4;
  double sum[4] = {c[0], c[1], c[2], c[3]};
  for (unsigned of_k = 0; of_k < 4; ++of_k) {
    // a: row r, column k lies with lane (r % 8) * 4 + (k % 8) / 2, register (k / 8) * 2 + r / 8
    const auto left = emulator::lane_value<detail::MmaOperands>(lanes[group * 4 + of_k]);
    for (unsigned j = 0; j < 2; ++j) {
      // b: row k, column n lies with lane n * 4 + (k % 8) / 2, register k / 8
      const auto right =
          emulator::lane_value<detail::MmaOperands>(lanes[(2 * pair + j) * 4 + of_k]);
      for (unsigned row = 0; row < 2; ++row)
        for (unsigned k = 0; k < 4; ++k)  // column 8 (k / 2) + 2 of_k + k % 2
          sum[2 * row + j] += static_cast<double>(left.a[4 * (k / 2) + 2 * row + k % 2]) *
                              static_cast<double>(right.b[k]);
    }
  }
  for (unsigned i = 0; i < 4; ++i) c[i] = static_cast<float>(sum[i]);
}

}  // namespace episodic::kernels
