// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/detail/retention.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/detail/retention.hpp"

#include <algorithm>
#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"
#include "episodic/recall/representatives.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace retention_detail {

inline bool before(const std::pair<EventId, double>& a, EventId event) { return a.first < event; }

}  // namespace retention_detail

EPISODIC_INLINE void Retention::receive(EventId event, double mass) {
  const auto at = std::lower_bound(next_received_.begin(), next_received_.end(), event,
                                   retention_detail::before);
  if (at != next_received_.end() && at->first == event)
    at->second += mass;
  else
    next_received_.insert(at, {event, mass});
}

EPISODIC_INLINE std::vector<EventId> Retention::attended() const {
  std::vector<std::pair<double, EventId>> ranked;
  for (const auto& [event, mass] : next_received_)
    if (mass > 0 && graph_.holds(event)) ranked.emplace_back(-mass, event);
  std::sort(ranked.begin(), ranked.end());
  std::vector<EventId> events;
  events.reserve(ranked.size());
  for (const auto& [mass, event] : ranked) events.push_back(event);
  return events;
}

EPISODIC_INLINE void Retention::prepare(std::span<const EventId> new_events, EventId total,
                                        std::vector<float> vectors) {
  is_step_ = true;
  for (std::size_t at = 0; at < vectors.size(); at += width_)
    scale_to_unit(std::span(vectors).subspan(at, width_));
  try {
    const Memoria::Recall& recall = recall_ == EngramRecall::attended
                                        ? graph_.recall(vectors, new_events, total, attended())
                                        : graph_.recall(vectors, new_events, total);
    std::vector<double> attention;
    for (const auto* list : {&recall.short_term, &recall.long_term})
      for (const std::int64_t id : *list) {
        const auto at = std::lower_bound(next_received_.begin(), next_received_.end(), id,
                                         retention_detail::before);
        attention.push_back(at != next_received_.end() && at->first == id ? at->second : 0.0);
      }
    graph_.prepare(attention);
    due_.reserve(due_.size() + static_cast<std::size_t>(graph_.size()) + new_events.size());
  } catch (...) {
    is_step_ = false;
    graph_.abandon();
    throw;
  }
}

EPISODIC_INLINE void Retention::commit() noexcept {
  if (is_step_) {
    const std::vector<std::int64_t> gone = graph_.publish();
    due_.insert(due_.end(), gone.begin(), gone.end());
    next_received_.clear();
  }
  std::swap(received_, next_received_);
  is_step_ = false;
}

EPISODIC_INLINE void Retention::forgotten(EventId event) noexcept {
  graph_.forget(event);
  due_.erase(std::remove(due_.begin(), due_.end(), event), due_.end());
}

EPISODIC_INLINE void Retention::truncate(std::int64_t n) noexcept {
  graph_.truncate(n);
  due_.erase(std::remove_if(due_.begin(), due_.end(), [&](EventId e) { return e >= n; }),
             due_.end());
  received_.erase(std::lower_bound(received_.begin(), received_.end(), n, retention_detail::before),
                  received_.end());
}

EPISODIC_INLINE void Retention::save(ByteWriter& to) const {
  graph_.save(to);
  std::vector<EventId> events;
  std::vector<double> masses;
  for (const auto& [event, mass] : received_) {
    events.push_back(event);
    masses.push_back(mass);
  }
  to.put_vector(events);
  to.put_vector(masses);
  to.put_vector(due_);
}

EPISODIC_INLINE void Retention::load(ByteReader& from, std::int64_t n_events) {
  graph_.load(from);
  const auto events = from.get_vector<EventId>();
  const auto masses = from.get_vector<double>(events.size(), "attention of events");
  due_ = from.get_vector<EventId>();
  const auto exists = [&](EventId e) { return e >= 0 && e < n_events; };
  if (graph_.total() > n_events || !std::is_sorted(events.begin(), events.end()) ||
      !std::all_of(events.begin(), events.end(), exists) ||
      !std::all_of(due_.begin(), due_.end(), exists) ||
      !std::all_of(masses.begin(), masses.end(),
                   [](double m) { return m >= 0 && std::isfinite(m); }))
    throw FileError(concat(
        from.where(), ": a retention that names events which are not there; the file is damaged"));
  received_.clear();
  for (std::size_t i = 0; i < events.size(); ++i) received_.emplace_back(events[i], masses[i]);
}

}  // namespace EPISODIC_NAMESPACE::detail
