// SPDX-License-Identifier: Apache-2.0
// The checksum of a memory's content.
#include "episodic/base/checksum.hpp"
#include "impl.hpp"

namespace episodic {

std::uint64_t EpisodicMemory::digest() {
  Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("digest");
  ByteWriter w;
  m.shape.save(w);
  w.put_vector(m.given);
  m.time.state().save(w);
  m.time.save_events(w);
  for (const std::vector<EventId>& gone : m.forgotten) w.put_vector(gone);
  if (m.retention) m.retention->save(w);
  if (const std::vector<std::uint8_t> beside = m.saved_beside(); !beside.empty())
    w.put_vector(beside);
  std::uint64_t sum = checksum(w.bytes());
  for (detail::LayerState& layer : m.bank.layers) {
    ByteWriter window;
    layer.save(window, m.time.tokens());
    sum = checksum(window.bytes(), sum);
    const auto width =
        static_cast<std::size_t>(lane_shape(m.config, m.shape).width(m.shape.head_dim));
    for (const detail::Lane& lane : layer.lanes)
      for (EventId e = 0; lane.index && e < m.time.events(lane.scope).size(); ++e)
        if (!m.is_forgotten(lane.scope, e))
          sum = checksum_of(std::span<const float>(lane.index->mean(e), width), sum);
  }
  for (std::int64_t s = 0; m.bank.tiers.disk && s < m.time.scopes(); ++s)
    for (EventId e = 0; m.bank.recalling(s) && e < m.time.events(s).size(); ++e)
      if (!m.is_forgotten(s, e)) {
        const std::uint64_t part = m.bank.tiers.disk->digest(m.bank.stored(s, e));
        sum = checksum_of(std::span<const std::uint64_t>(&part, 1), sum);
      }
  if (m.directory) {
    const std::vector<std::uint32_t> all = m.ids.read(0, m.time.tokens());
    sum = checksum_of(std::span<const std::uint32_t>(all), sum);
  }
  return sum;
}

}  // namespace episodic
