// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/recall_notes.hpp"

#include <algorithm>

namespace episodic {
namespace {

std::int64_t lanes_of(const Sequence& sequence) {
  const SequenceMemory& memory = *sequence.memory();
  return memory.shape().n_layers * memory.config().lanes_per_layer(memory.shape().n_kv_heads);
}

/// Whose events a lane recalls.
std::int64_t scope_of(const Sequence& sequence, std::int64_t lane) {
  return sequence.memory()->config().scope == EventScope::head ? lane : 0;
}

}  // namespace

std::vector<std::vector<Recalled>> recalled_by_lane(const Sequence& sequence) {
  if (!sequence.has_memory()) sequence.recalled(0);  // says why there is nothing
  const SequenceMemory& memory = *sequence.memory();
  const std::int64_t lanes = lanes_of(sequence);
  const std::int64_t of_layer = lanes / memory.shape().n_layers;
  std::vector<LaneRecall> lists;
  for (std::int64_t lane = 0; lane < lanes; ++lane) lists.push_back(sequence.recalled(lane));
  std::vector<std::vector<Recalled>> all(lists.size());
  const EventTable* events = nullptr;  // a reference into the memory: the table may be long
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const LaneRecall& of = lists[static_cast<std::size_t>(lane)];
    if (lane == 0 || scope_of(sequence, lane) > 0)
      events = &memory.events(scope_of(sequence, lane));
    std::vector<Recalled>& list = all[static_cast<std::size_t>(lane)];
    for (const std::vector<EventId>* part : {&of.similarity, &of.contiguity})
      for (const EventId e : *part)
        list.push_back(
            {lane, lane / of_layer, static_cast<std::int64_t>(list.size()) + 1, e, (*events)[e]});
  }
  return all;
}

RecallNotes::RecallNotes(const Sequence& sequence, EpisodicMemory* memory)
    : sequence_(sequence), memory_(memory) {
  if (!memory_) return;
  const std::int64_t lanes = lanes_of(sequence_) / memory_->shape().n_layers;
  memory_->set_attention_hook([this, lanes](const AttendedEvents& attended) {
    const std::int64_t scope = scope_of(sequence_, attended.layer * lanes + attended.group);
    for (std::size_t i = 0; i < attended.events.size(); ++i)
      events_[{scope, attended.events[i]}].attention += attended.mass[i];
  });
}

RecallNotes::~RecallNotes() {
  if (memory_) memory_->set_attention_hook({});
}

void RecallNotes::note() {
  const std::vector<std::vector<Recalled>> lanes = recalled_by_lane(sequence_);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    for (const Recalled& r : lanes[lane]) {
      const std::int64_t scope = scope_of(sequence_, static_cast<std::int64_t>(lane));
      RecalledEvent& e = events_[{scope, r.event}];
      e.event = r.event;
      e.scope = scope;
      e.tokens = r.tokens;
      e.rank = e.layers.empty() ? r.rank : std::min(e.rank, r.rank);
      e.weight += 1.0 / static_cast<double>(r.rank);
      const auto at = std::lower_bound(e.layers.begin(), e.layers.end(), r.layer);
      if (at == e.layers.end() || *at != r.layer) e.layers.insert(at, r.layer);
    }
}

std::vector<RecalledEvent> RecallNotes::ranked() const {
  std::vector<RecalledEvent> all;
  for (const auto& [key, event] : events_)
    if (event.rank > 0) all.push_back(event);
  std::stable_sort(all.begin(), all.end(), [](const RecalledEvent& a, const RecalledEvent& b) {
    return a.attention != b.attention ? a.attention > b.attention : a.weight > b.weight;
  });
  return all;
}

std::string event_text(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                       std::int64_t first, TokenRange range) {
  const auto known = [&](std::int64_t t) {
    return t >= first && t < first + static_cast<std::int64_t>(ids.size()) &&
           ids[static_cast<std::size_t>(t - first)] >= 0;
  };
  for (std::int64_t t = range.start; t < range.end; ++t)
    if (!known(t)) return {};
  const auto text = [&](std::int64_t from, std::int64_t to) {
    return tokenizer.decode({ids.begin() + (from - first), ids.begin() + (to - first)});
  };
  if (!known(range.start - 1)) return text(range.start, range.end);
  const std::string whole = text(range.start - 1, range.end);
  const std::string before = text(range.start - 1, range.start);
  return whole.starts_with(before) ? whole.substr(before.size()) : text(range.start, range.end);
}

}  // namespace episodic
