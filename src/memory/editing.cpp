// SPDX-License-Identifier: Apache-2.0
// Forgetting and pinning events on purpose.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "impl.hpp"

namespace episodic {

void EpisodicMemory::forget(EventId event, std::int64_t scope) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_idle("forget");
  m.check_event(scope, event);
  m.check_own("forget", scope, event);
  if (m.is_forgotten(scope, event)) return;
  m.check_unpinned(scope, event);
  m.forget(scope, event);
}

void EpisodicMemory::Impl::forget(std::int64_t scope, EventId event) {
  std::vector<EventId>& gone = forgotten[static_cast<std::size_t>(scope)];
  const auto place = std::lower_bound(gone.begin(), gone.end(), event) - gone.begin();
  gone.reserve(gone.size() + 1);
  bank.forget(scope, event);
  gone.insert(gone.begin() + place, event);
  if (retention) retention->forgotten(event);
  drop_checkpoints = true;
}

std::vector<EventId> EpisodicMemory::forget(TokenRange tokens) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_idle("forget");
  if (tokens.start < 0 || tokens.size() < 1 || tokens.end > m.time.tokens())
    throw DataError(fmt::format("forget: tokens {} to {}, but the memory has {}", tokens.start,
                                tokens.end, m.time.tokens()));
  std::int64_t closed = m.time.tokens();  // up to here they are in closed events
  for (std::int64_t s = 0; s < m.time.scopes(); ++s)
    closed = std::min(closed, m.time.events(s).pending_start());
  if (tokens.start < m.config.n_init || tokens.end > closed)
    throw DataError(fmt::format(
        "forget: tokens {} to {} reach into the sinks or the window; only tokens {} to {}, which "
        "lie in closed events, can be forgotten now",
        tokens.start, tokens.end, m.config.n_init, closed));
  std::vector<std::vector<EventId>> hit(static_cast<std::size_t>(m.time.scopes()));
  for (std::int64_t s = 0; s < m.time.scopes(); ++s) {
    const std::vector<TokenRange>& all = m.time.events(s).all();
    auto it =
        std::upper_bound(all.begin(), all.end(), tokens.start,
                         [](std::int64_t token, const TokenRange& e) { return token < e.end; });
    for (; it != all.end() && it->start < tokens.end; ++it) {
      const EventId event = it - all.begin();
      m.check_own("forget", s, event);
      m.check_unpinned(s, event);
      hit[static_cast<std::size_t>(s)].push_back(event);
    }
  }
  for (std::size_t s = 0; s < hit.size(); ++s)
    for (const EventId e : hit[s])
      if (!m.is_forgotten(static_cast<std::int64_t>(s), e))
        m.forget(static_cast<std::int64_t>(s), e);
  return std::move(hit.front());
}

const std::vector<EventId>& EpisodicMemory::forgotten(std::int64_t scope) const {
  impl_->threads.check();
  impl_->check_scope(scope);
  return impl_->forgotten[static_cast<std::size_t>(scope)];
}

void EpisodicMemory::pin(EventId event, bool pinned, std::int64_t scope) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_event(scope, event);
  m.check_own("pin", scope, event);
  if (m.is_forgotten(scope, event))
    throw DataError(fmt::format("event {} was forgotten; it cannot be pinned", event));
  require(Capability::pin);
  m.bank.tiers.disk->pin(m.bank.stored(scope, event), pinned);
}

bool EpisodicMemory::Impl::is_forgotten(std::int64_t scope, EventId event) const {
  const std::vector<EventId>& gone = forgotten[static_cast<std::size_t>(scope)];
  return std::binary_search(gone.begin(), gone.end(), event);
}

void EpisodicMemory::Impl::check_unpinned(std::int64_t scope, EventId event) const {
  if (bank.tiers.disk && bank.recalling(scope) &&
      bank.tiers.disk->pinned(bank.stored(scope, event)))
    throw DataError(fmt::format("event {} is pinned; unpin it before it is forgotten", event));
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
