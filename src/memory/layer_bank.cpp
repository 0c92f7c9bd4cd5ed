// SPDX-License-Identifier: Apache-2.0
#include "layer_bank.hpp"

#include <algorithm>

#include "episodic/base/parallel.hpp"

namespace episodic::detail {

std::span<const KeyRing> LayerBank::lend_keys(std::int64_t from) {
  rings_.clear();
  for (auto l = static_cast<std::size_t>(from); l < layers.size(); ++l)
    rings_.push_back(layers[l].key_ring());
  return rings_;
}

void LayerBank::close(EventId first_event, std::span<const TokenRange> events, std::int64_t first) {
  if (events.empty()) return;
  try {
    if (tiers.store) tiers.store->append(events);
    parallel_for(static_cast<std::int64_t>(layers.size()), [&](std::int64_t l) {
      LayerState& layer = layers[static_cast<std::size_t>(l)];
      for (std::size_t e = 0; e < events.size() && layer.store_slot() >= 0; ++e)
        tiers.store->write(first_event + static_cast<EventId>(e), layer.store_slot(), layer.ring());
      for (const TokenRange& event : events) layer.add_event(event, first);
    });
  } catch (...) {
    truncate(first_event);
    throw;
  }
}

void LayerBank::commit(std::int64_t first, std::int64_t n) noexcept {
  parallel_for(static_cast<std::int64_t>(layers.size()),
               [&](std::int64_t l) { layers[static_cast<std::size_t>(l)].commit(first, n); });
}

void LayerBank::truncate(EventId n_events) {
  if (tiers.store) tiers.store->truncate(n_events);
  for (LayerState& layer : layers)
    if (layer.index()) layer.index()->truncate(std::min(n_events, layer.index()->size()));
}

void LayerBank::forget(EventId event) {
  if (tiers.store) tiers.store->forget(event);
  for (LayerState& layer : layers) {
    if (layer.index()) layer.index()->forget(event);
    layer.window.recall.drop(event);
  }
}

std::int64_t LayerBank::next_slot(std::int64_t layer) const {
  const auto next = static_cast<std::size_t>(layer + 1);
  return next < layers.size() ? layers[next].store_slot() : -1;
}

}  // namespace episodic::detail
