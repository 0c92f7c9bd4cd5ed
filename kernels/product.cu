// SPDX-License-Identifier: Apache-2.0
#include "product.hpp"

#include "product.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMostWidth = std::int64_t{1} << 30;

std::size_t shared_bytes(DType dtype, std::int64_t n, std::int64_t in) {
  return static_cast<std::size_t>(n * in * size_of(dtype));
}

cudaError_t check(const ProductParams& p) {
  if (!takes_product(p.dtype, p.n, p.in, p.hidden != nullptr) || p.out < 1 || p.out > kMostWidth ||
      !p.weight || !p.x == !p.hidden || (p.maybe_norm && !p.hidden) || !(p.eps >= 0))
    return cudaErrorInvalidValue;
  return all_aligned(16, p.weight, p.x) ? cudaSuccess : cudaErrorMisalignedAddress;
}

template <class T>
cudaError_t launch_product(const ProductArgs& a, cudaStream_t stream) {
  const std::int64_t pairs = (a.p.out + 1) / 2, in_block = kProductPairs * kProductWarps;
  const unsigned blocks = blocks_for((pairs + in_block - 1) / in_block);
  const std::size_t shared = a.p.hidden ? shared_bytes(a.p.dtype, a.p.n, a.p.in) : 0;
  return a.p.n == 1 ? launch(ProductKernel<T, 1>, blocks, kDecoderThreads, shared, stream, a)
                    : launch(ProductKernel<T, kMostProductRows>, blocks, kDecoderThreads, shared,
                             stream, a);
}

cudaError_t launch_product(const ProductArgs& a, cudaStream_t stream) {
  return for_element(a.p.dtype, [&](auto element) {
    return launch_product<typename decltype(element)::type>(a, stream);
  });
}

bool fits(const HeadTarget& to, const HeadsParams& p) {
  const std::int64_t d = p.head_dim;
  return to.position && to.ring_rotated_key && to.ring_value && to.ring_capacity >= 1 &&
         product_within(to.ring_head_stride, to.ring_capacity, d) &&
         product_within(kMaxElements, to.ring_head_stride, p.n_kv_heads) && to.n_init >= 0 &&
         product_within(kMaxElements, to.n_init, p.n_kv_heads, d) &&
         (to.n_init == 0 || (to.sink_key && to.sink_value)) &&
         (p.rotary_dim == 0 ||
          (to.cos && to.sin && (!to.maybe_mean || (to.fixed_cos && to.fixed_sin))));
}

}  // namespace

bool takes_product(DType dtype, std::int64_t n, std::int64_t in, bool of_hidden) {
  if (!is_float(dtype) || n < 1 || n > kMostProductRows || in < 1 || in > kMostWidth) return false;
  return in * size_of(dtype) % 16 == 0 &&
         (!of_hidden || shared_bytes(dtype, n, in) <= kMostProductShared);
}

cudaError_t product(const ProductParams& p, float* const (&to)[kMostProductRows],
                    cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  if (const cudaError_t error = check(p); error != cudaSuccess) return error;
  for (std::int64_t r = 0; r < p.n; ++r) {
    if (!to[r]) return cudaErrorInvalidValue;
    a.rows[r] = to[r];
  }
  return launch_product(a, stream);
}

cudaError_t narrow_product(const ProductParams& p, void* y, cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  a.use = ProductUse::narrow;
  a.y = y;
  if (const cudaError_t error = check(p); error != cudaSuccess) return error;
  if (!y) return cudaErrorInvalidValue;
  return launch_product(a, stream);
}

cudaError_t add_product(const ProductParams& p, float multiplier, float* sum, cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  a.use = ProductUse::add;
  a.multiplier = multiplier;
  if (const cudaError_t error = check(p); error != cudaSuccess) return error;
  if (!sum) return cudaErrorInvalidValue;
  for (std::int64_t r = 0; r < p.n; ++r) a.rows[r] = sum + r * p.out;
  return launch_product(a, stream);
}

cudaError_t gated_product(const ProductParams& p, GateActivation activation, void* y,
                          cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  a.use = ProductUse::gate;
  a.activation = activation;
  a.y = y;
  if (const cudaError_t error = check(p); error != cudaSuccess) return error;
  if (!y || p.out % 2 != 0) return cudaErrorInvalidValue;
  return launch_product(a, stream);
}

cudaError_t heads_product(const ProductParams& p, const HeadsParams& heads, cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  a.use = ProductUse::heads;
  a.heads = heads;
  if (const cudaError_t error = check(p); error != cudaSuccess) return error;
  if (heads.n_heads < 1 || heads.n_kv_heads < 1 || heads.head_dim < 2 || heads.head_dim % 2 != 0 ||
      heads.rotary_dim < 0 || heads.rotary_dim % 2 != 0 || heads.rotary_dim > heads.head_dim ||
      !product_within(kMostWidth, heads.n_heads, heads.head_dim) ||
      !product_within(kMostWidth, heads.n_kv_heads, heads.head_dim) ||
      p.out != (heads.n_heads + 2 * heads.n_kv_heads) * heads.head_dim || !heads.q ||
      heads.q_row_stride < heads.n_heads * heads.head_dim)
    return cudaErrorInvalidValue;
  for (std::int64_t r = 0; r < p.n; ++r)
    if (!fits(heads.row[r], heads)) return cudaErrorInvalidValue;
  return launch_product(a, stream);
}

}  // namespace episodic::kernels
