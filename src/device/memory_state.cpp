// SPDX-License-Identifier: Apache-2.0
// States of a DeviceMemory: what the last step left, snapshots, and the way to a memory of the host
// and back. All of it waits for the device; none of it is part of a step.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

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

/// A segmenter that reads keys as the host's memory keeps it (KeySegmenter::save).
std::vector<std::byte> to_bytes(const device::HostKeySegmenter& from, std::int64_t tokens) {
  const bool is_empty = from.state.count == 0;
  const auto known = [&](const std::vector<double>& moments) {
    return is_empty ? std::vector<double>(moments.size()) : moments;
  };
  ByteWriter to;
  to.put(tokens);
  to.put(from.state.count);
  to.put(from.state.recorded);
  to.put(from.state.mean);
  to.put(from.state.squares);
  to.put_vector(known(from.mean));
  to.put_vector(known(from.variance));
  return to.take();
}

device::HostKeySegmenter from_bytes(const std::vector<std::byte>& bytes, std::int64_t n_init) {
  ByteReader from(bytes, "the memory's segmenter");
  device::HostKeySegmenter to;
  to.state.next = std::max(from.get<std::int64_t>(), n_init);
  to.state.count = from.get<std::int64_t>();
  to.state.recorded = from.get<std::int64_t>();
  to.state.mean = from.get<double>();
  to.state.squares = from.get<double>();
  to.mean = from.get_vector<double>();
  to.variance = from.get_vector<double>();
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

std::vector<TokenRange> DeviceMemory::Impl::read_events(std::int64_t first,
                                                        std::int64_t end) const {
  std::vector<TokenRange> out;
  for (const EventRange& e : read(events + first, end - first)) out.push_back({e.start, e.end});
  return out;
}

void DeviceMemory::Impl::check_scope(std::int64_t scope) const {
  if (scope != 0)
    throw DataError(fmt::format(
        "scope {}: a memory on a device has one scope, 0, that of the sequence", scope));
}

const EventTable& DeviceMemory::events(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  EventTable table(m.config.n_init, m.config.min_block, m.config.max_block);
  for (const TokenRange& e : m.read_events(0, m.read_timeline().n_events)) table.append(e);
  return m.inspected_events.emplace(std::move(table));
}

const StepRecord& DeviceMemory::last_step(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  StepRecord& r = m.inspected_step = {};
  const TimelineState state = m.read_timeline();
  r.first = m.last_first;
  r.n = m.last_n;
  r.events_before = state.n_events - state.n_closed;
  r.surprise = m.read(m.surprise, m.last_n);
  r.threshold = m.read(m.threshold, m.last_n);
  if (m.segments_by_keys())  // which have none over surprise, as on the host
    r.threshold.assign(r.threshold.size(), std::numeric_limits<float>::infinity());
  r.raw_boundaries = m.read(m.raw, m.last_n);
  const std::vector<std::uint8_t> ring = m.read(m.flags, m.capacity);
  for (std::int64_t i = 0; i < m.last_n; ++i)
    r.final_boundaries.push_back(ring[static_cast<std::size_t>((r.first + i) % m.capacity)]);
  return r;
}

HostRecallLists DeviceMemory::Impl::read_lists(const Layer& layer) const {
  if (layer.lane < 0 || !far_in_last_step) return {};
  const RecallLists& lists = layer.lists[lists_now];
  const std::vector<std::int32_t> sizes = read(lists.sizes, 3);
  return {read(lists.similarity, sizes[0]), read(lists.contiguity, sizes[1]),
          read(lists.recalled, sizes[2])};
}

void DeviceMemory::Impl::write_lists(const Layer& layer, const HostRecallLists& from) {
  if (layer.lane < 0) return;
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
    write(arrays[i].first, arrays[i].second->data(), count);
    sizes[i] = static_cast<std::int32_t>(count);
  }
  write(lists.sizes, sizes, 3);
}

std::vector<EventId> DeviceMemory::recalled(std::int64_t l) const {
  const device::CurrentDevice current(impl_->device);
  return host_ids(impl_->read_lists(impl_->layers.at(static_cast<std::size_t>(l))).recalled);
}

LaneRecall DeviceMemory::recall_lists(std::int64_t l) const {
  const device::CurrentDevice current(impl_->device);
  const HostRecallLists lists = impl_->read_lists(impl_->layers.at(static_cast<std::size_t>(l)));
  return {host_ids(lists.similarity), host_ids(lists.contiguity)};
}

std::vector<float> DeviceMemory::representative(std::int64_t l, EventId event) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const Layer& layer = m.layers.at(static_cast<std::size_t>(l));
  if (layer.lane < 0 || event < 0 || event >= m.read_timeline().n_events)
    throw DataError(fmt::format("representative: layer {} has no event {}", l, event));
  if (m.is_forgotten(event))
    throw DataError(fmt::format("representative: event {} was forgotten", event));
  return device::widened(m.read(layer.representatives + event * m.repr_row(), m.repr_row()),
                         m.options.representatives);
}

std::vector<float> DeviceMemory::relevance(std::int64_t l, std::int64_t first,
                                           std::int64_t n) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const Layer& layer = m.layers.at(static_cast<std::size_t>(l));
  const std::int64_t H = m.shape.n_heads, oldest = std::max<std::int64_t>(0, m.tokens - m.capacity);
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

// -- snapshots ------------------------------------------------------------------------------------

class DeviceMemory::Snapshot final : public MemorySnapshot {
 public:
  std::int64_t tokens() const override { return timeline.tokens; }

  const void* owner = nullptr;
  std::int64_t generation = 0;
  std::int64_t steps_since_recall = 0;
  bool far = false;
  std::vector<std::byte> windows;  // of all layers, which lie in one piece
  std::vector<float> recent;
  std::vector<std::uint8_t> flags;
  TimelineState timeline;
  device::HostKeySegmenter segmenter;  // where keys set the flags
  std::vector<HostRecallLists> lists;  // of each layer
};

device::HostKeySegmenter DeviceMemory::Impl::read_key_segmenter() const {
  return {read(key_segmenter, 1)[0], read(key_mean, key_channels()),
          read(key_variance, key_variances())};
}

/// Moments that are left out are those of an event without keys, which nothing reads.
void DeviceMemory::Impl::write_key_segmenter(const device::HostKeySegmenter& from) {
  write(key_segmenter, &from.state, 1);
  write(key_mean, from.mean.data(), static_cast<std::int64_t>(from.mean.size()));
  write(key_variance, from.variance.data(), static_cast<std::int64_t>(from.variance.size()));
}

std::shared_ptr<const MemorySnapshot> DeviceMemory::snapshot() const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  check();
  auto s = std::make_shared<Snapshot>();
  s->owner = impl_.get();
  s->generation = m.generation;
  s->steps_since_recall = m.steps_since_recall;
  s->far = m.far_in_last_step;
  s->windows = m.read(m.windows(), m.bytes.window);
  s->recent = m.read(m.recent, m.recent_capacity);
  s->flags = m.read(m.flags, m.capacity);
  s->timeline = m.read_timeline();
  if (m.segments_by_keys()) s->segmenter = m.read_key_segmenter();
  for (const Layer& layer : m.layers) s->lists.push_back(m.read_lists(layer));
  return s;
}

void DeviceMemory::restore(const MemorySnapshot& snapshot) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const auto* const own = dynamic_cast<const Snapshot*>(&snapshot);
  if (!own || own->owner != impl_.get())
    throw ConfigError("restore: the snapshot was taken of another memory");
  const Snapshot& s = *own;
  for (const Impl::Rewind& rewind : m.rewinds)
    if (rewind.generation > s.generation && rewind.tokens < s.timeline.tokens)
      throw ConfigError(fmt::format(
          "restore: the memory has meanwhile gone back to {} tokens, before this snapshot of {}",
          rewind.tokens, s.timeline.tokens));
  const std::vector<TokenRange> events = m.read_events(0, s.timeline.n_events);
  const Impl::Twin twin = m.twin;
  Impl::Twin shared = m.shared;
  shared.tokens = std::min(shared.tokens, s.timeline.tokens);
  shared.events = std::min(shared.events, s.timeline.n_events);
  auto rewinds = std::move(m.rewinds);
  auto forgotten = std::move(m.forgotten);
  const auto pinned = std::move(m.pinned);
  auto pin_changes = std::move(m.pin_changes);
  m.clear(s.timeline.n_events);
  // What was forgotten or pinned since stays so.
  m.forget_again(std::move(forgotten), s.timeline.n_events);
  m.pin_again(pinned, s.timeline.n_events);
  std::erase_if(pin_changes, [&](const auto& c) { return c.first >= s.timeline.n_events; });
  m.pin_changes = std::move(pin_changes);
  m.rewinds = std::move(rewinds);
  m.rewinds.push_back({m.generation, s.timeline.tokens});
  m.twin = twin;
  m.shared = shared;
  m.write(m.windows(), s.windows.data(), m.bytes.window);
  m.write(m.recent, s.recent.data(), m.recent_capacity);
  m.write(m.flags, s.flags.data(), m.capacity);
  m.write(m.state, &s.timeline, 1);
  if (m.segments_by_keys()) m.write_key_segmenter(s.segmenter);
  m.all_at_home(events);
  for (std::size_t l = 0; l < m.layers.size(); ++l) {
    HostRecallLists lists = s.lists[l];
    m.drop_forgotten(lists);
    m.write_lists(m.layers[l], lists);
  }
  m.tokens = s.timeline.tokens;
  m.pending_start = s.timeline.pending_start;
  m.know({s.timeline.n_events, s.timeline.pending_start});
  m.steps_since_recall = s.steps_since_recall;
  m.far_in_last_step = s.far;
}

/// After `clear`, which has emptied the slots: attention finds every event where it is at home.
void DeviceMemory::Impl::all_at_home(const std::vector<TokenRange>& ranges) {
  if (on_disk) return;  // what is recalled is fetched and pointed to then
  std::vector<void*> pointers;
  for (std::int64_t lane = 0; lane < recalling; ++lane) {
    pointers.clear();
    for (const TokenRange& e : ranges)
      pointers.push_back(home + lane * layer_bytes + (e.start - config.n_init) * token_bytes);
    write(blocks + lane * max_events, pointers.data(), static_cast<std::int64_t>(pointers.size()));
  }
}

// -- from a memory of the host --------------------------------------------------------------------

void DeviceMemory::load(const EpisodicMemory& from) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  if (!from.config().same_results(m.config))
    throw ConfigError("CUDA memory: the memory to go on from was made with other settings: " +
                      to_json(from.config()));
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
  m.make_room_for(from.events().pending_start() - m.config.n_init, from.events().size());
  m.clear(0);
  try {
    m.go_on_from(from, state);
  } catch (...) {
    m.clear(0);  // half of it is of no use
    throw;
  }
}

void DeviceMemory::Impl::go_on_from(const EpisodicMemory& from, const MemoryState& handed) {
  forget_again(from.forgotten(), from.events().size());
  write_events(from);
  write_windows(handed);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const MemoryState::Layer& layer = handed.layers[l];
    HostRecallLists lists{device_ids(layer.similarity), device_ids(layer.contiguity), {}};
    lists.recalled = lists.similarity;
    lists.recalled.insert(lists.recalled.end(), lists.contiguity.begin(), lists.contiguity.end());
    std::sort(lists.recalled.begin(), lists.recalled.end());
    write_lists(layers[l], lists);
  }
  TimelineState now;
  now.tokens = handed.tokens;
  now.last_boundary = handed.scopes.front().last_boundary;
  now.last_in_previous = handed.scopes.front().last_in_previous;
  now.pending_start = from.events().pending_start();
  now.n_events = from.events().size();
  write(state, &now, 1);
  if (segments_by_keys()) write_key_segmenter(from_bytes(handed.segmenter, config.n_init));
  tokens = now.tokens;
  pending_start = now.pending_start;
  know({now.n_events, now.pending_start});
  steps_since_recall = handed.steps_since_recall;
  far_in_last_step = tokens > config.n_local;
  twin = shared = {now.tokens, now.n_events};
}

/// Keys, values and representatives of all closed events, a few at a time.
void DeviceMemory::Impl::write_events(const EpisodicMemory& from) {
  const std::vector<TokenRange>& all = from.events().all();
  std::vector<EventRange> ranges;
  for (const TokenRange& e : all) ranges.push_back({e.start, e.end});
  write(events, ranges.data(), static_cast<std::int64_t>(ranges.size()));
  if (recalling == 0) return;
  const DType stored = from.config().kv_dtype;
  const std::int64_t most = most_closed_tokens(), dtype_bytes = size_of(options.dtype);
  const std::int64_t part_bytes = lower ? lower->staging_layer_bytes() : most * token_bytes;
  std::vector<std::byte> part(static_cast<std::size_t>(part_bytes)), block, row;
  std::vector<float> wide;
  /// Those that are not forgotten, a run at a time; the places of the others stay zero.
  const auto read_kept = [&](EventId begin, EventId end, std::int64_t lane, const auto& place) {
    while (begin < end) {
      EventId stop = begin;
      while (stop < end && !is_forgotten(stop)) ++stop;
      from.read_events(begin, stop, lane, place);
      begin = stop + 1;
    }
  };
  for_groups(all, 0, most, [&](std::size_t begin, std::size_t end) {
    const std::int64_t first = all[begin].start;
    const std::int64_t bytes_of_group = (all[end - 1].end - first) * token_bytes;
    for (const Layer& layer : layers) {
      if (layer.lane < 0) continue;
      std::byte* const to = lower ? lower->staging() + layer.lane * part_bytes : part.data();
      const auto place_of = [&](EventId e) {
        return to + (all[static_cast<std::size_t>(e)].start - first) * token_bytes;
      };
      const auto begin_id = static_cast<EventId>(begin), end_id = static_cast<EventId>(end);
      if (stored == options.dtype) {
        std::memset(to, 0, static_cast<std::size_t>(bytes_of_group));
        read_kept(begin_id, end_id, layer.lane, place_of);
      } else {
        // In the stored dtype first, at as many elements from the group's start.
        block.assign(static_cast<std::size_t>(bytes_of_group / dtype_bytes * size_of(stored)),
                     std::byte{0});
        read_kept(begin_id, end_id, layer.lane, [&](EventId e) {
          return block.data() + (place_of(e) - to) / dtype_bytes * size_of(stored);
        });
        wide.resize(static_cast<std::size_t>(bytes_of_group / dtype_bytes));
        const auto count = static_cast<std::int64_t>(wide.size());
        device::widen(block.data(), count, stored, wide.data());
        device::narrow(wide.data(), count, options.dtype, to);
      }
      row.assign((end - begin) * static_cast<std::size_t>(repr_row()), std::byte{0});
      for (EventId e = begin_id; e < end_id; ++e) {
        if (is_forgotten(e)) continue;
        device::narrow(from.representative(&layer - layers.data(), e).data(), width(),
                       options.representatives, row.data() + (e - begin_id) * repr_row());
      }
      write(layer.representatives + begin_id * repr_row(), row.data(),
            static_cast<std::int64_t>(row.size()));
      std::byte* const place =
          home + layer.lane * layer_bytes + (first - config.n_init) * token_bytes;
      if (lower) continue;
      if (n_slots > 0)
        std::memcpy(place, part.data(), static_cast<std::size_t>(bytes_of_group));
      else
        write(place, part.data(), bytes_of_group);
    }
    if (lower) lower->keep(std::span(ranges).subspan(begin, end - begin));
  });
  if (lower)
    for (const EventId e : forgotten) lower->forget(e);
  if (const DiskStore* const store = from.disk_store())
    for (std::size_t e = 0; e < all.size(); ++e)
      if (store->pinned(static_cast<EventId>(e))) set_pinned(static_cast<EventId>(e), true);
  all_at_home(all);
  if (!keeps_codes()) return;
  const std::int64_t none = 0;
  const auto count = static_cast<std::int32_t>(all.size());
  write(closed_first, &none, 1);
  write(closed_count, &count, 1);
  encode(count);
}

/// Sinks, rings and what goes with them. The rings are appended to as in a step: the rotated keys
/// then are the very bits that a sequence that was never handed over would have.
void DeviceMemory::Impl::write_windows(const MemoryState& from) {
  const std::int64_t G = shape.n_kv_heads, d = shape.head_dim;
  const std::int64_t first = std::max<std::int64_t>(0, from.tokens - capacity);
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
            std::copy_n(rings[side]->begin() + g * head_stride + (at + i) % capacity * d, d,
                        wide_rows.begin() + (i * G + g) * d);
        device::narrow(wide_rows.data(), count * row_elements, options.dtype, narrow_rows.data());
        write(staged + side * half, narrow_rows.data(), count * row_elements * element);
      }
      append(layers[l], count, staged, staged + half, row_elements, row_elements);
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
    write(layers[l].relevance, layer.relevance.data(), capacity * shape.n_heads);
  }
  write(flags, from.scopes.front().final_flags.data(), capacity);
  std::vector<float> ring(static_cast<std::size_t>(recent_capacity));
  const auto known = static_cast<std::int64_t>(from.recent_surprise.size());
  for (std::int64_t i = 0; i < known; ++i)
    ring[static_cast<std::size_t>((from.tokens - known + i) % recent_capacity)] =
        from.recent_surprise[static_cast<std::size_t>(i)];
  write(recent, ring.data(), recent_capacity);
}

// -- to a memory of the host ----------------------------------------------------------------------

MemoryState DeviceMemory::Impl::read_state(const TimelineState& now) const {
  MemoryState s;
  s.tokens = now.tokens;
  s.steps_since_recall = steps_since_recall;
  Timeline::State::Scope& scope = s.scopes.front();
  scope.last_boundary = now.last_boundary;
  scope.last_in_previous = now.last_in_previous;
  if (config.segmenter == SegmenterKind::surprise) {
    const std::vector<float> ring = read(recent, recent_capacity);
    for (std::int64_t t = std::max<std::int64_t>(0, tokens - config.effective_tau()); t < tokens;
         ++t)
      s.recent_surprise.push_back(ring[static_cast<std::size_t>(t % recent_capacity)]);
  }
  if (segments_by_keys()) s.segmenter = to_bytes(read_key_segmenter(), tokens);
  scope.final_flags = read(flags, capacity);
  const std::int64_t G = shape.n_kv_heads, d = shape.head_dim;
  /// [blocks, capacity, row] or sinks; rows that no token has reached yet are zero
  const auto reached = [&](std::vector<float> all, std::int64_t blocks_of, std::int64_t rows_in,
                           std::int64_t row) {
    for (std::int64_t b = 0; b < blocks_of && tokens < rows_in; ++b)
      std::fill_n(all.begin() + (b * rows_in + tokens) * row, (rows_in - tokens) * row, 0.0f);
    return all;
  };
  const auto widened = [&](const std::byte* from, std::int64_t rows_in) {
    return reached(device::widened(read(from, G * rows_in * d * element), options.dtype), G,
                   rows_in, d);
  };
  for (const Layer& layer : layers) {
    const HostRecallLists lists = read_lists(layer);
    s.layers.push_back(
        {widened(layer.ring_key, capacity), widened(layer.ring_value, capacity),
         reached(read(layer.relevance, capacity * shape.n_heads), 1, capacity, shape.n_heads),
         widened(layer.sink_key, config.n_init), widened(layer.sink_value, config.n_init),
         host_ids(lists.similarity), host_ids(lists.contiguity)});
  }
  return s;
}

/// Reads closed events off the device, a group with all layers at a time.
class DeviceMemory::Impl::EventReader {
 public:
  /// \param events from number first_id on
  EventReader(const Impl& memory, const std::vector<TokenRange>& events, EventId first_id)
      : m_(memory), events_(events), first_id_(first_id) {
    for (const Layer& layer : m_.layers)
      if (layer.lane >= 0) layers_.push_back(&layer);
    blocks_.resize(layers_.size());
    representatives_.resize(layers_.size());
  }

  RingView read(EventId event, std::int64_t lane, float* representative) {
    const auto at = static_cast<std::size_t>(event - first_id_), s = static_cast<std::size_t>(lane);
    if (at >= end_) fetch(at);
    device::widen(
        representatives_[s].data() + static_cast<std::int64_t>(at - begin_) * m_.repr_row(),
        m_.width(), m_.options.representatives, representative);
    if (m_.is_forgotten(event)) erase(at, s, representative);  // the host forgets it at once
    return rings_.of(
        blocks_[s].data() + (events_[at].start - events_[begin_].start) * m_.token_bytes,
        m_.options.dtype, m_.shape.n_kv_heads, m_.shape.head_dim, events_[at]);
  }

 private:
  /// Nothing of a forgotten event goes to a file.
  void erase(std::size_t at, std::size_t lane, float* representative) {
    std::fill_n(representative, m_.width(), 0.0f);
    std::fill_n(blocks_[lane].data() + (events_[at].start - events_[begin_].start) * m_.token_bytes,
                events_[at].size() * m_.token_bytes, std::byte{0});
  }
  void fetch(std::size_t begin) {
    begin_ = begin;
    end_ = begin + 1;
    while (end_ < events_.size() &&
           events_[end_].end - events_[begin].start <= m_.most_closed_tokens())
      ++end_;
    const std::int64_t first = events_[begin_].start, row = m_.repr_row();
    const std::int64_t bytes = (events_[end_ - 1].end - first) * m_.token_bytes;
    for (std::size_t s = 0; s < layers_.size(); ++s) {
      const std::int64_t id = first_id_ + static_cast<EventId>(begin_);
      representatives_[s] = m_.read(layers_[s]->representatives + id * row,
                                    static_cast<std::int64_t>(end_ - begin_) * row);
      const auto lane = static_cast<std::int64_t>(s);
      std::byte* const home =
          m_.home + lane * m_.layer_bytes + (first - m_.config.n_init) * m_.token_bytes;
      if (m_.lower) {
        blocks_[s].resize(static_cast<std::size_t>(bytes));
        for (std::size_t e = begin_; e < end_; ++e)
          if (!m_.is_forgotten(first_id_ + static_cast<EventId>(e)))
            m_.lower->read(first_id_ + static_cast<EventId>(e), lane,
                           blocks_[s].data() + (events_[e].start - first) * m_.token_bytes);
      } else if (m_.n_slots > 0) {
        blocks_[s].assign(home, home + bytes);
      } else {
        blocks_[s] = m_.read(home, bytes);
      }
    }
  }

  const Impl& m_;
  const std::vector<TokenRange>& events_;
  const EventId first_id_;
  std::vector<const Layer*> layers_;
  std::size_t begin_ = 0, end_ = 0;                               // the group that is here
  std::vector<std::vector<std::byte>> blocks_, representatives_;  // of each layer
  device::EventRings rings_;
};

void DeviceMemory::save(EpisodicMemory& to, std::span<const std::int64_t> ids,
                        std::span<const float> last_logits) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.join_side_streams();  // what was closed last may be on its way home
  check();
  if (m.open) throw DataError("save: a step is open; call end_step first");
  if (!to.config().same_results(m.config) || to.tokens() != m.twin.tokens ||
      to.events().size() != m.twin.events)
    throw ConfigError(
        fmt::format("CUDA memory: to be saved to the memory that it was loaded from, of {} tokens "
                    "in {} events, but this one has {} in {} or other settings",
                    m.twin.tokens, m.twin.events, to.tokens(), to.events().size()));
  const TimelineState now = m.read_timeline();
  MemoryAdvance advance;
  advance.state = m.read_state(now);
  advance.state.last_logits.assign(last_logits.begin(), last_logits.end());
  advance.shared_events = m.shared.events;
  advance.shared_tokens = m.shared.tokens;
  advance.events = m.read_events(m.shared.events, now.n_events);
  advance.ids.assign(ids.begin(), ids.end());
  Impl::EventReader reader(m, advance.events, m.shared.events);
  advance.read = [&](EventId e, std::int64_t lane, float* representative) {
    return reader.read(e, lane, representative);
  };
  try {
    to.advance(advance);
  } catch (...) {
    m.twin.events = to.events().size();  // less, if this memory had gone back behind some
    throw;
  }
  m.twin = m.shared = {now.tokens, now.n_events};
  const std::vector<EventId>& gone = to.forgotten();
  if (to.can(Capability::pin))
    for (const auto& [event, pinned] : m.pin_changes)
      if (!std::binary_search(gone.begin(), gone.end(), event)) to.pin(event, pinned);
  m.pin_changes.clear();
  for (const EventId e : m.forgotten) to.forget(e);
}

}  // namespace episodic
