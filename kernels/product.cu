// SPDX-License-Identifier: Apache-2.0
#include "product.hpp"

#include <algorithm>

#include "block_product.hpp"
#include "fields.hpp"
#include "product.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMostWidth = std::int64_t{1} << 30;

std::size_t shared_bytes(DType dtype, std::int64_t n, std::int64_t in) {
  return static_cast<std::size_t>(n * in * size_of(dtype));
}

FieldError check_blocks(const ProductParams& p) {
  EPISODIC_FIELD(p, weight, !p.weight);  // one of them
  EPISODIC_FIELD(p, blocks, p.blocks.n_parts >= 1 && p.blocks.n_parts <= kMostBlockParts);
  std::int64_t rows = 0;
  for (int i = 0; i < p.blocks.n_parts; ++i) {
    const BlockMatrix& part = p.blocks.part[i];
    EPISODIC_FIELD(p, blocks,
                   part.rows >= 1 && part.rows <= kMostWidth && part.data &&
                       static_cast<int>(part.type) < kBlockTypes);
    if (!aligned(part.data, 16)) return {"blocks", cudaErrorMisalignedAddress};
    rows += part.rows;
  }
  EPISODIC_FIELD(p, in, takes_product(p.blocks, p.n, p.in));
  // what is made of hidden for fp8 is of dtype
  EPISODIC_FIELD(p, in,
                 p.blocks.part[0].type != BlockType::fp8 ||
                     takes_product(p.dtype, p.n, p.in, p.hidden != nullptr));
  EPISODIC_FIELD(p, out, p.out >= 1 && p.out <= kMostWidth && p.out == rows);
  return {};
}

FieldError check(const ProductParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n, p.n >= 1 && p.n <= kMostProductRows);
  if (p.blocks.n_parts != 0) {
    if (const FieldError wrong = check_blocks(p)) return wrong;
  } else {
    EPISODIC_FIELD(p, in, takes_product(p.dtype, p.n, p.in, p.hidden != nullptr));
    EPISODIC_FIELD(p, out, p.out >= 1 && p.out <= kMostWidth);
    EPISODIC_FIELD_GIVEN(p, weight);
  }
  EPISODIC_FIELD(p, x, !p.x != !p.hidden);  // one of them
  EPISODIC_FIELD(p, maybe_norm, !p.maybe_norm || p.hidden);
  EPISODIC_FIELD(p, eps, p.eps >= 0);
  EPISODIC_FIELD_ALIGNED(p, weight, 16);
  EPISODIC_FIELD_ALIGNED(p, x, 16);
  return {};
}

template <class T>
cudaError_t launch_product(const ProductArgs& a, cudaStream_t stream) {
  const std::int64_t pairs = (a.p.out + 1) / 2;
  const bool few = a.p.n == 1 && pairs <= kFewPairs;
  const std::int64_t in_block = (few ? 1 : kProductPairs) * kProductWarps;
  const unsigned blocks = blocks_for((pairs + in_block - 1) / in_block);
  const std::size_t shared = a.p.hidden ? shared_bytes(a.p.dtype, a.p.n, a.p.in) : 0;
  return launch_early(few          ? ProductKernel<T, 1, 1, false>
                      : a.p.n == 1 ? ProductKernel<T, 1, kProductPairs, false>
                                   : ProductKernel<T, kMostProductRows, kProductPairs, false>,
                      blocks, kDecoderThreads, shared, stream, a);
}

cudaError_t launch_product(const ProductArgs& a, cudaStream_t stream) {
  if (a.p.blocks.n_parts > 0) return launch_block_product(a, stream);
  return for_element(a.p.dtype, [&](auto element) {
    return launch_product<typename decltype(element)::type>(a, stream);
  });
}

std::int64_t value_dim(const HeadsParams& p) { return p.value_dim > 0 ? p.value_dim : p.head_dim; }
std::int64_t value_head_stride(const HeadTarget& row) {
  return row.value_head_stride > 0 ? row.value_head_stride : row.ring_head_stride;
}

/// With what 0 stands for in its place.
HeadsParams with_value_width(HeadsParams p) {
  p.value_dim = value_dim(p);
  for (HeadTarget& row : p.row) {
    row.value_head_stride = value_head_stride(row);
    if (row.value_page_stride == 0) row.value_page_stride = row.ring_pages.page_stride;
  }
  return p;
}

/// \param p the row's heads
FieldError check(const HeadTarget& row, const HeadsParams& p) {
  const std::int64_t d = p.head_dim, e = value_dim(p);
  EPISODIC_FIELD_GIVEN(row, position);
  EPISODIC_FIELD_GIVEN(row, ring_rotated_key);
  EPISODIC_FIELD_GIVEN(row, ring_value);
  EPISODIC_FIELD(row, ring_capacity, row.ring_capacity >= 1);
  EPISODIC_FIELD(row, ring_pages, valid(row.ring_pages));
  EPISODIC_FIELD(row, ring_head_stride,
                 product_within(row.ring_head_stride,
                                slots_in_a_piece(row.ring_pages, row.ring_capacity), d) &&
                     product_within(kMaxElements, row.ring_head_stride, p.n_kv_heads));
  EPISODIC_FIELD(row, value_head_stride,
                 row.value_head_stride >= 0 &&
                     product_within(value_head_stride(row),
                                    slots_in_a_piece(row.ring_pages, row.ring_capacity), e) &&
                     product_within(kMaxElements, value_head_stride(row), p.n_kv_heads));
  EPISODIC_FIELD(row, value_page_stride, row.value_page_stride % 8 == 0);
  EPISODIC_FIELD(row, n_init,
                 product_within(kMaxElements, row.n_init, p.n_kv_heads, std::max(d, e)));
  EPISODIC_FIELD(row, sink_key, row.n_init == 0 || row.sink_key);
  EPISODIC_FIELD(row, sink_value, row.n_init == 0 || row.sink_value);
  if (p.rotary_dim == 0) return {};
  EPISODIC_FIELD_GIVEN(row, cos);
  EPISODIC_FIELD_GIVEN(row, sin);
  if (!row.maybe_mean) return {};
  EPISODIC_FIELD_GIVEN(row, fixed_cos);
  EPISODIC_FIELD_GIVEN(row, fixed_sin);
  return {};
}

FieldError check(const ProductParams& p, const HeadsParams& heads) {
  if (const FieldError wrong = check(p)) return wrong;
  EPISODIC_FIELD(heads, n_heads, heads.n_heads >= 1);
  EPISODIC_FIELD(heads, n_kv_heads, heads.n_kv_heads >= 1);
  EPISODIC_FIELD(heads, head_dim,
                 heads.head_dim >= 2 && heads.head_dim % 2 == 0 &&
                     product_within(kMostWidth, heads.n_heads, heads.head_dim) &&
                     product_within(kMostWidth, heads.n_kv_heads, heads.head_dim));
  EPISODIC_FIELD(heads, value_dim,
                 heads.value_dim >= 0 && heads.value_dim % 2 == 0 &&
                     product_within(kMostWidth, heads.n_kv_heads, value_dim(heads)));
  EPISODIC_FIELD(
      heads, rotary_dim,
      heads.rotary_dim >= 0 && heads.rotary_dim % 2 == 0 && heads.rotary_dim <= heads.head_dim);
  EPISODIC_FIELD(p, out,
                 p.out == (heads.n_heads + heads.n_kv_heads) * heads.head_dim +
                              heads.n_kv_heads * value_dim(heads));
  EPISODIC_FIELD_GIVEN(heads, q);
  EPISODIC_FIELD(heads, q_row_stride, heads.q_row_stride >= heads.n_heads * heads.head_dim);
  for (std::int64_t r = 0; r < p.n; ++r)
    if (const FieldError wrong = check(heads.row[r], heads)) return wrong;
  return {};
}

/// \param y what the product is written to
FieldError check(const ProductParams& p, const void* y) {
  if (const FieldError wrong = check(p)) return wrong;
  if (!y) return {"y", cudaErrorInvalidValue};
  return {};
}

FieldError check(const ProductParams& p, GateActivation activation, const void* y) {
  if (const FieldError wrong = check(p, y)) return wrong;
  if (activation != GateActivation::silu && activation != GateActivation::gelu_tanh)
    return {"activation", cudaErrorInvalidValue};
  EPISODIC_FIELD(p, out, p.out % 2 == 0);
  EPISODIC_FIELD(p, blocks, of_one_type(p.blocks));  // a gate and what it opens go together
  return {};
}

FieldError check(const ProductParams& p, float* const (&to)[kMostProductRows]) {
  if (const FieldError wrong = check(p)) return wrong;
  for (std::int64_t r = 0; r < p.n; ++r)
    if (!to[r]) return {"to", cudaErrorInvalidValue};
  return {};
}

}  // namespace

bool takes_product(DType dtype, std::int64_t n, std::int64_t in, bool of_hidden) {
  if (!is_float(dtype) || n < 1 || n > kMostProductRows || in < 1 || in > kMostWidth) return false;
  return in * size_of(dtype) % 16 == 0 &&
         (!of_hidden || shared_bytes(dtype, n, in) <= kMostProductShared);
}

bool takes_product(const BlockWeights& blocks, std::int64_t n, std::int64_t in) {
  if (n < 1 || n > kMostProductRows || in < 1 || in > kMostBlockIn) return false;
  const bool alike = of_one_type(blocks);
  for (int i = 0; i < blocks.n_parts; ++i) {
    const BlockMatrix& part = blocks.part[i];
    if (in % block_multiple(part.type) != 0) return false;
    if (!alike && (part.type == BlockType::fp8 || part.rows % 2 != 0)) return false;
  }
  return blocks.part[0].type == BlockType::fp8 || n * rounded_row_bytes(in) <= kMostRoundedShared;
}

const char* invalid_field(const ProductParams& params, float* const (&to)[kMostProductRows]) {
  return check(params, to).field;
}
const char* invalid_field(const ProductParams& params, const void* y) {
  return check(params, y).field;
}
const char* invalid_field(const ProductParams& params, GateActivation activation, const void* y) {
  return check(params, activation, y).field;
}
const char* invalid_field(const ProductParams& params, const HeadsParams& heads) {
  return check(params, heads).field;
}

cudaError_t product(const ProductParams& p, float* const (&to)[kMostProductRows],
                    cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  if (const FieldError wrong = check(p, to)) return wrong.error;
  for (std::int64_t r = 0; r < p.n; ++r) a.rows[r] = to[r];
  return launch_product(a, stream);
}

cudaError_t narrow_product(const ProductParams& p, void* y, cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  a.use = ProductUse::narrow;
  a.y = y;
  if (const FieldError wrong = check(p, y)) return wrong.error;
  return launch_product(a, stream);
}

cudaError_t add_product(const ProductParams& p, float multiplier, float* sum, cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  a.use = ProductUse::add;
  a.multiplier = multiplier;
  if (const FieldError wrong = check(p, sum)) return wrong.error;
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
  if (const FieldError wrong = check(p, activation, y)) return wrong.error;
  return launch_product(a, stream);
}

cudaError_t heads_product(const ProductParams& p, const HeadsParams& heads, cudaStream_t stream) {
  ProductArgs a;
  a.p = p;
  a.use = ProductUse::heads;
  a.heads = with_value_width(heads);
  if (const FieldError wrong = check(p, heads)) return wrong.error;
  return launch_product(a, stream);
}

}  // namespace episodic::kernels
