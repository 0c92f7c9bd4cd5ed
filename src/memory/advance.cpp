// SPDX-License-Identifier: Apache-2.0
// How a memory is handed to a twin elsewhere and takes over what that has made of it.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "impl.hpp"

namespace episodic {

using detail::LayerState;

void EpisodicMemory::Impl::check_plain(const char* what) const {
  if (bank.layers.front().n_lanes() > 1)
    throw ConfigError(fmt::format(
        "{}: a memory with scope \"head\" or recall_groups > 1 is not handed over; devices serve "
        "memories whose layers recall as a whole",
        what));
  if (retention)
    throw ConfigError(fmt::format(
        "{}: a memory with retention is not handed over; what it forgets is decided here", what));
}

MemoryState EpisodicMemory::state() const {
  const Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("state");
  m.check_plain("state");
  MemoryState s;
  static_cast<Timeline::State&>(s) = m.time.state();
  for (const LayerState& layer : m.bank.layers) s.layers.push_back(layer.state());
  return s;
}

void EpisodicMemory::read_events(EventId first, EventId end, std::int64_t layer,
                                 const std::function<std::byte*(EventId)>& block_of) const {
  const Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  if (first >= end) return;
  m.check_plain("read_events");
  m.check_event(0, first);
  m.check_event(0, end - 1);
  EventStore* const store = m.bank.tiers.store.get();
  if (!store) throw DataError("read_events: no layer of this memory recalls, no event is kept");
  // So many ahead that a disk is never without a read.
  constexpr EventId kAhead = 32;
  std::vector<EventId> ahead;
  for (EventId e = first; e < end; ++e) {
    if ((e - first) % (kAhead / 2) == 0) {
      ahead.resize(static_cast<std::size_t>(std::min(kAhead, end - e)));
      std::iota(ahead.begin(), ahead.end(), e);
      store->prefetch(layer, ahead);
    }
    store->read(e, layer, block_of(e));
  }
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
  m.check_plain("advance");
  const MemoryState& s = advance.state;
  const std::int64_t tokens_before = m.time.tokens();
  const std::int64_t new_tokens = s.tokens - advance.shared_tokens;
  if (advance.shared_tokens < 0 || advance.shared_tokens > m.time.tokens() || new_tokens < 0 ||
      advance.shared_events < 0 || advance.shared_events > m.time.events().size() ||
      s.layers.size() != m.bank.layers.size())
    throw DataError("advance: the state does not go on from this memory, or is of another shape");
  m.check_behind_base("advance", advance.shared_tokens);
  if (m.base && advance.shared_events < m.base->events().size())
    throw DataError(
        "advance: the state shares fewer events than the base has that it goes on from");
  if (!advance.ids.empty() && static_cast<std::int64_t>(advance.ids.size()) != new_tokens)
    throw DataError(fmt::format("advance: {} ids for {} new tokens; give one for each, or none",
                                advance.ids.size(), new_tokens));
  for (std::size_t l = 0; l < s.layers.size(); ++l) m.bank.layers[l].check(s.layers[l]);
  std::vector<RecallBuffers> lists(s.layers.size());
  for (std::size_t l = 0; l < lists.size(); ++l)
    lists[l].resume(s.layers[l].similarity, s.layers[l].contiguity);
  if (const auto log = m.overwritten.lock())  // all of the window will be
    for (std::size_t l = 0; l < log->layers.size(); ++l)
      m.bank.layers[l].save_rows(log->layers[l], log->tokens + m.capacity);
  if (m.directory) m.ids.reserve(new_tokens);
  m.snapshots.reserve();
  m.gone_back_to = std::min(m.gone_back_to, advance.shared_tokens);
  m.truncate(std::span(&advance.shared_events, 1));
  try {
    m.append_events(advance);
    m.time.resume(s);
  } catch (...) {
    m.truncate(std::span(&advance.shared_events, 1));
    throw;
  }
  for (std::size_t l = 0; l < lists.size(); ++l)
    m.bank.layers[l].resume(s.layers[l], std::move(lists[l]), s.tokens);
  ++m.window_version;
  // What the twin went back behind, snapshots of it included, is given up.
  if (advance.shared_tokens < tokens_before) m.snapshots.went_back(advance.shared_tokens);
  if (m.directory) {
    m.ids.truncate(advance.shared_tokens);
    m.ids.push(advance.ids.empty() ? nullptr : advance.ids.data(), new_tokens);
  }
  m.counters.tokens += new_tokens;
}

/// In groups such as a step closes: the store has room for one of them at a time.
void EpisodicMemory::Impl::append_events(const MemoryAdvance& advance) {
  std::vector<float> mean(static_cast<std::size_t>(shape.n_heads * shape.head_dim));
  const std::span<const TokenRange> all(advance.events);
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    std::int64_t tokens = 0;
    do tokens += all[end++].size();
    while (end < all.size() && tokens + all[end].size() <= config.chunk);
    const std::span<const TokenRange> group = all.subspan(begin, end - begin);
    const EventId first = time.events().size();
    for (const TokenRange& e : group) time.append(e);
    if (bank.tiers.store) bank.tiers.store->append(group);
    for (EventId e = first; e < time.events().size(); ++e)
      for (LayerState& layer : bank.layers) {
        const std::int64_t lane = layer.lane(0).store_lane;
        if (lane < 0) continue;
        bank.tiers.store->write(e, lane, advance.read(e, lane, mean.data()));
        layer.add_event(mean.data());
      }
    begin = end;
  }
}

}  // namespace episodic
