// SPDX-License-Identifier: Apache-2.0
// When a DeviceMemory forgets by Memoria's graph. For that the host waits for the device, before
// the next step, as the host's memory forgets between the two: the next step may not recall what
// this one made it forget.
#include "memory_impl.hpp"

namespace episodic {

using kernels::TimelineState;

/// Shows retention the events of a chunk, if the last step reached its end. It does not wait where
/// no event can have closed, as too few tokens have left the window since the last one did.
/// \throws DataError where attention was no number
void DeviceMemory::Impl::apply_retention() {
  if (retention.is_judged()) return;
  if (most_events(step.tokens - sizes.config.n_local) > retention.graph()->graph().total()) {
    const std::vector<TimelineState> told = timeline.read_states(stream);
    const TimelineState& now = told.front();  // the graph is of one table
    if (now.errors != 0) return;              // whoever asks is told; no step counts any more
    accept_report(told);
    retention.judge(now, step.tokens, stream);
  }
  retention.set_judged();
}

/// Forgets what retention gave up, of memories on one stream.
void DeviceMemory::Impl::forget_due(std::span<Impl* const> memories) {
  std::vector<ToForget> all;
  for (Impl* const m : memories) {
    m->apply_retention();
    if (!m->retention.has_graph() || m->retention.graph()->due().empty()) continue;
    m->tiers.join(m->stream);  // as `forget` of a caller
    all.push_back({m, 0, m->retention.take_due()});
  }
  forget(all);
}

void DeviceMemory::forget_due(std::span<DeviceMemory* const> memories) {
  if (memories.empty()) return;
  Impl& first = *memories.front()->impl_;
  auto& all = device::emptied(first.due);
  for (DeviceMemory* const memory : memories) all.push_back(memory->impl_.get());
  const device::CurrentDevice current(first.device);
  Impl::forget_due(all);
}

const Memoria* DeviceMemory::retention() const {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.apply_retention();
  return m.retention.has_graph() ? &m.retention.graph()->graph() : nullptr;
}

}  // namespace episodic
