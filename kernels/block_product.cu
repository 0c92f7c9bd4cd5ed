// SPDX-License-Identifier: Apache-2.0
#include "block_product.hpp"

#include <algorithm>

#include "block_product.cuh"
#include "limits.hpp"

namespace episodic::kernels {
namespace {

/// Blocks that a multiprocessor runs at once, as the kernels' launch bounds ask.
constexpr std::int64_t kBlocksOfMultiprocessor = 3;

/// As many blocks as run at once, or fewer with as many turns each: every warp then has as much to
/// do, and each block rounds the rows once.
unsigned even_blocks(std::int64_t pairs, std::int64_t in_block, int multiprocessors) {
  const std::int64_t turns = (pairs + in_block - 1) / in_block;
  const std::int64_t most = std::max<std::int64_t>(1, multiprocessors * kBlocksOfMultiprocessor);
  const std::int64_t each = (turns + most - 1) / most;
  return static_cast<unsigned>((turns + each - 1) / each);
}

template <class T>
cudaError_t launch_fp8_product(const ProductArgs& a, cudaStream_t stream) {
  const std::int64_t pairs = (a.p.out + 1) / 2;
  const std::size_t shared =
      a.p.hidden ? static_cast<std::size_t>(a.p.n * a.p.in * size_of(a.p.dtype)) : 0;
  return launch_early(
      a.p.n == 1 ? ProductKernel<T, 1, 1, true> : ProductKernel<T, kMostProductRows, 1, true>,
      blocks_for((pairs + kProductWarps - 1) / kProductWarps), kDecoderThreads, shared, stream, a);
}

}  // namespace

cudaError_t launch_block_product(const ProductArgs& a, cudaStream_t stream) {
  const BlockWeights& blocks = a.p.blocks;
  if (blocks.part[0].type == BlockType::fp8)
    return for_element(a.p.dtype, [&](auto element) {
      return launch_fp8_product<typename decltype(element)::type>(a, stream);
    });
  int multiprocessors = 0;
  if (const cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess)
    return error;
  const std::int64_t pairs = (a.p.out + 1) / 2;
  return launch_early(a.p.n == 1 ? BlockProductKernel<1> : BlockProductKernel<kMostProductRows>,
                      even_blocks(pairs, kProductWarps, multiprocessors), kDecoderThreads,
                      static_cast<std::size_t>(a.p.n * rounded_row_bytes(a.p.in)), stream, a);
}

}  // namespace episodic::kernels
