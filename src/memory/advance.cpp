// SPDX-License-Identifier: Apache-2.0
// How a memory is handed to a twin elsewhere and takes over what that has made of it.
#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "impl.hpp"

namespace episodic {

using detail::LayerState;

MemoryState EpisodicMemory::state() const {
  const Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  m.check_idle("state");
  MemoryState s;
  s.tokens = m.time.tokens;
  s.steps_since_recall = m.time.steps_since_recall;
  s.last_boundary = m.time.refiner.last_boundary();
  s.last_in_previous = m.time.refiner.last_in_previous();
  s.recent_surprise = m.time.segmenter->recent_surprise();
  s.final_flags = m.time.final_flags;
  s.last_logits = m.time.last_logits;
  for (const LayerState& layer : m.layers) s.layers.push_back(layer.state());
  return s;
}

void EpisodicMemory::read_event(EventId event, std::int64_t layer, std::byte* block) const {
  const Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  m.check_event(event);
  if (!m.store) throw DataError("read_event: no layer of this memory recalls, no event is kept");
  m.store->read(event, layer, block);
}

const std::vector<float>& EpisodicMemory::last_logits() const { return impl_->time.last_logits; }
const std::vector<std::int64_t>& EpisodicMemory::given_boundaries() const { return impl_->given; }

void EpisodicMemory::advance(const MemoryAdvance& advance) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  m.check_idle("advance");
  const MemoryState& s = advance.state;
  const std::int64_t new_tokens = s.tokens - advance.shared_tokens;
  if (advance.shared_tokens < 0 || advance.shared_tokens > m.time.tokens || new_tokens < 0 ||
      advance.shared_events < 0 || advance.shared_events > m.time.events.size() ||
      s.layers.size() != m.layers.size() || s.final_flags.size() != m.time.final_flags.size())
    throw DataError("advance: the state does not go on from this memory, or is of another shape");
  if (!advance.ids.empty() && static_cast<std::int64_t>(advance.ids.size()) != new_tokens)
    throw DataError(fmt::format("advance: {} ids for {} new tokens; give one for each, or none",
                                advance.ids.size(), new_tokens));
  for (std::size_t l = 0; l < m.layers.size(); ++l) m.layers[l].check(s.layers[l]);
  std::unique_ptr<Segmenter> segmenter = m.time.segmenter->clone();
  segmenter->resume(s.tokens, s.recent_surprise);
  m.gone_back_to = std::min(m.gone_back_to, advance.shared_tokens);
  if (advance.shared_events < m.time.events.size())
    m.rewinds.emplace_back(++m.generation, advance.shared_events);
  m.truncate(advance.shared_events);
  try {
    m.append_events(advance);
  } catch (...) {
    m.truncate(advance.shared_events);
    throw;
  }
  for (std::size_t l = 0; l < m.layers.size(); ++l) m.layers[l].resume(s.layers[l], s.tokens);
  m.time.segmenter = std::move(segmenter);
  m.time.refiner.resume(s.last_boundary, s.last_in_previous);
  m.time.final_flags = s.final_flags;
  m.time.last_logits = s.last_logits;
  m.time.steps_since_recall = s.steps_since_recall;
  if (m.directory) {
    m.ids.truncate(advance.shared_tokens);
    m.ids.push(advance.ids.empty() ? nullptr : advance.ids.data(), new_tokens);
  }
  m.counters.tokens += new_tokens;
  m.time.tokens = s.tokens;
  m.record = {};
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
    const EventId first = time.events.size();
    for (const TokenRange& e : group) time.events.append(e);
    if (store) store->append(group);
    for (EventId e = first; e < time.events.size(); ++e)
      for (LayerState& layer : layers) {
        if (layer.store_slot() < 0) continue;
        store->write(e, layer.store_slot(), advance.read(e, layer.store_slot(), mean.data()));
        layer.add_event(mean.data());
      }
    begin = end;
  }
}

}  // namespace episodic
