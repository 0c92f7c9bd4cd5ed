// SPDX-License-Identifier: Apache-2.0
#pragma once
// What instructions do to the lanes of a warp. Each is an Execute; decode.cpp chooses it.

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "machine.hpp"

namespace ptx {

/// Calls f(lane) for each of `lanes`.
template <class F>
inline void each_lane(std::uint32_t lanes, F&& f) {
  if (lanes == kAll) {
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
  }
}

/// A row holds every value in the low bits of 64, the rest zeros.
template <class T>
inline T get(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
inline std::uint64_t put(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

/// An instruction that computes its result from its operands, lane by lane.
struct Operation {
  Execute execute = nullptr;
  int operands = 0;
  bool predicates = false;  // operands and result are predicates
};
/// By the opcode with its modifiers ("add.s32"). \return one without `execute` if there is none
Operation find_operation(const std::string& opcode);
/// All that find_operation finds.
std::vector<std::string> all_operations();

// ---- what is read from more than the opcode's name ----------------------------------------------

void move(Warp&, const Instruction&, std::uint32_t);    // one row to one
void pack(Warp&, const Instruction&, std::uint32_t);    // elements to a row; element: their bytes
void unpack(Warp&, const Instruction&, std::uint32_t);  // the reverse
void select(Warp&, const Instruction&, std::uint32_t);
/// setp: null if the type and comparison do not go together. dst[1]: the opposite, if wanted
Execute comparison(std::string_view compare, std::string_view type);

void to_generic(Warp&, const Instruction&, std::uint32_t);    // cvta.space
void from_generic(Warp&, const Instruction&, std::uint32_t);  // cvta.to.space

void load(Warp&, const Instruction&, std::uint32_t);
void load_param(Warp&, const Instruction&, std::uint32_t);
void store(Warp&, const Instruction&, std::uint32_t);
enum Atomic { kAdd, kMin, kMax, kExch, kAnd, kOr, kXor, kCas, kInc, kAddFloat };
void atomic(Warp&, const Instruction&, std::uint32_t);  // variant: Atomic
void fence(Warp&, const Instruction&, std::uint32_t);
void wait_for_launches(Warp&, const Instruction&, std::uint32_t);
void copy_async(Warp&, const Instruction&, std::uint32_t);
void copy_async_commit(Warp&, const Instruction&, std::uint32_t);
void copy_async_wait(Warp&, const Instruction&, std::uint32_t);
void load_matrices(Warp&, const Instruction&, std::uint32_t);  // variant: 1 transposed

enum Shuffle { kUp, kDown, kButterfly, kIndex };
void shuffle(Warp&, const Instruction&, std::uint32_t);  // variant: Shuffle
enum Vote { kAnyOf, kAllOf, kUniform, kBallot };
void vote(Warp&, const Instruction&, std::uint32_t);  // variant: Vote
void sync_warp(Warp&, const Instruction&, std::uint32_t);
void sync_block(Warp&, const Instruction&, std::uint32_t);  // src[0]: the barrier; variant: threads
void sync_block_or(Warp&, const Instruction&, std::uint32_t);   // and the predicate src[1]
void matrix_product(Warp&, const Instruction&, std::uint32_t);  // variant: 1 of bfloat16

// ---- mbarriers, proxies, warpgroups (wgmma.cpp) -------------------------------------------------
void mbarrier_init(Warp&, const Instruction&, std::uint32_t);
void mbarrier_arrive(Warp&, const Instruction&, std::uint32_t);
void mbarrier_try_wait(Warp&, const Instruction&, std::uint32_t);
void copy_async_arrive(Warp&, const Instruction&, std::uint32_t);
void fence_proxy(Warp&, const Instruction&, std::uint32_t);
void set_max_registers(Warp&, const Instruction&, std::uint32_t);  // variant: how many
void wgmma_fence(Warp&, const Instruction&, std::uint32_t);
void wgmma_commit(Warp&, const Instruction&, std::uint32_t);
void wgmma_wait(Warp&, const Instruction&, std::uint32_t);  // variant: groups left
enum Wgmma { kBfloat = 1, kFragment = 2, kTransposedA = 4, kTransposedB = 8 };
/// D of 64 rows and `vector` columns += A B over 16. src: A's fragment or descriptor, B's
/// descriptor, whether D is added to; list: the accumulators; variant: Wgmma
void wgmma(Warp&, const Instruction&, std::uint32_t);

float from_half(std::uint16_t bits);
float from_bfloat(std::uint16_t bits);
std::uint16_t to_half(float x);    // to nearest even; NaN: 0x7fff
std::uint16_t to_bfloat(float x);  // the same

}  // namespace ptx
