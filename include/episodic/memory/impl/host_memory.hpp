// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/host_memory.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/host_memory.hpp"

#include <algorithm>
#include <utility>

#include "episodic/base/detail/view_checks.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"
#include "episodic/memory/detail/memory_core.hpp"

namespace EPISODIC_NAMESPACE {

class HostMemory::Snapshot final : public MemorySnapshot {
 public:
  std::int64_t tokens() const override { return time.tokens; }

  std::uint64_t owner = 0;           // MemoryCore::id
  std::vector<std::int64_t> events;  // of each scope, the first ones of its table
  std::int64_t generation = 0;
  Timeline::State time;
  std::vector<detail::LayerMark> layers;
  std::shared_ptr<detail::RowLog> overwritten;  // since, of the rings
  std::optional<detail::Retention> retention;
};

EPISODIC_INLINE HostMemory::HostMemory(const MemoryConfig& config, const MemoryShape& shape,
                                       std::vector<std::int64_t> given)
    : core_(std::make_unique<detail::MemoryCore>()) {
  if (!config.disk_dir.empty())
    throw ConfigError(
        "disk_dir: a HostMemory keeps its events in host memory; leave disk_dir empty, or link the "
        "compiled library and make an EpisodicMemory");
  core_->configure(config, shape, std::move(given));
  core_->build();
}

EPISODIC_INLINE HostMemory::HostMemory(std::unique_ptr<detail::MemoryCore> core)
    : core_(std::move(core)) {}
EPISODIC_INLINE HostMemory::~HostMemory() = default;
EPISODIC_INLINE HostMemory::HostMemory(HostMemory&&) noexcept = default;
EPISODIC_INLINE HostMemory& HostMemory::operator=(HostMemory&&) noexcept = default;

EPISODIC_INLINE void HostMemory::join(std::shared_ptr<Group> group) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("join");
  const std::int64_t ranks = group ? group->size() : 1, rank = group ? group->rank() : 0;
  if (m.shape.ranks != ranks || m.shape.rank != rank)
    throw ConfigError(concat("join: the memory is that of rank ", m.shape.rank, " of ",
                             m.shape.ranks, ", the group's end that of rank ", rank, " of ", ranks,
                             "; open it with as many ranks as it was made with"));
  m.group = ranks > 1 ? std::move(group) : nullptr;
}

EPISODIC_INLINE void HostMemory::begin_step(std::int64_t n, StepKind kind) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  if (n < 1 || n > m.config.chunk)
    throw DataError(concat("begin_step: n = ", n, " tokens, must be in [1, chunk = ",
                           m.config.chunk, "]; feed longer texts in several steps"));
  if (m.shape.ranks > 1 && !m.group)
    throw ConfigError(concat("begin_step: the memory is that of rank ", m.shape.rank, " of ",
                             m.shape.ranks, "; join it to their group first"));
  m.open = false;
  m.forget_due();
  if (m.retention) m.retention->begin_step();
  m.n = n;
  m.next_layer = m.n_recalled = 0;
  m.recalls_now = m.time.begin(n, kind);
  for (detail::Rotation& rotation : m.rotations) {
    rotation.step.compute(rotation.table, m.time.tokens(), n);
    rotation.has_back = false;
  }
  if (m.bank.tiers.store) m.bank.tiers.store->begin_step(m.step_number);
  m.open = true;
}

EPISODIC_INLINE void HostMemory::attend(std::int64_t l, const float* q, const float* k,
                                        const float* v, float* out) {
  const detail::MemoryCore& m = *core_;
  m.threads.check();
  const TensorSizes of_queries{m.n, m.shape.n_heads, m.shape.head_dim};
  const TensorSizes of_keys{m.n, m.shape.n_kv_heads, m.shape.head_dim};
  attend(l, TensorView(q, of_queries), TensorView(k, of_keys), TensorView(v, of_keys),
         MutableTensorView(out, of_queries));
}

EPISODIC_INLINE void HostMemory::attend(std::int64_t l, const TensorView& q, const TensorView& k,
                                        const TensorView& v, const MutableTensorView& out) {
  attend(l, LayerStep{q, k, v, out});
}

EPISODIC_INLINE void HostMemory::attend(std::int64_t l, const LayerStep& step) {
  const auto& [q, k, v, out, sink_logits] = step;
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  if (!m.open || l != m.next_layer || l >= m.shape.n_layers)
    throw DataError(concat("attend: layer ", l,
                           " out of turn; call begin_step, then attend for layers 0 to ",
                           m.shape.n_layers - 1, " in order, then end_step"));
  const std::int64_t heads = m.shape.n_heads, kv_heads = m.shape.n_kv_heads, d = m.shape.head_dim;
  detail::check_view("attend", "q", q, {m.n, heads, d});
  detail::check_view("attend", "k", k, {m.n, kv_heads, d});
  detail::check_view("attend", "v", v, {m.n, kv_heads, d});
  detail::check_written_view("attend", "out", out, {m.n, heads, d});
  detail::LayerState& layer = m.bank.layers[static_cast<std::size_t>(l)];
  detail::Rotation& rotation = m.rotations[m.rotation_of[static_cast<std::size_t>(l)]];
  const std::int64_t first = m.time.tokens();
  if (q.rotary == Rotary::after) rotation.turn_back("q", l, first, m.n);
  if (k.rotary == Rotary::after) rotation.turn_back("k", l, first, m.n);
  {
    detail::Stopwatch watch(m.counters.seconds.append);
    if (const auto log = m.overwritten.lock())
      layer.save_rows(log->layers[static_cast<std::size_t>(l)], first + m.n);
    layer.append(l, first, k, v);
    m.rotate(l, q);
  }
  const detail::LeaseScope held(m.leases);  // until the layer has attended, or failed to
  // Only keys outside some query's window need the fixed position.
  const std::int64_t n_recalled = m.list_segments(l, m.sees_far(), false);
  // All lanes see the same window, so that its keys receive into one array of all heads.
  layer.open_sums(m.lists.front(), m.sums);
  m.attend_lists(l, out, sink_logits, true);
  if (m.wants_masses()) m.hand_out_masses(l);
  m.n_recalled += n_recalled;
  ++m.next_layer;
}

EPISODIC_INLINE void HostMemory::attend_again(std::int64_t l, const TensorView& q,
                                              const MutableTensorView& out,
                                              const float* maybe_sink_logits) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  if (!m.open || l < 0 || l >= m.next_layer)
    throw DataError(concat("attend_again: layer ", l,
                           " has not attended in this step; call attend for it before"));
  const TensorSizes sizes{m.n, m.shape.n_heads, m.shape.head_dim};
  detail::check_view("attend_again", "q", q, sizes);
  detail::check_written_view("attend_again", "out", out, sizes);
  if (q.rotary == Rotary::after)
    m.rotations[m.rotation_of[static_cast<std::size_t>(l)]].turn_back("q", l, m.time.tokens(), m.n);
  m.rotate(l, q);
  const detail::LeaseScope held(m.leases);
  m.list_segments(l, m.sees_far(), true);
  m.attend_lists(l, out, maybe_sink_logits, false);
}

EPISODIC_INLINE void HostMemory::end_step(const std::int64_t* ids, const float* logits,
                                          std::int64_t vocab, std::int64_t row_stride) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_end();
  m.time.read(ids, logits, vocab, row_stride);
  m.finish(ids);
}

EPISODIC_INLINE void HostMemory::end_step(const std::int64_t* ids, const StepSurprise& step) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_end();
  m.time.read(ids, step);
  m.finish(ids);
}

EPISODIC_INLINE void HostMemory::end_step(const float* surprise) {
  core_->threads.check();
  end_step(SurpriseView{surprise, core_->n});
}

EPISODIC_INLINE void HostMemory::end_step(const SurpriseView& surprise) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_end();
  detail::check_surprise("end_step", surprise, m.n, MemoryKind::host);
  m.time.read(surprise.data);
  m.finish(nullptr);
}

EPISODIC_INLINE void HostMemory::abandon_step() {
  const detail::ThreadGuard::Inside guard(core_->threads);
  core_->open = false;
}

EPISODIC_INLINE void HostMemory::set_recall_hook(RecallHook hook) {
  const detail::ThreadGuard::Inside guard(core_->threads);
  core_->refuse_hook(hook, "set_recall_hook");
  core_->recall_hook = std::move(hook);
}

EPISODIC_INLINE void HostMemory::set_rank_hook(RankHook hook) {
  const detail::ThreadGuard::Inside guard(core_->threads);
  core_->refuse_hook(hook, "set_rank_hook");
  core_->rank_hook = std::move(hook);
}

EPISODIC_INLINE void HostMemory::set_attention_hook(AttentionHook hook) {
  const detail::ThreadGuard::Inside guard(core_->threads);
  core_->attention_hook = std::move(hook);
}

EPISODIC_INLINE const MemoryConfig& HostMemory::config() const { return core_->config; }

EPISODIC_INLINE const MemoryShape& HostMemory::shape() const { return core_->shape; }

EPISODIC_INLINE std::int64_t HostMemory::tokens() const {
  core_->threads.check();
  return core_->time.tokens();
}

EPISODIC_INLINE std::int64_t HostMemory::open_tokens() const {
  core_->threads.check();
  return core_->open ? core_->n : 0;
}

EPISODIC_INLINE std::int64_t HostMemory::scopes() const {
  core_->threads.check();
  return core_->time.scopes();
}

EPISODIC_INLINE const EventTable& HostMemory::events(std::int64_t scope) const {
  core_->threads.check();
  core_->check_scope(scope);
  return core_->time.events(scope);
}

EPISODIC_INLINE const StepRecord& HostMemory::last_step(std::int64_t scope) const {
  core_->threads.check();
  core_->check_scope(scope);
  return core_->time.last_step(scope);
}

EPISODIC_INLINE std::int64_t HostMemory::lanes() const {
  core_->threads.check();
  return core_->bank.n_lanes();
}

EPISODIC_INLINE const RecallBuffers& HostMemory::recalled(std::int64_t lane) const {
  const detail::MemoryCore& m = *core_;
  m.threads.check();
  static_cast<void>(m.lane_at(lane));
  const detail::LayerBank::LanePlace place = m.bank.place_of(lane);
  return m.bank.layers[place.layer].recalled(place.lane);
}

EPISODIC_INLINE std::vector<float> HostMemory::representative(std::int64_t lane,
                                                              EventId event) const {
  const detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);  // it may read a file
  const RepresentativeIndex* const index = m.lane_at(lane).index.get();
  if (!index || event < 0 || event >= index->size())
    throw DataError(concat("lane ", lane, " keeps no representative of event ", event));
  const float* mean = index->mean(event);
  return {mean, mean + lane_shape(m.config, m.shape).width(m.shape.head_dim)};
}

EPISODIC_INLINE const float* HostMemory::relevance(std::int64_t layer, std::int64_t token) const {
  const detail::MemoryCore& m = *core_;
  m.threads.check();
  m.check_layer(layer);
  const std::int64_t tokens = m.time.tokens();
  if (token < 0 || token >= tokens || token < tokens - m.capacity) return nullptr;
  return m.bank.layers[static_cast<std::size_t>(layer)].relevance(token);
}

EPISODIC_INLINE std::vector<float> HostMemory::relevance(std::int64_t layer, std::int64_t first,
                                                         std::int64_t n) const {
  std::vector<float> rows;
  for (std::int64_t t = first; t < first + n; ++t) {
    const float* row = relevance(layer, t);
    if (!row)
      throw DataError(concat("relevance: token ", t, ", but it is there for tokens ",
                             std::max<std::int64_t>(0, tokens() - core_->capacity), " to ",
                             tokens()));
    rows.insert(rows.end(), row, row + shape().n_heads);
  }
  return rows;
}

EPISODIC_INLINE LaneRecall HostMemory::recall_lists(std::int64_t lane) const {
  const RecallBuffers& lists = recalled(lane);
  return {lists.similarity(), lists.contiguity()};
}

EPISODIC_INLINE std::string HostMemory::refusal(Capability capability) const {
  switch (capability) {
    case Capability::rewind:
    case Capability::pin:
    case Capability::commit:
      return concat(name_of(capability),
                    ": a HostMemory has no folder and no tiers; an EpisodicMemory has");
    default:
      return {};
  }
}

EPISODIC_INLINE MemoryCounters HostMemory::counters() const {
  const detail::ThreadGuard::Inside guard(core_->threads);
  return core_->count();
}

EPISODIC_INLINE const Memoria* HostMemory::retention() const {
  core_->threads.check();
  return core_->retention ? &core_->retention->graph() : nullptr;
}

EPISODIC_INLINE std::shared_ptr<const MemorySnapshot> HostMemory::snapshot() const {
  const detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  auto s = std::make_shared<Snapshot>();
  s->owner = m.id;
  s->events = m.n_events();
  s->generation = m.snapshots.generation();
  s->time = m.time.state();
  s->retention = m.retention;
  s->layers = m.bank.marks();
  s->overwritten = m.open_log();
  return s;
}

EPISODIC_INLINE void HostMemory::restore(const MemorySnapshot& snapshot) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  const auto* const own = dynamic_cast<const Snapshot*>(&snapshot);
  if (!own || own->owner != m.id)
    throw ConfigError("restore: the snapshot was taken of another memory");
  const Snapshot& s = *own;
  m.check_behind_base("restore", s.time.tokens);
  m.snapshots.check(s.generation, s.time.tokens);
  std::vector<std::vector<RecallBuffers>> lists;
  lists.reserve(s.layers.size());
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    lists.push_back(s.layers[l].recall);
    for (std::size_t p = 0; p < lists[l].size(); ++p)
      for (const EventId e : m.forgotten[static_cast<std::size_t>(m.bank.layers[l].lanes[p].scope)])
        lists[l][p].drop(e);
  }
  std::vector<const detail::RowLog*> logs;  // from the snapshot's to the last
  for (const detail::RowLog* log = s.overwritten.get(); log; log = log->later.get())
    logs.push_back(log);
  if (logs.back() != m.overwritten.lock().get())
    throw ConfigError(
        "restore: the memory has meanwhile gone back to another snapshot of the same token; take "
        "snapshots of what came since");
  m.snapshots.reserve();
  Timeline::Ready ready = m.time.prepare(s.time);
  std::optional<detail::Retention> retention = s.retention;
  m.truncate(s.events);
  // Nothing can fail from here on.
  m.time.resume(std::move(ready));
  m.went_back(s.time.tokens);
  m.snapshots.went_back(s.time.tokens);
  if (retention)  // what was forgotten since stays so
    for (const EventId e : m.forgotten.front()) retention->forgotten(e);
  m.retention = std::move(retention);
  for (std::size_t l = 0; l < lists.size(); ++l) {
    for (auto log = logs.rbegin(); log != logs.rend(); ++log)
      m.bank.layers[l].put_back((*log)->layers[l]);
    m.bank.layers[l].restore(s.layers[l], std::move(lists[l]));
  }
  s.overwritten->clear();
  m.overwritten = s.overwritten;
  m.window_version = s.overwritten->version;
  m.open = false;
}

EPISODIC_INLINE void HostMemory::forget(EventId event, std::int64_t scope) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("forget");
  m.check_event(scope, event);
  m.check_own("forget", scope, event);
  if (m.is_forgotten(scope, event)) return;
  m.check_unpinned(scope, event);
  m.forget(scope, event);
  m.shrink();
}

EPISODIC_INLINE std::vector<EventId> HostMemory::forget(TokenRange tokens) {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("forget");
  if (tokens.start < 0 || tokens.end <= tokens.start || tokens.end > m.time.tokens())
    throw DataError(concat("forget: tokens ", tokens.start, " to ", tokens.end,
                           ", but the memory has ", m.time.tokens()));
  std::int64_t closed = m.time.tokens();  // up to here they are in closed events
  for (std::int64_t s = 0; s < m.time.scopes(); ++s)
    closed = std::min(closed, m.time.events(s).pending_start());
  if (tokens.start < m.config.n_init || tokens.end > closed)
    throw DataError(concat("forget: tokens ", tokens.start, " to ", tokens.end,
                           " reach into the sinks or the window; only tokens ", m.config.n_init,
                           " to ", closed, ", which lie in closed events, can be forgotten now"));
  std::vector<std::vector<EventId>> hit(static_cast<std::size_t>(m.time.scopes()));
  for (std::int64_t s = 0; s < m.time.scopes(); ++s) {
    const EventTable& events = m.time.events(s);
    for (EventId event = events.first_behind(tokens.start);
         event < events.size() && events[event].start < tokens.end; ++event) {
      m.check_own("forget", s, event);
      m.check_unpinned(s, event);
      hit[static_cast<std::size_t>(s)].push_back(event);
    }
  }
  for (std::size_t s = 0; s < hit.size(); ++s)
    for (const EventId e : hit[s])
      if (!m.is_forgotten(static_cast<std::int64_t>(s), e))
        m.forget(static_cast<std::int64_t>(s), e);
  m.shrink();
  return std::move(hit.front());
}

EPISODIC_INLINE const std::vector<EventId>& HostMemory::forgotten(std::int64_t scope) const {
  core_->threads.check();
  core_->check_scope(scope);
  return core_->forgotten[static_cast<std::size_t>(scope)];
}

EPISODIC_INLINE void HostMemory::reset() {
  detail::MemoryCore& m = *core_;
  const detail::ThreadGuard::Inside guard(m.threads);
  Timeline empty(m.config, {m.shape.n_layers, m.shape.n_kv_heads, m.shape.head_dim}, m.capacity,
                 m.given);
  const bool keeps_tiers = m.keeps_tiers();
  detail::Tiers fresh;
  if (!keeps_tiers) fresh = m.make_tiers();
  auto lanes = m.make_lanes((keeps_tiers ? m.bank.tiers : fresh).vectors.get());
  std::optional<detail::Retention> retention = m.make_retention();
  const std::vector<std::int64_t> none(static_cast<std::size_t>(m.time.scopes()), 0);
  if (keeps_tiers) m.bank.truncate(none);
  // Nothing can fail from here on.
  m.went_back(0);
  for (std::size_t l = 0; l < lanes.size(); ++l) m.bank.layers[l].reset(std::move(lanes[l]));
  m.bank.unnumber();
  if (!keeps_tiers) m.bank.tiers = std::move(fresh);
  m.base = nullptr;
  m.time = std::move(empty);
  m.retention = std::move(retention);
  for (std::vector<EventId>& gone : m.forgotten) gone.clear();
  m.counters = {};
  m.step_number = 0;
  m.snapshots.reset();
  m.overwritten.reset();
  m.open = false;
}

}  // namespace EPISODIC_NAMESPACE
