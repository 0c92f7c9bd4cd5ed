// SPDX-License-Identifier: Apache-2.0
#include "analysis/cohesion.hpp"

#include <algorithm>

#include "episodic/base/parallel.hpp"

namespace episodic::analysis {
namespace {

double nonzero(double x) { return x == 0 ? 1e-15 : x; }

void add(std::vector<EventSums>& to, const std::vector<EventSums>& more) {
  if (to.empty()) to.resize(more.size());
  for (std::size_t i = 0; i < more.size(); ++i) {
    to[i].tokens = more[i].tokens;
    to[i].inside += more[i].inside;
    to[i].across += more[i].across;
    to[i].outside += more[i].outside;
  }
}

/// Sums of every unit, in the order of the units.
std::vector<std::vector<EventSums>> sums_by_unit(const KeySums& keys, TokenRange text,
                                                 std::span<const std::int64_t> boundaries) {
  std::vector<std::vector<EventSums>> sums(static_cast<std::size_t>(keys.units()));
  parallel_for(keys.units(), [&](std::int64_t unit) {
    sums[static_cast<std::size_t>(unit)] = event_sums(keys, unit, text, boundaries);
  });
  return sums;
}

}  // namespace

std::vector<EventSums> event_sums(const KeySums& keys, std::int64_t unit, TokenRange text,
                                  std::span<const std::int64_t> boundaries) {
  const auto d = static_cast<std::size_t>(keys.head_dim());
  std::vector<double> all(d), event(d);
  keys.range(unit, text.start, text.end, all);
  std::vector<EventSums> sums;
  for (const TokenRange& e : events_between(text, boundaries)) {
    keys.range(unit, e.start, e.end, event);
    EventSums s;
    s.tokens = e.size();
    for (std::size_t c = 0; c < d; ++c) {
      const double other = all[c] - event[c];
      s.inside += event[c] * event[c];
      s.across += event[c] * other;
      s.outside += other * other;
    }
    sums.push_back(s);
  }
  return sums;
}

Cohesion cohesion_of(std::span<const EventSums> events) {
  Cohesion result;
  if (events.size() < 2) return result;
  std::int64_t tokens = 0;
  for (const EventSums& e : events) tokens += e.tokens;
  const EventSums& first = events.front();
  const double total = first.inside + 2 * first.across + first.outside;  // 2m, the same of each
  for (const EventSums& e : events) {
    const double degree = e.inside + e.across;
    if (total != 0) result.modularity += e.inside / total - (degree / total) * (degree / total);
    result.conductance += e.across / nonzero(std::min(e.inside, e.outside));
    const auto n = static_cast<double>(e.tokens), others = static_cast<double>(tokens - e.tokens);
    result.ratio_of_sums += e.inside / nonzero(e.across);
    result.ratio_of_means += e.inside / (n * n) / nonzero(e.across / (n * others));
  }
  const auto n = static_cast<double>(events.size());
  result.modularity /= 2;  // the paper's 1/4m, where Newman's modularity has 1/2m
  result.conductance /= n;
  result.ratio_of_sums /= n;
  result.ratio_of_means /= n;
  return result;
}

CohesionByPart cohesion_by_part(const KeySums& keys, std::int64_t heads_of_a_layer, TokenRange text,
                                std::span<const std::int64_t> boundaries) {
  const std::vector<std::vector<EventSums>> sums = sums_by_unit(keys, text, boundaries);
  CohesionByPart result;
  std::vector<EventSums> all, layer;
  for (std::size_t unit = 0; unit < sums.size(); ++unit) {
    result.units.push_back(cohesion_of(sums[unit]));
    add(all, sums[unit]);
    add(layer, sums[unit]);
    if ((static_cast<std::int64_t>(unit) + 1) % heads_of_a_layer == 0) {
      result.layers.push_back(cohesion_of(layer));
      layer.clear();
    }
  }
  result.all = cohesion_of(all);
  return result;
}

Cohesion cohesion_of_all(const KeySums& keys, TokenRange text,
                         std::span<const std::int64_t> boundaries) {
  std::vector<EventSums> all;
  for (const std::vector<EventSums>& unit : sums_by_unit(keys, text, boundaries)) add(all, unit);
  return cohesion_of(all);
}

}  // namespace episodic::analysis
