// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which events take part in reweighted attention, and with what factor of their values (EpMAN 3.2;
/// EpMAN 3.2, 3.5). Header-only.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// How a reader's scores become factors.
enum class Reweight : std::uint8_t {
  exact,   ///< all events, each with its score
  narrow,  ///< the top K, factor 1
  broad,   ///< the top K and the events next to them, factor 1
};

/// An event that takes part.
struct WeightedEvent {
  std::int64_t event = 0;
  float value_weight = 1.0f;
};

/// The reader's score of an event: max(0, cosine), 0 where one of the vectors is zero or not
/// finite. In float64.
inline float relevance_score(std::span<const float> query, std::span<const float> event) {
  if (query.size() != event.size())
    throw DataError("relevance score: a query of " + std::to_string(query.size()) +
                    " numbers and an event of " + std::to_string(event.size()));
  double dot = 0, q = 0, e = 0;
  for (std::size_t c = 0; c < query.size(); ++c) {
    dot += static_cast<double>(query[c]) * event[c];
    q += static_cast<double>(query[c]) * query[c];
    e += static_cast<double>(event[c]) * event[c];
  }
  const double cosine = dot / std::sqrt(q * e);
  return std::isfinite(cosine) && cosine > 0 ? static_cast<float>(std::min(cosine, 1.0)) : 0.0f;
}

/// \param score [events], of relevance_score or any other reader; NaN and less than 0 count as 0
/// \param top_k K >= 1, of narrow and broad; not looked at by exact
/// \return the events that take part, in order of time
inline std::vector<WeightedEvent> reweighted_events(Reweight mode, std::int64_t top_k,
                                                    std::span<const float> score) {
  const auto clean = [&](std::size_t e) { return score[e] > 0 ? score[e] : 0.0f; };
  std::vector<WeightedEvent> out;
  if (mode == Reweight::exact) {
    for (std::size_t e = 0; e < score.size(); ++e)
      out.push_back({static_cast<std::int64_t>(e), clean(e)});
    return out;
  }
  if (top_k < 1) throw ConfigError("reweight: top_k must be >= 1");
  std::vector<std::size_t> order(score.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto n = std::min(order.size(), static_cast<std::size_t>(top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return clean(a) != clean(b) ? clean(a) > clean(b) : a < b;
                    });
  std::vector<bool> present(score.size(), false);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t e = order[i];
    present[e] = true;
    if (mode == Reweight::narrow) continue;
    if (e > 0) present[e - 1] = true;
    if (e + 1 < present.size()) present[e + 1] = true;
  }
  for (std::size_t e = 0; e < present.size(); ++e)
    if (present[e]) out.push_back({static_cast<std::int64_t>(e), 1.0f});
  return out;
}

}  // namespace EPISODIC_NAMESPACE
