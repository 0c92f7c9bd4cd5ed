// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/index.hpp: how the exact index finds the best events (docs/search.md).
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/recall/detail/exact_index.hpp"
#include "episodic/recall/detail/exact_rows.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace exact_index_detail {

inline constexpr std::int64_t kFirstLook =
    4;  // groups, per event asked for, that say what it must reach
inline constexpr std::int64_t kSlabsPerTask = 16;
inline constexpr std::int64_t kAhead = 8;    // rows whose codes are fetched ahead
inline constexpr std::int64_t kFetched = 4;  // vectors that a task fetches

/// An order of rows and groups: the largest bound first.
inline bool larger(const Projection::Row& a, const Projection::Row& b) {
  return a.upper > b.upper || (a.upper == b.upper && a.event < b.event);
}

/// f(slab) for the slabs below n, several to a task: one is looked at in a microsecond.
template <class F>
void parallel_slabs(std::int64_t n, F&& f) {
  parallel_for((n + kSlabsPerTask - 1) / kSlabsPerTask, [&](std::int64_t task) {
    const std::int64_t end = std::min(n, (task + 1) * kSlabsPerTask);
    for (std::int64_t slab = task * kSlabsPerTask; slab < end; ++slab) f(slab);
  });
}

}  // namespace exact_index_detail

EPISODIC_INLINE void keep_best(std::vector<ScoredEvent>& list, std::int64_t k) {
  const auto keep = static_cast<std::ptrdiff_t>(
      std::clamp<std::int64_t>(k, 0, static_cast<std::int64_t>(list.size())));
  const auto cut = list.begin() + keep;
  if (cut != list.end()) std::nth_element(list.begin(), cut, list.end(), ranks_before);
  std::sort(list.begin(), cut, ranks_before);
  list.resize(static_cast<std::size_t>(keep));
}

EPISODIC_INLINE ExactSearch::ExactSearch(const ExactIndex& index, ExactIndex* learner)
    : index_(index),
      learner_(learner),
      means_(index.means_),
      quantised_(index.quantised_),
      projection_(index.projection_) {}

EPISODIC_INLINE void ExactSearch::search(const float* query, std::int64_t k,
                                         std::vector<ScoredEvent>& out) {
  out.clear();
  if (k <= 0) return;
  if (!index_.bounds_for(k) || !search_bounded(query, k, out)) {
    index_.scan(query, 0, out);
    keep_best(out, k);
  }
  for (ScoredEvent& e : out) e.event = index_.event_of(e.event);
}

EPISODIC_INLINE bool ExactSearch::search_bounded(const float* query, std::int64_t k,
                                                 std::vector<ScoredEvent>& out) {
  if (index_.shape_.score != RepresentativeScore::mean) return false;
  if (plain_searches_ > 0) {
    --plain_searches_;
    return false;
  }
  double square = 0.0;
  for (std::int64_t c = 0; c < means_.width(); ++c)
    square += static_cast<double>(query[c]) * static_cast<double>(query[c]);
  const float norm = static_cast<float>(std::sqrt(square) * (1.0 + 1e-6));
  if (!std::isfinite(norm)) return false;

  if (learner_) learner_->quantise_full_slabs();
  const std::int64_t slabs = quantised_.slabs(), rows = means_.rows_per_slab();
  if (slabs == 0) return false;
  if (learner_) learner_->learn(query);
  projection_.open(query, static_cast<double>(norm), opened_);

  index_.scan(query, slabs * rows, out);  // the slab that is not full yet
  // What has large bounds tells what an event of the list must reach; then all that may reach it
  // are looked at more closely, and of these few exactly.
  rows_above(least_to_reach(query, norm, k, out));
  bound_rows(query, norm);
  const float least = least_of(k, out);
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(),
                                   [&](const Candidate& c) { return c.value + c.error < least; }),
                    candidates_.end());
  // Vectors that 8 bits do not tell apart: the list is right, but the scan was in vain.
  if (2 * static_cast<std::int64_t>(candidates_.size()) > slabs * rows && means_.held(0))
    plain_searches_ = 16;

  rank_candidates(query, k, out);
  last_ = out;
  return true;
}

EPISODIC_INLINE float ExactSearch::least_to_reach(const float* query, float norm, std::int64_t k,
                                                  const std::vector<ScoredEvent>& tail) {
  bound_slabs(query, norm);
  const std::int64_t slabs = quantised_.slabs(), rows = means_.rows_per_slab();
  first_rows(k);
  for (const ScoredEvent& e : last_)
    if (e.event < slabs * rows) rows_.push_back({e.event, 0.0f});
  // Each but once: an event cannot be two of the k that are to be reached.
  std::sort(rows_.begin(), rows_.end(),
            [](const Projection::Row& a, const Projection::Row& b) { return a.event < b.event; });
  rows_.erase(std::unique(rows_.begin(), rows_.end(),
                          [](const Projection::Row& a, const Projection::Row& b) {
                            return a.event == b.event;
                          }),
              rows_.end());
  bound_rows(query, norm);
  return least_of(k, tail);
}

EPISODIC_INLINE void ExactSearch::rank_candidates(const float* query, std::int64_t k,
                                                  std::vector<ScoredEvent>& out) {
  using namespace exact_index_detail;
  // Best bounds first: the k-th exact score soon rules out the rest.
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    const float x = a.value + a.error, y = b.value + b.error;
    return x > y || (x == y && a.event < b.event);
  });
  keep_best(out, k);
  std::make_heap(out.begin(), out.end(), ranks_before);  // the worst of the list on top
  // The first k are wanted anyhow, and their vectors may lie in files: all threads fetch them.
  const std::int64_t n_first = std::min(k, static_cast<std::int64_t>(candidates_.size()));
  exact_.resize(static_cast<std::size_t>(n_first));
  parallel_for((n_first + kFetched - 1) / kFetched, [&](std::int64_t block) {
    std::vector<float> buffer;
    for (std::int64_t i = block * kFetched; i < std::min(n_first, (block + 1) * kFetched); ++i) {
      const auto at = static_cast<std::size_t>(i);
      exact_[at] =
          rankable(dot(query, index_.vector(candidates_[at].event, buffer), means_.width()));
    }
  });
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& c = candidates_[i];
    const bool full = static_cast<std::int64_t>(out.size()) == k;
    if (full && c.value + c.error < out.front().score) break;
    const ScoredEvent found{c.event,
                            i < exact_.size() ? exact_[i] : index_.score_of(query, c.event)};
    if (full && !ranks_before(found, out.front())) continue;
    if (full) {
      std::pop_heap(out.begin(), out.end(), ranks_before);
      out.pop_back();
    }
    out.push_back(found);
    std::push_heap(out.begin(), out.end(), ranks_before);
  }
  keep_best(out, k);
}

EPISODIC_INLINE void ExactSearch::bound_slabs(const float* query, float norm) {
  const std::int64_t slabs = quantised_.slabs(), rows = means_.rows_per_slab();
  const std::int64_t groups = projection_.groups_per_slab();
  offset_.resize(static_cast<std::size_t>(slabs));
  slab_upper_.resize(static_cast<std::size_t>(slabs));
  upper_.resize(static_cast<std::size_t>(slabs * groups));
  exact_index_detail::parallel_slabs(slabs, [&](std::int64_t slab) {
    if (slab + 1 < slabs) {
      quantised_.fetch_mean(slab + 1);
      projection_.fetch_first(slab + 1);
    }
    const float offset = offset_[static_cast<std::size_t>(slab)] = quantised_.offset(query, slab);
    float* upper = upper_.data() + slab * groups;
    float& most = slab_upper_[static_cast<std::size_t>(slab)];
    if (projection_.has(slab)) {
      most = projection_.bound_groups(opened_, slab, offset, upper);
      return;
    }
    std::array<float, VectorSlabs::kMostRows> value, error;
    quantised_.bounds(query, norm, offset, slab, 0, rows, value.data(), error.data());
    most = -std::numeric_limits<float>::infinity();
    for (std::int64_t g = 0; g < groups; ++g) {
      upper[g] = -std::numeric_limits<float>::infinity();
      for (std::int64_t r = g * Projection::kGroup;
           r < std::min(rows, (g + 1) * Projection::kGroup); ++r)
        upper[g] = std::max(
            upper[g], value[static_cast<std::size_t>(r)] + error[static_cast<std::size_t>(r)]);
      most = std::max(most, upper[g]);
    }
  });
}

EPISODIC_INLINE void ExactSearch::first_rows(std::int64_t k) {
  const auto keep = [&](std::vector<Projection::Row>& list, std::int64_t n) {
    if (static_cast<std::int64_t>(list.size()) <= n) return;
    std::nth_element(list.begin(), list.begin() + n, list.end(), exact_index_detail::larger);
    list.resize(static_cast<std::size_t>(n));
  };
  const std::int64_t groups = projection_.groups_per_slab(), rows = means_.rows_per_slab();
  const std::int64_t first = exact_index_detail::kFirstLook * k;
  // So many slabs have as many groups that reach what the last of them does: no others are needed.
  float cut = -std::numeric_limits<float>::infinity();
  if (static_cast<std::int64_t>(slab_upper_.size()) >= first) {
    ranked_ = slab_upper_;
    const auto last = ranked_.begin() + static_cast<std::ptrdiff_t>(first - 1);
    std::nth_element(ranked_.begin(), last, ranked_.end(), std::greater<>());
    cut = *last;
  }
  groups_.clear();
  for (std::int64_t slab = 0; slab < quantised_.slabs(); ++slab) {
    if (slab_upper_[static_cast<std::size_t>(slab)] < cut) continue;
    for (std::int64_t g = slab * groups; g < (slab + 1) * groups; ++g)
      if (const float upper = upper_[static_cast<std::size_t>(g)]; upper >= cut)
        groups_.push_back({g, upper});
  }
  keep(groups_, first);
  rows_.clear();
  for (const Projection::Row& group : groups_)
    if (projection_.has(group.event / groups))
      projection_.fetch_rows(group.event / groups, group.event % groups);
  for (const Projection::Row& group : groups_) {
    const std::int64_t slab = group.event / groups, g = group.event % groups;
    if (projection_.has(slab)) {
      projection_.rows_of(opened_, slab, offset_[static_cast<std::size_t>(slab)], g, rows_);
      continue;
    }
    for (std::int64_t r = g * Projection::kGroup; r < std::min(rows, (g + 1) * Projection::kGroup);
         ++r)
      rows_.push_back({slab * rows + r, group.upper});
  }
  keep(rows_, first);
}

EPISODIC_INLINE void ExactSearch::rows_above(float least) {
  using namespace exact_index_detail;
  const std::int64_t groups = projection_.groups_per_slab(), rows = means_.rows_per_slab();
  const std::int64_t slabs = quantised_.slabs();
  const std::int64_t tasks = (slabs + kSlabsPerTask - 1) / kSlabsPerTask;
  if (static_cast<std::int64_t>(task_rows_.size()) < tasks)
    task_rows_.resize(static_cast<std::size_t>(tasks));
  parallel_for(tasks, [&](std::int64_t task) {
    std::vector<Projection::Row>& found = task_rows_[static_cast<std::size_t>(task)];
    found.clear();
    const std::int64_t end = std::min(slabs, (task + 1) * kSlabsPerTask);
    for (std::int64_t slab = task * kSlabsPerTask; slab < end; ++slab) {
      if (slab_upper_[static_cast<std::size_t>(slab)] < least || !projection_.has(slab)) continue;
      for (std::int64_t g = 0; g < groups; ++g)
        if (upper_[static_cast<std::size_t>(slab * groups + g)] >= least)
          projection_.fetch_rows(slab, g);
    }
    for (std::int64_t slab = task * kSlabsPerTask; slab < end; ++slab) {
      if (slab_upper_[static_cast<std::size_t>(slab)] < least) continue;
      const float* upper = upper_.data() + slab * groups;
      if (projection_.has(slab)) {
        projection_.rows_above(opened_, slab, offset_[static_cast<std::size_t>(slab)], upper, least,
                               found);
        continue;
      }
      for (std::int64_t r = 0; r < rows; ++r)
        if (upper[r / Projection::kGroup] >= least)
          found.push_back({slab * rows + r, upper[r / Projection::kGroup]});
    }
  });
  rows_.clear();
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::vector<Projection::Row>& found = task_rows_[static_cast<std::size_t>(task)];
    rows_.insert(rows_.end(), found.begin(), found.end());
  }
}

EPISODIC_INLINE void ExactSearch::bound_rows(const float* query, float norm) {
  using namespace exact_index_detail;
  const std::int64_t rows = means_.rows_per_slab();
  if (index_.n_dead_ > 0)
    std::erase_if(rows_, [&](const Projection::Row& row) { return index_.dead(row.event); });
  candidates_.resize(rows_.size());
  const auto n = static_cast<std::int64_t>(rows_.size());
  parallel_blocks(n, [&](std::int64_t i) {
    Candidate& c = candidates_[static_cast<std::size_t>(i)];
    c.event = rows_[static_cast<std::size_t>(i)].event;
    if (i + kAhead < n) {
      const std::int64_t next = rows_[static_cast<std::size_t>(i + kAhead)].event;
      quantised_.fetch(next / rows, next % rows);
    }
    const std::int64_t slab = c.event / rows;
    quantised_.bounds(query, norm, offset_[static_cast<std::size_t>(slab)], slab, c.event % rows, 1,
                      &c.value, &c.error);
  });
}

EPISODIC_INLINE float ExactSearch::least_of(std::int64_t k, const std::vector<ScoredEvent>& tail) {
  ranked_.clear();
  for (const Candidate& c : candidates_) ranked_.push_back(c.value - c.error);
  for (const ScoredEvent& e : tail) ranked_.push_back(e.score);
  if (static_cast<std::int64_t>(ranked_.size()) < k) return -std::numeric_limits<float>::infinity();
  const auto kth = ranked_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(ranked_.begin(), kth, ranked_.end(), std::greater<>());
  return *kth;
}

EPISODIC_INLINE std::int64_t ExactSearch::bytes() const {
  return static_cast<std::int64_t>(upper_.capacity() * sizeof(float));
}

}  // namespace EPISODIC_NAMESPACE::detail
