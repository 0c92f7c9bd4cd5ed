// SPDX-License-Identifier: Apache-2.0
// Pinning events, and which tokens were forgotten.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "impl.hpp"

namespace episodic {

void EpisodicMemory::pin(EventId event, bool pinned, std::int64_t scope) {
  Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_event(scope, event);
  m.check_own("pin", scope, event);
  if (m.is_forgotten(scope, event))
    throw DataError(fmt::format("event {} was forgotten; it cannot be pinned", event));
  require(Capability::pin);
  // Events of heads whose layer does not recall lie in no tier.
  if (m.bank.recalling(scope)) m.bank.tiers.disk->pin(m.bank.stored(scope, event), pinned);
}

bool EpisodicMemory::pinned(EventId event, std::int64_t scope) const {
  const Impl& m = impl();
  m.threads.check();
  m.check_event(scope, event);
  return m.pinned(scope, event);
}

bool EpisodicMemory::Impl::pinned(std::int64_t scope, EventId event) const {
  return bank.tiers.disk && bank.recalling(scope) &&
         bank.tiers.disk->pinned(bank.stored(scope, event));
}

std::vector<bool> EpisodicMemory::Impl::forgotten_tokens(std::int64_t first,
                                                         std::int64_t count) const {
  std::vector<std::int64_t> scopes_without(static_cast<std::size_t>(count), 0);
  for (std::int64_t s = 0; s < time.scopes(); ++s)
    for (const EventId e : forgotten[static_cast<std::size_t>(s)]) {
      const TokenRange& range = time.events(s)[e];
      for (std::int64_t t = std::max(range.start, first); t < std::min(range.end, first + count);
           ++t)
        ++scopes_without[static_cast<std::size_t>(t - first)];
    }
  std::vector<bool> gone;
  for (const std::int64_t without : scopes_without) gone.push_back(without == time.scopes());
  return gone;
}

}  // namespace episodic
