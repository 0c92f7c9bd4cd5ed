// SPDX-License-Identifier: Apache-2.0
#include "episodic/memory/episodic_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "impl.hpp"

namespace episodic {
namespace {

using detail::LayerState;
using detail::Lease;

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

/// Exponents of all ones are infinities and NaN. In integers, so that the loop is done in vectors.
bool all_finite(const float* x, std::int64_t n) {
  std::uint32_t any = 0;
  for (std::int64_t i = 0; i < n; ++i)
    any |= (std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu) + 0x00800000u;
  return (any >> 31) == 0;
}

/// One bad key would make every later query that sees it NaN.
/// \param x [n, width] of the tokens first .. first + n - 1 \throws DataError naming layer and
/// token
void check_finite(const char* name, const float* x, std::int64_t n, std::int64_t width,
                  std::int64_t layer, std::int64_t first) {
  std::atomic<bool> good{true};
  constexpr std::int64_t kTokensPerTask = 64;
  parallel_for((n + kTokensPerTask - 1) / kTokensPerTask, [&](std::int64_t task) {
    const std::int64_t begin = task * kTokensPerTask, end = std::min(n, begin + kTokensPerTask);
    if (!all_finite(x + begin * width, (end - begin) * width))
      good.store(false, std::memory_order_relaxed);
  });
  if (good) return;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < width; ++c)
      if (const float bad = x[i * width + c]; !std::isfinite(bad))
        throw DataError(
            fmt::format("attend: {} of token {} in layer {} holds {}; the step was not taken. Look "
                        "for a number "
                        "that overflowed in the layers before, or in the weights",
                        name, first + i, layer, bad));
}

}  // namespace

void ThreadGuard::check() const {
  const std::thread::id owner = owner_.load(std::memory_order_acquire);
  if (owner != std::thread::id() && owner != std::this_thread::get_id())
    throw Error(
        "episodic memory: used from two threads at once; give each thread a memory of its own "
        "(fork), or let them take turns");
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

std::vector<std::unique_ptr<RepresentativeIndex>> EpisodicMemory::Impl::make_indexes(
    VectorTier* vectors) const {
  const std::int64_t recalling = recalling_layers(config, shape);
  std::vector<std::unique_ptr<RepresentativeIndex>> indexes;
  std::int64_t slot = 0;
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    indexes.emplace_back();
    if (!recalls(config, l)) continue;
    // At least a byte: 0 would be no bound.
    const std::int64_t share =
        config.repr_bytes > 0 ? std::max<std::int64_t>(1, config.repr_bytes / recalling) : 0;
    indexes.back() = make_index(config, shape.n_heads, shape.head_dim, {vectors, slot++, share});
  }
  return indexes;
}

void EpisodicMemory::Impl::build() {
  capacity = ring_capacity(config);
  time = Timeline(config, shape.n_kv_heads, shape.head_dim, capacity, given);
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
  auto indexes = make_indexes(bank.tiers.vectors.get());
  bank.layers.reserve(indexes.size());
  std::int64_t slots = 0;
  for (auto& index : indexes) {
    const std::int64_t slot = index ? slots++ : -1;
    bank.layers.emplace_back(config, shape, rotations[rotation_of[bank.layers.size()]], capacity,
                             std::move(index), slot);
  }
  snapshots.reset();
}

std::int64_t ring_capacity(const MemoryConfig& c) { return c.n_local + c.max_block + 2 * c.chunk; }

std::int64_t most_recalled_tokens(const MemoryConfig& c) {
  return c.n_init + c.chunk + c.n_mem + 2 * c.max_block;
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

DiskShares disk_shares(const MemoryConfig& config, const MemoryShape& shape) {
  if (config.disk_bytes == 0) return {};
  const std::int64_t vectors =
      index_bytes(config, shape.n_heads, shape.head_dim, 1000000).total() / 1000000;
  const std::int64_t event =
      block_bytes({1, shape.n_kv_heads, shape.head_dim, config.kv_dtype}, config.min_block);
  DiskShares shares;
  shares.vectors = static_cast<std::int64_t>(static_cast<double>(config.disk_bytes) *
                                             static_cast<double>(vectors) /
                                             static_cast<double>(vectors + event));
  shares.segments = config.disk_bytes - shares.vectors;
  return shares;
}

StoreShape EpisodicMemory::Impl::store_shape() const {
  return {recalling_layers(config, shape), shape.n_kv_heads, shape.head_dim, config.kv_dtype};
}

DiskStoreOptions EpisodicMemory::Impl::disk_options() const {
  DiskStoreOptions o;
  o.dir = directory ? directory->dir() : std::filesystem::path(config.disk_dir);
  o.keep = directory && mode == OpenMode::write;
  o.host_bytes = config.host_bytes;
  o.disk_bytes = disk_shares(config, shape).segments;
  o.max_block = config.max_block;
  o.lease_tokens = most_recalled_tokens(config);
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
  const StoreShape s = store_shape();
  if (s.n_layers == 0) return tiers;
  if (!directory && config.disk_dir.empty()) {
    tiers.store = make_host_store(s, config.host_bytes, config.max_block);
    return tiers;
  }
  tiers.vectors = make_vector_tier(shape.n_heads * shape.head_dim, vector_options());
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
  impl_->build();
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
  m.n = n;
  m.next_layer = m.n_recalled = 0;
  m.recalls_now = m.time.begin(n, kind);
  for (detail::Rotation& rotation : m.rotations)
    rotation.step.compute(rotation.table, m.time.tokens(), n);
  if (m.bank.tiers.store) m.bank.tiers.store->begin_step(m.step_number);
  m.open = true;
}

void EpisodicMemory::Impl::recall(LayerState& layer) {
  Stopwatch watch(counters.seconds.recall);
  layer.next_recall = layer.window.recall;
  if (!layer.index()) {
    layer.next_recall.clear();
    return;
  }
  if (!recalls_now) return;  // the last step's events once more
  const std::int64_t outside = std::max<std::int64_t>(0, time.tokens() + n - config.n_local);
  layer.next_recall.recall(config, *layer.index(), time.events(), mean_query.data(),
                           outside - std::min(outside, time.events().tokens()));
}

/// Lets the hook weight the events whose segments were acquired.
void EpisodicMemory::Impl::ask_hook(std::int64_t l, const std::vector<EventId>& events) {
  const RepresentativeIndex& index = *bank.layers[static_cast<std::size_t>(l)].index();
  scores.clear();
  for (const EventId e : events) scores.push_back(index.score(mean_query.data(), e));
  weights.assign(events.size(), 1.0f);
  recall_hook({l, events, scores, mean_query, weights});
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (!std::isfinite(weights[i]))
      throw DataError(fmt::format("attend: the recall hook gave event {} the weight {} in layer {}",
                                  events[i], weights[i], l));
    event_segments[i].value_weight = weights[i];
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
  const std::int64_t kv_width = m.shape.n_kv_heads * m.shape.head_dim;
  // Only keys outside some query's window need the fixed position.
  const bool far = first + m.n > m.config.n_local;
  {
    Stopwatch watch(m.counters.seconds.append);
    check_finite("q", q, m.n, width, l, first);
    check_finite("k", k, m.n, kv_width, l, first);
    check_finite("v", v, m.n, kv_width, l, first);
    layer.append(first, k, v);
    m.q_relative.resize(static_cast<std::size_t>(m.config.chunk * width));
    RotatedQueries queries{m.q_relative.data(), nullptr, nullptr};
    if (far) {
      m.q_fixed.resize(m.q_relative.size());
      m.mean_query.resize(static_cast<std::size_t>(width));
      queries.fixed = m.q_fixed.data();
      queries.mean = m.mean_query.data();
    }
    rotate_queries(rotation.table, rotation.step.rows(), rotation.fixed.rows(), m.n,
                   m.shape.n_heads, m.shape.head_dim, q, queries, m.workspace);
  }
  if (far) {
    m.recall(layer);
  } else {
    layer.next_recall.clear();
  }
  m.segments.clear();
  m.event_segments.clear();
  const std::vector<EventId>& events = layer.next_recall.recalled();
  std::optional<Lease> lease;  // until the layer has attended, or failed to
  if (!events.empty()) {
    Stopwatch watch(m.counters.seconds.store);
    lease.emplace(*m.bank.tiers.store, layer.store_slot(), events, m.event_segments);
    // What this layer recalls, the next one often does too: it can be read while this one computes.
    if (const std::int64_t next = m.bank.next_slot(l); next >= 0)
      m.bank.tiers.store->prefetch(next, events);
    if (m.recall_hook) m.ask_hook(l, events);
  }
  layer.window_segments(first, m.n, m.time.events().pending_start(), m.segments);
  m.segments.insert(m.segments.end(), m.event_segments.begin(), m.event_segments.end());
  layer.open_sums(m.segments, m.sums);
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
    const std::span<const KvSegment> list(m.segments);
    // Without far keys no segment is at the fixed position; the pointer is then never read.
    const AttendInput input{m.q_relative.data(), far ? m.q_fixed.data() : m.q_relative.data(),
                            std::span(&list, 1)};
    episodic::attend(shape, input, {out, nullptr, m.sums}, m.workspace);
  }
  m.n_recalled += static_cast<std::int64_t>(events.size());
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
  const std::vector<TokenRange>* closed = nullptr;
  {
    Stopwatch watch(counters.seconds.refine);
    closed = &time.decide(bank.lend_keys(config.refine_layers));
  }
  Stopwatch watch(counters.seconds.close);
  if (directory) ids.reserve(n);
  // Tiers may be full and dtypes may refuse a number: then all is as it was before the step.
  bank.close(time.events().size(), *closed, first);

  bank.commit(first, n);
  if (directory) ids.push(step_ids, n);
  time.commit();
  ++step_number;
  ++counters.steps;
  counters.tokens += n;
  counters.recalled_events += n_recalled;
  open = false;
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

const EventTable& EpisodicMemory::events() const {
  impl_->threads.check();
  return impl_->time.events();
}

const StepRecord& EpisodicMemory::last_step() const {
  impl_->threads.check();
  return impl_->time.last_step();
}

namespace {
void check_layer(std::int64_t layer, std::int64_t n_layers) {
  if (layer < 0 || layer >= n_layers)
    throw DataError(
        fmt::format("layer {} asked for, but the memory has layers 0 to {}", layer, n_layers - 1));
}
}  // namespace

const RecallBuffers& EpisodicMemory::recalled(std::int64_t layer) const {
  impl_->threads.check();
  check_layer(layer, impl_->shape.n_layers);
  return impl_->bank.layers[static_cast<std::size_t>(layer)].window.recall;
}

std::vector<float> EpisodicMemory::representative(std::int64_t layer, EventId event) const {
  const Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);  // it may read a file
  check_layer(layer, m.shape.n_layers);
  const LayerState& state = m.bank.layers[static_cast<std::size_t>(layer)];
  if (!state.index() || event < 0 || event >= state.index()->size())
    throw DataError(fmt::format("layer {} keeps no representative of event {}", layer, event));
  const float* mean = state.index()->mean(event);
  return {mean, mean + m.shape.n_heads * m.shape.head_dim};
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
  const Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  MemoryCounters c = m.counters;
  c.events = m.time.events().size();
  for (const LayerState& layer : m.bank.layers) {
    c.window_bytes += layer.bytes();
    if (!layer.index()) continue;
    c.index_bytes += layer.index()->bytes();
    const IndexQuality q = layer.index()->quality();
    c.index_quality.checked += q.checked;
    c.index_quality.recall_sum += q.recall_sum;
  }
  if (m.bank.tiers.store) c.store = m.bank.tiers.store->counters();
  if (m.bank.tiers.vectors) c.vector_disk_bytes = m.bank.tiers.vectors->disk_bytes();
  return c;
}

std::shared_ptr<const EpisodicMemory::Snapshot> EpisodicMemory::snapshot() const {
  const Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  auto s = std::make_shared<Snapshot>();
  s->owner = impl_.get();
  s->events = m.time.events().size();
  s->generation = m.snapshots.generation();
  s->time = m.time.state();
  s->windows.reserve(m.bank.layers.size());
  for (const LayerState& layer : m.bank.layers) s->windows.push_back(layer.window);
  return s;
}

void EpisodicMemory::restore(const Snapshot& s) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  if (s.owner != impl_.get())
    throw ConfigError("restore: the snapshot was taken of another memory");
  m.snapshots.check(s.generation, s.time.tokens);
  std::vector<RecallBuffers> lists;
  lists.reserve(s.windows.size());
  for (const detail::LayerWindow& window : s.windows) {
    lists.push_back(window.recall);
    for (const EventId e : m.forgotten) lists.back().drop(e);
  }
  m.snapshots.reserve();
  Timeline::Ready ready = m.time.prepare(s.time);
  m.truncate(s.events);
  // Nothing can fail from here on.
  m.time.resume(std::move(ready));
  if (m.directory) m.ids.truncate(s.time.tokens);
  m.gone_back_to = std::min(m.gone_back_to, s.time.tokens);
  m.snapshots.went_back(s.time.tokens);
  for (std::size_t l = 0; l < lists.size(); ++l)
    m.bank.layers[l].restore(s.windows[l], std::move(lists[l]));
  m.open = false;
}

void EpisodicMemory::Impl::truncate(std::int64_t n_events) {
  if (n_events >= time.events().size()) return;
  bank.truncate(n_events);
  time.truncate(n_events);
  while (!forgotten.empty() && forgotten.back() >= n_events) forgotten.pop_back();
}

void EpisodicMemory::reset() {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  Timeline empty(m.config, m.shape.n_kv_heads, m.shape.head_dim, m.capacity, m.given);
  // The store of a kept memory stays: what was committed is not lost before the next commit.
  detail::Tiers fresh;
  if (!m.directory) fresh = m.make_tiers();
  auto indexes = m.make_indexes(m.directory ? m.bank.tiers.vectors.get() : fresh.vectors.get());
  if (m.directory) m.bank.truncate(0);
  // Nothing can fail from here on.
  if (m.directory) {
    m.ids.truncate(0);
    m.gone_back_to = 0;
  }
  for (std::size_t l = 0; l < indexes.size(); ++l) m.bank.layers[l].reset(std::move(indexes[l]));
  if (!m.directory) m.bank.tiers = std::move(fresh);
  m.time = std::move(empty);
  m.forgotten.clear();
  m.counters = {};
  m.step_number = 0;
  m.snapshots.reset();
  m.open = false;
}

void EpisodicMemory::forget(EventId event) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_idle("forget");
  m.check_event(event);
  const auto at = std::lower_bound(m.forgotten.begin(), m.forgotten.end(), event);
  if (at != m.forgotten.end() && *at == event) return;
  m.check_unpinned(event);
  const auto place = at - m.forgotten.begin();
  m.forgotten.reserve(m.forgotten.size() + 1);
  m.bank.forget(event);
  m.forgotten.insert(m.forgotten.begin() + place, event);
  m.drop_checkpoints = true;
}

std::vector<EventId> EpisodicMemory::forget(TokenRange tokens) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  const EventTable& events = m.time.events();
  if (tokens.start < 0 || tokens.size() < 1 || tokens.end > m.time.tokens())
    throw DataError(fmt::format("forget: tokens {} to {}, but the memory has {}", tokens.start,
                                tokens.end, m.time.tokens()));
  if (tokens.start < m.config.n_init || tokens.end > events.pending_start())
    throw DataError(fmt::format(
        "forget: tokens {} to {} reach into the sinks or the window; only tokens {} to {}, which "
        "lie in closed events, can be forgotten now",
        tokens.start, tokens.end, m.config.n_init, events.pending_start()));
  std::vector<EventId> hit;
  const auto first =
      std::upper_bound(events.all().begin(), events.all().end(), tokens.start,
                       [](std::int64_t token, const TokenRange& e) { return token < e.end; });
  for (auto it = first; it != events.all().end() && it->start < tokens.end; ++it)
    hit.push_back(it - events.all().begin());
  for (const EventId e : hit) m.check_unpinned(e);
  for (const EventId e : hit) forget(e);
  return hit;
}

const std::vector<EventId>& EpisodicMemory::forgotten() const {
  impl_->threads.check();
  return impl_->forgotten;
}

void EpisodicMemory::pin(EventId event, bool pinned) {
  Impl& m = *impl_;
  const ThreadGuard::Inside guard(m.threads);
  m.check_event(event);
  if (std::binary_search(m.forgotten.begin(), m.forgotten.end(), event))
    throw DataError(fmt::format("event {} was forgotten; it cannot be pinned", event));
  if (!m.bank.tiers.disk)
    throw ConfigError(
        "pin: only a memory with a disk tier has tiers to pin in; set disk_dir, or keep the memory "
        "in a folder");
  m.bank.tiers.disk->pin(event, pinned);
}

void EpisodicMemory::Impl::check_idle(const char* what) const {
  if (open) throw DataError(fmt::format("{}: a step is open; call end_step first", what));
}

void EpisodicMemory::Impl::check_event(EventId event) const {
  if (event < 0 || event >= time.events().size())
    throw DataError(
        fmt::format("event {} asked for, but the memory has {}", event, time.events().size()));
}

void EpisodicMemory::Impl::check_unpinned(EventId event) const {
  if (bank.tiers.disk && bank.tiers.disk->pinned(event))
    throw DataError(fmt::format("event {} is pinned; unpin it before it is forgotten", event));
}

}  // namespace episodic
