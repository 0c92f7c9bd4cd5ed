// SPDX-License-Identifier: Apache-2.0
#include "episodic/memory/episodic_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "impl.hpp"

namespace episodic {
namespace {

using detail::LayerState;

/// Adds the wall time of its scope to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(Clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& total_;
  Clock::time_point start_;
};

/// What is leased within a scope is released at its end.
class LeaseScope {
 public:
  explicit LeaseScope(detail::Leases& leases) : leases_(leases) {}
  ~LeaseScope() { leases_.release(); }
  LeaseScope(const LeaseScope&) = delete;
  LeaseScope& operator=(const LeaseScope&) = delete;

 private:
  detail::Leases& leases_;
};

}  // namespace

void ThreadGuard::check() const {
  const std::thread::id owner = owner_.load(std::memory_order_acquire);
  if (owner != std::thread::id() && owner != std::this_thread::get_id())
    throw Error(
        "episodic memory: used from two threads at once; give each thread a memory of its own "
        "(EpisodicMemory::share), or let them take turns");
}

ThreadGuard::Inside::Inside(ThreadGuard& guard) : guard_(guard) {
  std::thread::id nobody;
  if (guard.owner_.compare_exchange_strong(nobody, std::this_thread::get_id(),
                                           std::memory_order_acquire))
    return;
  guard.check();
  outer_ = true;
}

ThreadGuard::Inside::~Inside() {
  if (!outer_) guard_.owner_.store(std::thread::id(), std::memory_order_release);
}

void SnapshotValidity::check(std::int64_t generation, std::int64_t tokens) const {
  if (generation < first_) throw ConfigError("restore: the memory was reset since this snapshot");
  for (const Rewind& rewind : rewinds_)
    if (rewind.generation > generation && rewind.tokens < tokens)
      throw ConfigError(fmt::format(
          "restore: the memory has meanwhile gone back to token {}, before this snapshot "
          "of {} tokens; take snapshots of what came since",
          rewind.tokens, tokens));
}

void SnapshotValidity::went_back(std::int64_t tokens) noexcept {
  while (!rewinds_.empty() && rewinds_.back().tokens >= tokens) rewinds_.pop_back();
  rewinds_.push_back({++generation_, tokens});
}

void SnapshotValidity::reset() noexcept {
  first_ = ++generation_;
  rewinds_.clear();
}

std::vector<std::vector<detail::Lane>> EpisodicMemory::Impl::make_lanes(VectorTier* vectors) const {
  const LaneShape all = lane_shape(config, shape);
  std::vector<std::vector<detail::Lane>> layers(static_cast<std::size_t>(shape.n_layers));
  std::int64_t store_lane = 0;
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    for (std::int64_t p = 0; p < all.per_layer; ++p) {
      detail::Lane& lane = layers[static_cast<std::size_t>(l)].emplace_back();
      lane.scope = config.scope == EventScope::head ? l * all.per_layer + p : 0;
      if (!recalls(config, l)) continue;
      // At least a byte: 0 would be no bound.
      const std::int64_t share =
          config.repr_bytes > 0 ? std::max<std::int64_t>(1, config.repr_bytes / all.n_lanes) : 0;
      lane.store_lane = store_lane++;
      lane.index =
          make_index(config, all.n_heads, shape.head_dim, {vectors, lane.store_lane, share});
    }
  return layers;
}

std::optional<detail::Retention> EpisodicMemory::Impl::make_retention() const {
  if (!config.retention) return std::nullopt;
  return detail::Retention(config.retention->memoria, shape.n_heads * shape.head_dim);
}

void EpisodicMemory::Impl::build(std::vector<std::vector<detail::Lane>> lanes) {
  capacity = ring_capacity(config);
  time = Timeline(config, {shape.n_layers, shape.n_kv_heads, shape.head_dim}, capacity, given);
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    const LayerShape layer = shape.layer(l);
    const RotaryTable& table = layer.rotary;
    scales.push_back(layer.scale);
    softcaps.push_back(layer.softcap);
    const auto known = std::find_if(rotations.begin(), rotations.end(),
                                    [&](const detail::Rotation& r) { return r.table == table; });
    rotation_of.push_back(static_cast<std::size_t>(known - rotations.begin()));
    if (known != rotations.end()) continue;
    detail::Rotation& fresh = rotations.emplace_back();
    fresh.table = table;
    fresh.fixed.compute_fixed(table, config.n_local);
  }
  bank.layers.reserve(lanes.size());
  for (std::size_t l = 0; l < lanes.size(); ++l)
    bank.layers.emplace_back(config, shape, rotations[rotation_of[l]], capacity,
                             std::move(lanes[l]),
                             base ? base->parts_->rings->array(l) : detail::Pages());
  if (time.scopes() > 1) bank.number(time.scopes());
  forgotten.resize(static_cast<std::size_t>(time.scopes()));
  retention = make_retention();
  leases.reserve(lane_shape(config, shape).per_layer);
  snapshots.reset();
}

std::int64_t ring_capacity(const MemoryConfig& c) { return c.n_local + c.max_block + 2 * c.chunk; }

std::int64_t most_recalled_tokens(const MemoryConfig& c) {
  if (c.reweight == Reweighting::narrow) return c.reweight_top * c.max_block;
  if (c.reweight == Reweighting::broad) return 3 * c.reweight_top * c.max_block;
  return c.n_init + c.chunk + c.n_mem + 2 * c.max_block;
}

std::int64_t most_leased_tokens(const MemoryConfig& config, const MemoryShape& shape) {
  return config.lanes_per_layer(shape.n_kv_heads) * most_recalled_tokens(config);
}

std::int64_t least_host_bytes(const MemoryConfig& config, const MemoryShape& shape) {
  const StoreShape store = store_shape(config, shape);
  if (store.n_lanes == 0) return 0;  // no layer recalls, there is no store
  return least_host_bytes(store, config.max_block, most_leased_tokens(config, shape));
}

bool recalls(const MemoryConfig& config, std::int64_t layer) {
  if (!config.recall) return false;
  if (!config.recall_layers) return true;
  return std::find(config.recall_layers->begin(), config.recall_layers->end(), layer) !=
         config.recall_layers->end();
}

std::int64_t recalling_layers(const MemoryConfig& config, const MemoryShape& shape) {
  std::int64_t n = 0;
  for (std::int64_t l = 0; l < shape.n_layers; ++l) n += recalls(config, l);
  return n;
}

LaneShape lane_shape(const MemoryConfig& config, const MemoryShape& shape) {
  const std::int64_t per_layer = config.lanes_per_layer(shape.n_kv_heads);
  return {per_layer * recalling_layers(config, shape), per_layer, shape.n_heads / per_layer,
          shape.n_kv_heads / per_layer};
}

StoreShape store_shape(const MemoryConfig& config, const MemoryShape& shape) {
  const LaneShape lanes = lane_shape(config, shape);
  return {lanes.n_lanes, lanes.n_kv_heads, shape.head_dim, config.kv_dtype};
}

DiskShares disk_shares(const MemoryConfig& config, const MemoryShape& shape) {
  if (config.disk_bytes == 0) return {};
  const LaneShape lanes = lane_shape(config, shape);
  const std::int64_t vectors =
      index_bytes(config, lanes.n_heads, shape.head_dim, 1000000).total() / 1000000;
  const std::int64_t event =
      block_bytes({1, lanes.n_kv_heads, shape.head_dim, config.kv_dtype}, config.min_block);
  DiskShares shares;
  shares.vectors = static_cast<std::int64_t>(static_cast<double>(config.disk_bytes) *
                                             static_cast<double>(vectors) /
                                             static_cast<double>(vectors + event));
  shares.segments = config.disk_bytes - shares.vectors;
  return shares;
}

DiskStoreOptions EpisodicMemory::Impl::disk_options() const {
  DiskStoreOptions o;
  o.dir = directory ? directory->dir() : std::filesystem::path(config.disk_dir);
  o.keep = directory && mode == OpenMode::write;
  o.host_bytes = config.host_bytes;
  o.disk_bytes = disk_shares(config, shape).segments;
  o.max_block = config.max_block;
  o.lease_tokens = most_leased_tokens(config, shape);
  o.calls = directory ? &directory->calls() : nullptr;
  return o;
}

VectorTierOptions EpisodicMemory::Impl::vector_options() const {
  const DiskStoreOptions disk_tier = disk_options();
  VectorTierOptions o;
  o.dir = disk_tier.dir;
  o.keep = disk_tier.keep;
  o.disk_bytes = disk_shares(config, shape).vectors;
  o.calls = disk_tier.calls;
  return o;
}

detail::Tiers EpisodicMemory::Impl::make_tiers() const {
  detail::Tiers tiers;
  const StoreShape s = store_shape(config, shape);
  if (s.n_lanes == 0) return tiers;
  if (!directory && config.disk_dir.empty()) {
    tiers.store = make_host_store(s, config.host_bytes, config.max_block);
    return tiers;
  }
  tiers.vectors =
      make_vector_tier(lane_shape(config, shape).width(shape.head_dim), vector_options());
  std::unique_ptr<DiskStore> made = make_disk_store(s, disk_options());
  tiers.disk = made.get();
  tiers.store = std::move(made);
  return tiers;
}

EpisodicMemory::EpisodicMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EpisodicMemory::EpisodicMemory(const MemoryConfig& config, const MemoryShape& shape,
                               std::vector<std::int64_t> given)
    : impl_(std::make_unique<Impl>()) {
  config.validate();
  check_shape(config, shape);
  impl_->config = config;
  impl_->shape = shape;
  impl_->given = std::move(given);
  impl_->bank.tiers = impl_->make_tiers();
  impl_->build(impl_->make_lanes(impl_->bank.tiers.vectors.get()));
}

EpisodicMemory::~EpisodicMemory() = default;
EpisodicMemory::EpisodicMemory(EpisodicMemory&&) noexcept = default;
EpisodicMemory& EpisodicMemory::operator=(EpisodicMemory&&) noexcept = default;

void EpisodicMemory::begin_step(std::int64_t n, StepKind kind) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  if (n < 1 || n > m.config.chunk)
    throw DataError(
        fmt::format("begin_step: n = {} tokens, must be in [1, chunk = {}]; feed longer "
                    "texts in several steps",
                    n, m.config.chunk));
  m.open = false;
  m.forget_due();
  if (m.retention) m.retention->begin_step();
  m.n = n;
  m.next_layer = m.n_recalled = 0;
  m.recalls_now = m.time.begin(n, kind);
  for (detail::Rotation& rotation : m.rotations)
    rotation.step.compute(rotation.table, m.time.tokens(), n);
  if (m.bank.tiers.store) m.bank.tiers.store->begin_step(m.step_number);
  m.open = true;
}

void EpisodicMemory::Impl::recall(LayerState& layer, std::int64_t p) {
  Stopwatch watch(counters.seconds.recall);
  detail::Lane& lane = layer.lane(p);
  lane.next_recall = layer.recalled(p);
  if (!lane.index) {
    lane.next_recall.clear();
    return;
  }
  if (!recalls_now) return;  // the last step's events once more
  const EventTable& events = time.events(lane.scope);
  const std::int64_t outside = std::max<std::int64_t>(0, time.tokens() + n - config.n_local);
  const std::int64_t width = shape.n_heads / layer.n_lanes() * shape.head_dim;
  lane.next_recall.recall(config, *lane.index, events, mean_query.data() + p * width,
                          outside - std::min(outside, events.tokens()));
}

void EpisodicMemory::Impl::acquire(std::int64_t l, std::int64_t p) {
  Stopwatch watch(counters.seconds.store);
  const LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  const detail::Lane& lane = layer.lane(p);
  EventStore& store = *bank.tiers.store;
  const std::vector<EventId>& events = lane.next_recall.recalled();
  bank.stored(lane.scope, events, numbers);
  leases.acquire(store, lane.store_lane, numbers, event_segments);
  // Heads are counted in the layer, not in the lane.
  const std::int64_t first_head = p * (shape.n_kv_heads / layer.n_lanes());
  for (KvSegment& segment : event_segments) segment.first_head = first_head;
  // What this lane recalls, its neighbour in the next layer often does too, or what that recalled
  // last: it can be read while this one computes.
  if (static_cast<std::size_t>(l + 1) < bank.layers.size()) {
    const LayerState& next = bank.layers[static_cast<std::size_t>(l + 1)];
    if (next.lane(p).store_lane >= 0) {
      if (next.lane(p).scope != lane.scope)
        bank.stored(next.lane(p).scope, next.recalled(p).recalled(), numbers);
      store.prefetch(next.lane(p).store_lane, numbers);
    }
  }
}

void EpisodicMemory::Impl::weight(std::int64_t l, std::int64_t p) {
  if (config.reweight != Reweighting::exact && !recall_hook) return;
  const LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  const detail::Lane& lane = layer.lane(p);
  const std::vector<EventId>& events = lane.next_recall.recalled();
  const std::int64_t width = shape.n_heads / layer.n_lanes() * shape.head_dim;
  const std::span<const float> query(mean_query.data() + p * width,
                                     static_cast<std::size_t>(width));
  scores.clear();
  for (const EventId e : events) scores.push_back(lane.index->score(query.data(), e));
  weights.assign(events.size(), 1.0f);
  if (config.reweight == Reweighting::exact) {
    // Representatives are of unit length: the score of one is |q| times the cosine.
    double square = 0;
    for (const float x : query) square += static_cast<double>(x) * x;
    for (std::size_t i = 0; i < events.size(); ++i)
      weights[i] = square > 0
                       ? std::clamp(static_cast<float>(scores[i] / std::sqrt(square)), 0.0f, 1.0f)
                       : 0.0f;
  }
  if (recall_hook) recall_hook({l, p, events, scores, query, weights});
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (!std::isfinite(weights[i]))
      throw DataError(fmt::format("attend: the recall hook gave event {} the weight {} in layer {}",
                                  events[i], weights[i], l));
    event_segments[i].value_weight = weights[i];
  }
}

std::int64_t EpisodicMemory::Impl::list_segments(std::int64_t l, bool far) {
  LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  std::int64_t recalled = 0;
  segments.clear();
  list_ends.clear();
  for (std::int64_t p = 0; p < layer.n_lanes(); ++p) {
    detail::Lane& lane = layer.lane(p);
    if (far)
      recall(layer, p);
    else
      lane.next_recall.clear();
    event_segments.clear();
    if (!lane.next_recall.recalled().empty()) {
      acquire(l, p);
      weight(l, p);
    }
    recalled += static_cast<std::int64_t>(event_segments.size());
    layer.window_segments(time.tokens(), n, time.events(lane.scope).pending_start(), segments);
    segments.insert(segments.end(), event_segments.begin(), event_segments.end());
    list_ends.push_back(segments.size());
  }
  lists.clear();
  for (std::size_t begin = 0; const std::size_t end : list_ends) {
    lists.emplace_back(segments.data() + begin, end - begin);
    begin = end;
  }
  return recalled;
}

void EpisodicMemory::Impl::hand_out_masses(std::int64_t l) {
  const LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  const std::int64_t heads = shape.n_heads / layer.n_lanes();
  for (std::int64_t p = 0; p < layer.n_lanes(); ++p) {
    const std::vector<EventId>& events = layer.lane(p).next_recall.recalled();
    if (events.empty()) continue;
    // They are the last ones of their list.
    const std::size_t first = list_ends[static_cast<std::size_t>(p)] - events.size();
    event_masses.assign(events.size(), 0.0);
    for (std::size_t i = 0; i < events.size(); ++i)
      for (std::int64_t h = 0; h < heads; ++h)
        event_masses[i] +=
            masses[(first + i) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(h)];
    if (retention)
      for (std::size_t i = 0; i < events.size(); ++i)
        retention->receive(events[i], event_masses[i]);
    if (attention_hook) attention_hook({l, p, events, event_masses});
  }
}

void EpisodicMemory::attend(std::int64_t l, const float* q, const float* k, const float* v,
                            float* out) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  if (!m.open || l != m.next_layer || l >= m.shape.n_layers)
    throw DataError(
        fmt::format("attend: layer {} out of turn; call begin_step, then attend for layers "
                    "0 to {} in order, then end_step",
                    l, m.shape.n_layers - 1));
  LayerState& layer = m.bank.layers[static_cast<std::size_t>(l)];
  const detail::Rotation& rotation = m.rotations[m.rotation_of[static_cast<std::size_t>(l)]];
  const std::int64_t first = m.time.tokens(), width = m.shape.n_heads * m.shape.head_dim;
  // Only keys outside some query's window need the fixed position.
  const bool far = first + m.n > m.config.n_local;
  {
    Stopwatch watch(m.counters.seconds.append);
    if (const auto log = m.overwritten.lock())
      layer.save_rows(log->layers[static_cast<std::size_t>(l)], first + m.n);
    layer.append(l, first, k, v);
    m.q_relative.resize(static_cast<std::size_t>(m.config.chunk * width));
    RotatedQueries queries{m.q_relative.data(), nullptr, nullptr};
    if (far) {
      m.q_fixed.resize(m.q_relative.size());
      m.mean_query.resize(static_cast<std::size_t>(width));
      queries.fixed = m.q_fixed.data();
      queries.mean = m.mean_query.data();
    }
    if (!rotate_queries(rotation.table, rotation.step.rows(), rotation.fixed.rows(), m.n,
                        m.shape.n_heads, m.shape.head_dim, q, queries, m.workspace))
      detail::refuse_not_finite("q", q, m.n, width, l, first);
  }
  const LeaseScope held(m.leases);  // until the layer has attended, or failed to
  const std::int64_t n_recalled = m.list_segments(l, far);
  // All lanes see the same window, so that its keys receive into one array of all heads.
  layer.open_sums(m.lists.front(), m.sums);
  {
    Stopwatch watch(m.counters.seconds.attend);
    const AttendShape shape{m.n,
                            m.shape.n_heads,
                            m.shape.n_kv_heads,
                            m.shape.head_dim,
                            first,
                            m.config.n_local,
                            m.scales[static_cast<std::size_t>(l)],
                            m.softcaps[static_cast<std::size_t>(l)]};
    // Without far keys no segment is at the fixed position; the pointer is then never read.
    const AttendInput input{m.q_relative.data(), far ? m.q_fixed.data() : m.q_relative.data(),
                            m.lists};
    AttendOutput output{out, nullptr, m.sums};
    if (m.wants_masses()) {
      m.masses.assign(
          m.segments.size() * static_cast<std::size_t>(m.shape.n_heads / layer.n_lanes()), 0.0);
      output.segment_mass = m.masses.data();
    }
    episodic::attend(shape, input, output, m.workspace);
  }
  if (m.wants_masses()) m.hand_out_masses(l);
  m.n_recalled += n_recalled;
  ++m.next_layer;
}

void EpisodicMemory::Impl::check_end() const {
  if (!open || next_layer != shape.n_layers)
    throw DataError("end_step: not all layers have attended in this step");
}

void EpisodicMemory::end_step(const std::int64_t* ids, const float* logits, std::int64_t vocab,
                              std::int64_t row_stride) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_end();
  m.time.read(ids, logits, vocab, row_stride);
  m.finish(ids);
}

void EpisodicMemory::end_step(const std::int64_t* ids, const StepSurprise& step) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_end();
  m.time.read(ids, step);
  m.finish(ids);
}

void EpisodicMemory::end_step(const float* surprise) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_end();
  m.time.read(surprise);
  m.finish(nullptr);
}

/// Whatever can fail comes first, and changes nothing that a repeated step would miss; then all is
/// published by what cannot fail.
void EpisodicMemory::Impl::finish(const std::int64_t* step_ids) {
  const std::int64_t first = time.tokens();
  {
    Stopwatch watch(counters.seconds.refine);
    time.decide(bank.lend_keys());
  }
  Stopwatch watch(counters.seconds.close);
  if (directory) ids.reserve(n);
  // Tiers may be full and dtypes may refuse a number: then all is as it was before the step.
  const EventId first_event = time.events().size();
  bank.close(time, first);
  if (retention) judge(first_event);

  if (retention) retention->commit();
  bank.commit(first, n);
  if (directory) ids.push(step_ids, n);
  time.commit();
  ++step_number;
  ++counters.steps;
  counters.tokens += n;
  counters.recalled_events += n_recalled;
  open = false;
}

std::int64_t EpisodicMemory::Impl::retention_layer() const {
  if (config.retention->layer >= 0) return config.retention->layer;
  std::vector<std::int64_t> recalling;
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    if (recalls(config, l)) recalling.push_back(l);
  return recalling[recalling.size() / 2];
}

/// What bank.close wrote is taken back if this fails.
void EpisodicMemory::Impl::judge(EventId first_event) {
  try {
    const LayerState& layer = bank.layers[static_cast<std::size_t>(retention_layer())];
    const std::int64_t width = lane_shape(config, shape).width(shape.head_dim);
    const auto closed = static_cast<std::int64_t>(time.closed().size());
    std::vector<float> vectors;  // of all heads, whatever groups of them recall by themselves
    for (EventId e = first_event; e < first_event + closed; ++e)
      for (const detail::Lane& lane : layer.lanes) {
        const float* mean = lane.index->mean(e);
        vectors.insert(vectors.end(), mean, mean + width);
      }
    retention->prepare(closed, std::move(vectors));
  } catch (...) {
    bank.truncate(std::span(&first_event, 1));
    throw;
  }
}

void EpisodicMemory::Impl::forget_due() {
  while (retention && !retention->due().empty()) {
    const EventId event = retention->due().front();
    // A pinned event stays, though the graph has forgotten it.
    if (bank.tiers.disk && bank.tiers.disk->pinned(event)) {
      retention->forgotten(event);
      continue;
    }
    forget(0, event);
  }
}

void EpisodicMemory::set_attention_hook(AttentionHook hook) {
  const ThreadGuard::Inside guard(impl_->threads);
  impl_->attention_hook = std::move(hook);
}

const Memoria* EpisodicMemory::retention() const {
  impl_->threads.check();
  return impl_->retention ? &impl_->retention->graph() : nullptr;
}

const MemoryConfig& EpisodicMemory::config() const { return impl_->config; }
const MemoryShape& EpisodicMemory::shape() const { return impl_->shape; }

void EpisodicMemory::set_recall_hook(RecallHook hook) {
  const ThreadGuard::Inside guard(impl_->threads);
  impl_->recall_hook = std::move(hook);
}

std::int64_t EpisodicMemory::tokens() const {
  impl_->threads.check();
  return impl_->time.tokens();
}

std::int64_t EpisodicMemory::open_tokens() const {
  impl_->threads.check();
  return impl_->open ? impl_->n : 0;
}

std::int64_t EpisodicMemory::scopes() const { return impl_->time.scopes(); }

const EventTable& EpisodicMemory::events(std::int64_t scope) const {
  impl_->threads.check();
  impl_->check_scope(scope);
  return impl_->time.events(scope);
}

const StepRecord& EpisodicMemory::last_step(std::int64_t scope) const {
  impl_->threads.check();
  impl_->check_scope(scope);
  return impl_->time.last_step(scope);
}

namespace {
void check_layer(std::int64_t layer, std::int64_t n_layers) {
  if (layer < 0 || layer >= n_layers)
    throw DataError(
        fmt::format("layer {} asked for, but the memory has layers 0 to {}", layer, n_layers - 1));
}
}  // namespace

const detail::Lane& EpisodicMemory::Impl::lane_at(std::int64_t lane) const {
  const std::int64_t per_layer = bank.layers.front().n_lanes();
  if (lane < 0 || lane >= shape.n_layers * per_layer)
    throw DataError(fmt::format("lane {} asked for, but the memory has lanes 0 to {}", lane,
                                shape.n_layers * per_layer - 1));
  return bank.layers[static_cast<std::size_t>(lane / per_layer)].lane(lane % per_layer);
}

std::int64_t EpisodicMemory::lanes() const {
  return impl_->shape.n_layers * impl_->bank.layers.front().n_lanes();
}

const RecallBuffers& EpisodicMemory::recalled(std::int64_t lane) const {
  const Impl& m = *impl_;
  m.threads.check();
  static_cast<void>(m.lane_at(lane));
  const std::int64_t per_layer = m.bank.layers.front().n_lanes();
  return m.bank.layers[static_cast<std::size_t>(lane / per_layer)].recalled(lane % per_layer);
}

std::vector<float> EpisodicMemory::representative(std::int64_t lane, EventId event) const {
  const Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);  // it may read a file
  const RepresentativeIndex* const index = m.lane_at(lane).index.get();
  if (!index || event < 0 || event >= index->size())
    throw DataError(fmt::format("lane {} keeps no representative of event {}", lane, event));
  const float* mean = index->mean(event);
  return {mean, mean + lane_shape(m.config, m.shape).width(m.shape.head_dim)};
}

const float* EpisodicMemory::relevance(std::int64_t layer, std::int64_t token) const {
  const Impl& m = *impl_;
  m.threads.check();
  check_layer(layer, m.shape.n_layers);
  const std::int64_t tokens = m.time.tokens();
  if (token < 0 || token >= tokens || token < tokens - m.capacity) return nullptr;
  return m.bank.layers[static_cast<std::size_t>(layer)].relevance(token);
}

MemoryCounters EpisodicMemory::counters() const {
  const ThreadGuard::Inside guard(impl_->threads);
  return impl_->count();
}

MemoryCounters EpisodicMemory::Impl::count() const {
  MemoryCounters c = counters;
  c.events = counted_events();
  for (const LayerState& layer : bank.layers) {
    c.window_bytes += layer.bytes();
    for (const detail::Lane& lane : layer.lanes) {
      if (!lane.index) continue;
      c.index_bytes += lane.index->bytes();
      const IndexQuality q = lane.index->quality();
      c.index_quality.checked += q.checked;
      c.index_quality.recall_sum += q.recall_sum;
    }
  }
  if (bank.tiers.store) c.store = bank.tiers.store->counters();
  if (bank.tiers.vectors) c.vector_disk_bytes = bank.tiers.vectors->disk_bytes();
  return c;
}

std::shared_ptr<const EpisodicMemory::Snapshot> EpisodicMemory::snapshot() const {
  const Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
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

std::shared_ptr<detail::RowLog> EpisodicMemory::Impl::open_log() const {
  std::shared_ptr<detail::RowLog> last = overwritten.lock();
  if (last && last->tokens == time.tokens() && last->version == window_version) return last;
  auto log = std::make_shared<detail::RowLog>(time.tokens(), window_version, bank.layers.size());
  if (last) last->later = log;
  overwritten = log;
  return log;
}

void EpisodicMemory::restore(const Snapshot& s) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  if (s.owner != m.id) throw ConfigError("restore: the snapshot was taken of another memory");
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
  if (m.directory) m.ids.truncate(s.time.tokens);
  m.gone_back_to = std::min(m.gone_back_to, s.time.tokens);
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

std::vector<std::int64_t> EpisodicMemory::Impl::n_events() const {
  std::vector<std::int64_t> counts;
  for (std::int64_t s = 0; s < time.scopes(); ++s) counts.push_back(time.events(s).size());
  return counts;
}

std::int64_t EpisodicMemory::Impl::counted_events() const {
  std::int64_t sum = 0;
  for (std::int64_t s = 0; s < time.scopes(); ++s) sum += time.events(s).size();
  return sum;
}

void EpisodicMemory::Impl::truncate(std::span<const std::int64_t> kept) {
  const auto at = [](std::int64_t s) { return static_cast<std::size_t>(s); };
  bool less = false;
  for (std::int64_t s = 0; s < time.scopes(); ++s) less |= kept[at(s)] < time.events(s).size();
  if (!less) return;
  bank.truncate(kept);
  for (std::int64_t s = 0; s < time.scopes(); ++s) {
    time.truncate(s, kept[at(s)]);
    std::vector<EventId>& gone = forgotten[at(s)];
    while (!gone.empty() && gone.back() >= kept[at(s)]) gone.pop_back();
  }
}

void EpisodicMemory::reset() {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  Timeline empty(m.config, {m.shape.n_layers, m.shape.n_kv_heads, m.shape.head_dim}, m.capacity,
                 m.given);
  // The store of a kept memory stays: what was committed is not lost before the next commit.
  detail::Tiers fresh;
  if (!m.directory) fresh = m.make_tiers();
  auto lanes = m.make_lanes(m.directory ? m.bank.tiers.vectors.get() : fresh.vectors.get());
  std::optional<detail::Retention> retention = m.make_retention();
  const std::vector<std::int64_t> none(static_cast<std::size_t>(m.time.scopes()), 0);
  if (m.directory) m.bank.truncate(none);
  // Nothing can fail from here on.
  if (m.directory) {
    m.ids.truncate(0);
    m.gone_back_to = 0;
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) m.bank.layers[l].reset(std::move(lanes[l]));
  m.bank.unnumber();
  if (!m.directory) m.bank.tiers = std::move(fresh);
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

void EpisodicMemory::Impl::check_idle(const char* what) const {
  if (open) throw DataError(fmt::format("{}: a step is open; call end_step first", what));
}

void EpisodicMemory::Impl::check_scope(std::int64_t scope) const {
  if (scope < 0 || scope >= time.scopes())
    throw DataError(fmt::format("scope {} asked for, but the memory has scopes 0 to {}", scope,
                                time.scopes() - 1));
}

void EpisodicMemory::Impl::check_event(std::int64_t scope, EventId event) const {
  check_scope(scope);
  if (event < 0 || event >= time.events(scope).size())
    throw DataError(
        fmt::format("event {} asked for, but the memory has {}", event, time.events(scope).size()));
}

}  // namespace episodic
