// SPDX-License-Identifier: Apache-2.0
// Golden cases without a model by the kernels, each called as the memory on a device calls it
// (src/device). Float32 all through. Linked where a device, or the emulation of one, is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "device/cuda.hpp"
#include "device/head_layout.hpp"
#include "engines.hpp"
#include "episodic/device/device_decoder.hpp"
#include "kernels/attention.hpp"
#include "kernels/close_events.hpp"
#include "kernels/copies.hpp"
#include "kernels/event_mass.hpp"
#include "kernels/forgetting.hpp"
#include "kernels/key_segmenter.hpp"
#include "kernels/refine.hpp"
#include "kernels/reweight.hpp"
#include "kernels/rows.hpp"
#include "kernels/window.hpp"
#include "trace_parts.hpp"

namespace episodic::tools {
namespace {

using device::check;
using kernels::DeviceEventId;
using kernels::EventRange;
using kernels::TimelineState;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// An array in device memory. It may end behind a launch: cudaFree waits.
template <class T>
class OnDevice {
 public:
  /// All bytes are zero.
  explicit OnDevice(std::int64_t n)
      : n_(n),
        buffer_(std::max<std::int64_t>(1, n * std::int64_t{sizeof(T)}), "trace",
                "take a smaller case, or --device cpu") {
    check(cudaMemset(data(), 0, size(buffer_.bytes())), "clearing");
  }
  OnDevice(std::span<const T> from) : OnDevice(std::ssize(from)) {
    check(cudaMemcpy(data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice),
          "a copy to the device");
  }
  OnDevice(const std::vector<T>& from) : OnDevice(std::span(from)) {}

  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  /// Waits for what was launched before.
  std::vector<T> read() const {
    std::vector<T> to(size(n_));
    check(cudaMemcpy(to.data(), data(), to.size() * sizeof(T), cudaMemcpyDeviceToHost),
          "a copy from the device");
    return to;
  }

 private:
  std::int64_t n_;
  device::DeviceBuffer buffer_;
};

template <class T>
OnDevice<T> one(const T& value) {
  return OnDevice<T>(std::span(&value, 1));
}

/// \throws DataError: the case goes beyond what a kernel takes
void require(bool fits, const std::string& what) {
  if (!fits) throw DataError("trace --device cuda: " + what + "; use --device cpu");
}

// -- reweighted attention --

/// The arrays of one chunk's attention in device memory, in heads as the kernels take them.
class AttentionOnDevice {
 public:
  explicit AttentionOnDevice(const WeightedAttention& a)
      : a_(a), layout_(model_of(a)), d_(layout_.head_dim()) {}

  /// \param ones values of one take the place of the case's: out is then the mass
  std::vector<float> run(const std::vector<WeightedEvent>& present, bool ones) const {
    const std::int64_t n = a_.n, G = a_.kv_heads, tokens = a_.tokens();
    const std::int64_t n_events = std::ssize(a_.events);
    const RotaryTable table = layout_.table(plain_rotary(a_.head_dim, a_.rope_theta));
    const OnDevice<double> frequencies(table.inverse_frequency);
    const Angles of_keys(frequencies, table, 0, tokens),
        of_queries(frequencies, table, a_.start, n), fixed(frequencies, table, a_.n_local - 1, 1);

    // The window, and the sinks: all tokens in one step.
    const OnDevice<float> q(padded(a_.q)), k(padded(a_.k));
    const OnDevice<float> v(ones ? std::vector<float>(size(tokens * G * d_), 1.0f) : padded(a_.v));
    const std::int64_t capacity = std::max(tokens, a_.n_local + n - 1);
    const std::int64_t head_stride = capacity * d_;
    const OnDevice<float> ring_key(G * head_stride), ring_rotated(G * head_stride),
        ring_value(G * head_stride);
    const OnDevice<float> sink_key(G * a_.n_init * d_), sink_value(G * a_.n_init * d_);
    const OnDevice<std::int64_t> zero(1), start = one(a_.start);
    kernels::AppendParams append;
    append.dtype = DType::float32;
    append.n = tokens;
    append.n_kv_heads = G;
    append.head_dim = d_;
    append.rotary_dim = table.rotary_dim();
    append.first_position = zero.data();
    append.k = k.data();
    append.v = v.data();
    append.k_row_stride = append.v_row_stride = G * d_;
    append.cos = of_keys.cos.data();
    append.sin = of_keys.sin.data();
    append.ring_key = ring_key.data();
    append.ring_rotated_key = ring_rotated.data();
    append.ring_value = ring_value.data();
    append.ring_capacity = capacity;
    append.ring_head_stride = head_stride;
    append.sink_key = sink_key.data();
    append.sink_value = sink_value.data();
    append.n_init = a_.n_init;
    check(kernels::append_window(append, nullptr), "appending", append);

    // The events' blocks, out of the window.
    std::vector<EventRange> ranges;
    std::vector<std::int64_t> starts, ends;
    std::int64_t in_events = 0;
    for (const TokenRange& e : a_.events) {
      ranges.push_back({e.start, e.end});
      starts.push_back(e.start);
      ends.push_back(e.end);
      in_events += e.size();
    }
    const OnDevice<float> blocks(2 * G * in_events * d_);
    std::vector<void*> block_of;
    for (const TokenRange& e : a_.events)
      block_of.push_back(blocks.data() + 2 * G * (e.start - a_.n_init) * d_);
    const OnDevice<EventRange> events(ranges);
    const OnDevice<std::int64_t> first(starts), last(ends), event_count = one(n_events);
    const OnDevice<std::int32_t> closed = one(static_cast<std::int32_t>(n_events));
    const OnDevice<void*> event_block(block_of);
    const OnDevice<kernels::EventBlockLayer> rings =
        one(kernels::EventBlockLayer{ring_key.data(), ring_value.data(), nullptr});
    kernels::EventBlockParams keep;
    keep.events.start = first.data();
    keep.events.end = last.data();
    keep.events.count = closed.data();
    keep.events.max_count = n_events;
    keep.dtype = keep.block_dtype = DType::float32;
    keep.n_kv_heads = G;
    keep.head_dim = d_;
    keep.layers = rings.data();
    keep.n_layers = 1;
    keep.ring_capacity = capacity;
    keep.ring_head_stride = head_stride;
    keep.block = event_block.data();
    check(kernels::event_to_block(keep, nullptr), "keeping events", keep);

    // Far keys as rows: sinks, pending tokens, and the events that take part with their weights.
    std::vector<DeviceEventId> ids;
    std::vector<float> weights(size(n_events), 0.0f);
    for (const WeightedEvent& e : present) {
      ids.push_back(static_cast<DeviceEventId>(e.event));
      weights[size(e.event)] = e.value_weight;
    }
    const std::int64_t max_rows = a_.outside();
    const OnDevice<DeviceEventId> recalled(ids);
    const OnDevice<std::int32_t> n_recalled = one(static_cast<std::int32_t>(ids.size()));
    const OnDevice<float> event_weight(weights);
    const OnDevice<kernels::KvRow> rows(max_rows);
    const OnDevice<std::int32_t> n_rows(1), overflow(1);
    if (max_rows > 0) {
      kernels::RowsParams far;
      far.dtype = DType::float32;
      far.n_kv_heads = G;
      far.head_dim = d_;
      far.tokens = start.data();
      far.n = n;
      far.n_init = a_.n_init;
      far.n_local = a_.n_local;
      far.sink_key = sink_key.data();
      far.sink_value = sink_value.data();
      far.ring_key = ring_key.data();
      far.ring_value = ring_value.data();
      far.ring_capacity = capacity;
      far.ring_head_stride = head_stride;
      far.n_events = event_count.data();
      far.events = events.data();
      far.event_block = event_block.data();
      far.maybe_event_weight = event_weight.data();
      far.recalled = recalled.data();
      far.n_recalled = n_recalled.data();
      far.rows = rows.data();
      far.n_rows = n_rows.data();
      far.max_rows = max_rows;
      far.overflow = overflow.data();
      check(kernels::far_rows(far, nullptr), "far rows", far);
    }

    const OnDevice<float> out(n * a_.heads * d_);
    kernels::AttentionParams p;
    p.dtype = DType::float32;
    p.n_queries = n;
    p.n_heads = a_.heads;
    p.n_kv_heads = G;
    p.head_dim = d_;
    p.n_local = a_.n_local;
    p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a_.head_dim)));
    p.q = q.data();
    p.q_row_stride = a_.heads * d_;
    p.first_position = start.data();
    p.rotary_dim = table.rotary_dim();
    p.query_cos = of_queries.cos.data();
    p.query_sin = of_queries.sin.data();
    p.fixed_cos = fixed.cos.data();
    p.fixed_sin = fixed.sin.data();
    p.rows = rows.data();
    p.n_rows = n_rows.data();
    p.max_rows = max_rows;
    p.local_key = ring_rotated.data();
    p.local_value = ring_value.data();
    p.ring_capacity = capacity;
    p.ring_head_stride = head_stride;
    p.out = out.data();
    p.workspace_bytes = kernels::attention_workspace_bytes(p);
    const OnDevice<std::byte> workspace(static_cast<std::int64_t>(p.workspace_bytes));
    p.workspace = workspace.data();
    check(kernels::segmented_attention(p, nullptr), "attention", p);
    return layout_.of_model(out.read());
  }

 private:
  struct Angles {
    OnDevice<float> cos, sin;
    Angles(const OnDevice<double>& frequencies, const RotaryTable& table, std::int64_t first,
           std::int64_t n)
        : cos(n * table.rotary_dim() / 2), sin(n * table.rotary_dim() / 2) {
      const OnDevice<std::int64_t> position = one(first);
      const kernels::RotaryAnglesParams p{
          n,         table.rotary_dim() / 2, position.data(), frequencies.data(), 1.0, cos.data(),
          sin.data()};
      check(kernels::rotary_angles(p, nullptr), "rotary angles", p);
    }
  };

  /// What HeadLayout looks at.
  static ModelConfig model_of(const WeightedAttention& a) {
    constexpr std::int64_t kWidest = 256;
    require(a.head_dim <= kWidest,
            fmt::format("heads of {} channels, the kernels take {}", a.head_dim, kWidest));
    ModelConfig model;
    model.head_dim = a.head_dim;
    model.ropes.resize(1);
    model.ropes[0].table = plain_rotary(a.head_dim, a.rope_theta);
    return model;
  }

  /// Heads side by side as the device has them.
  std::vector<float> padded(std::span<const float> heads) const {
    const std::int64_t n = std::ssize(heads) / a_.head_dim;
    std::vector<float> to(size(n * d_), 0.0f);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < d_; ++c)
        if (const std::int64_t from = layout_.channel(c); from >= 0)
          to[size(i * d_ + c)] = heads[size(i * a_.head_dim + from)];
    return to;
  }

  const WeightedAttention& a_;
  device::HeadLayout layout_;
  std::int64_t d_;
};

// -- all of it --

class DeviceParts final : public TraceParts {
 public:
  KeyVerdicts cut(const KeysToCut& c) override {
    // Settings that the host's class refuses too, with its messages.
    static_cast<void>(KeySegmenter(c.settings, c.per_head ? 1 : c.layers * c.heads, c.head_dim));
    const std::int64_t row = c.layers * c.heads * c.head_dim, layer = row / c.layers;
    const OnDevice<float> keys(c.keys);
    std::vector<const void*> rings;
    for (std::int64_t l = 0; l < c.layers; ++l) rings.push_back(keys.data() + l * layer);
    const OnDevice<const void*> key_rings(rings);
    const OnDevice<TimelineState> state(
        std::vector<TimelineState>(size(c.units()), kernels::initial_timeline(c.settings.n_init)));
    const OnDevice<kernels::KeySegmenterState> segmenter(std::vector<kernels::KeySegmenterState>(
        size(c.units()), kernels::initial_key_segmenter(c.settings.n_init)));
    const OnDevice<double> mean(row), variance(row);
    const std::int64_t verdicts = c.units() * c.tokens;
    const OnDevice<std::uint8_t> raw(verdicts);
    const OnDevice<float> signal(verdicts), threshold(verdicts);
    kernels::KeySegmenterParams p;
    p.signal = c.settings.signal == KeySignal::gaussian ? kernels::KeySignal::gaussian
                                                        : kernels::KeySignal::similarity;
    p.per_head = c.per_head;
    p.gamma = c.settings.gamma;
    p.min_count = c.settings.min_count;
    p.var_floor = c.settings.var_floor;
    p.n = c.tokens;
    p.state = state.data();
    p.segmenter = segmenter.data();
    p.mean = mean.data();
    p.variance = variance.data();
    p.dtype = DType::float32;
    p.n_layers = c.layers;
    p.n_kv_heads = c.heads;
    p.head_dim = c.head_dim;
    p.keys = key_rings.data();
    p.key_capacity = c.tokens;
    p.key_head_stride = c.head_dim;
    p.key_row_stride = row;
    p.raw = raw.data();
    p.maybe_signal = signal.data();
    p.maybe_threshold = threshold.data();
    p.workspace_bytes = kernels::key_segmenter_workspace_bytes(p);
    const OnDevice<std::byte> workspace(static_cast<std::int64_t>(p.workspace_bytes));
    p.workspace = workspace.data();
    check(kernels::segment_by_keys(p, nullptr), "boundaries from keys", p);
    return {raw.read(), signal.read(), threshold.read()};
  }

  /// Up to the last token: to close_events a window of one token, and one token more.
  std::vector<EventsOfUnit> close(const KeysToCut& c,
                                  const std::vector<std::uint8_t>& opens) override {
    const std::int64_t units = c.units(), n = c.tokens;
    if (n == 0) return std::vector<EventsOfUnit>(size(units), {{}, c.settings.n_init});
    TimelineState before = kernels::initial_timeline(c.settings.n_init);
    before.tokens = 1;  // the first one opens no event by a flag
    std::vector<std::uint8_t> later;
    for (std::int64_t u = 0; u < units; ++u) {
      later.insert(later.end(), opens.begin() + u * n + 1, opens.begin() + (u + 1) * n);
      later.push_back(0);
    }
    const std::int64_t capacity = n + c.max_block + 1;
    const OnDevice<TimelineState> state(std::vector<TimelineState>(size(units), before));
    const OnDevice<std::uint8_t> raw(later), flags(units * capacity);
    const OnDevice<EventRange> events(units * n);
    kernels::RefineParams keep;
    keep.n = n;
    keep.n_timelines = units;
    keep.state = state.data();
    keep.raw = raw.data();
    keep.flags = flags.data();
    keep.flag_capacity = capacity;
    check(kernels::refine_boundaries(keep, nullptr), "boundaries", keep);
    kernels::CloseEventsParams p;
    p.n_local = 1;
    p.min_block = c.min_block;
    p.max_block = c.max_block;
    p.n = n;
    p.n_timelines = units;
    p.state = state.data();
    p.flags = flags.data();
    p.flag_capacity = capacity;
    p.events = events.data();
    p.event_capacity = n;
    check(kernels::close_events(p, nullptr), "closing events", p);
    const std::vector<TimelineState> after = state.read();
    const std::vector<EventRange> closed = events.read();
    std::vector<EventsOfUnit> of_units;
    for (std::int64_t u = 0; u < units; ++u) {
      EventsOfUnit& unit = of_units.emplace_back();
      for (std::int64_t e = 0; e < after[size(u)].n_events; ++e)
        unit.events.push_back({closed[size(u * n + e)].start, closed[size(u * n + e)].end});
      unit.pending_start = after[size(u)].pending_start;
    }
    return of_units;
  }

  std::vector<float> scores(std::span<const float> query,
                            std::span<const float> encodings) override {
    const std::int64_t width = std::ssize(query), events = std::ssize(encodings) / width;
    constexpr std::int64_t kWidest = 24 << 10;
    require(width <= kWidest,
            fmt::format("encodings of {} numbers, the kernels take {}", width, kWidest));
    const OnDevice<float> q(query), e(encodings), score(events);
    const OnDevice<std::int64_t> count = one(events);
    kernels::EventScoreParams p;
    p.query = q.data();
    p.width = width;
    p.dtype = DType::float32;
    p.representative = e.data();
    p.n_events = count.data();
    p.max_events = events;
    p.score = score.data();
    check(kernels::score_events(p, nullptr), "scores of events", p);
    return score.read();
  }

  std::vector<WeightedEvent> choose(Reweight mode, std::int64_t top_k,
                                    const std::vector<float>& scores) override {
    const std::int64_t events = std::ssize(scores);
    // Nothing to choose: all, each by its score.
    if (mode == Reweight::exact) return reweighted_events(mode, top_k, scores);
    const OnDevice<float> score(scores);
    const OnDevice<std::int64_t> count = one(events);
    const OnDevice<std::uint8_t> is_top(events);
    const OnDevice<DeviceEventId> top(events), beside(events), all(events);
    const OnDevice<std::int32_t> sizes(3);
    kernels::RecallTopParams p;
    p.top_k = top_k;
    p.neighbours = mode == Reweight::broad;
    p.score = score.data();
    p.n_events = count.data();
    p.max_events = events;
    p.is_top = is_top.data();
    p.similarity = top.data();
    p.contiguity_list = beside.data();
    p.recalled = all.data();
    p.list_capacity = events;
    p.sizes = sizes.data();
    check(kernels::recall_top(p, nullptr), "recall", p);
    const std::vector<DeviceEventId> recalled = all.read();
    std::vector<WeightedEvent> present;
    for (std::int32_t i = 0; i < sizes.read()[2]; ++i) present.push_back({recalled[size(i)], 1.0f});
    return present;
  }

  WeightedOutput attend(const WeightedAttention& a,
                        const std::vector<WeightedEvent>& present) override {
    const AttentionOnDevice on_device(a);
    WeightedOutput result;
    result.out = on_device.run(present, false);
    // Probabilities times weights times one: what attention makes of values of one.
    const std::vector<float> masses = on_device.run(present, true);
    for (std::int64_t i = 0; i < a.n * a.heads; ++i)
      result.mass.push_back(masses[size(i * a.head_dim)]);
    return result;
  }

  /// By one query, one head and an event of one token for each recalled engram: its score is the
  /// logarithm of what it is to receive, and the softmax's log-sum-exp is 0.
  std::vector<double> received(const Memoria::Recall& recall,
                               std::span<const float> attention) override {
    std::vector<DeviceEventId> ids;
    for (const auto* list : {&recall.short_term, &recall.long_term})
      for (const std::int64_t id : *list) ids.push_back(static_cast<DeviceEventId>(id));
    const std::int64_t n = std::ssize(ids), total = std::ssize(attention);
    if (n == 0) return {};
    constexpr std::int64_t kDim = 8;      // the narrowest head
    constexpr float kNothing = -1000.0f;  // a score whose exponential is 0
    std::vector<float> keys(size(n * kDim), 0.0f), query(size(kDim), 0.0f);
    query[0] = 1.0f;
    for (std::int64_t i = 0; i < n; ++i) {
      const float weight = attention[size(ids[size(i)])];
      keys[size(i * kDim)] = weight > 0 ? std::log(weight) : kNothing;
    }
    const OnDevice<float> key(keys), q(query), nothing(kDim), log_sum(1);
    std::vector<kernels::KvRow> of_engrams(size(n));
    std::vector<EventRange> of_ids(size(total));
    for (std::int64_t i = 0; i < n; ++i) {
      kernels::KvRow& row = of_engrams[size(i)];
      row.key = row.value = key.data() + i * kDim;
      row.token = ids[size(i)];
      of_ids[size(row.token)] = {row.token, row.token + 1};
    }
    const OnDevice<kernels::KvRow> rows(of_engrams);
    const OnDevice<EventRange> events(of_ids);
    const OnDevice<DeviceEventId> recalled(ids);
    const OnDevice<std::int32_t> count = one(static_cast<std::int32_t>(n));
    const OnDevice<std::int64_t> position = one(total);
    const OnDevice<double> mass(n), sums(total);
    kernels::EventMassParams p;
    kernels::AttentionParams& a = p.attention;
    a.dtype = DType::float32;
    a.n_queries = a.n_heads = a.n_kv_heads = a.n_local = a.ring_capacity = 1;
    a.head_dim = a.q_row_stride = a.ring_head_stride = kDim;
    a.scale = 1.0f;
    a.q = q.data();
    a.first_position = position.data();
    a.rows = rows.data();
    a.n_rows = count.data();
    a.max_rows = n;
    a.local_key = a.local_value = nothing.data();
    const OnDevice<float> out(kDim);
    a.out = out.data();
    a.maybe_lse = log_sum.data();
    a.workspace_bytes = kernels::attention_workspace_bytes(a);
    const OnDevice<std::byte> of_attention(static_cast<std::int64_t>(a.workspace_bytes));
    a.workspace = of_attention.data();
    p.events = events.data();
    p.recalled = recalled.data();
    p.n_recalled = count.data();
    p.list_capacity = n;
    p.mass = mass.data();
    p.workspace_bytes = kernels::event_mass_workspace_bytes(p);
    const OnDevice<std::byte> workspace(static_cast<std::int64_t>(p.workspace_bytes));
    p.workspace = workspace.data();
    check(kernels::event_masses(p, nullptr), "what events receive", p);

    const OnDevice<kernels::LayerMasses> layer =
        one(kernels::LayerMasses{recalled.data(), count.data(), mass.data()});
    kernels::ReceiveParams r;
    r.layers = layer.data();
    r.n_layers = 1;
    r.list_capacity = n;
    r.received = sums.data();
    check(kernels::receive_masses(r, nullptr), "what events received", r);
    const std::vector<double> of_all = sums.read();
    std::vector<double> weights;
    for (const DeviceEventId id : ids) weights.push_back(of_all[size(id)]);
    return weights;
  }

  std::vector<std::int64_t> forget(const Memoria::Recall& recall,
                                   const std::vector<std::int64_t>& engrams,
                                   std::int64_t total) override {
    marks_.resize(size(total), 0);
    const OnDevice<std::uint8_t> marks(marks_);
    const auto ids = [](const std::vector<std::int64_t>& list) {
      return std::vector<DeviceEventId>(list.begin(), list.end());
    };
    std::vector<DeviceEventId> both = ids(recall.short_term);
    for (const std::int64_t id : recall.long_term) both.push_back(static_cast<DeviceEventId>(id));
    const OnDevice<DeviceEventId> gone(ids(engrams)), short_term(ids(recall.short_term)),
        long_term(ids(recall.long_term)), all(both);
    const OnDevice<std::int32_t> sizes(
        std::vector<std::int32_t>{static_cast<std::int32_t>(recall.short_term.size()),
                                  static_cast<std::int32_t>(recall.long_term.size()),
                                  static_cast<std::int32_t>(both.size())});
    const OnDevice<kernels::LaneLists> lane =
        one(kernels::LaneLists{short_term.data(), long_term.data(), all.data(), sizes.data()});
    kernels::ForgetParams p;
    p.events = gone.data();
    p.n_events = std::ssize(engrams);
    p.marks = marks.data();
    p.lanes = lane.data();
    p.n_lanes = 1;
    check(kernels::forget_events(p, nullptr), "forgetting", p);
    const std::vector<std::uint8_t> before = std::exchange(marks_, marks.read());
    std::vector<std::int64_t> marked;
    for (std::int64_t id = 0; id < total; ++id)
      if (marks_[size(id)] != before[size(id)]) marked.push_back(id);
    return marked;
  }

 private:
  std::vector<std::uint8_t> marks_;  // by engram
};

}  // namespace

std::unique_ptr<TraceParts> trace_parts_of_device(const CommonFlags& common) {
  if (!on_usable_device(common)) return nullptr;
  return std::make_unique<DeviceParts>();
}

}  // namespace episodic::tools
