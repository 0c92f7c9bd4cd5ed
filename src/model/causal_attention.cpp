// SPDX-License-Identifier: Apache-2.0
#include "causal_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"

namespace episodic {
namespace {

constexpr std::int64_t kWholeSequence = std::int64_t{1} << 40;  // a window that nothing leaves
constexpr std::int64_t kChunk = 512;
constexpr std::int64_t kFirstCapacity = 256;

class CausalSlot final : public AttentionSlot {
 public:
  CausalSlot(std::shared_ptr<CausalState> state, std::int64_t layer, std::vector<float> sink_logits)
      : state_(std::move(state)), layer_(layer), sink_logits_(std::move(sink_logits)) {}

  void forward(const TensorView& q, const TensorView& k, const TensorView& v,
               const MutableTensorView& out) override {
    state_->attend_layer(layer_, q, k, v, out,
                         sink_logits_.empty() ? nullptr : sink_logits_.data());
  }

 private:
  std::shared_ptr<CausalState> state_;
  std::int64_t layer_;
  std::vector<float> sink_logits_;
};

}  // namespace

CausalState::CausalState(const ModelConfig& config)
    : config_(config), caches_(config.layers.size()), recurrent_(config) {
  for (const Rope& rope : config.ropes) rotations_.push_back({rope, rope.table, {}, 0});
  rotations_.push_back({});
}

const LayerSpec& CausalState::spec(std::int64_t layer) const {
  return config_.layers[static_cast<std::size_t>(layer)];
}

CausalState::Rotation& CausalState::rotation(std::int64_t layer) {
  const int rope = spec(layer).rope;
  return rope < 0 ? rotations_.back() : rotations_[static_cast<std::size_t>(rope)];
}

std::int64_t CausalState::first_seen(std::int64_t layer) const {
  const std::int64_t window = spec(layer).window;
  return window == 0 ? 0 : std::max<std::int64_t>(0, tokens_ - window + 1);
}

std::int64_t CausalState::chunk() const { return kChunk; }

void CausalState::begin_step(std::span<const std::int64_t> ids, StepKind) {
  step_ = 0;
  const auto n = static_cast<std::int64_t>(ids.size());
  for (Rotation& r : rotations_) {
    if (r.rope.depends_on_length()) {
      RotaryTable table = r.rope.at(tokens_ + n);
      if (table.inverse_frequency != r.table.inverse_frequency) ++r.version;
      r.table = std::move(table);
    }
    r.angles.compute(r.table, tokens_, n);
  }
  step_ = n;
}

void CausalState::end_step(std::span<const std::int64_t>, const LogitsView&) {
  if (step_ > 0) recurrent_.commit();
  tokens_ += step_;
  step_ = 0;
}

void CausalState::reset() {
  recurrent_.clear();
  tokens_ = 0;
  step_ = 0;
  for (Cache& cache : caches_) cache.first = 0;
}

struct CausalState::Snapshot final : SequenceSnapshot {
  std::int64_t tokens = 0;
  std::vector<Cache> caches;
  RecurrentState recurrent;
};

std::vector<CausalState::Cache> CausalState::copies_of(const std::vector<Cache>& caches) {
  std::vector<Cache> copies;
  for (const Cache& cache : caches) copies.push_back(cache.copy());
  return copies;
}

CausalState::Cache CausalState::Cache::copy() const {
  return {keys.copy(), values.copy(), unrotated.copy(), first, capacity, version};
}

std::vector<AlignedBuffer*> CausalState::Cache::arrays() {
  if (unrotated.size() > 0) return {&keys, &values, &unrotated};
  return {&keys, &values};
}

std::shared_ptr<const SequenceSnapshot> CausalState::snapshot() const {
  auto copy = std::make_shared<Snapshot>();
  copy->tokens = tokens_;
  copy->caches = copies_of(caches_);
  copy->recurrent = recurrent_;
  return copy;
}

void CausalState::restore(const SequenceSnapshot& snapshot) {
  const auto* copy = dynamic_cast<const Snapshot*>(&snapshot);
  if (!copy || copy->caches.size() != caches_.size()) return SequenceState::restore(snapshot);
  std::vector<Cache> caches = copies_of(copy->caches);
  recurrent_ = copy->recurrent;  // of the same size, so that nothing is allocated
  caches_ = std::move(caches);
  tokens_ = copy->tokens;
  step_ = 0;
}

void CausalState::save(ByteWriter& to) const {
  to.put(tokens_);
  std::int64_t used = 0;
  for (const Cache& cache : caches_) used += cache.used();
  to.put(used);
  for (std::size_t l = 0; l < caches_.size(); ++l) {
    const Cache& cache = caches_[l];
    if (!cache.used()) continue;
    const auto layer = static_cast<std::int64_t>(l);
    const LayerSpec& s = spec(layer);
    const std::int64_t first = first_seen(layer), n = tokens_ - first;
    for (const std::int64_t x : {layer, s.n_kv_heads, s.head_dim, first}) to.put(x);
    for (const AlignedBuffer* rows : {&cache.keys, &cache.values, &cache.unrotated}) {
      if (rows->size() == 0) continue;
      for (std::int64_t g = 0; g < s.n_kv_heads; ++g)
        to.put_span(std::span<const float>(
            rows->floats() + (g * cache.capacity + first - cache.first) * s.head_dim,
            static_cast<std::size_t>(n * s.head_dim)));
    }
  }
  if (!recurrent_.empty()) recurrent_.save(to);
}

void CausalState::load(ByteReader& from) {
  const auto refuse = [&](const char* what) {
    throw FileError(
        fmt::format("{}: {}; the file is damaged, or of another model", from.where(), what));
  };
  const auto tokens = from.get<std::int64_t>(), used = from.get<std::int64_t>();
  if (tokens < 0 || used < 0 || used > static_cast<std::int64_t>(caches_.size()))
    refuse("its numbers make no sense");
  const std::int64_t before = std::exchange(tokens_, tokens);  // first_seen counts from it
  std::vector<Cache> caches(caches_.size());
  RecurrentState recurrent = recurrent_;
  try {
    std::int64_t last = -1;
    for (std::int64_t i = 0; i < used; ++i) {
      const auto layer = from.get<std::int64_t>();
      if (layer <= last || layer >= static_cast<std::int64_t>(caches.size()))
        refuse("a layer that this model does not have");
      last = layer;
      const LayerSpec& s = spec(layer);
      const auto kv_heads = from.get<std::int64_t>(), dim = from.get<std::int64_t>(),
                 first = from.get<std::int64_t>();
      if (kv_heads != s.n_kv_heads || dim != s.head_dim || first != first_seen(layer) ||
          (tokens - first) > static_cast<std::int64_t>(from.left()))
        refuse("a layer of another shape or window");
      Cache& cache = caches[static_cast<std::size_t>(layer)];
      cache = room_for(layer, tokens - first, 0);
      cache.first = first;
      cache.version = -1;  // of no table: where it depends on the length, keys are turned anew
      for (AlignedBuffer* array : cache.arrays())
        for (std::int64_t g = 0; g < kv_heads; ++g) {
          const std::vector<float> rows = from.get_vector<float>(
              static_cast<std::size_t>((tokens - first) * dim), "a sliding layer's window");
          std::copy(rows.begin(), rows.end(), array->floats() + g * cache.capacity * dim);
        }
    }
    if (!recurrent.empty()) recurrent.load(from);
    from.finish();
  } catch (...) {
    tokens_ = before;
    throw;
  }
  caches_ = std::move(caches);
  recurrent_ = std::move(recurrent);
  step_ = 0;
}

void CausalState::attend_layer(std::int64_t layer, const TensorView& q, const TensorView& k,
                               const TensorView& v, const MutableTensorView& out,
                               const float* maybe_sink_logits) {
  const LayerSpec& s = spec(layer);
  check("q", q, s.n_heads, s.head_dim);
  const bool own_keys = s.keys_of < 0;
  check("k", k, own_keys ? s.n_kv_heads : 0, s.head_dim);
  check("v", v, own_keys ? s.n_kv_heads : 0, s.head_dim);
  check("out", out, s.n_heads, s.head_dim);
  if (own_keys) {
    reserve(layer);
    append(layer, static_cast<const float*>(k.data), static_cast<const float*>(v.data));
  }

  const std::int64_t width = s.n_heads * s.head_dim;
  float* rotated = rotated_.floats(step_ * width);
  const Rotation& r = rotation(layer);
  rotate(r.table, r.angles, step_, s.n_heads, s.head_dim, static_cast<const float*>(q.data), width,
         s.head_dim, rotated, width, s.head_dim);

  // what shares another layer's keys comes behind it and sees as many tokens
  const Cache& cache = caches_[static_cast<std::size_t>(own_keys ? layer : s.keys_of)];
  const std::int64_t first = first_seen(layer), skipped = (first - cache.first) * s.head_dim;
  KvSegment segment;
  segment.key = cache.keys.floats() + skipped;
  segment.value = cache.values.floats() + skipped;
  segment.first_token = first;
  segment.length = tokens_ + step_ - first;
  segment.head_stride = cache.capacity * s.head_dim;
  segment.row_stride = s.head_dim;
  segment.position = Position::relative;
  const AttendShape shape{.n_queries = step_,
                          .n_heads = s.n_heads,
                          .n_kv_heads = s.n_kv_heads,
                          .head_dim = s.head_dim,
                          .first_position = tokens_,
                          .n_local = s.window == 0 ? kWholeSequence : s.window,
                          .softcap = static_cast<float>(s.soft_cap)};
  const std::span<const KvSegment> list(&segment, 1);
  AttendInput input;
  const TensorSizes sizes{step_, s.n_heads, s.head_dim};
  input.q_relative = {rotated, sizes};
  input.segments = {&list, 1};
  input.sink_logits = maybe_sink_logits;
  AttendOutput output;
  output.out = {static_cast<float*>(out.data), sizes};
  attend(shape, input, output, workspace_);
}

template <class View>
void CausalState::check(const char* name, const View& x, std::int64_t heads,
                        std::int64_t dim) const {
  if (step_ == 0 || x.sizes.n != step_ || x.sizes.heads != heads || x.sizes.dim != dim ||
      x.dtype != DType::float32 || !x.packed() || x.memory != MemoryKind::host)
    throw DataError(
        fmt::format("causal attention: {} must be packed float32 rows [{}, {}, {}] in host memory, "
                    "within begin_step and end_step",
                    name, step_, heads, dim));
}

CausalState::Cache CausalState::room_for(std::int64_t layer, std::int64_t need,
                                         std::int64_t before) {
  const LayerSpec& s = spec(layer);
  // twice the window, so that moving costs little for each token
  const std::int64_t enough = s.window == 0 ? kWholeSequence : 2 * s.window;
  Cache cache;
  cache.capacity = std::max({need, std::min(2 * before, enough), kFirstCapacity});
  const std::int64_t size = s.n_kv_heads * cache.capacity * s.head_dim;
  cache.keys.floats(size);
  cache.values.floats(size);
  if (rotation(layer).rope.depends_on_length()) cache.unrotated.floats(size);
  return cache;
}

/// Room for the step behind what its queries still see: by moving that to the front of a bounded
/// cache, or into a larger one.
void CausalState::reserve(std::int64_t layer) {
  Cache& cache = caches_[static_cast<std::size_t>(layer)];
  if (tokens_ + step_ - cache.first <= cache.capacity) return;
  const LayerSpec& s = spec(layer);
  const std::int64_t first = first_seen(layer), kept = tokens_ - first, need = kept + step_;
  const auto bytes = static_cast<std::size_t>(kept * s.head_dim) * sizeof(float);
  const auto move = [&](const AlignedBuffer& from, AlignedBuffer& to, std::int64_t capacity) {
    if (kept == 0 || to.size() == 0) return;
    for (std::int64_t g = 0; g < s.n_kv_heads; ++g)
      std::memmove(to.floats() + g * capacity * s.head_dim,
                   from.floats() + (g * cache.capacity + first - cache.first) * s.head_dim, bytes);
  };
  const auto move_all = [&](Cache& to) {
    move(cache.keys, to.keys, to.capacity);
    move(cache.values, to.values, to.capacity);
    move(cache.unrotated, to.unrotated, to.capacity);
  };
  if (need > cache.capacity) {
    Cache grown = room_for(layer, need, cache.capacity);
    grown.version = cache.version;
    move_all(grown);
    cache = std::move(grown);
  } else {
    move_all(cache);
  }
  cache.first = first;
}

void CausalState::append(std::int64_t layer, const float* k, const float* v) {
  const LayerSpec& s = spec(layer);
  const Rotation& r = rotation(layer);
  Cache& cache = caches_[static_cast<std::size_t>(layer)];
  const std::int64_t d = s.head_dim, head_stride = cache.capacity * d;
  const std::int64_t at = (tokens_ - cache.first) * d;
  const auto store = [&](const float* from, AlignedBuffer& to) {
    float* rows = to.floats() + at;
    for (std::int64_t i = 0; i < step_; ++i)
      for (std::int64_t g = 0; g < s.n_kv_heads; ++g)
        std::memcpy(rows + g * head_stride + i * d, from + (i * s.n_kv_heads + g) * d,
                    static_cast<std::size_t>(d) * sizeof(float));
  };
  if (cache.unrotated.size() > 0) {
    store(k, cache.unrotated);
    if (cache.version != r.version) {  // what came before was turned by another table
      const std::int64_t first = first_seen(layer), n = tokens_ - first;
      const std::int64_t from = (first - cache.first) * d;
      RotaryAngles angles;
      angles.compute(r.table, first, n);
      rotate(r.table, angles, n, s.n_kv_heads, d, cache.unrotated.floats() + from, d, head_stride,
             cache.keys.floats() + from, d, head_stride);
      cache.version = r.version;
    }
  }
  rotate(r.table, r.angles, step_, s.n_kv_heads, d, k, s.n_kv_heads * d, d,
         cache.keys.floats() + at, d, head_stride);
  store(v, cache.values);
}

std::shared_ptr<AttentionSlot> causal_slot(std::shared_ptr<CausalState> state, std::int64_t layer,
                                           std::vector<float> sink_logits) {
  return std::make_shared<CausalSlot>(std::move(state), layer, std::move(sink_logits));
}

void use_full_attention(Decoder& model) {
  auto state = std::make_shared<CausalState>(model.config());
  for (std::int64_t l = 0; l < model.config().n_layers; ++l) {
    const bool attends =
        model.config().layers[static_cast<std::size_t>(l)].mixer == Mixer::attention;
    model.attention(l) = attends ? causal_slot(state, l, model.sink_logits(l)) : nullptr;
  }
  model.state() = std::move(state);
}

}  // namespace episodic
