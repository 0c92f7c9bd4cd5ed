// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The launch of kernels/product.hpp's products for weights in blocks, in a unit of its own.

#include <cuda_runtime_api.h>

namespace episodic::kernels {

struct ProductArgs;

/// \pre a was checked, and has blocks
cudaError_t launch_block_product(const ProductArgs& a, cudaStream_t stream);

}  // namespace episodic::kernels
