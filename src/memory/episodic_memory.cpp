// SPDX-License-Identifier: Apache-2.0
#include "episodic/memory/episodic_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "episodic/attention/attend.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "episodic/timeline/surprise.hpp"
#include "layer_state.hpp"

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

}  // namespace

/// Everything but the rings: small, copied whole.
struct Timeline {
  std::int64_t tokens = 0;
  EventTable events;
  std::unique_ptr<Segmenter> segmenter;
  BoundaryRefiner refiner;
  std::vector<float> last_logits;         // row of the last token, for the next step's first
  std::vector<std::uint8_t> final_flags;  // ring over tokens, as the layers' rings
  std::int64_t steps_since_recall = 0;    // decode steps, for recall_every
};

struct EpisodicMemory::Snapshot {
  const void* owner = nullptr;
  std::int64_t tokens = 0, events = 0;
  std::unique_ptr<Segmenter> segmenter;
  BoundaryRefiner refiner;
  std::vector<float> last_logits;
  std::vector<std::uint8_t> final_flags;
  std::int64_t steps_since_recall = 0;
  std::int64_t generation = 0;
  std::vector<detail::LayerWindow> windows;
};

struct EpisodicMemory::Impl {
  MemoryConfig config;
  MemoryShape shape;
  std::vector<std::int64_t> given;
  std::int64_t capacity = 0;  // tokens of the rings

  Timeline time;
  std::vector<LayerState> layers;
  std::unique_ptr<EventStore> store;  // null when no layer recalls
  StepRecord record, next_record;
  MemoryCounters counters;
  std::int64_t step_number = 0;
  // A snapshot is dead once a restore went back behind it: its events may have been given anew.
  std::int64_t generation = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> rewinds;  // (generation begun, events kept)

  // The open step.
  bool open = false;
  std::int64_t n = 0, next_layer = 0;
  bool recalls_now = true;
  std::vector<StepRun> runs;
  RotaryAngles fixed_angle;
  AttendWorkspace workspace;
  std::vector<float> q_relative, q_fixed, mean_query;
  std::vector<double> query_sum;
  std::vector<KvSegment> segments, event_segments;
  std::vector<float*> sums;
  std::vector<TokenRange> closed;
  std::vector<std::int64_t> targets;
  std::vector<KeyRing> refine_rings;
  BoundaryRefiner next_refiner;

  void build();
  void recall(LayerState& layer);
  void fixed_queries(const float* q);
  void finish(std::span<const float> surprise);
};

void EpisodicMemory::Impl::build() {
  // The rings hold what attention needs (window, pending, the step) and, for refinement, the step
  // before, whatever has left the window since.
  capacity = config.n_local + config.max_block + 2 * config.chunk;
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
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    const bool yes = recalls(l);
    layers.emplace_back(config, shape, capacity,
                        yes ? make_index(config, shape.n_heads, shape.head_dim) : nullptr,
                        yes ? slots : -1);
    if (yes) ++slots;
  }
  store.reset();
  if (slots > 0)
    store = make_host_store({slots, shape.n_kv_heads, shape.head_dim, config.kv_dtype},
                            config.host_bytes, config.max_block);
  record = {};
  counters = {};
  step_number = 0;
  ++generation;
  rewinds.clear();
  rewinds.emplace_back(generation, 0);
  open = false;
}

EpisodicMemory::EpisodicMemory(const MemoryConfig& config, const MemoryShape& shape,
                               std::vector<std::int64_t> given)
    : impl_(std::make_unique<Impl>()) {
  config.validate();
  check_shape(config, shape);
  impl_->config = config;
  impl_->shape = shape;
  impl_->given = std::move(given);
  impl_->build();
}

EpisodicMemory::~EpisodicMemory() = default;
EpisodicMemory::EpisodicMemory(EpisodicMemory&&) noexcept = default;
EpisodicMemory& EpisodicMemory::operator=(EpisodicMemory&&) noexcept = default;

void EpisodicMemory::begin_step(std::int64_t n) {
  Impl& m = *impl_;
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
  const float* last = logits + (m.n - 1) * row_stride;
  m.time.last_logits.assign(last, last + vocab);
  m.time.tokens += m.n;
}

void EpisodicMemory::end_step(const float* surprise) {
  Impl& m = *impl_;
  if (!m.open || m.next_layer != m.shape.n_layers)
    throw DataError("end_step: not all layers have attended in this step");
  for (std::int64_t i = 0; i < m.n; ++i)
    if (!std::isfinite(surprise[i]))
      throw DataError(fmt::format("end_step: surprise of token {} of the step is not finite", i));
  m.next_record.surprise.assign(surprise, surprise + m.n);
  if (m.time.tokens == 0) m.next_record.surprise[0] = 0.0f;
  m.finish(m.next_record.surprise);
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
  if (store && count > 0) {
    try {
      // a layer that cannot be stored must be known before the first one commits
      const StoreShape stored{1, shape.n_kv_heads, shape.head_dim, config.kv_dtype};
      parallel_for(shape.n_layers, [&](std::int64_t l) {
        const LayerState& layer = layers[static_cast<std::size_t>(l)];
        if (layer.store_slot() < 0) return;
        for (const TokenRange& event : closed) check_block(stored, event, layer.ring());
      });
      store->append(closed);
    } catch (...) {
      time.events.truncate(r.events_before);
      throw;
    }
  }

  time.segmenter = std::move(segmenter);
  std::swap(time.refiner, next_refiner);
  parallel_for(shape.n_layers, [&](std::int64_t l) {
    LayerState& layer = layers[static_cast<std::size_t>(l)];
    layer.commit(first, n);
    for (std::int64_t e = 0; e < count; ++e) {
      layer.add_event(closed[static_cast<std::size_t>(e)]);
      if (layer.store_slot() >= 0)
        store->write(r.events_before + e, layer.store_slot(), layer.ring());
    }
  });
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
  return c;
}

std::shared_ptr<const EpisodicMemory::Snapshot> EpisodicMemory::snapshot() const {
  const Impl& m = *impl_;
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
  if (s.owner != impl_.get())
    throw ConfigError("restore: the snapshot was taken of another memory");
  for (const auto& [generation, kept] : m.rewinds)
    if (generation > s.generation && kept < s.events)
      throw ConfigError("restore: the memory has meanwhile gone back to before this snapshot");
  if (m.rewinds.front().first > s.generation)
    throw ConfigError("restore: the memory was reset since this snapshot");
  if (s.events < m.time.events.size()) {
    m.time.events.truncate(s.events);
    if (m.store) m.store->truncate(s.events);
    for (LayerState& layer : m.layers)
      if (layer.index()) layer.index()->truncate(s.events);
  }
  m.rewinds.emplace_back(++m.generation, s.events);
  m.time.tokens = s.tokens;
  m.time.segmenter = s.segmenter->clone();
  m.time.refiner = s.refiner;
  m.time.last_logits = s.last_logits;
  m.time.final_flags = s.final_flags;
  m.time.steps_since_recall = s.steps_since_recall;
  for (std::size_t l = 0; l < m.layers.size(); ++l) m.layers[l].window = s.windows[l];
  m.record = {};
  m.open = false;
}

void EpisodicMemory::reset() { impl_->build(); }

}  // namespace episodic
