// SPDX-License-Identifier: Apache-2.0
// States of a DeviceMemory: what the last step left, and the way to a memory of the host and back.
// All of it waits for the device; none of it is part of a step.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/config_difference.hpp"
#include "convert.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/error.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::HostRecallLists;
using device::RecallLists;
using kernels::DeviceEventId;
using kernels::EventRange;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

namespace {

std::vector<EventId> host_ids(const std::vector<DeviceEventId>& ids) {
  return {ids.begin(), ids.end()};
}

std::vector<DeviceEventId> device_ids(const std::vector<EventId>& ids) {
  std::vector<DeviceEventId> out;
  for (const EventId e : ids) out.push_back(static_cast<DeviceEventId>(e));
  return out;
}

/// Groups of consecutive events of at most `most` tokens (an event at least): f(first, end)
template <class F>
void for_groups(const std::vector<TokenRange>& events, std::size_t begin, std::int64_t most,
                F&& f) {
  while (begin < events.size()) {
    std::size_t end = begin + 1;
    while (end < events.size() && events[end].end - events[begin].start <= most) ++end;
    f(begin, end);
    begin = end;
  }
}

/// Rows of the last tokens in rings of another length; those that no token has reached yet are
/// zero. \param from [blocks, from_rows, row]. \return [blocks, to_rows, row]
template <class T>
std::vector<T> in_ring(const std::vector<T>& from, std::int64_t from_rows, std::int64_t to_rows,
                       std::int64_t row, std::int64_t tokens) {
  if (from_rows == 0) return {};
  const std::int64_t blocks = static_cast<std::int64_t>(from.size()) / (from_rows * row),
                     first = std::max<std::int64_t>(0, tokens - std::min(from_rows, to_rows));
  std::vector<T> to(static_cast<std::size_t>(blocks * to_rows * row));
  for (std::int64_t b = 0; b < blocks; ++b)
    for (std::int64_t t = first; t < tokens; ++t)
      std::copy_n(from.begin() + (b * from_rows + t % from_rows) * row, row,
                  to.begin() + (b * to_rows + t % to_rows) * row);
  return to;
}

/// Segmenters that read keys as the host's memory keeps them (KeySegmenter::save), one after the
/// other.
std::vector<std::byte> to_bytes(const device::HostKeySegmenter& from, std::int64_t tokens) {
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

device::HostKeySegmenter from_bytes(const std::vector<std::byte>& bytes, std::int64_t segmenters,
                                    std::int64_t n_init) {
  ByteReader from(bytes, "the memory's segmenter");
  device::HostKeySegmenter to;
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

}  // namespace

// -- what the last step left ----------------------------------------------------------------------

std::string DeviceMemory::refusal(Capability capability) const {
  switch (capability) {
    case Capability::inspect:
    case Capability::snapshot:
    case Capability::forget:
    case Capability::pin:
      return {};
    default:
      return fmt::format(
          "{}: a memory on a device has no folder; load it from one that is kept in a folder, save "
          "into that and do it there",
          name_of(capability));
  }
}

std::vector<TokenRange> DeviceMemory::Impl::read_events(std::int64_t scope, std::int64_t first,
                                                        std::int64_t end) const {
  std::vector<TokenRange> out;
  for (const EventRange& e : read(events + scope * max_events + first, end - first))
    out.push_back({e.start, e.end});
  return out;
}

void DeviceMemory::Impl::check_scope(std::int64_t scope) const {
  if (scope < 0 || scope >= scopes)
    throw DataError(
        fmt::format("scope {} asked for, but the memory has scopes 0 to {}", scope, scopes - 1));
}

std::pair<const Layer*, std::int64_t> DeviceMemory::Impl::lane_at(std::int64_t number) const {
  const std::int64_t P = lanes.per_layer;
  if (number < 0 || number >= shape.n_layers * P)
    throw DataError(fmt::format("lane {} asked for, but the memory has lanes 0 to {}", number,
                                shape.n_layers * P - 1));
  return {&layers[static_cast<std::size_t>(number / P)], number % P};
}

std::pair<const Layer*, std::int64_t> DeviceMemory::Impl::recalling_lane(std::int64_t lane) const {
  const std::int64_t place = lane / lanes.per_layer;
  const auto at = std::find_if(layers.begin(), layers.end(),
                               [&](const Layer& layer) { return layer.place == place; });
  return {&*at, lane % lanes.per_layer};
}

std::int64_t DeviceMemory::scopes() const { return impl_->scopes; }
std::int64_t DeviceMemory::lanes() const { return impl_->shape.n_layers * impl_->lanes.per_layer; }

std::int64_t DeviceMemory::n_events() const {
  const device::CurrentDevice current(impl_->device);
  std::int64_t sum = 0;
  for (const TimelineState& state : impl_->read_timelines()) sum += state.n_events;
  return sum;
}

const EventTable& DeviceMemory::events(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  EventTable table(m.config.n_init, m.config.min_block, m.config.max_block);
  const TimelineState state = m.read(m.state + scope, 1)[0];
  for (const TokenRange& e : m.read_events(scope, 0, state.n_events)) table.append(e);
  return m.inspected_events.emplace(std::move(table));
}

const StepRecord& DeviceMemory::last_step(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  StepRecord& r = m.inspected_step = {};
  const TimelineState state = m.read(m.state + scope, 1)[0];
  r.first = m.last_first;
  r.n = m.last_n;
  r.events_before = state.n_events - state.n_closed;
  r.surprise = m.read(m.surprise, m.last_n);
  r.threshold = m.read(m.threshold, m.last_n);
  if (m.segments_by_keys())  // which have none over surprise, as on the host
    r.threshold.assign(r.threshold.size(), std::numeric_limits<float>::infinity());
  const std::int64_t raw_row = m.by_head() && m.segments_by_keys() ? scope : 0;
  r.raw_boundaries = m.read(m.raw + raw_row * m.last_n, m.last_n);
  const std::vector<std::uint8_t> ring = m.read(m.flags + scope * m.capacity, m.capacity);
  for (std::int64_t i = 0; i < m.last_n; ++i)
    r.final_boundaries.push_back(ring[static_cast<std::size_t>((r.first + i) % m.capacity)]);
  return r;
}

HostRecallLists DeviceMemory::Impl::read_lists(const Layer& layer, std::int64_t p) const {
  if (layer.place < 0 || !far_in_last_step) return {};
  const RecallLists& lists = layer.lists[lists_now];
  const std::vector<std::int32_t> sizes = read(lists.sizes + 3 * p, 3);
  return {read(lists.similarity + p * room, sizes[0]), read(lists.contiguity + p * room, sizes[1]),
          read(lists.recalled + p * room, sizes[2])};
}

void DeviceMemory::Impl::write_lists(const Layer& layer, std::int64_t p,
                                     const HostRecallLists& from) {
  lists_are_written = true;
  if (layer.place < 0) return;
  const RecallLists& lists = layer.lists[lists_now];
  std::int32_t sizes[3];
  const std::pair<DeviceEventId*, const std::vector<DeviceEventId>*> arrays[] = {
      {lists.similarity, &from.similarity},
      {lists.contiguity, &from.contiguity},
      {lists.recalled, &from.recalled}};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto count = static_cast<std::int64_t>(arrays[i].second->size());
    if (count > room)
      throw DataError(
          fmt::format("CUDA memory: a recall list of {} events, at most {} fit", count, room));
    write(arrays[i].first + p * room, arrays[i].second->data(), count);
    sizes[i] = static_cast<std::int32_t>(count);
  }
  write(lists.sizes + 3 * p, sizes, 3);
}

std::int64_t DeviceMemory::recalled_events() const {
  const device::CurrentDevice current(impl_->device);
  return static_cast<std::int64_t>(impl_->read(impl_->recalled_events, 1)[0]);
}

std::vector<EventRecalls> DeviceMemory::recall_counts(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  std::vector<EventRecalls> out;
  for (const kernels::RecallCount& of :
       m.read_counts(scope, m.read(m.state + scope, 1)[0].n_events))
    out.push_back({of.recalls, static_cast<std::int64_t>(of.last) - 1});
  return out;
}

std::vector<EventId> DeviceMemory::recalled(std::int64_t lane) const {
  const device::CurrentDevice current(impl_->device);
  const auto [layer, p] = impl_->lane_at(lane);
  return host_ids(impl_->read_lists(*layer, p).recalled);
}

LaneRecall DeviceMemory::recall_lists(std::int64_t lane) const {
  const device::CurrentDevice current(impl_->device);
  const auto [layer, p] = impl_->lane_at(lane);
  const HostRecallLists lists = impl_->read_lists(*layer, p);
  return {host_ids(lists.similarity), host_ids(lists.contiguity)};
}

std::vector<float> DeviceMemory::representative(std::int64_t lane, EventId event) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const auto [layer, p] = m.lane_at(lane);
  if (layer->place < 0 || event < 0 ||
      event >= m.read(m.state + m.scope_of(*layer, p), 1)[0].n_events)
    throw DataError(fmt::format("representative: lane {} has no event {}", lane, event));
  if (m.is_forgotten(m.scope_of(*layer, p), event))
    throw DataError(fmt::format("representative: event {} was forgotten", event));
  return device::widened(
      m.read(layer->representatives + (p * m.max_events + event) * m.repr_row(), m.repr_row()),
      m.options.representatives);
}

std::vector<float> DeviceMemory::relevance(std::int64_t l, std::int64_t first,
                                           std::int64_t n) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const Layer& layer = m.layers.at(static_cast<std::size_t>(l));
  const std::int64_t H = m.shape.n_heads,
                     oldest = std::max<std::int64_t>(0, m.tokens - m.window_tokens);
  if (n < 0 || first < oldest || first + n > m.tokens)
    throw DataError(fmt::format("relevance: tokens {} to {}; it is there for tokens {} to {}",
                                first, first + n, oldest, m.tokens));
  const std::vector<float> ring = m.read(layer.relevance, m.capacity * H);
  std::vector<float> out;
  for (std::int64_t t = first; t < first + n; ++t) {
    const auto row = ring.begin() + t % m.capacity * H;
    out.insert(out.end(), row, row + H);
  }
  return out;
}

device::HostKeySegmenter DeviceMemory::Impl::read_key_segmenter() const {
  return {read(key_segmenter, key_segmenters()), read(key_mean, key_channels()),
          read(key_variance, key_variances())};
}

/// Moments that are left out are those of an event without keys, which nothing reads.
void DeviceMemory::Impl::write_key_segmenter(const device::HostKeySegmenter& from) {
  write(key_segmenter, from.states.data(), static_cast<std::int64_t>(from.states.size()));
  write(key_mean, from.mean.data(), static_cast<std::int64_t>(from.mean.size()));
  write(key_variance, from.variance.data(), static_cast<std::int64_t>(from.variance.size()));
}

/// After `clear`, which has emptied the slots: attention finds every event of a lane where it is at
/// home.
void DeviceMemory::Impl::all_at_home(std::int64_t lane, const std::vector<TokenRange>& ranges) {
  if (on_disk) return;  // what is recalled is fetched and pointed to then
  std::vector<void*> pointers;
  for (const TokenRange& e : ranges)
    pointers.push_back(home + lane * lane_bytes + (e.start - config.n_init) * token_bytes);
  write(blocks + lane * max_events, pointers.data(), static_cast<std::int64_t>(pointers.size()));
}

// -- from a memory of the host --------------------------------------------------------------------

void DeviceMemory::load(const EpisodicMemory& from) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  if (!from.config().same_results(m.config))
    throw ConfigError("CUDA memory: the memory to go on from was made with other settings: " +
                      difference(from.config(), m.config));
  if (const std::string what = difference(from.shape(), m.shape); !what.empty())
    throw ConfigError("CUDA memory: the memory to go on from was made with another model: " + what);
  if (from.given_boundaries() != m.given)
    throw ConfigError("CUDA memory: the memory to go on from was made with other given boundaries");
  if (from.tokens() > m.options.max_tokens)
    throw BudgetError(fmt::format(
        "CUDA memory: the memory to go on from has {} tokens, but this one has room for "
        "max_tokens = {}; make it with more",
        from.tokens(), m.options.max_tokens));
  const MemoryState state = from.state();
  std::int64_t tokens = 0, events = 0;  // of the scope with most
  for (std::int64_t s = 0; s < m.scopes; ++s) {
    tokens = std::max(tokens, from.events(s).tokens());
    events = std::max(events, from.events(s).size());
  }
  m.make_room_for(tokens, events);
  m.kept_rows.forget_marks();
  m.clear();
  try {
    m.go_on_from(from, state);
  } catch (...) {
    m.clear();  // half of it is of no use
    throw;
  }
}

void DeviceMemory::Impl::go_on_from(const EpisodicMemory& from, const MemoryState& handed) {
  for (std::int64_t s = 0; s < scopes; ++s)
    forget_again(s, from.forgotten(s), from.events(s).size());
  write_events(from);
  write_windows(handed);
  for (std::size_t l = 0; l < layers.size(); ++l)
    for (std::int64_t p = 0; p < lanes.per_layer; ++p) {
      const MemoryState::Layer::Lists& of = handed.layers[l].lanes[static_cast<std::size_t>(p)];
      HostRecallLists lists{device_ids(of.similarity), device_ids(of.contiguity), {}};
      lists.recalled = lists.similarity;
      lists.recalled.insert(lists.recalled.end(), lists.contiguity.begin(), lists.contiguity.end());
      std::sort(lists.recalled.begin(), lists.recalled.end());
      write_lists(layers[l], p, lists);
    }
  std::vector<TimelineState> now(static_cast<std::size_t>(scopes));
  if (retention) {
    ByteReader of_retention(handed.retention, "the memory's retention");
    retention->load(of_retention, from.events().size());
    write_received(retention->take_received());
  }
  shared = {handed.tokens, {}};
  for (std::int64_t s = 0; s < scopes; ++s) {
    TimelineState& of_scope = now[static_cast<std::size_t>(s)];
    const auto& was = handed.scopes[static_cast<std::size_t>(s)];
    of_scope.tokens = handed.tokens;
    of_scope.steps = static_cast<std::uint32_t>(handed.steps);
    of_scope.last_boundary = was.last_boundary;
    of_scope.last_in_previous = was.last_in_previous;
    of_scope.pending_start = from.events(s).pending_start();
    of_scope.n_events = from.events(s).size();
    shared.events.push_back(of_scope.n_events);
  }
  write(state, now.data(), scopes);
  n_steps = static_cast<std::uint32_t>(handed.steps);
  const auto recalls = static_cast<unsigned long long>(handed.recalled_events);
  write(recalled_events, &recalls, 1);
  for (std::int64_t s = 0; s < scopes; ++s) {
    std::vector<kernels::RecallCount> counts;
    for (const EventRecalls& of : from.recall_counts(s))
      counts.push_back(
          {static_cast<std::uint32_t>(of.recalls), static_cast<std::uint32_t>(of.last_recall + 1)});
    write(recall_counts + s * max_events, counts.data(), static_cast<std::int64_t>(counts.size()));
  }
  if (segments_by_keys())
    write_key_segmenter(from_bytes(handed.segmenter, key_segmenters(), config.n_init));
  tokens = handed.tokens;
  accept_report(now);
  steps_since_recall = handed.steps_since_recall;
  far_in_last_step = tokens > config.n_local;
  twin = shared;
  saved.assign(1, shared);
}

/// Keys, values and representatives of all closed events, a few at a time.
void DeviceMemory::Impl::write_events(const EpisodicMemory& from) {
  for (std::int64_t s = 0; s < scopes; ++s) {
    std::vector<EventRange> ranges;
    for (const TokenRange& e : from.events(s).all()) ranges.push_back({e.start, e.end});
    write(events + s * max_events, ranges.data(), static_cast<std::int64_t>(ranges.size()));
  }
  if (recalling == 0) return;
  std::vector<std::int32_t> counts;  // of each table that lanes have
  for (std::int64_t s = 0; s < scopes; ++s) {
    const ScopeLanes of_scope = lanes_of(s);
    if (of_scope.count == 0) continue;
    write_events(from, s);
    counts.push_back(static_cast<std::int32_t>(from.events(s).size()));
    if (lower)
      for (const EventId e : gone(s)) lower->forget(of_scope.first, e);
    for (EventId e = 0; e < from.events(s).size(); ++e)
      if (from.pinned(e, s)) set_pinned(s, e, true);
  }
  if (!keeps_codes()) return;
  const std::vector<std::int64_t> none(counts.size(), 0);
  write(closed_first, none.data(), static_cast<std::int64_t>(none.size()));
  write(closed_count, counts.data(), static_cast<std::int64_t>(counts.size()));
  encode(*std::max_element(counts.begin(), counts.end()));
}

/// Of one scope.
void DeviceMemory::Impl::write_events(const EpisodicMemory& from, std::int64_t scope) {
  const std::vector<TokenRange>& all = from.events(scope).all();
  const auto [first_lane, n_lanes] = lanes_of(scope);
  const DType stored = from.config().kv_dtype;
  const StoreShape of_store{lanes.n_lanes, lanes.n_kv_heads, shape.head_dim, stored};
  const std::int64_t before = device::keys_in_block(of_store), of_event = scales_of_event();
  const std::int64_t most = most_closed_tokens(), dtype_bytes = size_of(options.dtype);
  const std::int64_t part_bytes = lower ? lower->staging_lane_bytes() : most * token_bytes;
  std::vector<std::byte> part(static_cast<std::size_t>(part_bytes)), block, row;
  std::vector<float> wide, scales;
  std::vector<EventRange> ranges;
  for (const TokenRange& e : all) ranges.push_back({e.start, e.end});
  /// Those that are not forgotten, a run at a time; the places of the others stay zero.
  const auto read_kept = [&](EventId begin, EventId end, std::int64_t lane, const auto& place) {
    while (begin < end) {
      EventId stop = begin;
      while (stop < end && !is_forgotten(scope, stop)) ++stop;
      from.read_events(begin, stop, lane, place);
      begin = stop + 1;
    }
  };
  for_groups(all, 0, most, [&](std::size_t begin, std::size_t end) {
    const std::int64_t first = all[begin].start;
    const std::int64_t bytes_of_group = (all[end - 1].end - first) * token_bytes;
    const auto begin_id = static_cast<EventId>(begin), end_id = static_cast<EventId>(end);
    for (std::int64_t lane = first_lane; lane < first_lane + n_lanes; ++lane) {
      const auto [layer, p] = recalling_lane(lane);
      std::byte* const to = lower ? lower->staging() + lane * part_bytes : part.data();
      const auto place_of = [&](EventId e) {
        return to + (all[static_cast<std::size_t>(e)].start - first) * token_bytes;
      };
      if (of_event > 0) {
        // Scales and codes of a block go to places of their own.
        scales.assign((end - begin) * static_cast<std::size_t>(of_event), 0.0f);
        std::memset(to, 0, static_cast<std::size_t>(bytes_of_group));
        std::int64_t bytes_of_blocks = 0;
        std::vector<std::int64_t> at;
        for (std::size_t e = begin; e < end; ++e) {
          at.push_back(bytes_of_blocks);
          bytes_of_blocks += block_bytes(of_store, all[e].size());
        }
        block.resize(static_cast<std::size_t>(bytes_of_blocks));
        const auto block_of = [&](EventId e) {
          return block.data() + at[static_cast<std::size_t>(e - begin_id)];
        };
        read_kept(begin_id, end_id, lane, block_of);
        for (EventId e = begin_id; e < end_id; ++e) {
          if (is_forgotten(scope, e)) continue;
          std::memcpy(scales.data() + (e - begin_id) * of_event, block_of(e),
                      static_cast<std::size_t>(of_event) * sizeof(float));
          std::memcpy(
              place_of(e), block_of(e) + before,
              static_cast<std::size_t>(all[static_cast<std::size_t>(e)].size() * token_bytes));
        }
        write(scales_of(lane) + begin_id * of_event, scales.data(),
              static_cast<std::int64_t>(scales.size()));
        if (lower) std::copy(scales.begin(), scales.end(), lower->staged_scales(lane));
      } else if (stored == options.dtype) {
        std::memset(to, 0, static_cast<std::size_t>(bytes_of_group));
        read_kept(begin_id, end_id, lane, place_of);
      } else {
        // In the stored dtype first, at as many elements from the group's start.
        block.assign(static_cast<std::size_t>(bytes_of_group / dtype_bytes * size_of(stored)),
                     std::byte{0});
        read_kept(begin_id, end_id, lane, [&](EventId e) {
          return block.data() + (place_of(e) - to) / dtype_bytes * size_of(stored);
        });
        wide.resize(static_cast<std::size_t>(bytes_of_group / dtype_bytes));
        const auto count = static_cast<std::int64_t>(wide.size());
        device::widen(block.data(), count, stored, wide.data());
        device::narrow(wide.data(), count, options.dtype, to);
      }
      const std::int64_t number = (layer - layers.data()) * lanes.per_layer + p;
      /// What a lane has of each event; of forgotten ones zeros.
      const auto write_vectors = [&](std::byte* to_all, std::int64_t of_event_bytes,
                                     const auto& vectors_of) {
        row.assign((end - begin) * static_cast<std::size_t>(of_event_bytes), std::byte{0});
        for (EventId e = begin_id; e < end_id; ++e) {
          if (is_forgotten(scope, e)) continue;
          const std::vector<float> vectors = vectors_of(e);
          device::narrow(vectors.data(), static_cast<std::int64_t>(vectors.size()),
                         options.representatives, row.data() + (e - begin_id) * of_event_bytes);
        }
        write(to_all + (p * max_events + begin_id) * of_event_bytes, row.data(),
              static_cast<std::int64_t>(row.size()));
      };
      write_vectors(layer->representatives, repr_row(),
                    [&](EventId e) { return from.representative(number, e); });
      if (keeps_each())
        write_vectors(layer->each, each_row(),
                      [&](EventId e) { return from.individual_representatives(number, e); });
      if (lower) continue;
      std::byte* const place = home + lane * lane_bytes + (first - config.n_init) * token_bytes;
      if (n_slots > 0)
        std::memcpy(place, part.data(), static_cast<std::size_t>(bytes_of_group));
      else
        write(place, part.data(), bytes_of_group);
    }
    const auto group = std::span(ranges).subspan(begin, end - begin);
    if (lower && by_head()) lower->keep(first_lane, group);
    if (lower && !by_head()) lower->keep(group);
  });
  for (std::int64_t lane = first_lane; lane < first_lane + n_lanes; ++lane) all_at_home(lane, all);
}

/// Sinks, rings and what goes with them. The rings are appended to as in a step: the rotated keys
/// then are the very bits that a sequence that was never handed over would have.
void DeviceMemory::Impl::write_windows(const MemoryState& from) {
  const std::int64_t G = shape.n_kv_heads, d = shape.head_dim;
  const std::int64_t first = std::max<std::int64_t>(0, from.tokens - window_tokens);
  const std::int64_t row_elements = G * d, half = config.chunk * row_elements * element;
  std::byte* const staged = workspace;
  std::vector<float> wide_rows(static_cast<std::size_t>(config.chunk * row_elements));
  std::vector<std::byte> narrow_rows(static_cast<std::size_t>(half));
  for (std::int64_t at = first; at < from.tokens; at += config.chunk) {
    const std::int64_t count = std::min(config.chunk, from.tokens - at);
    TimelineState here;
    here.tokens = at;
    write(state, &here, 1);
    rotation_angles(count);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const MemoryState::Layer& layer = from.layers[l];
      const std::vector<float>* const rings[] = {&layer.keys, &layer.values};
      for (std::int64_t side = 0; side < 2; ++side) {
        for (std::int64_t i = 0; i < count; ++i)
          for (std::int64_t g = 0; g < G; ++g)
            std::copy_n(rings[side]->begin() + (g * window_tokens + (at + i) % window_tokens) * d,
                        d, wide_rows.begin() + (i * G + g) * d);
        device::narrow(wide_rows.data(), count * row_elements, options.dtype, narrow_rows.data());
        write(staged + side * half, narrow_rows.data(), count * row_elements * element);
      }
      const kernels::AppendParams p =
          append_params(layers[l], count, staged, staged + half, row_elements, row_elements);
      device::check(kernels::append_window(p, stream), "appending keys and values", p);
    }
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const MemoryState::Layer& layer = from.layers[l];
    const auto put = [&](std::byte* to, const std::vector<float>& values) {
      const std::vector<std::byte> narrowed = device::narrowed(values, options.dtype);
      write(to, narrowed.data(), static_cast<std::int64_t>(narrowed.size()));
    };
    put(layers[l].sink_key, layer.sink_keys);
    put(layers[l].sink_value, layer.sink_values);
    const std::vector<float> relevance =
        in_ring(layer.relevance, window_tokens, capacity, shape.n_heads, from.tokens);
    write(layers[l].relevance, relevance.data(), capacity * shape.n_heads);
  }
  for (std::int64_t s = 0; s < scopes; ++s)
    write(flags + s * capacity,
          in_ring(from.scopes[static_cast<std::size_t>(s)].final_flags, window_tokens, capacity, 1,
                  from.tokens)
              .data(),
          capacity);
  std::vector<float> ring(static_cast<std::size_t>(recent_capacity));
  const auto known = static_cast<std::int64_t>(from.recent_surprise.size());
  for (std::int64_t i = 0; i < known; ++i)
    ring[static_cast<std::size_t>((from.tokens - known + i) % recent_capacity)] =
        from.recent_surprise[static_cast<std::size_t>(i)];
  write(recent, ring.data(), recent_capacity);
}

// -- to a memory of the host ----------------------------------------------------------------------

MemoryState DeviceMemory::Impl::read_state(const std::vector<TimelineState>& now) const {
  MemoryState s;
  s.tokens = tokens;
  s.steps = n_steps;
  s.recalled_events = static_cast<std::int64_t>(read(recalled_events, 1)[0]);
  s.steps_since_recall = steps_since_recall;
  s.scopes.clear();
  for (const TimelineState& of_scope : now)
    s.scopes.push_back(
        {of_scope.last_boundary, of_scope.last_in_previous,
         in_ring(read(flags + static_cast<std::int64_t>(s.scopes.size()) * capacity, capacity),
                 capacity, window_tokens, 1, tokens)});
  if (config.segmenter == SegmenterKind::surprise) {
    const std::vector<float> ring = read(recent, recent_capacity);
    for (std::int64_t t = std::max<std::int64_t>(0, tokens - config.effective_tau()); t < tokens;
         ++t)
      s.recent_surprise.push_back(ring[static_cast<std::size_t>(t % recent_capacity)]);
  }
  if (segments_by_keys()) s.segmenter = to_bytes(read_key_segmenter(), tokens);
  if (retention) {
    detail::Retention whole = *retention;
    whole.set_received(read_received(now.front().n_events));
    ByteWriter to;
    whole.save(to);
    s.retention = to.take();
  }
  const std::int64_t G = shape.n_kv_heads, d = shape.head_dim;
  const auto widened = [&](const std::byte* from, std::int64_t rows_in) {
    return device::widened(read(from, G * rows_in * d * element), options.dtype);
  };
  const auto ring = [&](const std::byte* from) {
    return in_ring(widened(from, capacity), capacity, window_tokens, d, tokens);
  };
  const auto sinks = [&](const std::byte* from) {
    return in_ring(widened(from, config.n_init), config.n_init, config.n_init, d,
                   std::min(tokens, config.n_init));
  };
  for (const Layer& layer : layers) {
    s.layers.push_back({ring(layer.ring_key),
                        ring(layer.ring_value),
                        in_ring(read(layer.relevance, capacity * shape.n_heads), capacity,
                                window_tokens, shape.n_heads, tokens),
                        sinks(layer.sink_key),
                        sinks(layer.sink_value),
                        {}});
    for (std::int64_t p = 0; p < lanes.per_layer; ++p) {
      const HostRecallLists lists = read_lists(layer, p);
      s.layers.back().lanes.push_back({host_ids(lists.similarity), host_ids(lists.contiguity)});
    }
  }
  return s;
}

/// Reads closed events off the device, of each lane a group at a time.
class DeviceMemory::Impl::EventReader {
 public:
  /// \param events of each scope, from number first_ids of it on
  EventReader(const Impl& memory, const std::vector<std::vector<TokenRange>>& events,
              const std::vector<std::int64_t>& first_ids)
      : m_(memory),
        events_(events),
        first_ids_(first_ids),
        groups_(static_cast<std::size_t>(memory.lanes.n_lanes)) {}

  RingView read(EventId event, std::int64_t lane, float* representative, float* each) {
    const auto [layer, p] = m_.recalling_lane(lane);
    const auto scope = static_cast<std::size_t>(m_.scope_of(*layer, p));
    const std::vector<TokenRange>& events = events_[scope];
    const auto at = static_cast<std::size_t>(event - first_ids_[scope]);
    Group& group = groups_[static_cast<std::size_t>(lane)];
    if (at >= group.end) fetch(group, *layer, p, at);
    device::widen(
        group.representatives.data() + static_cast<std::int64_t>(at - group.begin) * m_.repr_row(),
        m_.lane_width(), m_.options.representatives, representative);
    const std::int64_t of_each =
        m_.keeps_each() ? m_.count_of_each(events[at]) * m_.lane_width() : 0;
    if (of_each > 0)
      device::widen(group.each.data() + static_cast<std::int64_t>(at - group.begin) * m_.each_row(),
                    of_each, m_.options.representatives, each);
    std::byte* const block =
        group.blocks.data() + (events[at].start - events[group.begin].start) * m_.token_bytes;
    float* const scales =
        group.scales.data() + static_cast<std::int64_t>(at - group.begin) * m_.scales_of_event();
    if (m_.is_forgotten(m_.scope_of(*layer, p),
                        event)) {  // the host forgets it at once; nothing of it goes to a file
      std::fill_n(representative, m_.lane_width(), 0.0f);
      std::fill_n(each, of_each, 0.0f);
      std::fill_n(block, events[at].size() * m_.token_bytes, std::byte{0});
      std::fill_n(scales, m_.scales_of_event(), 0.0f);
    }
    return rings_.of(block, m_.event_dtype(), m_.lanes.n_kv_heads, m_.shape.head_dim, events[at],
                     scales);
  }

 private:
  struct Group {  // of a lane's events, those that are here
    std::size_t begin = 0, end = 0;
    std::vector<std::byte> blocks, representatives, each;
    std::vector<float> scales;  // of events of codes
  };

  void fetch(Group& group, const Layer& layer, std::int64_t p, std::size_t begin) {
    const auto scope = static_cast<std::size_t>(m_.scope_of(layer, p));
    const std::vector<TokenRange>& events = events_[scope];
    group.begin = begin;
    group.end = begin + 1;
    while (group.end < events.size() &&
           events[group.end].end - events[begin].start <= m_.most_closed_tokens())
      ++group.end;
    const std::int64_t first = events[begin].start, row = m_.repr_row();
    const std::int64_t bytes = (events[group.end - 1].end - first) * m_.token_bytes;
    const std::int64_t id = first_ids_[scope] + static_cast<std::int64_t>(begin);
    group.representatives = m_.read(layer.representatives + (p * m_.max_events + id) * row,
                                    static_cast<std::int64_t>(group.end - begin) * row);
    if (m_.keeps_each())
      group.each = m_.read(layer.each + (p * m_.max_events + id) * m_.each_row(),
                           static_cast<std::int64_t>(group.end - begin) * m_.each_row());
    const std::int64_t lane = m_.first_lane(layer) + p;
    if (const std::int64_t of_event = m_.scales_of_event(); of_event > 0)
      group.scales = m_.read(m_.scales_of(lane) + id * of_event,
                             static_cast<std::int64_t>(group.end - begin) * of_event);
    std::byte* const home =
        m_.home + lane * m_.lane_bytes + (first - m_.config.n_init) * m_.token_bytes;
    if (m_.lower) {
      group.blocks.resize(static_cast<std::size_t>(bytes));
      for (std::size_t e = begin; e < group.end; ++e)
        if (const EventId of_lane = id + static_cast<EventId>(e - begin);
            !m_.is_forgotten(static_cast<std::int64_t>(scope), of_lane))
          m_.lower->read(of_lane, lane, events[e].size(),
                         group.blocks.data() + (events[e].start - first) * m_.token_bytes);
    } else if (m_.n_slots > 0) {
      group.blocks.assign(home, home + bytes);
    } else {
      group.blocks = m_.read(home, bytes);
    }
  }

  const Impl& m_;
  const std::vector<std::vector<TokenRange>>& events_;
  const std::vector<std::int64_t>& first_ids_;
  std::vector<Group> groups_;
  device::EventRings rings_;
};

void DeviceMemory::save(EpisodicMemory& to, std::span<const std::int64_t> ids,
                        std::span<const float> last_logits) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.join_side_streams();  // what was closed last may be on its way home
  check();
  if (m.open) throw DataError("save: a step is open; call end_step first");
  m.apply_retention();
  const auto counts = [&] {
    std::vector<std::int64_t> of_scopes;
    for (std::int64_t s = 0; s < to.scopes(); ++s) of_scopes.push_back(to.events(s).size());
    return of_scopes;
  };
  if (!to.config().same_results(m.config) || to.tokens() != m.twin.tokens ||
      counts() != m.twin.events) {
    const auto sum = [](const std::vector<std::int64_t>& of_scopes) {
      return std::accumulate(of_scopes.begin(), of_scopes.end(), std::int64_t{0});
    };
    throw ConfigError(
        fmt::format("CUDA memory: to be saved to the memory that it was loaded from, of {} tokens "
                    "in {} events, but this one has {} in {} or other settings",
                    m.twin.tokens, sum(m.twin.events), to.tokens(), sum(counts())));
  }
  const std::vector<TimelineState> now = m.read_timelines();
  MemoryAdvance advance;
  advance.state = m.read_state(now);
  advance.state.last_logits.assign(last_logits.begin(), last_logits.end());
  advance.shared_events = m.shared.events;
  advance.shared_tokens = m.shared.tokens;
  std::vector<std::int64_t> n_events;
  for (std::int64_t s = 0; s < m.scopes; ++s) {
    n_events.push_back(now[static_cast<std::size_t>(s)].n_events);
    advance.events.push_back(
        m.read_events(s, m.shared.events[static_cast<std::size_t>(s)], n_events.back()));
  }
  for (std::int64_t s = 0; s < m.scopes; ++s) advance.recalls.push_back(recall_counts(s));
  advance.ids.assign(ids.begin(), ids.end());
  Impl::EventReader reader(m, advance.events, m.shared.events);
  advance.read = [&](EventId e, std::int64_t lane, float* representative, float* each) {
    return reader.read(e, lane, representative, each);
  };
  try {
    to.advance(advance);
  } catch (...) {
    m.twin.events = counts();  // less, if this memory had gone back behind some
    throw;
  }
  m.twin = m.shared = {m.tokens, n_events};
  m.saved.push_back(m.shared);
  if (to.can(Capability::pin))
    for (const auto& [of, pinned] : m.pin_changes) {
      const auto& [scope, event] = of;
      const std::vector<EventId>& gone = to.forgotten(scope);
      if (!std::binary_search(gone.begin(), gone.end(), event)) to.pin(event, pinned, scope);
    }
  m.pin_changes.clear();
  for (std::int64_t s = 0; s < m.scopes; ++s)
    for (const EventId e : m.gone(s)) to.forget(e, s);
}

}  // namespace episodic
