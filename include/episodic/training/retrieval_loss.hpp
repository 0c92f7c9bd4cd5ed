// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What read and write heads are trained by (EpMAN 3.5): the true event should have the
/// largest score among all.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace episodic {

/// scale * cosine(R query, W event) of each event; 0 where one of the two vectors is zero.
/// Differentiable in all four tensors.
/// \param read, write [out, width] \param query [width] \param events [n, width], n >= 1
/// \param scale > 0 \return [n]
at::Tensor retrieval_scores(const at::Tensor& read, const at::Tensor& write,
                            const at::Tensor& query, const at::Tensor& events, double scale);

/// -log of the share of softmax(scores) that the true events have together.
/// \param scores [n] \param right numbers of the true events, not empty, each once
/// \throws DataError for none, or one that is not there
at::Tensor retrieval_loss(const at::Tensor& scores, std::span<const std::int64_t> right);

}  // namespace episodic
