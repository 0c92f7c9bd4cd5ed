// SPDX-License-Identifier: Apache-2.0
// How a memory is handed to a twin elsewhere and takes over what that has made of it.
#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/bytes.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "impl.hpp"

namespace episodic {

using detail::LayerState;

MemoryState EpisodicMemory::state() const {
  const Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("state");
  MemoryState s;
  static_cast<Timeline::State&>(s) = m.time.state();
  s.steps = m.step_number;
  s.recalled_events = m.counters.recalled_events;
  for (const LayerState& layer : m.bank.layers) s.layers.push_back(layer.state());
  if (m.retention) {
    ByteWriter to;
    m.retention->save(to);
    s.retention = to.take();
  }
  return s;
}

void EpisodicMemory::read_events(EventId first, EventId end, std::int64_t store_lane,
                                 const std::function<std::byte*(EventId)>& block_of) const {
  const Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  if (first >= end) return;
  EventStore* const store = m.bank.tiers.store.get();
  if (!store) throw DataError("read_events: no layer of this memory recalls, no event is kept");
  if (store_lane < 0 || store_lane >= store->n_lanes())
    throw DataError(fmt::format("read_events: lane {}, but {} lanes of this memory recall",
                                store_lane, store->n_lanes()));
  std::int64_t scope = 0;
  for (const LayerState& layer : m.bank.layers)
    for (const detail::Lane& lane : layer.lanes)
      if (lane.store_lane == store_lane) scope = lane.scope;
  m.check_event(scope, first);
  m.check_event(scope, end - 1);
  // So many ahead that a disk is never without a read.
  constexpr EventId kAhead = 32;
  std::vector<EventId> ahead;
  for (EventId e = first; e < end; ++e) {
    if ((e - first) % (kAhead / 2) == 0) {
      ahead.clear();
      for (EventId next = e; next < std::min(e + kAhead, end); ++next)
        ahead.push_back(m.bank.stored(scope, next));
      store->prefetch(store_lane, ahead);
    }
    store->read(m.bank.stored(scope, e), store_lane, block_of(e));
  }
}

std::vector<float> EpisodicMemory::individual_representatives(std::int64_t lane,
                                                              EventId event) const {
  const Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  const RepresentativeIndex* const index = m.lane_at(lane).index.get();
  if (!index || event < 0 || event >= index->size())
    throw DataError(fmt::format("lane {} keeps no representatives of event {}", lane, event));
  return index->each(event);
}

std::vector<EventRecalls> EpisodicMemory::recall_counts(std::int64_t scope) const {
  const Impl& m = impl();
  m.threads.check();
  m.check_scope(scope);
  std::vector<EventRecalls> counts(static_cast<std::size_t>(m.time.events(scope).size()));
  const DiskStore* const store = m.bank.tiers.disk;
  if (!store || !m.bank.recalling(scope)) return counts;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const EventId stored = m.bank.stored(scope, static_cast<EventId>(e));
    counts[e] = {store->recalls(stored), store->last_recall(stored)};
  }
  return counts;
}

const std::vector<float>& EpisodicMemory::last_logits() const {
  impl().threads.check();
  return impl().time.last_logits();
}

const std::vector<std::int64_t>& EpisodicMemory::given_boundaries() const { return impl().given; }

void EpisodicMemory::advance(const MemoryAdvance& advance) {
  Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("advance");
  const MemoryState& s = advance.state;
  const std::int64_t tokens_before = m.time.tokens();
  const std::int64_t new_tokens = s.tokens - advance.shared_tokens;
  const auto scopes = static_cast<std::size_t>(m.time.scopes());
  bool follows = advance.shared_tokens >= 0 && advance.shared_tokens <= m.time.tokens() &&
                 new_tokens >= 0 && advance.shared_events.size() == scopes &&
                 (advance.recalls.empty() || advance.recalls.size() == scopes) &&
                 advance.events.size() == scopes && s.layers.size() == m.bank.layers.size();
  for (std::size_t i = 0; follows && i < scopes; ++i)
    follows = advance.shared_events[i] >= 0 &&
              advance.shared_events[i] <= m.time.events(static_cast<std::int64_t>(i)).size() &&
              (advance.recalls.empty() ||
               static_cast<std::int64_t>(advance.recalls[i].size()) ==
                   advance.shared_events[i] + static_cast<std::int64_t>(advance.events[i].size()));
  if (!follows || !m.bank.keeps_first(advance.shared_events))
    throw DataError("advance: the state does not go on from this memory, or is of another shape");
  m.check_behind_base("advance", advance.shared_tokens);
  for (std::size_t i = 0; m.base && i < scopes; ++i)
    if (advance.shared_events[i] < m.base->events(static_cast<std::int64_t>(i)).size())
      throw DataError(
          "advance: the state shares fewer events than the base has that it goes on from");
  if (!advance.ids.empty() && static_cast<std::int64_t>(advance.ids.size()) != new_tokens)
    throw DataError(fmt::format("advance: {} ids for {} new tokens; give one for each, or none",
                                advance.ids.size(), new_tokens));
  for (std::size_t l = 0; l < s.layers.size(); ++l) m.bank.layers[l].check(s.layers[l]);
  std::vector<std::vector<RecallBuffers>> lists(s.layers.size());
  for (std::size_t l = 0; l < lists.size(); ++l)
    for (const MemoryState::Layer::Lists& lane : s.layers[l].lanes)
      lists[l].emplace_back().resume(lane.similarity, lane.contiguity);
  std::optional<detail::Retention> retention = m.make_retention();
  if (retention) {
    ByteReader from(s.retention, "advance: the retention of the state");
    retention->load(from, advance.shared_events.front() +
                              static_cast<std::int64_t>(advance.events.front().size()));
  }
  if (const auto log = m.overwritten.lock())  // all of the window will be
    for (std::size_t l = 0; l < log->layers.size(); ++l)
      m.bank.layers[l].save_rows(log->layers[l], log->tokens + m.capacity);
  if (m.directory) m.ids.reserve(new_tokens);
  m.snapshots.reserve();
  m.gone_back_to = std::min(m.gone_back_to, advance.shared_tokens);
  m.truncate(advance.shared_events);
  try {
    m.append_events(advance);
    m.time.resume(s);
  } catch (...) {
    m.truncate(advance.shared_events);
    if (m.retention) m.retention->truncate(advance.shared_events.front());
    throw;
  }
  for (std::size_t l = 0; l < lists.size(); ++l)
    m.bank.layers[l].resume(s.layers[l], std::move(lists[l]), s.tokens);
  if (retention)  // what was forgotten here stays so
    for (const EventId e : m.forgotten.front()) retention->forgotten(e);
  m.retention = std::move(retention);
  ++m.window_version;
  // What the twin went back behind, snapshots of it included, is given up.
  if (advance.shared_tokens < tokens_before) m.snapshots.went_back(advance.shared_tokens);
  if (m.directory) {
    m.ids.truncate(advance.shared_tokens);
    m.ids.push(advance.ids.empty() ? nullptr : advance.ids.data(), new_tokens);
  }
  m.counters.tokens += new_tokens;
  m.counters.steps += s.steps - m.step_number;
  m.step_number = s.steps;
  m.counters.recalled_events = s.recalled_events;
  for (std::size_t i = 0; m.bank.tiers.disk && i < advance.recalls.size(); ++i) {
    const auto scope = static_cast<std::int64_t>(i);
    for (std::size_t e = 0; m.bank.recalling(scope) && e < advance.recalls[i].size(); ++e)
      m.bank.tiers.disk->set_recalls(m.bank.stored(scope, static_cast<EventId>(e)),
                                     advance.recalls[i][e].recalls,
                                     advance.recalls[i][e].last_recall);
  }
}

void EpisodicMemory::Impl::append_events(const MemoryAdvance& advance) {
  if (config.scope == EventScope::sequence) return append_events(advance, nullptr);
  for (const LayerState& layer : bank.layers)
    for (const detail::Lane& lane : layer.lanes) append_events(advance, &lane);
}

/// In groups such as a step closes: the store has room for one of them at a time.
/// \param alone the lane whose scope's events they are; null: those of the sequence
void EpisodicMemory::Impl::append_events(const MemoryAdvance& advance, const detail::Lane* alone) {
  const std::int64_t scope = alone ? alone->scope : 0;
  const auto width = static_cast<std::size_t>(lane_shape(config, shape).width(shape.head_dim));
  const bool by_each = config.score == RepresentativeScore::max;
  std::vector<float> mean(width),
      each(by_each ? static_cast<std::size_t>(config.n_repr) * width : 0);
  const std::span<const TokenRange> all(advance.events[static_cast<std::size_t>(scope)]);
  const auto take = [&](const detail::Lane& lane, EventId e) {
    if (!lane.index) return;
    float* const of_each = by_each ? each.data() : nullptr;
    bank.tiers.store->write(bank.stored(scope, e), lane.store_lane,
                            advance.read(e, lane.store_lane, mean.data(), of_each));
    lane.index->add(mean.data(), of_each, std::min(config.n_repr, time.events(scope)[e].size()));
  };
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    std::int64_t tokens = 0;
    do tokens += all[end++].size();
    while (end < all.size() && tokens + all[end].size() <= config.chunk);
    const std::span<const TokenRange> together = all.subspan(begin, end - begin);
    const EventId first = time.events(scope).size();
    for (const TokenRange& e : together) time.append(scope, e);
    if (alone && alone->index) bank.append(*alone, together);
    if (!alone && bank.tiers.store) bank.tiers.store->append(together);
    for (EventId e = first; e < time.events(scope).size(); ++e) {
      if (alone) {
        take(*alone, e);
      } else {
        for (const LayerState& layer : bank.layers)
          for (const detail::Lane& lane : layer.lanes) take(lane, e);
      }
    }
    begin = end;
  }
}

}  // namespace episodic
