// SPDX-License-Identifier: Apache-2.0
#pragma once
// The range of the factors that callers give adapters, the same wherever they come in.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "episodic/base/error.hpp"

namespace episodic {

/// \throws ConfigError naming the adapter; far below float32's limits, for products to stay finite
inline void require_scale(const std::filesystem::path& adapter, double scale) {
  constexpr double kMost = 1e6;
  if (!(std::abs(scale) <= kMost))  // not so for NaN
    throw ConfigError(fmt::format("{}: the scale of an adapter is {}, must be within {} of 0",
                                  adapter.string(), scale, kMost));
}

}  // namespace episodic
