// SPDX-License-Identifier: Apache-2.0
#include "exact_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"

namespace episodic {
namespace detail {
namespace {

/// Not a number would break the ranking's order; such an event comes last.
float rankable(float score) {
  return score == score ? score : -std::numeric_limits<float>::infinity();
}

/// f(i) for i in [0, n), in parallel by fixed blocks.
template <class F>
void parallel_blocks(std::int64_t n, F&& f) {
  constexpr std::int64_t kBlock = 64;
  parallel_for((n + kBlock - 1) / kBlock, [&](std::int64_t block) {
    const std::int64_t end = std::min(n, (block + 1) * kBlock);
    for (std::int64_t i = block * kBlock; i < end; ++i) f(i);
  });
}

}  // namespace

void keep_best(std::vector<ScoredEvent>& list, std::int64_t k) {
  const auto keep = static_cast<std::ptrdiff_t>(
      std::clamp<std::int64_t>(k, 0, static_cast<std::int64_t>(list.size())));
  const auto cut = list.begin() + keep;
  if (cut != list.end()) std::nth_element(list.begin(), cut, list.end(), ranks_before);
  std::sort(list.begin(), cut, ranks_before);
  list.resize(static_cast<std::size_t>(keep));
}

ExactIndex::ExactIndex(const IndexShape& shape, std::int64_t shadow_from)
    : shape_(shape),
      means_(shape.width()),
      each_(shape.width()),
      shadow_from_(shadow_from),
      shadow_(shape.width()) {
  if (shape.n_heads < 1 || shape.head_dim < 1 || shape.n_repr < 1)
    throw ConfigError(
        fmt::format("representative index: {} heads of {} channels with {} "
                    "representatives; each must be at least 1",
                    shape.n_heads, shape.head_dim, shape.n_repr));
}

void ExactIndex::add(const float* mean, const float* each, std::int64_t count) {
  if (shape_.score == RepresentativeScore::max) {
    if (!each || count < 1 || count > shape_.n_repr)
      throw DataError(
          fmt::format("representative index: score \"max\" needs 1 to {} representatives "
                      "of an event, {} were given",
                      shape_.n_repr, each ? count : 0));
    for (std::int64_t j = 0; j < shape_.n_repr; ++j) {
      float* row = each_.append();
      if (j < count) std::copy_n(each + j * shape_.width(), shape_.width(), row);
    }
    count_.push_back(static_cast<std::int32_t>(count));
  }
  std::copy_n(mean, shape_.width(), means_.append());
}

float ExactIndex::score(const float* query, std::int64_t event) const {
  float total = 0.0f;
  if (shape_.score == RepresentativeScore::mean) {
    total = dot(query, means_.row(event), shape_.width());
  } else {
    for (std::int64_t h = 0; h < shape_.n_heads; ++h) {
      const std::int64_t at = h * shape_.head_dim;
      float best = -std::numeric_limits<float>::infinity();
      for (std::int64_t j = 0; j < count_[static_cast<std::size_t>(event)]; ++j)
        best = std::max(
            best, dot(query + at, each_.row(event * shape_.n_repr + j) + at, shape_.head_dim));
      total += best;
    }
  }
  return rankable(total);
}

void ExactIndex::scan(const float* query, std::int64_t from, std::vector<ScoredEvent>& out) const {
  if (from >= size()) return;
  const std::size_t old = out.size();
  // Doubling by hand: a cleared vector grows to the exact size, with every event that closes.
  const std::size_t needed = old + static_cast<std::size_t>(size() - from);
  if (needed > out.capacity()) out.reserve(std::max(needed, 2 * out.capacity()));
  out.resize(needed);
  if (shape_.score == RepresentativeScore::max) {
    parallel_blocks(size() - from, [&](std::int64_t i) {
      out[old + static_cast<std::size_t>(i)] = {from + i, score(query, from + i)};
    });
    return;
  }
  const std::int64_t rows = means_.rows_per_slab(), first = from / rows;
  parallel_for((size() - 1) / rows - first + 1, [&](std::int64_t i) {
    std::array<float, VectorSlabs::kMostRows> scores;
    const std::int64_t begin = std::max(from, (first + i) * rows);
    const std::int64_t end = std::min(size(), (first + i + 1) * rows);
    cpu::kernels().dots(query, means_.row(begin), end - begin, shape_.width(), shape_.width(),
                        scores.data());
    for (std::int64_t e = begin; e < end; ++e)
      out[old + static_cast<std::size_t>(e - from)] = {
          e, rankable(scores[static_cast<std::size_t>(e - begin)])};
  });
}

void ExactIndex::search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) {
  out.clear();
  if (k <= 0) return;
  const std::int64_t bytes = size() * shape_.width() * static_cast<std::int64_t>(sizeof(float));
  if (bytes >= shadow_from_ && 4 * k <= size() && search_shadow(query, k, out)) return;
  scan(query, 0, out);
  keep_best(out, k);
}

bool ExactIndex::search_shadow(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) {
  if (shape_.score != RepresentativeScore::mean) return false;
  if (plain_searches_ > 0) {
    --plain_searches_;
    return false;
  }
  double square = 0.0;
  for (std::int64_t c = 0; c < shape_.width(); ++c)
    square += static_cast<double>(query[c]) * static_cast<double>(query[c]);
  const float norm = static_cast<float>(std::sqrt(square) * (1.0 + 1e-6));
  if (!std::isfinite(norm)) return false;

  // An event is in the list only if its score can reach the k-th largest of the scores' lower
  // bounds.
  shadow_.follow(means_);
  const std::int64_t rows = means_.rows_per_slab(), shadowed = shadow_.slabs() * rows;
  value_.resize(static_cast<std::size_t>(shadowed));
  error_.resize(static_cast<std::size_t>(shadowed));
  parallel_for(shadow_.slabs(), [&](std::int64_t slab) {
    shadow_.bounds(query, norm, slab, value_.data() + slab * rows, error_.data() + slab * rows);
  });
  scan(query, shadowed, out);  // the slab that is not full yet
  lower_.clear();
  for (std::size_t i = 0; i < value_.size(); ++i) lower_.push_back(value_[i] - error_[i]);
  for (const ScoredEvent& e : out) lower_.push_back(e.score);
  const auto kth = lower_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(lower_.begin(), kth, lower_.end(), std::greater<>());
  const float least = *kth;
  const std::size_t tail = out.size();
  for (std::int64_t i = 0; i < shadowed; ++i)
    if (value_[static_cast<std::size_t>(i)] + error_[static_cast<std::size_t>(i)] >= least)
      out.push_back({i, 0.0f});
  // Vectors that 8 bits do not tell apart: the list is right, but the scan was in vain.
  if (2 * static_cast<std::int64_t>(out.size() - tail) > shadowed) plain_searches_ = 16;
  parallel_blocks(static_cast<std::int64_t>(out.size() - tail), [&](std::int64_t i) {
    ScoredEvent& e = out[tail + static_cast<std::size_t>(i)];
    e.score = score(query, e.event);
  });
  keep_best(out, k);
  return true;
}

void ExactIndex::truncate(std::int64_t n_events) {
  if (n_events < 0 || n_events > size())
    throw DataError(
        fmt::format("representative index: cannot truncate {} events to {}", size(), n_events));
  means_.truncate(n_events);
  shadow_.truncate(n_events / means_.rows_per_slab());
  if (shape_.score == RepresentativeScore::max) {
    each_.truncate(n_events * shape_.n_repr);
    count_.resize(static_cast<std::size_t>(n_events));
  }
}

const float* ExactIndex::mean(EventId event) const {
  if (event < 0 || event >= size())
    throw DataError(fmt::format("representative index: no event {} among {}", event, size()));
  return means_.row(event);
}

std::int64_t ExactIndex::bytes() const {
  return means_.bytes() + each_.bytes() + shadow_.bytes() +
         static_cast<std::int64_t>(count_.capacity() * sizeof(std::int32_t));
}

}  // namespace detail

std::unique_ptr<RepresentativeIndex> make_exact_index(const IndexShape& shape) {
  return std::make_unique<detail::ExactIndex>(shape);
}

std::unique_ptr<RepresentativeIndex> make_index(const MemoryConfig& config, std::int64_t n_heads,
                                                std::int64_t head_dim) {
  const IndexShape shape{n_heads, head_dim, config.n_repr, config.score};
  if (config.index == IndexKind::faiss) return make_faiss_index(shape, config.exact_up_to);
  return make_exact_index(shape);
}

double recall_of(std::span<const ScoredEvent> approximate, std::span<const ScoredEvent> exact) {
  if (exact.empty()) return 1.0;
  std::vector<EventId> found;
  found.reserve(approximate.size());
  for (const ScoredEvent& e : approximate) found.push_back(e.event);
  std::sort(found.begin(), found.end());
  const auto hits = std::count_if(exact.begin(), exact.end(), [&](const ScoredEvent& e) {
    return std::binary_search(found.begin(), found.end(), e.event);
  });
  return static_cast<double>(hits) / static_cast<double>(exact.size());
}

}  // namespace episodic
