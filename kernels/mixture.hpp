// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A mixture of experts on the GPU: a router's choice of experts for each row, and the products of
/// the experts that were chosen, one launch each. The twin of src/model/mixture.hpp.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "blocks.hpp"
#include "decoder.hpp"
#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

inline constexpr std::int64_t kMostMixtureExperts = 1 << 13;

/// scores = x router^T + bias; the experts of the best scores and their weights, in the order of
/// the experts' numbers. Of equal scores the lower number goes first, NaN before all numbers.
struct ChooseExpertsParams {
  DType dtype = DType::bfloat16;  ///< of x: float32, float16, bfloat16
  const void* x = nullptr;        ///< [n, hidden]
  std::int64_t n = 0, hidden = 0;
  const float* router = nullptr;         ///< [experts, hidden]
  const float* maybe_bias = nullptr;     ///< [experts], of the products
  const float* maybe_choice = nullptr;   ///< [experts], of the scores, for the choice alone
  std::int64_t experts = 0, chosen = 0;  ///< chosen: 1 to experts
  bool sigmoid = false;                  ///< else a softmax
  bool normalised = false;               ///< weights are divided by their sum
  float scaling = 1.0f;                  ///< of the weights
  std::int32_t* expert = nullptr;        ///< [n, chosen], written
  float* weight = nullptr;               ///< [n, chosen], written
  /// The sigmoid of x times this row: what a shared expert is multiplied by.
  const float* maybe_shared_router = nullptr;  ///< [hidden]
  float* maybe_shared = nullptr;               ///< [n], written, with maybe_shared_router
};
cudaError_t choose_experts(const ChooseExpertsParams& params, cudaStream_t stream);
/// The field of them that choose_experts refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ChooseExpertsParams& params);

/// Whether the kernels below take experts' weights in blocks: rounded, the rows that so many chosen
/// experts read are within a block's shared memory. Of gates and ups there is one.
bool takes_experts(std::int64_t chosen, std::int64_t in);

/// inner[i, j, c] = activation(g) * u of g = x[i] W[e]^T at c and u = at width + c, e being the
/// j-th expert of row i, in float32, rounded once.
struct ExpertGateParams {
  DType dtype = DType::bfloat16;  ///< of x, W and inner
  GateActivation activation = GateActivation::silu;
  /// Above 0: g * sigmoid(slope * g) * (u + 1) instead, g at most limit, u within it either way.
  float slope = 0.0f, limit = 0.0f;
  const void* x = nullptr;        ///< [n, in]
  const void* gate_up = nullptr;  ///< [experts, 2 * width, in]: an expert's gates, then its ups
  /// In place of gate_up, where it has rows: x is rounded to 8 bits as in ProductParams.
  BlockMatrix blocks;
  const float* maybe_bias = nullptr;     ///< [experts, 2 * width], added to g and u
  const std::int32_t* expert = nullptr;  ///< [n, chosen]
  std::int64_t n = 0, in = 0, width = 0, chosen = 0;
  void* inner = nullptr;  ///< [n, chosen, width], written
};
cudaError_t expert_gate(const ExpertGateParams& params, cudaStream_t stream);
/// The field of them that expert_gate refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ExpertGateParams& params);

/// sum[i, c] = maybe_shared * sum[i, c] + sum over j of weight[i, j] * (inner[i, j] W[e]^T)[c], in
/// float32, the chosen experts in their order. With `adds` alone sum stays as it is before.
struct ExpertSumParams {
  DType dtype = DType::bfloat16;         ///< of inner and W
  const void* inner = nullptr;           ///< [n, chosen, width]
  const void* down = nullptr;            ///< [experts, out, width]
  BlockMatrix blocks;                    ///< in place of down, as in ExpertGateParams
  const float* maybe_bias = nullptr;     ///< [experts, out], of each expert's result
  const std::int32_t* expert = nullptr;  ///< [n, chosen]
  const float* weight = nullptr;         ///< [n, chosen]
  std::int64_t n = 0, width = 0, out = 0, chosen = 0;
  bool adds = false;                    ///< to what sum holds: a shared expert's result
  const float* maybe_shared = nullptr;  ///< [n], what that is multiplied by; only if it adds
  float* sum = nullptr;                 ///< [n, out], written
};
cudaError_t expert_sum(const ExpertSumParams& params, cudaStream_t stream);
/// The field of them that expert_sum refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ExpertSumParams& params);

// Of all: float32 sums, of a row in an order that depends on the sizes alone: the same bits
// whatever other rows there are, and on every run. Only the weights of chosen experts are read, for
// each row that chose them. They neither allocate nor wait, and may be captured.

}  // namespace episodic::kernels
