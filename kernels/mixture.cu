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
  EPISODIC_FIELD_GIVEN(p, gate_up);
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
  EPISODIC_FIELD_GIVEN(p, down);
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
  return for_element(p.dtype, [&](auto element) {
    return launch(ExpertGateKernel<typename decltype(element)::type>,
                  grid_of(p.width, p.n * p.chosen), kMixtureThreads, 0, stream, p);
  });
}

cudaError_t expert_sum(const ExpertSumParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    return launch(ExpertSumKernel<typename decltype(element)::type>, grid_of(p.out, p.n),
                  kMixtureThreads, 0, stream, p);
  });
}

}  // namespace episodic::kernels
