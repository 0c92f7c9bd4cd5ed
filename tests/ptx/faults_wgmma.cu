// SPDX-License-Identifier: Apache-2.0
// The attention of compute capability 9.0 in small: one warpgroup copies tiles into a ring, another
// multiplies them.
#include "faults.hpp"
#include "kernels/wgmma.cuh"

namespace ptx_faults {
namespace {

using namespace episodic::kernels;

constexpr int kTiles = 5, kStages = 2, kRows = 64;

/// Where 8 elements lie in 512 that repeat: no two neighbours of 8 rows are alike.
__host__ __device__ int eight_of_left(int row, int chunk) {
  return (3 * row + 5 * chunk + row / 8) % 64;
}
__host__ __device__ int eight_of_right(int tile, int row, int chunk) {
  return (row + 8 * chunk + row / 8 + 7 * tile) % 64;
}
__host__ __device__ float value_of(const float* in, int element) {
  return in[element % 256] * (element < 256 ? 1.0f : -0.5f);
}

/// sums = the sum over the tiles of left (64 x 64) times the transposed tile (64 x 64), as halves.
/// out: of each multiplying thread two of them.
template <Plant kPlant, bool kFault>
__global__ void __launch_bounds__(2 * kWarpgroupSize)
    RingKernel(const float* in, float* out, std::uint32_t* scratch) {
  constexpr auto has = [](Plant plant) { return kFault && kPlant == plant; };
  __shared__ __align__(1024) __half left[kRows * 64];
  __shared__ __align__(1024) __half tiles[kStages][kRows * 64];
  __shared__ int marks[kStages][kRows];  // written by half of each warp, as those of heads of 256
  __shared__ std::uint64_t full[kStages], empty[kStages];
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize, lane = thread % 32;
  const int warpgroup = __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / kWarpgroupSize, 0);
  auto* const halves = reinterpret_cast<__half*>(scratch);
  for (int i = static_cast<int>(threadIdx.x); i < 512; i += 2 * kWarpgroupSize)
    halves[i] = __float2half_rn(value_of(in, i));
  if (threadIdx.x == 0)
    for (int s = 0; s < kStages; ++s) {
      init_barrier(&full[s], kWarpgroupSize + 4 + (has(Plant::barrier_of_too_many) ? 1 : 0));
      init_barrier(&empty[s], 4);
    }
  for (int i = static_cast<int>(threadIdx.x); i < kRows * 64; i += 2 * kWarpgroupSize)
    for (auto& tile : tiles) tile[i] = __float2half_rn(0.0f);  // so that they are never unset
  __syncthreads();
  if (warpgroup == 0) {
    give_registers<40>();
    for (int tile = 0; tile < kTiles; ++tile) {
      const int stage = tile % kStages;
      if (tile >= kStages && !has(Plant::tile_overwritten))
        wait_for(&empty[stage], (tile / kStages - 1) % 2);
      for (int piece = thread; piece < kRows * 8; piece += kWarpgroupSize) {
        const int row = piece / 8, chunk = piece % 8;
        const int place =
            has(Plant::wrong_swizzle) ? row * 128 + chunk * 16 : chunk_place(row, chunk);
        copy_async_16(reinterpret_cast<char*>(tiles[stage]) + place,
                      halves + 8 * eight_of_right(tile, row, chunk));
      }
      if (lane < 16) marks[stage][thread / 32 * 16 + lane] = 1;
      arrive_after_copies(&full[stage]);
      if (!has(Plant::marks_not_handed_over)) __syncwarp();
      if (lane == 0) arrive(&full[stage]);
    }
    wait_copies<0>();
  } else {
    take_registers<216>();
    for (int piece = thread; piece < kRows * 8; piece += kWarpgroupSize)
      *reinterpret_cast<uint4*>(reinterpret_cast<char*>(left) + chunk_place(piece / 8, piece % 8)) =
          *reinterpret_cast<const uint4*>(halves + 8 * eight_of_left(piece / 8, piece % 8));
    publish_to_products();
    if (!has(Plant::too_few_meet) || thread / 32 != 2) sync_threads<kWarpgroupSize>(1);
    float sums[32] = {}, others[32] = {};  // of two groups: channels 0 to 31, and 32 to 63
    int seen = 0;
    for (int tile = 0; tile < kTiles; ++tile) {
      const int stage = tile % kStages;
      if (!has(Plant::tile_not_waited_for))
        wait_for(&full[stage], (tile / kStages + (has(Plant::wrong_parity) ? 1 : 0)) % 2);
      if (!has(Plant::tile_not_waited_for) && !has(Plant::wrong_parity))
        seen += marks[stage][lane] + marks[stage][lane + 32];
      else
        seen += 2;
      if (!has(Plant::tile_not_published)) publish_to_products();
      if (!has(Plant::product_without_fence)) {
        hold(sums);
        hold(others);
        begin_products();
      }
      const auto multiply = [&](float(&to)[32], int c) {
        Products<__half, 64>::of_columns(
            to, moved_by(matrix_at(left, 1024), c * 32),
            moved_by(matrix_at(tiles[stage], has(Plant::wrong_matrix_stride) ? 512 : 1024), c * 32),
            true);
      };
      const bool multiplies = !has(Plant::warp_without_product) || thread / 32 != 1;
      if (multiplies) {
        multiply(sums, 0);
        multiply(sums, 1);
      }
      commit_products();
      if (multiplies) {
        multiply(others, 2);
        multiply(others, 3);
      }
      if (has(Plant::tile_released_too_early) && lane == 0) arrive(&empty[stage]);
      if (has(Plant::product_not_waited_for)) {
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        for (float& sum : sums) sum *= 1.5f;
      }
      commit_products();
      wait_products<1>();
      hold(sums);
      if (has(Plant::younger_group_not_waited_for))
        for (float& sum : others) sum *= 1.5f;
      if (has(Plant::tile_released_with_older_group) && lane == 0) arrive(&empty[stage]);
      wait_products<0>();
      hold(others);
      if (!has(Plant::marks_released_too_early)) __syncwarp();
      if (!has(Plant::tile_released_too_early) && !has(Plant::tile_released_with_older_group) &&
          lane == 0)
        arrive(&empty[stage]);
    }
    out[2 * thread] = seen == 2 * kTiles ? sums[0] + others[0] : -1e9f;
    out[2 * thread + 1] = sums[22] + others[22];
  }
}

template <Plant kPlant>
void launch(bool with_fault, const float* in, float* out, std::uint32_t* scratch) {
  if (with_fault)
    RingKernel<kPlant, true><<<1, 2 * kWarpgroupSize>>>(in, out, scratch);
  else
    RingKernel<Plant::count, false><<<1, 2 * kWarpgroupSize>>>(in, out, scratch);
}

}  // namespace

void run_ring(Plant plant, bool with_fault, const float* in, float* out, std::uint32_t* scratch) {
  switch (plant) {
#define EPISODIC_CASE(name) \
  case Plant::name:         \
    return launch<Plant::name>(with_fault, in, out, scratch)
    EPISODIC_CASE(product_not_waited_for);
    EPISODIC_CASE(product_without_fence);
    EPISODIC_CASE(tile_not_published);
    EPISODIC_CASE(tile_not_waited_for);
    EPISODIC_CASE(tile_released_too_early);
    EPISODIC_CASE(tile_overwritten);
    EPISODIC_CASE(barrier_of_too_many);
    EPISODIC_CASE(wrong_parity);
    EPISODIC_CASE(warp_without_product);
    EPISODIC_CASE(too_few_meet);
    EPISODIC_CASE(wrong_matrix_stride);
    EPISODIC_CASE(wrong_swizzle);
    EPISODIC_CASE(marks_not_handed_over);
    EPISODIC_CASE(marks_released_too_early);
    EPISODIC_CASE(younger_group_not_waited_for);
    EPISODIC_CASE(tile_released_with_older_group);
#undef EPISODIC_CASE
    default:
      return;
  }
}

void expect_ring(const float* in, float* out) {
  const auto half = [in](int eight, int e) {
    return static_cast<double>(__half2float(__float2half_rn(value_of(in, 8 * eight + e))));
  };
  for (int thread = 0; thread < kWarpgroupSize; ++thread)
    for (int which = 0; which < 2; ++which) {
      const int sum = which == 0 ? 0 : 22;
      const int row = thread / 32 * 16 + thread % 32 / 4 + sum % 4 / 2 * 8;
      const int column = sum / 4 * 8 + thread % 4 * 2 + sum % 2;
      double total = 0.0;
      for (int tile = 0; tile < kTiles; ++tile)
        for (int k = 0; k < 64; ++k)
          total += half(eight_of_left(row, k / 8), k % 8) *
                   half(eight_of_right(tile, column, k / 8), k % 8);
      out[2 * thread + which] = static_cast<float>(total);
    }
}

}  // namespace ptx_faults
