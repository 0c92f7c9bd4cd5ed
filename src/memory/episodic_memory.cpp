// SPDX-License-Identifier: Apache-2.0
#include "episodic/memory/episodic_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/timeline/surprise.hpp"
#include "impl.hpp"

namespace episodic {
namespace {

using detail::LayerState;
using detail::StepRun;

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

}  // namespace

void check_shape(const MemoryConfig& config, const MemoryShape& shape) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1)
      throw ConfigError(fmt::format("memory shape: {} = {}, must be >= 1", name, value));
  };
  positive("n_layers", shape.n_layers);
  positive("n_heads", shape.n_heads);
  positive("n_kv_heads", shape.n_kv_heads);
  positive("head_dim", shape.head_dim);
  if (shape.n_heads % shape.n_kv_heads != 0)
    throw ConfigError(fmt::format("memory shape: n_heads = {} is no multiple of n_kv_heads = {}",
                                  shape.n_heads, shape.n_kv_heads));
  if (shape.rotary.rotary_dim() > shape.head_dim)
    throw ConfigError(fmt::format("memory shape: rotary_dim = {} exceeds head_dim = {}",
                                  shape.rotary.rotary_dim(), shape.head_dim));
  if (config.refine != Refinement::none && config.refine_layers >= shape.n_layers)
    throw ConfigError(
        fmt::format("memory configuration: refine_layers = {}, but the model has only "
                    "layers 0 to {}",
                    config.refine_layers, shape.n_layers - 1));
  for (const std::int64_t l : config.recall_layers.value_or(std::vector<std::int64_t>{}))
    if (l >= shape.n_layers)
      throw ConfigError(
          fmt::format("memory configuration: recall_layers names layer {}, but the model "
                      "has only layers 0 to {}",
                      l, shape.n_layers - 1));
}

OneThreadAtATime::OneThreadAtATime(std::atomic<bool>& busy) : busy_(busy) {
  if (busy.exchange(true, std::memory_order_acquire))
    throw Error(
        "episodic memory: used from two threads at once; give each thread a memory of its own "
        "(fork), or let them take turns");
}

void EpisodicMemory::Impl::build() {
  capacity = ring_capacity(config);
  time.tokens = 0;
  time.events = EventTable(config.n_init, config.min_block, config.max_block);
  time.segmenter = make_segmenter(config, given);
  time.refiner = BoundaryRefiner(config.refine, config.n_init, config.min_block, shape.n_kv_heads,
                                 shape.head_dim);
  time.last_logits.clear();
  time.final_flags.assign(static_cast<std::size_t>(capacity), 0);
  time.steps_since_recall = 0;
  fixed_angle.compute(shape.rotary, config.n_local - 1, 1);

  const auto recalls = [&](std::int64_t layer) {
    if (!config.recall) return false;
    if (!config.recall_layers) return true;
    return std::find(config.recall_layers->begin(), config.recall_layers->end(), layer) !=
           config.recall_layers->end();
  };
  std::int64_t slots = 0;
  layers.clear();
  layers.reserve(static_cast<std::size_t>(shape.n_layers));
  const std::int64_t recalling = recalling_layers(config, shape);
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    if (!recalls(l)) {
      layers.emplace_back(config, shape, capacity, nullptr, -1);
      continue;
    }
    // At least a byte: 0 would be no bound.
    const std::int64_t share =
        config.repr_bytes > 0 ? std::max<std::int64_t>(1, config.repr_bytes / recalling) : 0;
    layers.emplace_back(
        config, shape, capacity,
        make_index(config, shape.n_heads, shape.head_dim, {vectors.get(), slots, share}), slots);
    ++slots;
  }
  forgotten.clear();
  record = {};
  counters = {};
  step_number = 0;
  ++generation;
  rewinds.clear();
  rewinds.emplace_back(generation, 0);
  open = false;
}

std::int64_t ring_capacity(const MemoryConfig& c) { return c.n_local + c.max_block + 2 * c.chunk; }

std::int64_t most_recalled_tokens(const MemoryConfig& c) {
  return c.n_init + c.chunk + c.n_mem + 2 * c.max_block;
}

std::int64_t recalling_layers(const MemoryConfig& config, const MemoryShape& shape) {
  if (!config.recall) return 0;
  if (!config.recall_layers) return shape.n_layers;
  const std::set<std::int64_t> named(config.recall_layers->begin(), config.recall_layers->end());
  return static_cast<std::int64_t>(named.size());
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

void EpisodicMemory::Impl::make_tiers() {
  layers.clear();  // they refer to the tiers
  store.reset();
  vectors.reset();
  disk = nullptr;
  const StoreShape s = store_shape();
  if (s.n_layers == 0) return;
  if (!directory && config.disk_dir.empty()) {
    store = make_host_store(s, config.host_bytes, config.max_block);
    return;
  }
  vectors = make_vector_tier(shape.n_heads * shape.head_dim, vector_options());
  std::unique_ptr<DiskStore> made = make_disk_store(s, disk_options());
  disk = made.get();
  store = std::move(made);
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
  impl_->make_tiers();
  impl_->build();
}

EpisodicMemory::~EpisodicMemory() = default;
EpisodicMemory::EpisodicMemory(EpisodicMemory&&) noexcept = default;
EpisodicMemory& EpisodicMemory::operator=(EpisodicMemory&&) noexcept = default;

void EpisodicMemory::begin_step(std::int64_t n) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  if (n < 1 || n > m.config.chunk)
    throw DataError(
        fmt::format("begin_step: n = {} tokens, must be in [1, chunk = {}]; feed longer "
                    "texts in several steps",
                    n, m.config.chunk));
  m.open = true;
  m.n = n;
  m.next_layer = 0;
  m.recalls_now = n > 1 || m.time.steps_since_recall % m.config.recall_every == 0;
  const std::int64_t first = m.time.tokens;
  const std::int64_t unwrapped = std::min(n, m.capacity - first % m.capacity);
  m.runs.resize(unwrapped < n ? 2 : 1);
  m.runs[0].offset = 0;
  m.runs[0].n = unwrapped;
  if (unwrapped < n) m.runs[1].offset = unwrapped, m.runs[1].n = n - unwrapped;
  for (StepRun& run : m.runs) run.angles.compute(m.shape.rotary, first + run.offset, run.n);
  if (m.store) m.store->begin_step(m.step_number);
}

/// The step's queries turned to the fixed position, and their mean.
void EpisodicMemory::Impl::fixed_queries(const float* q) {
  const std::int64_t width = shape.n_heads * shape.head_dim;
  q_fixed.resize(static_cast<std::size_t>(config.chunk * width));
  rotate(shape.rotary, fixed_angle, n, shape.n_heads, shape.head_dim, q, width, shape.head_dim,
         q_fixed.data(), width, shape.head_dim);
  query_sum.assign(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t i = 0; i < n; ++i) {
    const float* row = q_fixed.data() + i * width;
    for (std::int64_t c = 0; c < width; ++c) query_sum[static_cast<std::size_t>(c)] += row[c];
  }
  mean_query.resize(static_cast<std::size_t>(width));
  for (std::size_t c = 0; c < mean_query.size(); ++c)
    mean_query[c] = static_cast<float>(query_sum[c] / static_cast<double>(n));
}

void EpisodicMemory::Impl::recall(LayerState& layer) {
  Stopwatch watch(counters.seconds.recall);
  layer.next_recall = layer.window.recall;
  if (!layer.index()) {
    layer.next_recall.clear();
    return;
  }
  if (!recalls_now) return;  // the last step's events once more
  const std::int64_t outside = std::max<std::int64_t>(0, time.tokens + n - config.n_local);
  layer.next_recall.recall(config, *layer.index(), time.events, mean_query.data(),
                           outside - std::min(outside, time.events.tokens()));
}

void EpisodicMemory::attend(std::int64_t l, const float* q, const float* k, const float* v,
                            float* out) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  if (!m.open || l != m.next_layer || l >= m.shape.n_layers)
    throw DataError(
        fmt::format("attend: layer {} out of turn; call begin_step, then attend for layers "
                    "0 to {} in order, then end_step",
                    l, m.shape.n_layers - 1));
  LayerState& layer = m.layers[static_cast<std::size_t>(l)];
  const std::int64_t first = m.time.tokens, width = m.shape.n_heads * m.shape.head_dim;
  {
    Stopwatch watch(m.counters.seconds.append);
    layer.append(first, m.runs, k, v);
    m.q_relative.resize(static_cast<std::size_t>(m.config.chunk * width));
    for (const StepRun& run : m.runs)
      rotate(m.shape.rotary, run.angles, run.n, m.shape.n_heads, m.shape.head_dim,
             q + run.offset * width, width, m.shape.head_dim,
             m.q_relative.data() + run.offset * width, width, m.shape.head_dim);
    // Only keys outside some query's window need the fixed position.
    if (first + m.n > m.config.n_local) m.fixed_queries(q);
  }
  const bool far = first + m.n > m.config.n_local;
  if (far) {
    m.recall(layer);
  } else {
    layer.next_recall.clear();
  }
  m.segments.clear();
  m.event_segments.clear();
  const std::vector<EventId>& events = layer.next_recall.recalled();
  if (!events.empty()) {
    Stopwatch watch(m.counters.seconds.store);
    m.store->acquire(layer.store_slot(), events, m.event_segments);
    // What this layer recalls, the next one often does too: it can be read while this one computes.
    if (const std::int64_t next = m.next_store_slot(l); next >= 0) m.store->prefetch(next, events);
    m.counters.recalled_events += static_cast<std::int64_t>(events.size());
  }
  layer.window_segments(first, m.n, m.time.events.pending_start(), m.segments);
  m.segments.insert(m.segments.end(), m.event_segments.begin(), m.event_segments.end());
  layer.open_sums(m.segments, m.sums);
  {
    Stopwatch watch(m.counters.seconds.attend);
    const AttendShape shape{
        m.n, m.shape.n_heads, m.shape.n_kv_heads, m.shape.head_dim, first, m.config.n_local, 0.0f};
    const std::span<const KvSegment> list(m.segments);
    // Without far keys no segment is at the fixed position; the pointer is then never read.
    const AttendInput input{m.q_relative.data(), far ? m.q_fixed.data() : m.q_relative.data(),
                            std::span(&list, 1)};
    episodic::attend(shape, input, {out, nullptr, m.sums}, m.workspace);
  }
  if (!events.empty()) m.store->release(layer.store_slot());
  ++m.next_layer;
}

void EpisodicMemory::end_step(const std::int64_t* ids, const float* logits, std::int64_t vocab,
                              std::int64_t row_stride) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  if (!m.open || m.next_layer != m.shape.n_layers)
    throw DataError("end_step: not all layers have attended in this step");
  for (std::int64_t i = 0; i < m.n; ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw DataError(fmt::format("token {} of the step has id {}, outside the vocabulary of {}", i,
                                  ids[i], vocab));
  StepRecord& r = m.next_record;
  r.surprise.assign(static_cast<std::size_t>(m.n) + 1, 0.0f);
  // Row i tells of token i + 1. The last row has no successor yet: its value is dropped, but its
  // logits are checked now, while the step can still be undone.
  m.targets.assign(ids + 1, ids + m.n);
  m.targets.push_back(0);
  token_surprise(logits, m.n, vocab, row_stride, m.targets.data(), r.surprise.data() + 1);
  if (m.time.tokens > 0 && !m.time.last_logits.empty()) {
    if (static_cast<std::int64_t>(m.time.last_logits.size()) != vocab)
      throw DataError(fmt::format("end_step: vocab = {}, but earlier steps had {}", vocab,
                                  m.time.last_logits.size()));
    token_surprise(m.time.last_logits.data(), 1, vocab, vocab, ids, r.surprise.data());
  }
  r.surprise.pop_back();
  m.finish(r.surprise);
  if (m.directory) m.ids.push(ids, m.n);
  const float* last = logits + (m.n - 1) * row_stride;
  m.time.last_logits.assign(last, last + vocab);
  m.time.tokens += m.n;
}

void EpisodicMemory::end_step(const float* surprise) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  if (!m.open || m.next_layer != m.shape.n_layers)
    throw DataError("end_step: not all layers have attended in this step");
  for (std::int64_t i = 0; i < m.n; ++i)
    if (!std::isfinite(surprise[i]))
      throw DataError(fmt::format("end_step: surprise of token {} of the step is not finite", i));
  m.next_record.surprise.assign(surprise, surprise + m.n);
  if (m.time.tokens == 0) m.next_record.surprise[0] = 0.0f;
  m.finish(m.next_record.surprise);
  if (m.directory) m.ids.push(nullptr, m.n);
  m.time.last_logits.clear();
  m.time.tokens += m.n;
}

/// Boundaries and closing. Whatever can fail comes before whatever changes the state.
void EpisodicMemory::Impl::finish(std::span<const float> surprise) {
  const std::int64_t first = time.tokens;
  StepRecord& r = next_record;
  r.first = first;
  r.n = n;
  r.events_before = time.events.size();
  r.threshold.resize(surprise.size());
  r.raw_boundaries.resize(surprise.size());
  r.final_boundaries.resize(surprise.size());

  std::unique_ptr<Segmenter> segmenter = time.segmenter->clone();
  segmenter->step(first, surprise, r.threshold, r.raw_boundaries);
  next_refiner = time.refiner;  // assigned, not constructed: its scratch memory stays
  if (config.refine == Refinement::none) {
    r.final_boundaries = r.raw_boundaries;
  } else {
    Stopwatch watch(counters.seconds.refine);
    refine_rings.clear();
    for (std::int64_t l = config.refine_layers; l < shape.n_layers; ++l)
      refine_rings.push_back(layers[static_cast<std::size_t>(l)].key_ring());
    next_refiner.step(refine_rings, first, r.raw_boundaries, r.final_boundaries);
  }
  // Flags of tokens that wait for an event are never overwritten here: they are in the ring's
  // reach.
  for (std::int64_t i = 0; i < n; ++i)
    time.final_flags[static_cast<std::size_t>((first + i) % capacity)] =
        r.final_boundaries[static_cast<std::size_t>(i)];

  Stopwatch watch(counters.seconds.close);
  const std::int64_t limit = first + n - config.n_local;
  const std::int64_t count = time.events.close_up_to(limit, [&](std::int64_t token) {
    return time.final_flags[static_cast<std::size_t>(token % capacity)] != 0;
  });
  closed.assign(time.events.all().end() - count, time.events.all().end());
  // Tiers may be full and dtypes may refuse a number: then all is as it was before the step.
  try {
    if (store && count > 0) store->append(closed);
    parallel_for(shape.n_layers, [&](std::int64_t l) {
      LayerState& layer = layers[static_cast<std::size_t>(l)];
      for (std::int64_t e = 0; e < count && layer.store_slot() >= 0; ++e)
        store->write(r.events_before + e, layer.store_slot(), layer.ring());
      layer.commit(first, n, count > 0);
      for (std::int64_t e = 0; e < count; ++e) layer.add_event(closed[static_cast<std::size_t>(e)]);
    });
  } catch (...) {
    for (LayerState& layer : layers) {
      layer.undo_commit();
      if (layer.index()) layer.index()->truncate(std::min(r.events_before, layer.index()->size()));
    }
    time.events.truncate(r.events_before);
    if (store) store->truncate(r.events_before);
    throw;
  }
  time.segmenter = std::move(segmenter);
  std::swap(time.refiner, next_refiner);
  time.steps_since_recall = n > 1 ? 0 : time.steps_since_recall + 1;
  std::swap(record, next_record);
  ++step_number;
  ++counters.steps;
  counters.tokens += n;
  open = false;
}

const MemoryConfig& EpisodicMemory::config() const { return impl_->config; }
const MemoryShape& EpisodicMemory::shape() const { return impl_->shape; }
std::int64_t EpisodicMemory::tokens() const { return impl_->time.tokens; }
std::int64_t EpisodicMemory::open_tokens() const { return impl_->open ? impl_->n : 0; }
const EventTable& EpisodicMemory::events() const { return impl_->time.events; }
const StepRecord& EpisodicMemory::last_step() const { return impl_->record; }

namespace {
void check_layer(std::int64_t layer, std::int64_t n_layers) {
  if (layer < 0 || layer >= n_layers)
    throw DataError(
        fmt::format("layer {} asked for, but the memory has layers 0 to {}", layer, n_layers - 1));
}
}  // namespace

const RecallBuffers& EpisodicMemory::recalled(std::int64_t layer) const {
  check_layer(layer, impl_->shape.n_layers);
  return impl_->layers[static_cast<std::size_t>(layer)].window.recall;
}

const float* EpisodicMemory::representative(std::int64_t layer, EventId event) const {
  check_layer(layer, impl_->shape.n_layers);
  const LayerState& state = impl_->layers[static_cast<std::size_t>(layer)];
  if (!state.index() || event < 0 || event >= state.index()->size())
    throw DataError(fmt::format("layer {} keeps no representative of event {}", layer, event));
  return state.index()->mean(event);
}

const float* EpisodicMemory::relevance(std::int64_t layer, std::int64_t token) const {
  check_layer(layer, impl_->shape.n_layers);
  const std::int64_t tokens = impl_->time.tokens;
  if (token < 0 || token >= tokens || token < tokens - impl_->capacity) return nullptr;
  return impl_->layers[static_cast<std::size_t>(layer)].relevance(token);
}

MemoryCounters EpisodicMemory::counters() const {
  MemoryCounters c = impl_->counters;
  c.events = impl_->time.events.size();
  for (const LayerState& layer : impl_->layers) {
    c.window_bytes += layer.bytes();
    if (!layer.index()) continue;
    c.index_bytes += layer.index()->bytes();
    const IndexQuality q = layer.index()->quality();
    c.index_quality.checked += q.checked;
    c.index_quality.recall_sum += q.recall_sum;
  }
  if (impl_->store) c.store = impl_->store->counters();
  if (impl_->vectors) c.vector_disk_bytes = impl_->vectors->disk_bytes();
  return c;
}

std::shared_ptr<const EpisodicMemory::Snapshot> EpisodicMemory::snapshot() const {
  const Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  auto s = std::make_shared<Snapshot>();
  s->owner = impl_.get();
  s->tokens = m.time.tokens;
  s->events = m.time.events.size();
  s->segmenter = m.time.segmenter->clone();
  s->refiner = m.time.refiner;
  s->last_logits = m.time.last_logits;
  s->final_flags = m.time.final_flags;
  s->steps_since_recall = m.time.steps_since_recall;
  s->generation = m.generation;
  for (const LayerState& layer : m.layers) s->windows.push_back(layer.window);
  return s;
}

void EpisodicMemory::restore(const Snapshot& s) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  if (s.owner != impl_.get())
    throw ConfigError("restore: the snapshot was taken of another memory");
  for (const auto& [generation, kept] : m.rewinds)
    if (generation > s.generation && kept < s.events)
      throw ConfigError("restore: the memory has meanwhile gone back to before this snapshot");
  if (m.rewinds.front().first > s.generation)
    throw ConfigError("restore: the memory was reset since this snapshot");
  m.truncate(s.events);
  if (m.directory) m.ids.truncate(s.tokens);
  m.gone_back_to = std::min(m.gone_back_to, s.tokens);
  m.rewinds.emplace_back(++m.generation, s.events);
  m.time.tokens = s.tokens;
  m.time.segmenter = s.segmenter->clone();
  m.time.refiner = s.refiner;
  m.time.last_logits = s.last_logits;
  m.time.final_flags = s.final_flags;
  m.time.steps_since_recall = s.steps_since_recall;
  for (std::size_t l = 0; l < m.layers.size(); ++l) {
    m.layers[l].window = s.windows[l];
    for (const EventId e : m.forgotten) m.layers[l].window.recall.drop(e);
  }
  m.record = {};
  m.open = false;
}

void EpisodicMemory::Impl::truncate(std::int64_t n_events) {
  if (n_events >= time.events.size()) return;
  time.events.truncate(n_events);
  if (store) store->truncate(n_events);
  for (LayerState& layer : layers)
    if (layer.index()) layer.index()->truncate(n_events);
  while (!forgotten.empty() && forgotten.back() >= n_events) forgotten.pop_back();
}

void EpisodicMemory::reset() {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  if (m.directory) {  // the store stays: what was committed is not lost before the next commit
    if (m.store) m.store->truncate(0);
    for (LayerState& layer : m.layers)
      if (layer.index()) layer.index()->truncate(0);
    m.ids.truncate(0);
    m.gone_back_to = 0;
    m.build();
  } else {
    m.make_tiers();
    m.build();
  }
}

void EpisodicMemory::forget(EventId event) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  m.check_idle("forget");
  m.check_event(event);
  const auto at = std::lower_bound(m.forgotten.begin(), m.forgotten.end(), event);
  if (at != m.forgotten.end() && *at == event) return;
  if (m.disk && m.disk->pinned(event))
    throw DataError(fmt::format("event {} is pinned; unpin it before it is forgotten", event));
  if (m.store) m.store->forget(event);
  for (LayerState& layer : m.layers) {
    if (layer.index()) layer.index()->forget(event);
    layer.window.recall.drop(event);
  }
  m.forgotten.insert(at, event);
  m.drop_checkpoints = true;
}

std::vector<EventId> EpisodicMemory::forget(TokenRange tokens) {
  const EventTable& events = impl_->time.events;
  if (tokens.start < 0 || tokens.size() < 1 || tokens.end > impl_->time.tokens)
    throw DataError(fmt::format("forget: tokens {} to {}, but the memory has {}", tokens.start,
                                tokens.end, impl_->time.tokens));
  if (tokens.start < impl_->config.n_init || tokens.end > events.pending_start())
    throw DataError(fmt::format(
        "forget: tokens {} to {} reach into the sinks or the window; only tokens {} to {}, which "
        "lie in closed events, can be forgotten now",
        tokens.start, tokens.end, impl_->config.n_init, events.pending_start()));
  std::vector<EventId> hit;
  const auto first =
      std::upper_bound(events.all().begin(), events.all().end(), tokens.start,
                       [](std::int64_t token, const TokenRange& e) { return token < e.end; });
  for (auto it = first; it != events.all().end() && it->start < tokens.end; ++it)
    hit.push_back(it - events.all().begin());
  for (const EventId e : hit)
    if (impl_->disk && impl_->disk->pinned(e))
      throw DataError(fmt::format("event {} is pinned; unpin it before it is forgotten", e));
  for (const EventId e : hit) forget(e);
  return hit;
}

const std::vector<EventId>& EpisodicMemory::forgotten() const { return impl_->forgotten; }

void EpisodicMemory::pin(EventId event, bool pinned) {
  Impl& m = *impl_;
  const OneThreadAtATime guard(m.busy);
  m.check_event(event);
  if (std::binary_search(m.forgotten.begin(), m.forgotten.end(), event))
    throw DataError(fmt::format("event {} was forgotten; it cannot be pinned", event));
  if (!m.disk)
    throw ConfigError(
        "pin: only a memory with a disk tier has tiers to pin in; set disk_dir, or keep the memory "
        "in a folder");
  m.disk->pin(event, pinned);
}

void EpisodicMemory::Impl::check_idle(const char* what) const {
  if (open) throw DataError(fmt::format("{}: a step is open; call end_step first", what));
}

void EpisodicMemory::Impl::check_event(EventId event) const {
  if (event < 0 || event >= time.events.size())
    throw DataError(
        fmt::format("event {} asked for, but the memory has {}", event, time.events.size()));
}

std::int64_t EpisodicMemory::Impl::next_store_slot(std::int64_t layer) const {
  const auto next = static_cast<std::size_t>(layer + 1);
  return next < layers.size() ? layers[next].store_slot() : -1;
}

}  // namespace episodic
