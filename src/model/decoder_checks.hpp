// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder's step looks at before and after.

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <span>

#include "episodic/base/error.hpp"

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
