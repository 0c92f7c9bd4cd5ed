// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/buffers.hpp; how they become functions: base/inline.hpp.
#include "episodic/recall/buffers.hpp"

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {

EPISODIC_INLINE rules::RecallBudget recall_budget(const MemoryConfig& config,
                                                  std::int64_t outside) {
  return rules::recall_budget(config.n_init + config.chunk + config.n_mem - outside,
                              config.contiguity);
}

EPISODIC_INLINE void fill_buffer(std::span<const EventId> order, const EventTable& events,
                                 std::int64_t capacity, std::vector<EventId>& out) {
  out.clear();
  std::int64_t total = 0;
  for (const EventId event : order) {
    const std::int64_t size = events[event].size();
    const rules::FillStep step = rules::fill_step(total, size, capacity);
    if (step == rules::FillStep::take || step == rules::FillStep::take_last) out.push_back(event);
    if (step != rules::FillStep::take) return;
    total += size;
  }
}

EPISODIC_INLINE void RecallBuffers::recall_top(const MemoryConfig& config,
                                               RepresentativeIndex& index, std::int64_t n_events,
                                               const float* query, const Ranking& ranking) {
  if (!ranking || !ranking(config.reweight_top, scored_))
    index.search(query, config.reweight_top, scored_);
  similarity_.clear();
  // A score of zero or less is relevance 0, and among those the earliest events come first.
  for (const ScoredEvent& scored : scored_)
    if (scored.score > 0) similarity_.push_back(scored.event);
  const auto listed = [](const std::vector<EventId>& list, EventId e) {
    return std::find(list.begin(), list.end(), e) != list.end();
  };
  for (EventId e = 0; e < n_events && similarity_.size() < scored_.size(); ++e)
    if (!index.forgotten(e) && !listed(similarity_, e)) similarity_.push_back(e);
  contiguity_.clear();
  if (config.reweight == Reweighting::broad)
    for (const EventId e : similarity_)
      for (const EventId next : {e + 1, e - 1})
        if (next >= 0 && next < n_events && !index.forgotten(next) && !listed(similarity_, next) &&
            !listed(contiguity_, next))
          contiguity_.push_back(next);
  merge();
}

EPISODIC_INLINE void RecallBuffers::recall(const MemoryConfig& config, RepresentativeIndex& index,
                                           const EventTable& events, const float* query,
                                           std::int64_t outside, const Ranking& ranking) {
  const rules::RecallBudget capacity = recall_budget(config, outside);
  const std::int64_t n_events = events.size();
  if (index.size() != n_events)
    throw DataError(concat("recall: the index holds ", index.size(), " events, the timeline ",
                           n_events, "; add each closed event to the index before recalling"));
  if (config.reweight == Reweighting::narrow || config.reweight == Reweighting::broad)
    return recall_top(config, index, n_events, query, ranking);
  order_.clear();
  if (capacity.similarity > 0 && events.tokens() <= capacity.similarity) {
    for (EventId e = 0; e < n_events; ++e)
      if (!index.forgotten(e)) order_.push_back(e);
    similarity_ = order_;
  } else if (capacity.similarity > 0) {
    // A short list is found faster. It is long enough for events of mean size with a quarter to
    // spare; otherwise a longer one is asked for. No event is shorter than min_block, which bounds
    // it.
    const std::int64_t most = std::min(n_events, capacity.similarity / config.min_block + 2);
    std::int64_t k = std::min(most, 5 * capacity.similarity * n_events / (4 * events.tokens()) + 4);
    while (true) {
      if (!ranking || !ranking(k, scored_)) index.search(query, k, scored_);
      std::int64_t tokens = 0;
      for (const ScoredEvent& scored : scored_) tokens += events[scored.event].size();
      if (tokens >= capacity.similarity || k == most) break;
      k = std::min(most, 2 * k);
    }
    for (const ScoredEvent& scored : scored_) order_.push_back(scored.event);
    fill_buffer(order_, events, capacity.similarity, similarity_);
  } else {
    similarity_.clear();
  }

  listed_ = similarity_;
  std::sort(listed_.begin(), listed_.end());
  order_.clear();
  const auto list = [&](EventId e) {
    if (e < 0 || e >= n_events || index.forgotten(e)) return;
    const auto at = std::lower_bound(listed_.begin(), listed_.end(), e);
    if (at != listed_.end() && *at == e) return;
    listed_.insert(at, e);
    order_.push_back(e);
  };
  if (capacity.contiguity > 0) {
    const std::int64_t reach = rules::neighbour_reach(config.neighbours, n_events);
    for (const EventId e : similarity_)
      for (std::int64_t i = 0; i < 2 * reach; ++i) list(rules::neighbour(e, i));
    for (const EventId e : contiguity_) list(e);  // the queue: what the step before kept
  }
  fill_buffer(order_, events, capacity.contiguity, contiguity_);

  merge();
}

EPISODIC_INLINE void RecallBuffers::merge() {
  recalled_ = similarity_;
  recalled_.insert(recalled_.end(), contiguity_.begin(), contiguity_.end());
  std::sort(recalled_.begin(), recalled_.end());
}

EPISODIC_INLINE void RecallBuffers::resume(std::vector<EventId> similarity,
                                           std::vector<EventId> contiguity) {
  similarity_ = std::move(similarity);
  contiguity_ = std::move(contiguity);
  merge();
}

EPISODIC_INLINE void RecallBuffers::clear() {
  similarity_.clear();
  contiguity_.clear();
  recalled_.clear();
}

EPISODIC_INLINE void RecallBuffers::drop(EventId event) {
  for (std::vector<EventId>* list : {&similarity_, &contiguity_, &recalled_})
    list->erase(std::remove(list->begin(), list->end(), event), list->end());
}

EPISODIC_INLINE void RecallBuffers::save(ByteWriter& to) const {
  for (const std::vector<EventId>* list : {&similarity_, &contiguity_, &recalled_})
    to.put_vector(*list);
}

EPISODIC_INLINE void RecallBuffers::load(ByteReader& from, std::int64_t n_events) {
  for (std::vector<EventId>* list : {&similarity_, &contiguity_, &recalled_}) {
    *list = from.get_vector<EventId>();
    for (const EventId e : *list)
      if (e < 0 || e >= n_events)
        throw FileError(concat(from.where(), ": a recall list names event ", e, " of ", n_events,
                               "; the file is damaged"));
  }
  for (std::size_t i = 1; i < recalled_.size(); ++i)
    if (recalled_[i - 1] >= recalled_[i])
      throw FileError(concat(from.where(), ": a recall list names event ", recalled_[i],
                             " out of its order; the file is damaged"));
}

}  // namespace EPISODIC_NAMESPACE
