// SPDX-License-Identifier: Apache-2.0
#pragma once
// Torch's tensors as the library names them: dtypes, and what messages say of a tensor.

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <optional>
#include <string>

#include "episodic/base/dtype.hpp"

namespace episodic::torch_tensor {

inline at::ScalarType torch_type(DType dtype) {
  return dtype == DType::float32    ? at::kFloat
         : dtype == DType::float16  ? at::kHalf
         : dtype == DType::bfloat16 ? at::kBFloat16
                                    : at::kChar;
}

inline std::optional<DType> dtype_of(at::ScalarType type) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    if (torch_type(dtype) == type) return dtype;
  return std::nullopt;
}

inline std::string described(const at::Tensor& x) {
  if (!x.defined()) return "undefined";
  std::string shape;
  for (const std::int64_t s : x.sizes()) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", s);
  return fmt::format("[{}] of {} on {}", shape, at::toString(x.scalar_type()), x.device().str());
}

}  // namespace episodic::torch_tensor
