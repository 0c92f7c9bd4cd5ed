// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every engine's steps check before anything is read, in the same words.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "episodic/base/error.hpp"

namespace episodic {

/// The arguments of Engine::score. \param vocab of the model
/// \throws DataError where [first, first + n) is empty or not within ids, nll is not as long as
///         ids, or the token behind the step's last, which the step scores too, is no token
inline void require_scorable(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
                             std::span<const float> nll, std::int64_t vocab) {
  if (n < 1 || first > ids.size() || n > ids.size() - first)
    throw DataError(
        fmt::format("Engine::score: {} tokens from {} on, of {}; at least one must "
                    "be read, and none beyond the last",
                    n, first, ids.size()));
  if (nll.size() != ids.size())
    throw DataError(fmt::format("Engine::score: room for {} numbers, {} tokens have as many",
                                nll.size(), ids.size()));
  const std::size_t behind = first + n;
  if (behind < ids.size() && (ids[behind] < 0 || ids[behind] >= vocab))
    throw DataError(
        fmt::format("Engine::score: ids[{}] = {} is not in the vocabulary of {} tokens; use the "
                    "tokenizer of this model",
                    behind, ids[behind], vocab));
}

}  // namespace episodic
