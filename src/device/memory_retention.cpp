// SPDX-License-Identifier: Apache-2.0
// Memoria's forgetting (section 3) on a device. What each event receives is computed and added
// up there, in an array by event; which events that makes the graph forget is decided on the host,
// by the class that the host's memory has (memory/detail/retention.hpp), whenever a step has
// reached the end of a chunk. Forgetting is then that of memory_edits.cpp.
#include <algorithm>
#include <span>

#include "convert.hpp"
#include "memory_impl.hpp"

namespace episodic {

using detail::Retention;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

std::optional<Retention> DeviceMemory::Impl::make_retention() const {
  if (!config.retention) return std::nullopt;
  return Retention(*config.retention, width());
}

/// Of the first n events, those that received something.
Retention::Received DeviceMemory::Impl::read_received(std::int64_t n_events) const {
  Retention::Received masses;
  const std::vector<double> all = read(received, n_events);
  for (std::size_t e = 0; e < all.size(); ++e)
    if (all[e] != 0.0) masses.emplace_back(static_cast<EventId>(e), all[e]);
  return masses;
}

/// After `clear`, which leaves zeros.
void DeviceMemory::Impl::write_received(const Retention::Received& masses) {
  if (masses.empty()) return;
  std::vector<double> all(static_cast<std::size_t>(masses.back().first) + 1, 0.0);
  for (const auto& [event, mass] : masses) all[static_cast<std::size_t>(event)] = mass;
  write(received, all.data(), static_cast<std::int64_t>(all.size()));
}

/// Shows retention the events of a chunk, if the last step reached its end. For that the host waits
/// for the device, before the next step, as the host's memory forgets between the two: the next
/// step may not recall what this one made it forget. It does not wait where no event can have
/// closed, as too few tokens have left the window since the last one did. \throws DataError where
/// attention was no number
void DeviceMemory::Impl::apply_retention() {
  if (!retention || is_judged) return;
  const std::int64_t first = retention->graph().total();
  if (most_events(tokens - config.n_local) > first) {
    const std::vector<TimelineState> told = read_timelines();
    const TimelineState& now = told.front();  // the graph is of one table
    if (now.errors != 0) return;              // whoever asks is told; no step counts any more
    accept_report(told);
    const std::int64_t limit = Retention::limit(tokens, config.chunk, config.n_local);
    std::vector<EventId> fresh;
    EventId end = first;
    for (const TokenRange& range : read_events(0, first, now.n_events)) {
      if (range.end >= limit) break;
      if (!is_forgotten(0, end)) fresh.push_back(end);
      ++end;
    }
    if (!fresh.empty()) {
      // Vectors of all heads, whatever groups of them recall by themselves.
      const Layer& layer = layers[static_cast<std::size_t>(retention_layer(config, shape))];
      const std::int64_t of_lane = lane_width();
      std::vector<float> vectors(fresh.size() * static_cast<std::size_t>(width()));
      for (std::int64_t p = 0; p < lanes.per_layer; ++p) {
        const std::vector<float> vectors_of_lane =
            device::widened(read(layer.representatives + (p * max_events + first) * repr_row(),
                                 (end - first) * repr_row()),
                            options.representatives);
        for (std::size_t i = 0; i < fresh.size(); ++i)
          std::copy_n(vectors_of_lane.begin() + (fresh[i] - first) * of_lane, of_lane,
                      vectors.begin() + static_cast<std::ptrdiff_t>(i) * width() + p * of_lane);
      }
      retention->set_received(read_received(now.n_events));
      retention->begin_step();
      retention->prepare(fresh, end, std::move(vectors));
      retention->commit();
      device::check(
          cudaMemsetAsync(received, 0, static_cast<std::size_t>(now.n_events) * sizeof(double),
                          stream),
          "clearing");
    }
  }
  is_judged = true;
}

/// Forgets what retention gave up, of memories on one stream.
void DeviceMemory::Impl::forget_due(std::span<Impl* const> memories) {
  std::vector<ToForget> all;
  for (Impl* const m : memories) {
    m->apply_retention();
    if (!m->retention || m->retention->due().empty()) continue;
    m->join_side_streams();  // as `forget` of a caller
    std::vector<EventId> gone;
    for (const EventId e : std::vector<EventId>(m->retention->due()))
      if (m->is_pinned(0, e))  // it stays, though the graph has forgotten it
        m->retention->forgotten(e);
      else
        gone.push_back(e);
    std::sort(gone.begin(), gone.end());
    all.push_back({m, 0, std::move(gone)});
  }
  forget(all);
}

void DeviceMemory::forget_due(std::span<DeviceMemory* const> memories) {
  if (memories.empty()) return;
  Impl& first = *memories.front()->impl_;
  auto& all = device::emptied(first.launched.due);
  for (DeviceMemory* const memory : memories) all.push_back(memory->impl_.get());
  const device::CurrentDevice current(first.device);
  Impl::forget_due(all);
}

const Memoria* DeviceMemory::retention() const {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.apply_retention();
  return m.retention ? &m.retention->graph() : nullptr;
}

}  // namespace episodic
