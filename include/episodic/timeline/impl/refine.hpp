// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of timeline/refine.hpp; how they become functions: base/inline.hpp.
#include "episodic/timeline/refine.hpp"

#include <algorithm>
#include <limits>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/rules/refinement.hpp"
#include "episodic/base/text.hpp"
#include "episodic/cpu/as_floats.hpp"
#include "episodic/timeline/detail/split_sums.hpp"

namespace EPISODIC_NAMESPACE {
namespace refine_detail {

inline rules::Objective rule_of(Refinement objective) {
  switch (objective) {
    case Refinement::conductance:
      return rules::Objective::conductance;
    case Refinement::intra_inter:
      return rules::Objective::intra_inter;
    case Refinement::modularity:
    case Refinement::none:  // scores nothing
      break;
  }
  return rules::Objective::modularity;
}

}  // namespace refine_detail

EPISODIC_INLINE BoundaryRefiner::BoundaryRefiner(Refinement objective, std::int64_t n_init,
                                                 std::int64_t min_block, std::int64_t n_kv_heads,
                                                 std::int64_t head_dim)
    : objective_(objective),
      n_init_(n_init),
      min_block_(min_block),
      n_kv_heads_(n_kv_heads),
      head_dim_(head_dim) {}

EPISODIC_INLINE std::int64_t BoundaryRefiner::best_split(std::span<const KeyRing> layers,
                                                         TokenRange window, std::int64_t from,
                                                         std::int64_t to, Group* group) {
  using namespace refine_detail;
  // Splits t in [from, to] of the window. Every layer and head is a unit of its own: its sums stay
  // in the first cache level over all tokens, and the units are added in a fixed order afterwards.
  const std::int64_t n_units = static_cast<std::int64_t>(layers.size()) * n_kv_heads_;
  const std::int64_t n_splits = to - from + 1;
  const std::int64_t stride = 3 * n_splits + 2 * head_dim_;
  scratch_.resize(static_cast<std::size_t>(n_units * stride));
  rows_.resize(static_cast<std::size_t>(n_units * head_dim_));
  const cpu::Kernels& k = cpu::kernels();
  const SplitLoops loops(k);
  parallel_for(n_units, [&](std::int64_t unit) {
    const KeyRing& ring = layers[static_cast<std::size_t>(unit / n_kv_heads_)];
    float* row = rows_.data() + unit * head_dim_;
    const auto key = [&](std::int64_t t) {
      return cpu::as_floats(k, ring.row(unit % n_kv_heads_, t), ring.dtype, head_dim_, row);
    };
    double* parts = scratch_.data() + unit * stride;
    double* total = parts + 3 * n_splits;
    double* s = total + head_dim_;
    std::fill(s, s + head_dim_, 0.0);
    for (std::int64_t t = window.start; t < from - 1; ++t) loops.accumulate(key(t), s, head_dim_);
    std::copy(s, s + head_dim_, total);
    for (std::int64_t t = from - 1; t < window.end; ++t) loops.accumulate(key(t), total, head_dim_);
    for (std::int64_t i = 0; i < n_splits; ++i) {
      const rules::SplitSums p = loops.advance(key(from - 1 + i), total, s, head_dim_);
      parts[3 * i] = p.ss, parts[3 * i + 1] = p.rr, parts[3 * i + 2] = p.sr;
    }
  });

  sums_.assign(static_cast<std::size_t>(3 * n_splits), 0.0);
  for (std::int64_t i = 0; i < n_splits; ++i)
    for (std::int64_t unit = 0; unit < n_units; ++unit) {
      const double* part = scratch_.data() + unit * stride + 3 * i;
      for (std::int64_t c = 0; c < 3; ++c) sums_[static_cast<std::size_t>(3 * i + c)] += part[c];
    }
  if (group) group->sum(std::span<double>(sums_));

  std::vector<rules::SplitScore> scores(static_cast<std::size_t>(n_splits));
  rules::SplitScore best{-std::numeric_limits<double>::infinity(), 0.0};
  for (std::int64_t i = 0; i < n_splits; ++i) {
    const double* sum = sums_.data() + 3 * i;
    rules::SplitSums p;
    p.ss = sum[0], p.rr = sum[1], p.sr = sum[2];
    const std::int64_t t = from + i;
    const rules::SplitScore score =
        rules::split_score(rule_of(objective_), p, t - window.start, window.end - t);
    scores[static_cast<std::size_t>(i)] = score;
    if (score.value > best.value) best = score;
  }
  // Of those that tie the latest wins. If no objective is a number, `to` stays.
  for (std::int64_t i = n_splits - 1; i >= 0; --i)
    if (rules::ties_with(scores[static_cast<std::size_t>(i)], best)) return from + i;
  return to;
}

EPISODIC_INLINE void BoundaryRefiner::step(std::span<const KeyRing> layers, std::int64_t first,
                                           std::span<const std::uint8_t> raw,
                                           std::span<std::uint8_t> final_flags, Group* group) {
  if (raw.size() != final_flags.size())
    throw DataError(concat("boundary refinement: ", raw.size(), " raw and ", final_flags.size(),
                           " final flags; give one per token"));
  if (objective_ != Refinement::none && layers.empty())
    throw ConfigError(
        "boundary refinement: no layer enters the graph; lower refine_layers below the "
        "number of layers");
  if (raw.empty()) return;
  const std::int64_t end = first + static_cast<std::int64_t>(raw.size());
  const std::int64_t low = std::max(n_init_, last_in_previous_ >= 0 ? last_in_previous_ : first);
  std::int64_t last = last_boundary_;
  std::int64_t last_in_step = -1;
  std::fill(final_flags.begin(), final_flags.end(), std::uint8_t{0});
  for (std::int64_t b = first; b < end; ++b) {
    if (!raw[static_cast<std::size_t>(b - first)]) continue;
    std::int64_t moved = b;
    if (objective_ != Refinement::none) {
      const std::int64_t a = last >= 0 ? last : n_init_;
      if (b - a < min_block_) continue;
      if (b - a > min_block_) {
        const rules::BoundaryWindow w = rules::boundary_window(a, b, low, end, first, min_block_);
        const TokenRange window{w.start, w.end};
        for (const KeyRing& ring : layers)
          if (w.from <= b && ring.capacity < window.size())
            throw DataError(concat("boundary refinement: the keys of ", window.size(),
                                   " tokens are needed, but a ring holds ", ring.capacity,
                                   "; make it hold the previous step and this one"));
        if (w.from <= b) moved = best_split(layers, window, w.from, b, group);
      }
    }
    final_flags[static_cast<std::size_t>(moved - first)] = 1;
    last = last_in_step = moved;
  }
  // Nothing throws from here on.
  last_boundary_ = last;
  last_in_previous_ = last_in_step;
}

}  // namespace EPISODIC_NAMESPACE
