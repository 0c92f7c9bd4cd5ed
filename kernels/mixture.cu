// SPDX-License-Identifier: Apache-2.0
#include "mixture.hpp"

#include <cstddef>

#include "fields.hpp"
#include "mixture.cuh"

namespace episodic::kernels {

namespace {

/// Rows, widths and experts within what an offset takes.
bool within(std::int64_t n, std::int64_t chosen, std::int64_t a, std::int64_t b) {
  return product_within(kMaxElements, n, chosen, a) &&
         product_within(kMaxElements, kMostMixtureExperts, 2, a, b);
}

/// Of blocks in place of a plain matrix whose rows have `in` numbers; `rows` are experts times
/// more.
FieldError check_blocks(const BlockMatrix& blocks, const void* plain, std::int64_t rows,
                        std::int64_t in) {
  const bool fits = !plain && blocks.data && blocks.rows % rows == 0 &&
                    static_cast<int>(blocks.type) < kBlockTypes && blocks.type != BlockType::fp8 &&
                    in % block_multiple(blocks.type) == 0;
  if (!fits) return {"blocks", cudaErrorInvalidValue};
  if (!aligned(blocks.data, 16)) return {"blocks", cudaErrorMisalignedAddress};
  return {};
}

FieldError check(const ChooseExpertsParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, hidden, p.hidden >= 1 && product_within(kMaxElements, p.n, p.hidden));
  EPISODIC_FIELD(p, experts, p.experts >= 1 && p.experts <= kMostMixtureExperts);
  EPISODIC_FIELD(p, chosen, p.chosen >= 1 && p.chosen <= p.experts);
  EPISODIC_FIELD(p, maybe_shared, !p.maybe_shared == !p.maybe_shared_router);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, x);
  EPISODIC_FIELD_GIVEN(p, router);
  EPISODIC_FIELD_GIVEN(p, expert);
  EPISODIC_FIELD_GIVEN(p, weight);
  return {};
}

FieldError check(const ExpertGateParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, chosen, p.chosen >= 1 && p.chosen <= kMostMixtureExperts);
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, in, p.in >= 1 && within(p.n, p.chosen, p.width, p.in));
  EPISODIC_FIELD(p, slope, p.slope >= 0.0f);
  EPISODIC_FIELD(p, limit, p.slope == 0.0f || p.limit > 0.0f);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, x);
  if (p.blocks.rows != 0) {
    EPISODIC_FIELD(p, in, takes_experts(1, p.in));
    if (const FieldError wrong = check_blocks(p.blocks, p.gate_up, 2 * p.width, p.in)) return wrong;
  } else {
    EPISODIC_FIELD_GIVEN(p, gate_up);
  }
  EPISODIC_FIELD_GIVEN(p, expert);
  EPISODIC_FIELD_GIVEN(p, inner);
  return {};
}

FieldError check(const ExpertSumParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, chosen, p.chosen >= 1 && p.chosen <= kMostMixtureExperts);
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, out, p.out >= 1 && within(p.n, p.chosen, p.width, p.out));
  EPISODIC_FIELD(p, maybe_shared, p.adds || !p.maybe_shared);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, inner);
  if (p.blocks.rows != 0) {
    EPISODIC_FIELD(p, width, takes_experts(p.chosen, p.width));
    if (const FieldError wrong = check_blocks(p.blocks, p.down, p.out, p.width)) return wrong;
  } else {
    EPISODIC_FIELD_GIVEN(p, down);
  }
  EPISODIC_FIELD_GIVEN(p, expert);
  EPISODIC_FIELD_GIVEN(p, weight);
  EPISODIC_FIELD_GIVEN(p, sum);
  return {};
}

dim3 grid_of(std::int64_t channels, std::int64_t rows) {
  return blocks_for_layers((channels + kMixtureWarps - 1) / kMixtureWarps,
                           rows < kMostGridRows ? rows : kMostGridRows);
}

}  // namespace

bool takes_experts(std::int64_t chosen, std::int64_t in) {
  return in >= 1 && in <= kMostBlockIn && chosen >= 1 && chosen <= kMostMixtureExperts &&
         chosen * rounded_row_bytes(in) <= kMostRoundedShared;
}

const char* invalid_field(const ChooseExpertsParams& params) { return check(params).field; }
const char* invalid_field(const ExpertGateParams& params) { return check(params).field; }
const char* invalid_field(const ExpertSumParams& params) { return check(params).field; }

cudaError_t choose_experts(const ChooseExpertsParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  const std::size_t shared = static_cast<std::size_t>(p.experts) * sizeof(float);
  return for_element(p.dtype, [&](auto element) {
    return launch(ChooseExpertsKernel<typename decltype(element)::type>, blocks_for(p.n),
                  kMixtureThreads, shared, stream, p);
  });
}

cudaError_t expert_gate(const ExpertGateParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  if (p.blocks.rows > 0)
    return for_element(p.dtype, [&](auto element) {
      return launch(BlockExpertGateKernel<typename decltype(element)::type>,
                    grid_of(p.width, p.n * p.chosen), kMixtureThreads,
                    static_cast<std::size_t>(rounded_row_bytes(p.in)), stream, p);
    });
  return for_element(p.dtype, [&](auto element) {
    return launch(ExpertGateKernel<typename decltype(element)::type>,
                  grid_of(p.width, p.n * p.chosen), kMixtureThreads, 0, stream, p);
  });
}

cudaError_t expert_sum(const ExpertSumParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  if (p.blocks.rows > 0)
    return for_element(p.dtype, [&](auto element) {
      return launch(BlockExpertSumKernel<typename decltype(element)::type>, grid_of(p.out, p.n),
                    kMixtureThreads,
                    static_cast<std::size_t>(p.chosen * rounded_row_bytes(p.width)), stream, p);
    });
  return for_element(p.dtype, [&](auto element) {
    return launch(ExpertSumKernel<typename decltype(element)::type>, grid_of(p.out, p.n),
                  kMixtureThreads, 0, stream, p);
  });
}

}  // namespace episodic::kernels
