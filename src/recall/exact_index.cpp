// SPDX-License-Identifier: Apache-2.0
#include "exact_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic {
namespace detail {

void keep_best(std::vector<ScoredEvent>& list, std::int64_t k) {
  const auto keep = static_cast<std::ptrdiff_t>(
      std::clamp<std::int64_t>(k, 0, static_cast<std::int64_t>(list.size())));
  const auto cut = list.begin() + keep;
  if (cut != list.end()) std::nth_element(list.begin(), cut, list.end(), ranks_before);
  std::sort(list.begin(), cut, ranks_before);
  list.resize(static_cast<std::size_t>(keep));
}

ExactIndex::ExactIndex(const IndexShape& shape)
    : shape_(shape), means_(shape.width()), each_(shape.width()) {
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
  // Not a number would break the ranking's order; such an event comes last.
  return total == total ? total : -std::numeric_limits<float>::infinity();
}

void ExactIndex::scan(const float* query, std::int64_t from, std::vector<ScoredEvent>& out) const {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t n = size() - from;
  if (n <= 0) return;
  const std::size_t old = out.size();
  // Doubling by hand: a cleared vector grows to the exact size, with every event that closes.
  const std::size_t needed = old + static_cast<std::size_t>(n);
  if (needed > out.capacity()) out.reserve(std::max(needed, 2 * out.capacity()));
  out.resize(needed);
  parallel_for((n + kBlock - 1) / kBlock, [&](std::int64_t block) {
    const std::int64_t end = std::min(n, (block + 1) * kBlock);
    for (std::int64_t i = block * kBlock; i < end; ++i)
      out[old + static_cast<std::size_t>(i)] = {from + i, score(query, from + i)};
  });
}

void ExactIndex::search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) {
  out.clear();
  if (k <= 0) return;
  scan(query, 0, out);
  keep_best(out, k);
}

void ExactIndex::truncate(std::int64_t n_events) {
  if (n_events < 0 || n_events > size())
    throw DataError(
        fmt::format("representative index: cannot truncate {} events to {}", size(), n_events));
  means_.truncate(n_events);
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
  return means_.bytes() + each_.bytes() +
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
