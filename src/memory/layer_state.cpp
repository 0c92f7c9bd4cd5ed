// SPDX-License-Identifier: Apache-2.0
#include "layer_state.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/recall/representatives.hpp"

namespace episodic::detail {
namespace {

constexpr std::int64_t kTokensPerTask = 32;

}  // namespace

LayerState::LayerState(const MemoryConfig& config, const MemoryShape& shape,
                       const Rotation& rotation, std::int64_t capacity, std::vector<Lane> of)
    : lanes(std::move(of)),
      rotation_(&rotation),
      n_init_(config.n_init),
      n_local_(config.n_local),
      n_heads_(shape.n_heads),
      n_kv_heads_(shape.n_kv_heads),
      head_dim_(shape.head_dim),
      n_repr_(config.n_repr),
      capacity_(capacity),
      unit_length_(config.reweight != Reweighting::none),
      keeps_each_(config.score == RepresentativeScore::max) {
  const auto ring = static_cast<std::size_t>(n_kv_heads_ * capacity_ * head_dim_);
  window.keys.resize(ring);
  window.rotated.resize(ring);
  window.values.resize(ring);
  window.relevance.resize(static_cast<std::size_t>(capacity_ * n_heads_));
  window.sink_keys.resize(static_cast<std::size_t>(n_kv_heads_ * n_init_ * head_dim_));
  window.sink_values.resize(window.sink_keys.size());
  window.recall.resize(lanes.size());
  sums_.resize(static_cast<std::size_t>(std::min(capacity_, n_local_ + config.chunk) * n_heads_));
  event_keys_.resize(static_cast<std::size_t>(n_kv_heads_ * config.max_block * head_dim_));
  event_relevance_.resize(static_cast<std::size_t>(config.max_block * n_heads_));
  mean_.resize(static_cast<std::size_t>(n_heads_ * head_dim_));
  if (keeps_each_) each_.resize(mean_.size() * static_cast<std::size_t>(n_repr_));
}

void LayerState::append(std::int64_t first, const float* k, const float* v) {
  const std::int64_t d = head_dim_;
  const std::int64_t n = rotation_->step.n;
  const auto row_bytes = static_cast<std::size_t>(d) * sizeof(float);
  parallel_for((n + kTokensPerTask - 1) / kTokensPerTask, [&](std::int64_t task) {
    const std::int64_t end = std::min(n, (task + 1) * kTokensPerTask);
    for (std::int64_t i = task * kTokensPerTask; i < end; ++i) {
      const std::int64_t token = first + i;
      for (std::int64_t g = 0; g < n_kv_heads_; ++g) {
        const float* key = k + (i * n_kv_heads_ + g) * d;
        const float* value = v + (i * n_kv_heads_ + g) * d;
        const std::int64_t at = g * head_stride() + slot(token) * d;
        std::memcpy(window.keys.data() + at, key, row_bytes);
        std::memcpy(window.values.data() + at, value, row_bytes);
        if (token < n_init_) {
          std::memcpy(window.sink_keys.data() + (g * n_init_ + token) * d, key, row_bytes);
          std::memcpy(window.sink_values.data() + (g * n_init_ + token) * d, value, row_bytes);
        }
      }
    }
  });
  const HeadRows keys = HeadRows(k).with_strides(n_kv_heads_, d);
  for (std::int64_t i = 0; i < n;) {  // twice, where the ring wraps
    const std::int64_t rows = std::min(n - i, capacity_ - slot(first + i));
    rotate(rotation_->table, rotation_->step.rows(i, rows), rows, n_kv_heads_, d, keys.from_row(i),
           MutableHeadRows(window.rotated.data() + slot(first + i) * d, DType::float32, d,
                           head_stride()));
    i += rows;
  }
}

void LayerState::push_ring(const float* keys, std::int64_t first, std::int64_t end,
                           Position position, std::vector<KvSegment>& out) const {
  while (first < end) {
    const std::int64_t at = slot(first);
    KvSegment s;
    s.key = keys + at * head_dim_;
    s.value = window.values.data() + at * head_dim_;
    s.length = std::min(end - first, capacity_ - at);
    s.first_token = first;
    s.head_stride = head_stride();
    s.row_stride = head_dim_;
    s.position = position;
    out.push_back(s);
    first += s.length;
  }
}

void LayerState::window_segments(std::int64_t first, std::int64_t n, std::int64_t pending_start,
                                 std::vector<KvSegment>& out) const {
  const std::int64_t outside = std::max<std::int64_t>(0, first + n - n_local_);
  if (const std::int64_t sinks = std::min(n_init_, outside); sinks > 0) {
    KvSegment s;
    s.key = window.sink_keys.data();
    s.value = window.sink_values.data();
    s.length = sinks;
    s.head_stride = n_init_ * head_dim_;
    s.row_stride = head_dim_;
    out.push_back(s);
  }
  push_ring(window.keys.data(), pending_start, outside, Position::fixed, out);
  push_ring(window.rotated.data(), std::max<std::int64_t>(0, first + 1 - n_local_), first + n,
            Position::relative, out);
}

void LayerState::open_sums(std::span<const KvSegment> segments, std::vector<float*>& out) {
  out.clear();
  sums_rows_ = 0;
  for (const KvSegment& s : segments) {
    if (s.position != Position::relative) continue;
    if (sums_rows_ == 0) sums_first_ = s.first_token;
    out.push_back(sums_.data() + sums_rows_ * n_heads_);
    sums_rows_ += s.length;
  }
  std::fill_n(sums_.begin(), sums_rows_ * n_heads_, 0.0f);
}

void LayerState::add_event(std::int64_t p, const TokenRange& event, std::int64_t first) {
  RepresentativeIndex* const index = lane(p).index.get();
  if (!index) return;
  const std::int64_t n = event.size(), d = head_dim_;
  // The lane's query heads and key/value heads.
  const std::int64_t H = n_heads_ / n_lanes(), h0 = p * H;
  const std::int64_t G = n_kv_heads_ / n_lanes();
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t token = event.start + i;
    float* r = event_relevance_.data() + i * H;
    if (token < first)
      std::copy_n(relevance(token) + h0, H, r);
    else
      std::fill_n(r, H, 0.0f);
    if (token < sums_first_ || token >= sums_first_ + sums_rows_) continue;
    const float* s = sums_.data() + (token - sums_first_) * n_heads_ + h0;
    for (std::int64_t h = 0; h < H; ++h) r[h] += s[h];
  }
  const float* const base = window.keys.data() + p * G * head_stride();
  KeyView keys{base + slot(event.start) * d, head_stride(), d};
  if (slot(event.start) + n > capacity_) {  // wraps around the ring
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t g = 0; g < G; ++g)
        std::copy_n(base + g * head_stride() + slot(event.start + i) * d, d,
                    event_keys_.data() + (g * n + i) * d);
    keys = {event_keys_.data(), n * d, d};
  }
  const std::int64_t count =
      select_representatives(keys, event_relevance_.data(), n, H, G, d, n_repr_, mean_.data(),
                             keeps_each_ ? each_.data() : nullptr);
  if (unit_length_) scale_to_unit(std::span(mean_).first(static_cast<std::size_t>(H * d)));
  index->add(mean_.data(), keeps_each_ ? each_.data() : nullptr, count);
}

void LayerState::commit(std::int64_t first, std::int64_t n) noexcept {
  const std::int64_t H = n_heads_;
  for (std::int64_t i = 0; i < n; ++i)
    std::fill_n(window.relevance.begin() + slot(first + i) * H, H, 0.0f);
  for (std::int64_t i = 0; i < sums_rows_; ++i) {
    float* r = window.relevance.data() + slot(sums_first_ + i) * H;
    const float* s = sums_.data() + i * H;
    for (std::int64_t h = 0; h < H; ++h) r[h] += s[h];
  }
  for (std::size_t p = 0; p < lanes.size(); ++p) std::swap(window.recall[p], lanes[p].next_recall);
}

void LayerState::add_event(const float* mean) {
  if (lanes.front().index) lanes.front().index->add(mean, nullptr, 0);
}

MemoryState::Layer LayerState::state() const {
  return {window.keys,
          window.values,
          window.relevance,
          window.sink_keys,
          window.sink_values,
          window.recall.front().similarity(),
          window.recall.front().contiguity()};
}

void LayerState::check(const MemoryState::Layer& state) const {
  if (state.keys.size() != window.keys.size() || state.values.size() != window.values.size() ||
      state.relevance.size() != window.relevance.size() ||
      state.sink_keys.size() != window.sink_keys.size() ||
      state.sink_values.size() != window.sink_values.size())
    throw DataError("layer state: arrays of other sizes than this memory's window");
}

void LayerState::resume(const MemoryState::Layer& state, RecallBuffers recall,
                        std::int64_t tokens) {
  window.keys = state.keys;
  window.values = state.values;
  window.relevance = state.relevance;
  window.sink_keys = state.sink_keys;
  window.sink_values = state.sink_values;
  window.recall.front() = std::move(recall);
  rotate_window(tokens);
}

void LayerState::restore(const LayerWindow& from, std::vector<RecallBuffers> recall) noexcept {
  // Of one size: nothing is allocated.
  const auto copy = [](const std::vector<float>& source, std::vector<float>& to) {
    std::copy(source.begin(), source.end(), to.begin());
  };
  copy(from.keys, window.keys);
  copy(from.rotated, window.rotated);
  copy(from.values, window.values);
  copy(from.relevance, window.relevance);
  copy(from.sink_keys, window.sink_keys);
  copy(from.sink_values, window.sink_values);
  window.recall = std::move(recall);
}

void LayerState::reset(std::vector<Lane> empty) noexcept {
  for (std::vector<float>* array : {&window.keys, &window.rotated, &window.values,
                                    &window.relevance, &window.sink_keys, &window.sink_values})
    std::fill(array->begin(), array->end(), 0.0f);
  for (RecallBuffers& recall : window.recall) recall.clear();
  lanes = std::move(empty);
}

void LayerState::save(ByteWriter& to) const {
  to.put_vector(window.keys);
  to.put_vector(window.values);
  to.put_vector(window.relevance);
  to.put_vector(window.sink_keys);
  to.put_vector(window.sink_values);
  for (const RecallBuffers& recall : window.recall) recall.save(to);
}

void LayerState::load(ByteReader& from, std::int64_t tokens, const Timeline& time) {
  const auto fill = [&](std::vector<float>& v, const char* what) {
    v = from.get_vector<float>(v.size(), what);
  };
  fill(window.keys, "keys of the window");
  fill(window.values, "values of the window");
  fill(window.relevance, "relevance");
  fill(window.sink_keys, "keys of the sinks");
  fill(window.sink_values, "values of the sinks");
  for (std::size_t p = 0; p < lanes.size(); ++p)
    window.recall[p].load(from, time.events(lanes[p].scope).size());
  rotate_window(tokens);
}

/// The same function of the same numbers as in append, row by row.
void LayerState::rotate_window(std::int64_t tokens) {
  RotaryAngles angles;
  for (std::int64_t t = std::max<std::int64_t>(0, tokens - capacity_); t < tokens; ++t) {
    angles.compute(rotation_->table, t, 1);
    rotate(rotation_->table, angles, 1, n_kv_heads_, head_dim_,
           window.keys.data() + slot(t) * head_dim_, n_kv_heads_ * head_dim_, head_stride(),
           window.rotated.data() + slot(t) * head_dim_, head_dim_, head_stride());
  }
}

RingView LayerState::ring(std::int64_t p) const {
  const std::int64_t at = p * (n_kv_heads_ / n_lanes()) * head_stride();
  return {window.keys.data() + at, window.values.data() + at, capacity_, head_stride(), head_dim_};
}

KeyRing LayerState::key_ring() const {
  return {window.keys.data(), capacity_, head_stride(), head_dim_};
}

const float* LayerState::relevance(std::int64_t token) const {
  return window.relevance.data() + slot(token) * n_heads_;
}

std::int64_t LayerState::bytes() const {
  const std::size_t floats = window.keys.size() + window.rotated.size() + window.values.size() +
                             window.relevance.size() + window.sink_keys.size() +
                             window.sink_values.size() + sums_.size() + event_keys_.size();
  return static_cast<std::int64_t>(floats * sizeof(float));
}

std::int64_t LayerState::bytes_needed(const MemoryConfig& config, const MemoryShape& shape,
                                      std::int64_t capacity) {
  const std::int64_t token = shape.n_kv_heads * shape.head_dim;
  const std::int64_t local = std::min(capacity, config.n_local + config.chunk);
  return 4 * (3 * capacity * token + capacity * shape.n_heads + 2 * config.n_init * token +
              local * shape.n_heads + config.max_block * token);
}

}  // namespace episodic::detail
