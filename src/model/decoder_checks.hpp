// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder's step looks at before and after.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <numeric>
#include <span>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "linear.hpp"

namespace episodic {

/// \throws DataError for a step of no tokens, or of ids out of the vocabulary
inline void require_ids(std::span<const std::int64_t> ids, std::int64_t vocab) {
  if (ids.empty()) throw DataError("Decoder::forward: no tokens; a step needs at least one");
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw DataError(
          fmt::format("Decoder::forward: ids[{}] = {} is not in the vocabulary of {} "
                      "tokens; use the tokenizer of this model",
                      i, ids[i], vocab));
}

/// Places in a batch: steps of one token, then others that are multiplied as few rows, then the
/// rest, so that each kind reads the weights once.
inline std::vector<std::size_t> by_length(std::span<const Decoder::SequenceStep> batch) {
  std::vector<std::size_t> order(batch.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto kind = [&](std::size_t i) {
    const auto n = static_cast<std::int64_t>(batch[i].ids.size());
    return n <= 1 ? 0 : class_of(n) == RowClass::few ? 1 : 2;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return kind(a) < kind(b); });
  return order;
}

inline bool is_data_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const DataError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace episodic
