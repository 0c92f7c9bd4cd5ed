// SPDX-License-Identifier: Apache-2.0
// A memory becomes a base that many read, and memories go on from it.
#include "episodic/memory/memory_base.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/config_difference.hpp"
#include "episodic/base/error.hpp"
#include "impl.hpp"

namespace episodic {
namespace {

using detail::Lane;
using detail::LayerState;

/// Settings of a memory over a base: all but the budgets are the base's.
MemoryConfig settings_over(const MemoryConfig& base, const MemoryConfig* budgets) {
  MemoryConfig config = base;
  if (budgets && !base.same_results(*budgets))
    throw ConfigError(fmt::format(
        "a memory over a base: only device_bytes, host_bytes, repr_bytes, disk_dir and disk_bytes "
        "may differ from the base's settings: {}",
        difference(base, *budgets)));
  config.host_bytes = budgets ? budgets->host_bytes : 0;
  config.repr_bytes = budgets ? budgets->repr_bytes : 0;
  config.disk_bytes = budgets ? budgets->disk_bytes : 0;
  config.disk_dir = budgets ? budgets->disk_dir : std::string();
  if (budgets) config.device_bytes = budgets->device_bytes;
  return config;
}

}  // namespace

MemoryBase::MemoryBase(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
MemoryBase::~MemoryBase() = default;

const MemoryConfig& MemoryBase::config() const { return parts_->config; }
const MemoryShape& MemoryBase::shape() const { return parts_->shape; }
std::int64_t MemoryBase::tokens() const { return parts_->time.tokens; }
std::int64_t MemoryBase::scopes() const { return static_cast<std::int64_t>(parts_->events.size()); }
MemoryCounters MemoryBase::counters() const { return parts_->counters; }

const EventTable& MemoryBase::events(std::int64_t scope) const {
  if (scope < 0 || scope >= scopes())
    throw DataError(
        fmt::format("scope {} asked for, but the base has scopes 0 to {}", scope, scopes() - 1));
  return parts_->events[static_cast<std::size_t>(scope)];
}

template <class Below>
EpisodicMemory::Impl::Tail EpisodicMemory::Impl::make_tail(const EventStore* store,
                                                           Below&& below) const {
  Tail tail;
  tail.tiers = make_tiers();
  tail.lanes = make_lanes(tail.tiers.vectors.get());
  for (std::size_t l = 0; l < tail.lanes.size(); ++l)
    for (std::size_t p = 0; p < tail.lanes[l].size(); ++p)
      if (Lane& lane = tail.lanes[l][p]; lane.index)
        lane.index = make_index_over(*below(l)[p].index, std::move(lane.index));
  if (store) tail.tiers.store = make_store_over(*store, std::move(tail.tiers.store));
  tail.tiers.disk = nullptr;  // its events have other numbers; nothing is pinned in it
  return tail;
}

std::shared_ptr<const MemoryBase> EpisodicMemory::share() {
  Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("share");
  if (m.retention)
    throw ConfigError(
        "share: a memory with retention forgets its events by itself, and those of a base stay; "
        "share one without retention");
  for (const LayerState& layer : m.bank.layers)
    for (const Lane& lane : layer.lanes)
      if (lane.index) lane.index->freeze();

  auto parts = std::make_unique<MemoryBase::Parts>();
  parts->below = m.base;
  parts->config = m.config;
  parts->shape = m.shape;
  parts->given = m.given;
  m.time.share_events();  // each session copies the tables, but not what they hold
  m.bank.share_numbers();
  parts->time = m.time.state();
  for (std::int64_t s = 0; s < m.time.scopes(); ++s) parts->events.push_back(m.time.events(s));
  parts->forgotten = m.forgotten;
  parts->numbers = m.bank.numbers();
  std::vector<std::span<const std::byte>> rings;
  for (const LayerState& layer : m.bank.layers) rings.push_back(layer.rings());
  parts->rings = std::make_unique<const detail::PageImage>(rings);
  parts->layers = m.bank.marks();
  parts->step_number = m.step_number;
  parts->counters = m.count();
  parts->beside = m.saved_beside();
  parts->lanes.resize(m.bank.layers.size());
  MemoryBase::Parts& of_base = *parts;
  const std::shared_ptr<const MemoryBase> base(new MemoryBase(std::move(parts)));

  // What is this memory's own from now on, and kept in no folder.
  MemoryConfig config = settings_over(m.config, nullptr);
  std::optional<detail::MemoryDirectory> directory;
  const auto exchange = [&]() noexcept {
    std::swap(m.config, config);
    std::swap(m.directory, directory);
  };
  exchange();
  Impl::Tail tail;
  try {
    tail = m.make_tail(
        m.bank.tiers.store.get(), [&](std::size_t l) -> const auto& {
          return m.bank.layers[l].lanes;
        });
  } catch (...) {
    exchange();
    throw;
  }
  // Nothing can fail from here on.
  of_base.on_tier = std::move(m.on_tier);
  of_base.directory = std::move(directory);
  of_base.tiers = std::exchange(m.bank.tiers, std::move(tail.tiers));
  for (std::size_t l = 0; l < of_base.lanes.size(); ++l)
    of_base.lanes[l] = std::exchange(m.bank.layers[l].lanes, std::move(tail.lanes[l]));
  m.ids = {};
  m.base = base;
  return base;
}

EpisodicMemory::EpisodicMemory(std::shared_ptr<const MemoryBase> base, const MemoryConfig* budgets)
    : HostMemory(std::make_unique<Impl>()) {
  if (!base) throw ConfigError("a memory over a base: the base is null");
  const MemoryBase::Parts& from = *base->parts_;
  Impl& m = impl();
  m.base = base;
  m.config = settings_over(from.config, budgets);
  m.config.validate();
  m.shape = from.shape;
  m.given = from.given;
  Impl::Tail tail = m.make_tail(
      from.tiers.store.get(), [&](std::size_t l) -> const auto& { return from.lanes[l]; });
  m.bank.tiers = std::move(tail.tiers);
  std::vector<detail::Pages> rings;
  for (std::size_t l = 0; l < from.layers.size(); ++l) rings.push_back(from.rings->array(l));
  m.build(std::move(tail.lanes), std::move(rings));
  for (std::size_t l = 0; l < from.layers.size(); ++l)
    m.bank.layers[l].restore(from.layers[l], from.layers[l].recall);
  m.bank.take_numbers(from.numbers);
  for (std::int64_t s = 0; s < m.time.scopes(); ++s)
    m.time.take_events(s, from.events[static_cast<std::size_t>(s)]);
  m.time.resume(from.time);
  m.forgotten = from.forgotten;
  m.step_number = from.step_number;
  m.beside_bytes = from.beside;
  m.beside_at = m.time.tokens();
}

const std::shared_ptr<const MemoryBase>& EpisodicMemory::base() const {
  impl().threads.check();
  return impl().base;
}

void EpisodicMemory::Impl::check_behind_base(const char* what, std::int64_t tokens) const {
  if (base && tokens < base->tokens())
    throw ConfigError(fmt::format(
        "{}: back to token {}, but this memory goes on from a base of {} tokens, which stay; make "
        "a new memory over an earlier base, or read the text anew",
        what, tokens, base->tokens()));
}

void EpisodicMemory::Impl::check_own(const char* what, std::int64_t scope, EventId event) const {
  if (base && event < base->events(scope).size())
    throw ConfigError(fmt::format(
        "{}: event {} is one of the {} of the base that this memory goes on from, which others "
        "read; {} it in the memory that is shared, before it is",
        what, event, base->events(scope).size(), what));
}

}  // namespace episodic
