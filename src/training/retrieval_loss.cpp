// SPDX-License-Identifier: Apache-2.0
#include "episodic/training/retrieval_loss.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"

namespace episodic {

at::Tensor retrieval_scores(const at::Tensor& read, const at::Tensor& write,
                            const at::Tensor& query, const at::Tensor& events, double scale) {
  constexpr double kLeast = 1e-24;  // of a squared length: the root has no derivative at 0
  const auto length = [](const at::Tensor& square) { return square.clamp_min(kLeast).sqrt(); };
  const at::Tensor asked = read.matmul(query);
  const at::Tensor written = at::linear(events, write);
  return scale * written.matmul(asked) /
         (length(written.square().sum(1)) * length(asked.square().sum()));
}

at::Tensor retrieval_loss(const at::Tensor& scores, std::span<const std::int64_t> right) {
  if (right.empty()) throw DataError("retrieval loss: no event is true; give at least one");
  for (const std::int64_t e : right)
    if (e < 0 || e >= scores.size(0))
      throw DataError(
          fmt::format("retrieval loss: event {} of {} is not there", e, scores.size(0)));
  const at::Tensor index = at::empty({static_cast<std::int64_t>(right.size())}, at::kLong);
  std::copy(right.begin(), right.end(), index.mutable_data_ptr<std::int64_t>());
  return scores.logsumexp(-1) - scores.index_select(0, index).logsumexp(-1);
}

}  // namespace episodic
