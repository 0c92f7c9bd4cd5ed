// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/detail/layer_state.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/detail/layer_state.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "episodic/attention/copy_rows.hpp"
#include "episodic/attention/detail/rotate_row.hpp"
#include "episodic/attention/detail/row_buffer.hpp"
#include "episodic/attention/detail/rows.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/text.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/recall/representatives.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace layer_state_detail {

inline constexpr std::int64_t kTokensPerTask = 32;

inline std::vector<float> widened(std::span<const std::byte> from, DType dtype) {
  const auto n = static_cast<std::int64_t>(from.size()) / size_of(dtype);
  std::vector<float> to(static_cast<std::size_t>(n));
  cpu::kernels().to_float(from.data(), dtype, n, to.data());
  return to;
}

/// \param to of as many elements
inline void narrow(std::span<const float> from, DType dtype, std::byte* to) {
  store_row(cpu::kernels(), from.data(), static_cast<std::int64_t>(from.size()), to, dtype);
}

/// The number of elements, then the elements.
inline void put(ByteWriter& to, std::span<const std::byte> elements, DType dtype) {
  const std::size_t n = elements.size() / static_cast<std::size_t>(size_of(dtype));
  if (dtype == DType::float32)
    to.put_span(std::span(reinterpret_cast<const float*>(elements.data()), n));
  else
    to.put_span(std::span(reinterpret_cast<const std::uint16_t*>(elements.data()), n));
}

/// \param stored dtype of what is read: that of `elements`, or float32
inline void get(ByteReader& from, DType stored, const char* what, DType dtype,
                std::span<std::byte> elements) {
  const std::size_t n = elements.size() / static_cast<std::size_t>(size_of(dtype));
  if (stored == DType::float32)
    return narrow(from.get_vector<float>(n, what), dtype, elements.data());
  const auto halves = from.get_vector<std::uint16_t>(n, what);
  if (n > 0)
    std::memcpy(elements.data(), halves.data(), elements.size());  // nothing may have no address
}

/// An array [heads, all, row] of which only the first `reached` rows of each head count.
struct Rows {
  std::int64_t heads = 0, all = 0, reached = 0, row = 0;

  std::size_t of_head(std::int64_t rows, DType dtype) const {
    return static_cast<std::size_t>(rows * row * size_of(dtype));
  }
};

/// As put, of the rows that count.
inline void put(ByteWriter& to, std::span<const std::byte> elements, DType dtype,
                const Rows& rows) {
  if (rows.reached == rows.all) return put(to, elements, dtype);
  const std::size_t part = rows.of_head(rows.reached, dtype), whole = rows.of_head(rows.all, dtype);
  std::vector<std::byte> packed(static_cast<std::size_t>(rows.heads) * part);
  for (std::int64_t h = 0; part > 0 && h < rows.heads; ++h)
    std::memcpy(packed.data() + static_cast<std::size_t>(h) * part,
                elements.data() + static_cast<std::size_t>(h) * whole, part);
  put(to, packed, dtype);
}

/// As get, of the rows that count; the others stay as they are.
inline void get(ByteReader& from, DType stored, const char* what, DType dtype,
                std::span<std::byte> elements, const Rows& rows) {
  if (rows.reached == rows.all) return get(from, stored, what, dtype, elements);
  const std::size_t part = rows.of_head(rows.reached, dtype), whole = rows.of_head(rows.all, dtype);
  std::vector<std::byte> packed(static_cast<std::size_t>(rows.heads) * part);
  get(from, stored, what, dtype, packed);
  for (std::int64_t h = 0; part > 0 && h < rows.heads; ++h)
    std::memcpy(elements.data() + static_cast<std::size_t>(h) * whole,
                packed.data() + static_cast<std::size_t>(h) * part, part);
}

/// One head of a token: where it lies, or widened into `to`.
inline const float* as_float(const TensorView& x, std::int64_t i, std::int64_t g, float* to) {
  if (x.dtype == DType::float32) return static_cast<const float*>(x.at(i, g));
  cpu::kernels().to_float(x.at(i, g), x.dtype, x.sizes.dim, to);
  return to;
}

/// The largest magnitude of a dtype of 16 bits, for a message.
inline const char* largest_of(DType dtype) { return dtype == DType::float16 ? "65504" : "3.39e38"; }

}  // namespace layer_state_detail

EPISODIC_INLINE void Rotation::turn_back(const char* name, std::int64_t layer, std::int64_t first,
                                         std::int64_t n) {
  if (table.rotary_dim() == 0)
    throw DataError(concat("attend: ", name, " of layer ", layer,
                           " comes after rotary embedding, but the layer has no rotary table to "
                           "turn it back by; give it in the memory's shape, or mark the view "
                           "Rotary::before"));
  if (has_back) return;
  back.compute_back(table, first, n);
  has_back = true;
}

EPISODIC_INLINE std::vector<float> refuse_not_finite(const char* name, const TensorView& x,
                                                     const Rotation& rotation, std::int64_t layer,
                                                     std::int64_t first) {
  std::vector<float> packed(static_cast<std::size_t>(x.sizes.n * x.sizes.heads * x.sizes.dim));
  const MutableTensorView rows(packed.data(), x.sizes);
  copy_rows(x, rows);
  const auto refuse = [&](const char* said) {
    for (std::size_t i = 0; i < packed.size(); ++i)
      if (!std::isfinite(packed[i]))
        throw DataError(concat(
            "attend: ", name, said, " of token ",
            first + static_cast<std::int64_t>(i) / (x.sizes.heads * x.sizes.dim), " in layer ",
            layer, " holds ", packed[i],
            "; the step was not taken. Look for a number that overflowed in the layers before, or "
            "in the weights"));
  };
  refuse("");
  if (x.rotary == Rotary::after) {
    rotate(rotation.table, rotation.back.rows(), rows, rows);
    refuse(", turned back by its position,");
  }
  return packed;
}

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
      dtype_(window_dtype(config.kv_dtype)),
      unit_length_(config.reweight != Reweighting::none),
      keeps_each_(config.score == RepresentativeScore::max) {
  rings_ = rings.size() > 0 ? std::move(rings) : Pages(bytes_of(kParts * ring_size()));
  relevance_.resize(static_cast<std::size_t>(capacity_ * n_heads_));
  sinks_.keys.resize(bytes_of(n_kv_heads_ * n_init_ * head_dim_));
  sinks_.values.resize(sinks_.keys.size());
  recall_.resize(lanes.size());
  sums_.resize(static_cast<std::size_t>(std::min(capacity_, n_local_ + config.chunk) * n_heads_));
  event_keys_.resize(bytes_of(n_kv_heads_ * config.max_block * head_dim_));
  event_relevance_.resize(static_cast<std::size_t>(config.max_block * n_heads_));
  mean_.resize(static_cast<std::size_t>(n_heads_ * head_dim_));
  // An event has as many representatives as tokens, at most.
  if (keeps_each_)
    each_.resize(mean_.size() * static_cast<std::size_t>(std::min(n_repr_, config.max_block)));
}

EPISODIC_INLINE void LayerState::append(std::int64_t layer, std::int64_t first, const TensorView& k,
                                        const TensorView& v) {
  using namespace layer_state_detail;
  const std::int64_t n = rotation_->step.n, d = head_dim_;
  if (first < n_init_) change_sinks();
  const RotateRow rotate(cpu::kernels(), rotation_->table, d);
  std::atomic<bool> all_fit{true};
  parallel_for((n + kTokensPerTask - 1) / kTokensPerTask, [&](std::int64_t task) {
    RowBuffer rotated(d), wide_key(d), wide_value(d);
    bool fit = true;
    const std::int64_t end = std::min(n, (task + 1) * kTokensPerTask);
    for (std::int64_t i = task * kTokensPerTask; i < end; ++i)
      for (std::int64_t g = 0; g < n_kv_heads_; ++g) {
        const float* key = as_float(k, i, g, wide_key.data());
        if (k.rotary == Rotary::after) {
          rotate(rotation_->back.rows(), i, key, wide_key.data());
          key = wide_key.data();
        }
        fit &= append_row(rotate, first + i, g, i, key, as_float(v, i, g, wide_value.data()),
                          rotated.data());
      }
    if (!fit) all_fit.store(false, std::memory_order_relaxed);
  });
  if (!all_fit) refuse(layer, first, k, v);
}

EPISODIC_INLINE bool LayerState::append_row(const RotateRow& rotate, std::int64_t token,
                                            std::int64_t g, std::int64_t row, const float* key,
                                            const float* value, float* rotated) {
  const std::int64_t d = head_dim_, at = g * head_stride() + slot(token) * d;
  const std::size_t bytes = bytes_of(d);
  std::byte* const to[kParts] = {ring(kKeys, at), ring(kRotated, at), ring(kValues, at)};
  // A head's next token goes behind this one, after all other heads: hardware does not see that.
  for (std::byte* part : to) fetch_to_write(part + bytes, static_cast<std::int64_t>(bytes));
  const std::uint32_t beyond = overflow_bits(dtype_);
  if (!all_below(key, d, beyond) || !all_below(value, d, beyond)) return false;
  const AngleRows angles = rotation_->step.rows();
  if (dtype_ == DType::float32) {
    rotate(angles, row, key, reinterpret_cast<float*>(to[kRotated]));
    std::memcpy(to[kKeys], key, bytes);
    std::memcpy(to[kValues], value, bytes);
  } else {
    // The window's key is what is rotated, so that a memory that is opened again has the same bits.
    const cpu::Kernels& k = cpu::kernels();
    store_row(k, key, d, to[kKeys], dtype_);
    k.to_float(to[kKeys], dtype_, d, rotated);
    rotate(angles, row, rotated, rotated);
    if (!all_below(rotated, d, beyond)) return false;
    store_row(k, rotated, d, to[kRotated], dtype_);
    store_row(k, value, d, to[kValues], dtype_);
  }
  if (token < n_init_) {
    const std::size_t sink = bytes_of((g * n_init_ + token) * d);
    std::memcpy(sinks_.keys.data() + sink, to[kKeys], bytes);
    std::memcpy(sinks_.values.data() + sink, to[kValues], bytes);
  }
  return true;
}

EPISODIC_INLINE void LayerState::refuse(std::int64_t layer, std::int64_t first, const TensorView& k,
                                        const TensorView& v) const {
  const std::int64_t n = rotation_->step.n, width = n_kv_heads_ * head_dim_;
  const std::vector<float> keys = refuse_not_finite("k", k, *rotation_, layer, first);
  const std::vector<float> values =
      refuse_not_finite("v", v.with(Rotary::before), *rotation_, layer, first);
  const auto too_large = [&](const char* what, std::int64_t i, float x) {
    throw DataError(
        concat("attend: ", what, " of token ", first + i, " in layer ", layer, " holds ", x,
               ", beyond the largest ", name_of(dtype_), ", ",
               layer_state_detail::largest_of(dtype_), "; the step was not taken. Set kv_dtype to ",
               dtype_ == DType::float16 ? "\"bfloat16\" or \"float32\"" : "\"float32\""));
  };
  const std::uint32_t beyond = overflow_bits(dtype_);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < width; ++c)
      for (const std::vector<float>* x : {&keys, &values})
        if (const float* at = x->data() + i * width + c; !all_below(at, 1, beyond))
          too_large(x == &keys ? "k" : "v", i, *at);
  // What is left is a key that fits, but not when it is rotated: two channels that nearly do not.
  const cpu::Kernels& kernels = cpu::kernels();
  const RotateRow rotate(kernels, rotation_->table, head_dim_);
  std::vector<std::byte> key(bytes_of(head_dim_));
  std::vector<float> rotated(static_cast<std::size_t>(head_dim_));
  for (std::int64_t row = 0; row < n * n_kv_heads_; ++row) {
    store_row(kernels, keys.data() + row * head_dim_, head_dim_, key.data(), dtype_);
    kernels.to_float(key.data(), dtype_, head_dim_, rotated.data());
    rotate(rotation_->step.rows(), row / n_kv_heads_, rotated.data(), rotated.data());
    for (const float x : rotated)
      if (!all_below(&x, 1, beyond)) too_large("k, rotated by its position,", row / n_kv_heads_, x);
  }
}

EPISODIC_INLINE void LayerState::push_ring(Part keys, std::int64_t first, std::int64_t end,
                                           Position position, std::vector<KvSegment>& out) const {
  while (first < end) {
    const std::int64_t at = slot(first);
    KvSegment s;
    s.key = ring(keys, at * head_dim_);
    s.value = ring(kValues, at * head_dim_);
    s.length = std::min(end - first, capacity_ - at);
    s.first_token = first;
    s.head_stride = head_stride();
    s.row_stride = head_dim_;
    s.dtype = dtype_;
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
    s.dtype = dtype_;
    out.push_back(s);
  }
  push_ring(kKeys, pending_start, outside, Position::fixed, out);
  push_ring(kRotated, std::max<std::int64_t>(0, first + 1 - n_local_), first + n,
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
  const std::int64_t base = p * G * head_stride();
  KeyView keys{ring(kKeys, base + slot(event.start) * d), head_stride(), d, dtype_};
  if (slot(event.start) + n > capacity_) {  // wraps around the ring
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t g = 0; g < G; ++g)
        std::memcpy(event_keys_.data() + bytes_of((g * n + i) * d),
                    ring(kKeys, base + g * head_stride() + slot(event.start + i) * d), bytes_of(d));
    keys = {event_keys_.data(), n * d, d, dtype_};
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

EPISODIC_INLINE MemoryState::Layer LayerState::state() const {
  using layer_state_detail::widened;
  MemoryState::Layer state{widened(ring(kKeys), dtype_), widened(ring(kValues), dtype_), relevance_,
                           widened(sinks_.keys, dtype_), widened(sinks_.values, dtype_), {}};
  for (const RecallBuffers& recall : recall_)
    state.lanes.push_back({recall.similarity(), recall.contiguity()});
  return state;
}

EPISODIC_INLINE void LayerState::check(const MemoryState::Layer& state) const {
  const auto ring = static_cast<std::size_t>(ring_size());
  const std::size_t sinks = sinks_.keys.size() / bytes_of(1);
  if (state.keys.size() != ring || state.values.size() != ring ||
      state.relevance.size() != relevance_.size() || state.sink_keys.size() != sinks ||
      state.sink_values.size() != sinks || state.lanes.size() != lanes.size())
    throw DataError("layer state: arrays of other sizes than this memory's window, or other lanes");
  if (dtype_ == DType::float32) return;
  for (const std::vector<float>* array :
       {&state.keys, &state.values, &state.sink_keys, &state.sink_values})
    if (!all_below(array->data(), static_cast<std::int64_t>(array->size()), overflow_bits(dtype_)))
      throw DataError(concat("layer state: keys or values beyond the largest ", name_of(dtype_),
                             ", ", layer_state_detail::largest_of(dtype_),
                             ", in which this memory's window is"));
}

EPISODIC_INLINE void LayerState::resume(const MemoryState::Layer& state,
                                        std::vector<RecallBuffers> recall, std::int64_t tokens) {
  using layer_state_detail::narrow;
  narrow(state.keys, dtype_, ring(kKeys, 0));
  narrow(state.values, dtype_, ring(kValues, 0));
  relevance_ = state.relevance;
  Sinks& sinks = change_sinks();
  narrow(state.sink_keys, dtype_, sinks.keys.data());
  narrow(state.sink_values, dtype_, sinks.values.data());
  recall_ = std::move(recall);
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
  const std::size_t row = bytes_of(head_dim_);  // of one head, in one ring
  const std::size_t needed =
      log.rows.size() + static_cast<std::size_t>(n * kParts * n_kv_heads_) * row;
  if (needed > log.rows.capacity()) log.rows.reserve(std::max(needed, 2 * log.rows.capacity()));
  for (std::int64_t t = log.end; t < log.end + n; ++t)
    for (std::int64_t part = 0; part < kParts * n_kv_heads_; ++part) {
      const std::byte* from = rings_.data() + bytes_of(part * head_stride() + slot(t) * head_dim_);
      log.rows.insert(log.rows.end(), from, from + row);
    }
  log.end += n;
}

EPISODIC_INLINE void LayerState::put_back(const RowLog::Layer& log) noexcept {
  const std::byte* from = log.rows.data();
  const std::size_t row = bytes_of(head_dim_);
  for (std::int64_t t = log.first; t < log.end; ++t)
    for (std::int64_t part = 0; part < kParts * n_kv_heads_; ++part, from += row)
      std::memcpy(rings_.data() + bytes_of(part * head_stride() + slot(t) * head_dim_), from, row);
}

EPISODIC_INLINE void LayerState::reset(std::vector<Lane> empty) noexcept {
  std::fill_n(rings_.data(), rings_.size(), std::byte{});
  std::fill(relevance_.begin(), relevance_.end(), 0.0f);
  Sinks& sinks = change_sinks();
  std::fill(sinks.keys.begin(), sinks.keys.end(), std::byte{});
  std::fill(sinks.values.begin(), sinks.values.end(), std::byte{});
  for (RecallBuffers& recall : recall_) recall.clear();
  lanes = std::move(empty);
}

EPISODIC_INLINE void LayerState::save(ByteWriter& to, std::int64_t tokens) const {
  using layer_state_detail::put;
  const std::int64_t reached = std::min(tokens, capacity_);
  const layer_state_detail::Rows window{n_kv_heads_, capacity_, reached, head_dim_};
  const layer_state_detail::Rows sinks{n_kv_heads_, n_init_, std::min(tokens, n_init_), head_dim_};
  put(to, ring(kKeys), dtype_, window);
  put(to, ring(kValues), dtype_, window);
  to.put_span(std::span(relevance_).first(static_cast<std::size_t>(reached * n_heads_)));
  put(to, sinks_.keys, dtype_, sinks);
  put(to, sinks_.values, dtype_, sinks);
  for (const RecallBuffers& recall : recall_) recall.save(to);
}

EPISODIC_INLINE void LayerState::load(ByteReader& from, std::int64_t tokens, const Timeline& time,
                                      DType windows) {
  using layer_state_detail::get;
  const bool whole = from.version() < kReachedRows;
  const std::int64_t reached = whole ? capacity_ : std::min(tokens, capacity_);
  const layer_state_detail::Rows window{n_kv_heads_, capacity_, reached, head_dim_};
  const layer_state_detail::Rows sinks{n_kv_heads_, n_init_,
                                       whole ? n_init_ : std::min(tokens, n_init_), head_dim_};
  get(from, windows, "keys of the window", dtype_, ring(kKeys), window);
  get(from, windows, "values of the window", dtype_, ring(kValues), window);
  const auto relevance =
      from.get_vector<float>(static_cast<std::size_t>(reached * n_heads_), "relevance");
  std::copy(relevance.begin(), relevance.end(), relevance_.begin());
  get(from, windows, "keys of the sinks", dtype_, change_sinks().keys, sinks);
  get(from, windows, "values of the sinks", dtype_, sinks_.values, sinks);
  for (std::size_t p = 0; p < lanes.size(); ++p)
    recall_[p].load(from, time.events(lanes[p].scope).size());
  if (!rotate_window(tokens))
    throw FileError(concat(from.where(), ": the window holds numbers beyond the largest ",
                           name_of(dtype_), ", ", layer_state_detail::largest_of(dtype_),
                           ", in which this version keeps it; ingest the text anew with kv_dtype "
                           "\"float32\""));
}

/// The same function of the same numbers as in append_row.
EPISODIC_INLINE bool LayerState::rotate_window(std::int64_t tokens) {
  const cpu::Kernels& k = cpu::kernels();
  const RotateRow rotate(k, rotation_->table, head_dim_);
  RotaryAngles angles;
  RowBuffer row(head_dim_);
  bool finite = true;
  for (std::int64_t t = std::max<std::int64_t>(0, tokens - capacity_); t < tokens; ++t) {
    angles.compute(rotation_->table, t, 1);
    for (std::int64_t g = 0; g < n_kv_heads_; ++g) {
      const std::int64_t at = g * head_stride() + slot(t) * head_dim_;
      k.to_float(ring(kValues, at), dtype_, head_dim_, row.data());
      finite &= all_below(row.data(), head_dim_, kInfinityBits);
      k.to_float(ring(kKeys, at), dtype_, head_dim_, row.data());
      rotate(angles.rows(), 0, row.data(), row.data());
      finite &= all_below(row.data(), head_dim_, overflow_bits(dtype_));
      store_row(k, row.data(), head_dim_, ring(kRotated, at), dtype_);
    }
  }
  return finite;
}

EPISODIC_INLINE RingView LayerState::ring(std::int64_t p) const {
  const std::int64_t at = p * (n_kv_heads_ / n_lanes()) * head_stride();
  return {ring(kKeys, at), ring(kValues, at), capacity_, head_stride(), head_dim_, dtype_};
}

EPISODIC_INLINE KeyRing LayerState::key_ring() const {
  return {ring(kKeys, 0), capacity_, head_stride(), head_dim_, dtype_};
}

EPISODIC_INLINE const float* LayerState::relevance(std::int64_t token) const {
  return relevance_.data() + slot(token) * n_heads_;
}

EPISODIC_INLINE std::int64_t LayerState::bytes() const {
  const std::size_t in_dtype =
      rings_.size() + sinks_.keys.size() + sinks_.values.size() + event_keys_.size();
  return static_cast<std::int64_t>(in_dtype + sizeof(float) * (relevance_.size() + sums_.size()));
}

EPISODIC_INLINE std::int64_t LayerState::bytes_needed(const MemoryConfig& config,
                                                      const MemoryShape& shape,
                                                      std::int64_t capacity) {
  const std::int64_t token = shape.n_kv_heads * shape.head_dim;
  const std::int64_t local = std::min(capacity, config.n_local + config.chunk);
  return size_of(window_dtype(config.kv_dtype)) * token *
             (kParts * capacity + 2 * config.n_init + config.max_block) +
         size_of(DType::float32) * shape.n_heads * (capacity + local);
}

}  // namespace EPISODIC_NAMESPACE::detail
