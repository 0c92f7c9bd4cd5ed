// SPDX-License-Identifier: Apache-2.0
#pragma once
// torch.ops.episodic.segmented_attention: what both devices check and take apart.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "episodic/attention/rotary.hpp"
#include "episodic/base/dtype.hpp"

namespace episodic::torch_ops {

using Result = std::tuple<at::Tensor, at::Tensor>;

/// The operator's arguments, checked and dense.
struct Arguments {
  /// \throws DataError naming the argument
  Arguments(const at::Tensor& q, const at::Tensor& local_key, const at::Tensor& local_value,
            at::TensorList far_keys, at::TensorList far_values, at::IntArrayRef far_tokens,
            at::ArrayRef<double> value_weights, const at::Tensor& inverse_frequency,
            std::int64_t first_position, std::int64_t n_local, double attention_factor,
            bool interleaved, double scale, double soft_cap);

  struct Far {
    at::Tensor key, value;  // [length, G, d], [length, G, e]
    std::int64_t first_token = 0;
    float weight = 1.0f;
  };

  at::Tensor q;                       // [n, H, d]
  at::Tensor local_key, local_value;  // [t, G, d], [t, G, e], the last t tokens
  std::vector<Far> far;
  RotaryTable rotary;
  DType dtype;  // of all of them
  std::int64_t n, heads, kv_heads, dim, value_dim, local_tokens, first_position, n_local;
  float scale, soft_cap;

  std::int64_t first_local() const { return first_position + n - local_tokens; }
};

Result on_cuda(const Arguments& arguments);  // segmented_attention_cuda.cpp

}  // namespace episodic::torch_ops
