// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/detail/layer_state.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/detail/layer_state.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/recall/representatives.hpp"

namespace episodic::detail {
namespace layer_state_detail {

inline constexpr std::int64_t kTokensPerTask = 32;

}  // namespace layer_state_detail

EPISODIC_INLINE LayerState::LayerState(const MemoryConfig& config, const MemoryShape& shape,
                                       const Rotation& rotation, std::int64_t capacity,
                                       std::vector<Lane> of, Pages rings)
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
  rings_ = rings.size() > 0 ? std::move(rings) : Pages(static_cast<std::size_t>(3 * ring_size()));
  relevance_.resize(static_cast<std::size_t>(capacity_ * n_heads_));
  sinks_.keys.resize(static_cast<std::size_t>(n_kv_heads_ * n_init_ * head_dim_));
  sinks_.values.resize(sinks_.keys.size());
  recall_.resize(lanes.size());
  sums_.resize(static_cast<std::size_t>(std::min(capacity_, n_local_ + config.chunk) * n_heads_));
  event_keys_.resize(static_cast<std::size_t>(n_kv_heads_ * config.max_block * head_dim_));
  event_relevance_.resize(static_cast<std::size_t>(config.max_block * n_heads_));
  mean_.resize(static_cast<std::size_t>(n_heads_ * head_dim_));
  if (keeps_each_) each_.resize(mean_.size() * static_cast<std::size_t>(n_repr_));
}

EPISODIC_INLINE void LayerState::append(std::int64_t first, const float* k, const float* v) {
  const std::int64_t d = head_dim_;
  const std::int64_t n = rotation_->step.n;
  const auto row_bytes = static_cast<std::size_t>(d) * sizeof(float);
  if (first < n_init_) change_sinks();
  parallel_for(
      (n + layer_state_detail::kTokensPerTask - 1) / layer_state_detail::kTokensPerTask,
      [&](std::int64_t task) {
        const std::int64_t end = std::min(n, (task + 1) * layer_state_detail::kTokensPerTask);
        for (std::int64_t i = task * layer_state_detail::kTokensPerTask; i < end; ++i) {
          const std::int64_t token = first + i;
          for (std::int64_t g = 0; g < n_kv_heads_; ++g) {
            const float* key = k + (i * n_kv_heads_ + g) * d;
            const float* value = v + (i * n_kv_heads_ + g) * d;
            const std::int64_t at = g * head_stride() + slot(token) * d;
            std::memcpy(keys() + at, key, row_bytes);
            std::memcpy(values() + at, value, row_bytes);
            if (token < n_init_) {
              std::memcpy(sinks_.keys.data() + (g * n_init_ + token) * d, key, row_bytes);
              std::memcpy(sinks_.values.data() + (g * n_init_ + token) * d, value, row_bytes);
            }
          }
        }
      });
  const HeadRows keys = HeadRows(k).with_strides(n_kv_heads_, d);
  for (std::int64_t i = 0; i < n;) {  // twice, where the ring wraps
    const std::int64_t rows = std::min(n - i, capacity_ - slot(first + i));
    rotate(rotation_->table, rotation_->step.rows(i, rows), rows, n_kv_heads_, d, keys.from_row(i),
           MutableHeadRows(rotated() + slot(first + i) * d, DType::float32, d, head_stride()));
    i += rows;
  }
}

EPISODIC_INLINE void LayerState::push_ring(const float* keys, std::int64_t first, std::int64_t end,
                                           Position position, std::vector<KvSegment>& out) const {
  while (first < end) {
    const std::int64_t at = slot(first);
    KvSegment s;
    s.key = keys + at * head_dim_;
    s.value = values() + at * head_dim_;
    s.length = std::min(end - first, capacity_ - at);
    s.first_token = first;
    s.head_stride = head_stride();
    s.row_stride = head_dim_;
    s.position = position;
    out.push_back(s);
    first += s.length;
  }
}

EPISODIC_INLINE void LayerState::window_segments(std::int64_t first, std::int64_t n,
                                                 std::int64_t pending_start,
                                                 std::vector<KvSegment>& out) const {
  const std::int64_t outside = std::max<std::int64_t>(0, first + n - n_local_);
  if (const std::int64_t sinks = std::min(n_init_, outside); sinks > 0) {
    KvSegment s;
    s.key = sinks_.keys.data();
    s.value = sinks_.values.data();
    s.length = sinks;
    s.head_stride = n_init_ * head_dim_;
    s.row_stride = head_dim_;
    out.push_back(s);
  }
  push_ring(keys(), pending_start, outside, Position::fixed, out);
  push_ring(rotated(), std::max<std::int64_t>(0, first + 1 - n_local_), first + n,
            Position::relative, out);
}

EPISODIC_INLINE void LayerState::open_sums(std::span<const KvSegment> segments,
                                           std::vector<float*>& out) {
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

EPISODIC_INLINE void LayerState::add_event(std::int64_t p, const TokenRange& event,
                                           std::int64_t first) {
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
  const float* const base = keys() + p * G * head_stride();
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

EPISODIC_INLINE void LayerState::commit(std::int64_t first, std::int64_t n) noexcept {
  const std::int64_t H = n_heads_;
  for (std::int64_t i = 0; i < n; ++i)
    std::fill_n(relevance_.begin() + slot(first + i) * H, H, 0.0f);
  for (std::int64_t i = 0; i < sums_rows_; ++i) {
    float* r = relevance_.data() + slot(sums_first_ + i) * H;
    const float* s = sums_.data() + i * H;
    for (std::int64_t h = 0; h < H; ++h) r[h] += s[h];
  }
  for (std::size_t p = 0; p < lanes.size(); ++p) std::swap(recall_[p], lanes[p].next_recall);
}

EPISODIC_INLINE void LayerState::add_event(const float* mean) {
  if (lanes.front().index) lanes.front().index->add(mean, nullptr, 0);
}

EPISODIC_INLINE MemoryState::Layer LayerState::state() const {
  return {{keys(), keys() + ring_size()},
          {values(), values() + ring_size()},
          relevance_,
          sinks_.keys,
          sinks_.values,
          recall_.front().similarity(),
          recall_.front().contiguity()};
}

EPISODIC_INLINE void LayerState::check(const MemoryState::Layer& state) const {
  const auto ring = static_cast<std::size_t>(ring_size());
  if (state.keys.size() != ring || state.values.size() != ring ||
      state.relevance.size() != relevance_.size() || state.sink_keys.size() != sinks_.keys.size() ||
      state.sink_values.size() != sinks_.values.size())
    throw DataError("layer state: arrays of other sizes than this memory's window");
}

EPISODIC_INLINE void LayerState::resume(const MemoryState::Layer& state, RecallBuffers recall,
                                        std::int64_t tokens) {
  std::copy(state.keys.begin(), state.keys.end(), keys());
  std::copy(state.values.begin(), state.values.end(), values());
  relevance_ = state.relevance;
  change_sinks() = {state.sink_keys, state.sink_values};
  recall_.front() = std::move(recall);
  rotate_window(tokens);
}

EPISODIC_INLINE LayerMark LayerState::mark() const {
  if (!saved_sinks_) saved_sinks_ = std::make_shared<const Sinks>(sinks_);
  return {relevance_, saved_sinks_, recall_};
}

EPISODIC_INLINE void LayerState::restore(const LayerMark& from,
                                         std::vector<RecallBuffers> recall) noexcept {
  // Of one size: nothing is allocated.
  std::copy(from.relevance.begin(), from.relevance.end(), relevance_.begin());
  if (from.sinks != saved_sinks_) {
    std::copy(from.sinks->keys.begin(), from.sinks->keys.end(), sinks_.keys.begin());
    std::copy(from.sinks->values.begin(), from.sinks->values.end(), sinks_.values.begin());
    saved_sinks_ = from.sinks;
  }
  recall_ = std::move(recall);
}

EPISODIC_INLINE void LayerState::save_rows(RowLog::Layer& log, std::int64_t end) const {
  // Whatever lies where tokens beyond these go has come since the snapshot.
  const std::int64_t n = std::min(end, log.first + capacity_) - log.end;
  if (n <= 0) return;
  const std::size_t before = log.rows.size(), row = static_cast<std::size_t>(3 * row_size());
  const std::size_t needed = before + static_cast<std::size_t>(n) * row;
  if (needed > log.rows.capacity()) log.rows.reserve(std::max(needed, 2 * log.rows.capacity()));
  for (std::int64_t t = log.end; t < log.end + n; ++t)
    for (std::int64_t part = 0; part < 3 * n_kv_heads_; ++part) {
      const float* from = rings_.data() + part * head_stride() + slot(t) * head_dim_;
      log.rows.insert(log.rows.end(), from, from + head_dim_);
    }
  log.end += n;
}

EPISODIC_INLINE void LayerState::put_back(const RowLog::Layer& log) noexcept {
  const float* from = log.rows.data();
  for (std::int64_t t = log.first; t < log.end; ++t)
    for (std::int64_t part = 0; part < 3 * n_kv_heads_; ++part, from += head_dim_)
      std::copy_n(from, head_dim_, rings_.data() + part * head_stride() + slot(t) * head_dim_);
}

EPISODIC_INLINE void LayerState::reset(std::vector<Lane> empty) noexcept {
  std::fill_n(rings_.data(), rings_.size(), 0.0f);
  std::fill(relevance_.begin(), relevance_.end(), 0.0f);
  Sinks& sinks = change_sinks();
  std::fill(sinks.keys.begin(), sinks.keys.end(), 0.0f);
  std::fill(sinks.values.begin(), sinks.values.end(), 0.0f);
  for (RecallBuffers& recall : recall_) recall.clear();
  lanes = std::move(empty);
}

EPISODIC_INLINE void LayerState::save(ByteWriter& to) const {
  const auto ring = static_cast<std::size_t>(ring_size());
  to.put_span(std::span(keys(), ring));
  to.put_span(std::span(values(), ring));
  to.put_vector(relevance_);
  to.put_vector(sinks_.keys);
  to.put_vector(sinks_.values);
  for (const RecallBuffers& recall : recall_) recall.save(to);
}

EPISODIC_INLINE void LayerState::load(ByteReader& from, std::int64_t tokens, const Timeline& time) {
  const auto ring = [&](float* to, const char* what) {
    const auto all = from.get_vector<float>(static_cast<std::size_t>(ring_size()), what);
    std::copy(all.begin(), all.end(), to);
  };
  const auto fill = [&](std::vector<float>& v, const char* what) {
    v = from.get_vector<float>(v.size(), what);
  };
  ring(keys(), "keys of the window");
  ring(values(), "values of the window");
  fill(relevance_, "relevance");
  fill(change_sinks().keys, "keys of the sinks");
  fill(change_sinks().values, "values of the sinks");
  for (std::size_t p = 0; p < lanes.size(); ++p)
    recall_[p].load(from, time.events(lanes[p].scope).size());
  rotate_window(tokens);
}

/// The same function of the same numbers as in append, row by row.
EPISODIC_INLINE void LayerState::rotate_window(std::int64_t tokens) {
  RotaryAngles angles;
  for (std::int64_t t = std::max<std::int64_t>(0, tokens - capacity_); t < tokens; ++t) {
    angles.compute(rotation_->table, t, 1);
    rotate(rotation_->table, angles, 1, n_kv_heads_, head_dim_, keys() + slot(t) * head_dim_,
           n_kv_heads_ * head_dim_, head_stride(), rotated() + slot(t) * head_dim_, head_dim_,
           head_stride());
  }
}

EPISODIC_INLINE RingView LayerState::ring(std::int64_t p) const {
  const std::int64_t at = p * (n_kv_heads_ / n_lanes()) * head_stride();
  return {keys() + at, values() + at, capacity_, head_stride(), head_dim_};
}

EPISODIC_INLINE KeyRing LayerState::key_ring() const {
  return {keys(), capacity_, head_stride(), head_dim_};
}

EPISODIC_INLINE const float* LayerState::relevance(std::int64_t token) const {
  return relevance_.data() + slot(token) * n_heads_;
}

EPISODIC_INLINE std::int64_t LayerState::bytes() const {
  const std::size_t floats = rings_.size() + relevance_.size() + sinks_.keys.size() +
                             sinks_.values.size() + sums_.size() + event_keys_.size();
  return static_cast<std::int64_t>(floats * sizeof(float));
}

EPISODIC_INLINE std::int64_t LayerState::bytes_needed(const MemoryConfig& config,
                                                      const MemoryShape& shape,
                                                      std::int64_t capacity) {
  const std::int64_t token = shape.n_kv_heads * shape.head_dim;
  const std::int64_t local = std::min(capacity, config.n_local + config.chunk);
  return 4 * (3 * capacity * token + capacity * shape.n_heads + 2 * config.n_init * token +
              local * shape.n_heads + config.max_block * token);
}

}  // namespace episodic::detail
