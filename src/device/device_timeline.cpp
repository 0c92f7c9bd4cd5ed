// SPDX-License-Identifier: Apache-2.0
#include "device_timeline.hpp"

#include <algorithm>
#include <limits>

#include "episodic/base/bytes.hpp"
#include "ring_rows.hpp"
#include "transfers.hpp"

namespace episodic::device {
namespace {

kernels::RefineObjective objective_of(Refinement r) {
  switch (r) {
    case Refinement::none:
      return kernels::RefineObjective::none;
    case Refinement::modularity:
      return kernels::RefineObjective::modularity;
    case Refinement::conductance:
      return kernels::RefineObjective::conductance;
    case Refinement::intra_inter:
      return kernels::RefineObjective::intra_inter;
  }
  return kernels::RefineObjective::none;
}

/// Each part of what is saved begins aligned.
std::int64_t saved_room(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

// -- places and states ----------------------------------------------------------------------------

void DeviceTimeline::lay_out_tables(MemoryLayout& layout) {
  state_ = layout.take<State>(sizes_.scopes);
  events_ = layout.by_event<kernels::EventRange>(sizes_.scopes, 1, MemoryLayout::Rows::are_final);
}

void DeviceTimeline::lay_out_step(MemoryLayout& layout) {
  const MemoryConfig& config = sizes_.config;
  recent_ = layout.take<float>(recent_capacity());
  threshold_ = layout.take<float>(config.chunk);
  surprise_ = layout.take<float>(config.chunk);
  raw_ = layout.take<std::uint8_t>(sizes_.scopes * config.chunk);
  flags_ = layout.take<std::uint8_t>(sizes_.scopes * sizes_.capacity);
  ring_keys_ = layout.take<const void*>(sizes_.shape.n_layers);
  if (!by_keys()) return;
  key_segmenter_ = layout.take<kernels::KeySegmenterState>(key_segmenters());
  key_mean_ = layout.take<double>(key_channels());
  key_variance_ = layout.take<double>(key_variances());
}

void DeviceTimeline::upload(const std::vector<const void*>& ring_keys, cudaStream_t stream) {
  device::write(ring_keys_, ring_keys.data(), static_cast<std::int64_t>(ring_keys.size()), stream);
}

std::vector<DeviceTimeline::State> DeviceTimeline::clear(const std::vector<std::int64_t>& given,
                                                         cudaStream_t stream) {
  const MemoryConfig& config = sizes_.config;
  fill(flags_, 0, sizes_.scopes * sizes_.capacity, stream);
  std::vector<State> empty(static_cast<std::size_t>(sizes_.scopes),
                           kernels::initial_timeline(config.n_init));
  write_states(empty, stream);
  const bool by_numbers = config.segmenter != SegmenterKind::surprise && !by_keys();
  segmenter_ = by_numbers ? make_segmenter(config, given) : nullptr;
  if (by_keys())
    write_key_segmenter(
        {std::vector<kernels::KeySegmenterState>(static_cast<std::size_t>(key_segmenters()),
                                                 kernels::initial_key_segmenter(config.n_init)),
         {},
         {}},
        stream);
  return empty;
}

/// The states are the first.
std::array<DeviceTimeline::Saved, 9> DeviceTimeline::saved() const {
  const std::int64_t chunk = sizes_.config.chunk;
  const bool keys = by_keys();
  return {{{state_, sizes_.scopes * std::int64_t{sizeof(State)}},
           {recent_, recent_capacity() * std::int64_t{sizeof(float)}},
           {raw_, raw_rows() * chunk},
           {threshold_, chunk * std::int64_t{sizeof(float)}},
           {surprise_, chunk * std::int64_t{sizeof(float)}},
           {flags_, sizes_.scopes * sizes_.capacity},
           {key_segmenter_,
            keys ? key_segmenters() * std::int64_t{sizeof(kernels::KeySegmenterState)} : 0},
           {key_mean_, keys ? key_channels() * std::int64_t{sizeof(double)} : 0},
           {key_variance_, keys ? key_variances() * std::int64_t{sizeof(double)} : 0}}};
}

std::int64_t DeviceTimeline::saved_bytes() const {
  std::int64_t all = 0;
  for (const Saved& s : saved()) all += saved_room(s.bytes);
  return all;
}

void DeviceTimeline::copy_saved(std::byte* at, bool back, cudaMemcpyKind kind,
                                cudaStream_t stream) const {
  for (const Saved& s : saved()) {
    if (s.bytes > 0)
      check(cudaMemcpyAsync(back ? s.of : at, back ? at : s.of, static_cast<std::size_t>(s.bytes),
                            kind, stream),
            "what a step's end changes");
    at += saved_room(s.bytes);
  }
}

void DeviceTimeline::copy(const DeviceTimeline& from, cudaStream_t stream) const {
  const std::array<Saved, 9> to = saved(), of = from.saved();
  for (std::size_t i = 0; i < to.size(); ++i)
    move(static_cast<std::byte*>(to[i].of), static_cast<const std::byte*>(of[i].of), to[i].bytes,
         stream);
}

// -- the end of a step ----------------------------------------------------------------------------

kernels::ThresholdParams DeviceTimeline::threshold_params(std::int64_t n,
                                                          const float* surprise) const {
  const MemoryConfig& config = sizes_.config;
  kernels::ThresholdParams p;
  p.window = config.window == ThresholdWindow::moving ? kernels::ThresholdWindow::moving
                                                      : kernels::ThresholdWindow::chunked;
  p.tau = config.effective_tau();
  p.n_init = config.n_init;
  p.gamma = config.gamma;
  p.n = n;
  p.state = state_;
  p.surprise = surprise;
  p.recent = recent_;
  p.recent_capacity = recent_capacity();
  p.threshold = threshold_;
  p.raw = raw_;
  p.maybe_kept = surprise_;
  return p;
}

kernels::KeySegmenterParams DeviceTimeline::key_segmenter_params(std::int64_t n,
                                                                 const Workspace& w) const {
  const MemoryConfig& config = sizes_.config;
  kernels::KeySegmenterParams p;
  p.signal = config.segmenter == SegmenterKind::gaussian ? kernels::KeySignal::gaussian
                                                         : kernels::KeySignal::similarity;
  p.per_head = sizes_.by_head();
  p.gamma = config.gamma;
  p.min_count = config.effective_min_count();
  p.var_floor = config.var_floor;
  p.n = n;
  p.state = state_;
  p.segmenter = key_segmenter_;
  p.mean = key_mean_;
  p.variance = key_variance_;
  p.dtype = sizes_.options.dtype;
  p.n_layers = sizes_.shape.n_layers;
  p.n_kv_heads = sizes_.shape.n_kv_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.keys = ring_keys_;
  p.key_capacity = sizes_.capacity;
  p.key_head_stride = sizes_.head_stride;
  p.key_row_stride = sizes_.shape.head_dim;
  p.raw = raw_;
  p.workspace = w.data;
  p.workspace_bytes = static_cast<std::size_t>(w.bytes);
  return p;
}

void DeviceTimeline::send_flags(std::int64_t tokens, std::int64_t n, StagingRing& staging,
                                cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(n);
  ignored_.assign(count, 0.0f);
  thresholds_.assign(count, 0.0f);
  staging.send(raw_, n, stream, [&](std::uint8_t* host) {
    segmenter_->step(tokens, ignored_, thresholds_, {host, count});
  });
  staging.send(threshold_, n, stream,
               [&](float* host) { std::copy(thresholds_.begin(), thresholds_.end(), host); });
}

kernels::RefineParams DeviceTimeline::refine_params(std::int64_t n, const Workspace& w) const {
  const MemoryConfig& config = sizes_.config;
  kernels::RefineParams p;
  p.objective = objective_of(config.refine);
  p.n_init = config.n_init;
  p.min_block = config.min_block;
  p.n = n;
  p.max_previous = config.chunk;
  p.n_timelines = sizes_.scopes;
  p.state = state_;
  p.raw = raw_;
  p.shared_raw = !(sizes_.by_head() && by_keys());
  p.flags = flags_;
  p.flag_capacity = sizes_.capacity;
  p.dtype = sizes_.options.dtype;
  // Heads that are refined by themselves are so in every layer, as on the host.
  const std::int64_t first_layer = sizes_.by_head() ? 0 : config.refine_layers;
  p.n_layers = sizes_.shape.n_layers - first_layer;
  p.n_kv_heads = sizes_.shape.n_kv_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.keys = ring_keys_ ? ring_keys_ + first_layer : nullptr;
  p.key_capacity = sizes_.capacity;
  p.key_head_stride = sizes_.head_stride;
  p.key_row_stride = sizes_.shape.head_dim;
  p.workspace = w.data;
  p.workspace_bytes = static_cast<std::size_t>(w.bytes);
  return p;
}

kernels::CloseEventsParams DeviceTimeline::close_params(std::int64_t n) const {
  kernels::CloseEventsParams p;
  p.n_local = sizes_.config.n_local;
  p.min_block = sizes_.config.min_block;
  p.max_block = sizes_.config.max_block;
  p.n = n;
  p.n_timelines = sizes_.scopes;
  p.state = state_;
  p.flags = flags_;
  p.flag_capacity = sizes_.capacity;
  p.events = events_;
  p.event_capacity = sizes_.max_events;
  return p;
}

// -- these wait -----------------------------------------------------------------------------------

std::vector<DeviceTimeline::State> DeviceTimeline::read_states(cudaStream_t stream) const {
  return device::read(state_, sizes_.scopes, stream);
}

DeviceTimeline::State DeviceTimeline::read_state(std::int64_t scope, cudaStream_t stream) const {
  return device::read(state_ + scope, 1, stream)[0];
}

void DeviceTimeline::write_states(const std::vector<State>& states, cudaStream_t stream) const {
  device::write(state_, states.data(), static_cast<std::int64_t>(states.size()), stream);
}

std::vector<kernels::EventRange> DeviceTimeline::read_ranges(std::int64_t scope, std::int64_t first,
                                                             std::int64_t end,
                                                             cudaStream_t stream) const {
  return device::read(events(scope) + first, end - first, stream);
}

std::vector<TokenRange> DeviceTimeline::read_events(std::int64_t scope, std::int64_t first,
                                                    std::int64_t end, cudaStream_t stream) const {
  std::vector<TokenRange> out;
  for (const kernels::EventRange& e : read_ranges(scope, first, end, stream))
    out.push_back({e.start, e.end});
  return out;
}

void DeviceTimeline::write_events(std::int64_t scope, const std::vector<TokenRange>& of,
                                  cudaStream_t stream) const {
  std::vector<kernels::EventRange> ranges;
  for (const TokenRange& e : of) ranges.push_back({e.start, e.end});
  device::write(events(scope), ranges.data(), static_cast<std::int64_t>(ranges.size()), stream);
}

void DeviceTimeline::read_record(std::int64_t scope, StepRecord& r, cudaStream_t stream) const {
  const State now = read_state(scope, stream);
  r.events_before = now.n_events - now.n_closed;
  r.surprise = device::read(surprise_, r.n, stream);
  r.threshold = device::read(threshold_, r.n, stream);
  if (by_keys())  // which have none over surprise, as on the host
    r.threshold.assign(r.threshold.size(), std::numeric_limits<float>::infinity());
  r.raw_boundaries = device::read(raw_ + (raw_rows() > 1 ? scope : 0) * r.n, r.n, stream);
  const std::int64_t capacity = sizes_.capacity;
  const std::vector<std::uint8_t> ring = device::read(flags_ + scope * capacity, capacity, stream);
  for (std::int64_t i = 0; i < r.n; ++i)
    r.final_boundaries.push_back(ring[static_cast<std::size_t>((r.first + i) % capacity)]);
}

void DeviceTimeline::write(const EpisodicMemory& from, const MemoryState& handed,
                           cudaStream_t stream) const {
  const std::int64_t capacity = sizes_.capacity;
  for (std::int64_t s = 0; s < sizes_.scopes; ++s)
    device::write(flags_ + s * capacity,
                  in_ring(handed.scopes[static_cast<std::size_t>(s)].final_flags,
                          sizes_.window_tokens, capacity, 1, handed.tokens)
                      .data(),
                  capacity, stream);
  std::vector<float> ring(static_cast<std::size_t>(recent_capacity()));
  const auto known = static_cast<std::int64_t>(handed.recent_surprise.size());
  for (std::int64_t i = 0; i < known; ++i)
    ring[static_cast<std::size_t>((handed.tokens - known + i) % recent_capacity())] =
        handed.recent_surprise[static_cast<std::size_t>(i)];
  device::write(recent_, ring.data(), recent_capacity(), stream);
  write_states(states_of(from, handed), stream);
  if (by_keys())
    write_key_segmenter(from_bytes(handed.segmenter, key_segmenters(), sizes_.config.n_init),
                        stream);
}

std::vector<DeviceTimeline::State> DeviceTimeline::states_of(const EpisodicMemory& from,
                                                             const MemoryState& handed) {
  std::vector<State> now(handed.scopes.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto s = static_cast<std::int64_t>(i);
    now[i].tokens = handed.tokens;
    now[i].steps = static_cast<std::uint32_t>(handed.steps);
    now[i].last_boundary = handed.scopes[i].last_boundary;
    now[i].last_in_previous = handed.scopes[i].last_in_previous;
    now[i].pending_start = from.events(s).pending_start();
    now[i].n_events = from.events(s).size();
  }
  return now;
}

void DeviceTimeline::read(const std::vector<State>& now, std::int64_t tokens, MemoryState& to,
                          cudaStream_t stream) const {
  const std::int64_t capacity = sizes_.capacity;
  to.scopes.clear();
  for (const State& of_scope : now)
    to.scopes.push_back(
        {of_scope.last_boundary, of_scope.last_in_previous,
         in_ring(device::read(flags_ + static_cast<std::int64_t>(to.scopes.size()) * capacity,
                              capacity, stream),
                 capacity, sizes_.window_tokens, 1, tokens)});
  if (sizes_.config.segmenter == SegmenterKind::surprise) {
    const std::vector<float> ring = device::read(recent_, recent_capacity(), stream);
    const std::int64_t first = std::max<std::int64_t>(0, tokens - sizes_.config.effective_tau());
    for (std::int64_t t = first; t < tokens; ++t)
      to.recent_surprise.push_back(ring[static_cast<std::size_t>(t % recent_capacity())]);
  }
  if (by_keys())
    to.segmenter = to_bytes({device::read(key_segmenter_, key_segmenters(), stream),
                             device::read(key_mean_, key_channels(), stream),
                             device::read(key_variance_, key_variances(), stream)},
                            tokens);
}

/// Moments that are left out are those of an event without keys, which nothing reads.
void DeviceTimeline::write_key_segmenter(const HostKeySegmenter& from, cudaStream_t stream) const {
  const auto put = [&](auto* to, const auto& values) {
    device::write(to, values.data(), static_cast<std::int64_t>(values.size()), stream);
  };
  put(key_segmenter_, from.states);
  put(key_mean_, from.mean);
  put(key_variance_, from.variance);
}

/// Segmenters that read keys as the host's memory keeps them (KeySegmenter::save), one after the
/// other.
std::vector<std::byte> DeviceTimeline::to_bytes(const HostKeySegmenter& from, std::int64_t tokens) {
  ByteWriter to;
  for (std::size_t i = 0; i < from.states.size(); ++i) {
    const kernels::KeySegmenterState& state = from.states[i];
    /// Its channels; those of an event without keys are nothing.
    const auto own = [&](const std::vector<double>& moments) {
      const std::size_t channels = moments.size() / from.states.size();
      std::vector<double> of(channels);
      if (state.count > 0) std::copy_n(moments.data() + i * channels, channels, of.data());
      return of;
    };
    to.put(tokens);
    to.put(state.count);
    to.put(state.recorded);
    to.put(state.mean);
    to.put(state.squares);
    to.put_vector(own(from.mean));
    to.put_vector(own(from.variance));
  }
  return to.take();
}

DeviceTimeline::HostKeySegmenter DeviceTimeline::from_bytes(const std::vector<std::byte>& bytes,
                                                            std::int64_t segmenters,
                                                            std::int64_t n_init) {
  ByteReader from(bytes, "the memory's segmenter");
  HostKeySegmenter to;
  for (std::int64_t i = 0; i < segmenters; ++i) {
    kernels::KeySegmenterState& state = to.states.emplace_back();
    state.next = std::max(from.get<std::int64_t>(), n_init);
    state.count = from.get<std::int64_t>();
    state.recorded = from.get<std::int64_t>();
    state.mean = from.get<double>();
    state.squares = from.get<double>();
    for (std::vector<double>* moments : {&to.mean, &to.variance}) {
      const std::vector<double> own = from.get_vector<double>();
      moments->insert(moments->end(), own.begin(), own.end());
    }
  }
  return to;
}

}  // namespace episodic::device
