// SPDX-License-Identifier: Apache-2.0
// How a DeviceMemory becomes a memory of the host.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/config_difference.hpp"
#include "convert.hpp"
#include "episodic/base/error.hpp"
#include "memory_impl.hpp"
#include "transfers.hpp"

namespace episodic {

using device::HostRecallLists;
using kernels::DeviceEventId;
using kernels::EventRange;
using kernels::TimelineState;

namespace {

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

}  // namespace

void DeviceMemory::load(const EpisodicMemory& from) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  if (!from.config().same_results(m.sizes.config))
    throw ConfigError("CUDA memory: the memory to go on from was made with other settings: " +
                      difference(from.config(), m.sizes.config));
  if (const std::string what = difference(from.shape(), m.sizes.shape); !what.empty())
    throw ConfigError("CUDA memory: the memory to go on from was made with another model: " + what);
  if (from.given_boundaries() != m.given)
    throw ConfigError("CUDA memory: the memory to go on from was made with other given boundaries");
  if (from.tokens() > m.sizes.options.max_tokens)
    throw BudgetError(fmt::format(
        "CUDA memory: the memory to go on from has {} tokens, but this one has room for "
        "max_tokens = {}; make it with more",
        from.tokens(), m.sizes.options.max_tokens));
  const MemoryState state = from.state();
  std::int64_t tokens = 0, events = 0;  // of the scope with most
  for (std::int64_t s = 0; s < m.sizes.scopes; ++s) {
    tokens = std::max(tokens, from.events(s).tokens());
    events = std::max(events, from.events(s).size());
  }
  if (m.memory.has_shared() || m.tiers.shares_home()) reset();
  m.make_room_for(tokens, events);
  m.snapshots.kept_rows.forget_marks();
  m.clear();
  try {
    m.go_on_from(from, state);
  } catch (...) {
    m.clear();  // half of it is of no use
    throw;
  }
}

void DeviceMemory::Impl::go_on_from(const EpisodicMemory& from, const MemoryState& handed) {
  for (std::int64_t s = 0; s < sizes.scopes; ++s)
    retention.forget_again(s, from.forgotten(s), from.events(s).size(), stream);
  write_events(from);
  layers.write_windows(handed, workspace, stream);
  for (std::size_t l = 0; l < handed.layers.size(); ++l)
    for (std::int64_t p = 0; p < sizes.lanes.per_layer; ++p) {
      const MemoryState::Layer::Lists& of = handed.layers[l].lanes[static_cast<std::size_t>(p)];
      HostRecallLists lists{device_ids(of.similarity), device_ids(of.contiguity), {}};
      lists.recalled = lists.similarity;
      lists.recalled.insert(lists.recalled.end(), lists.contiguity.begin(), lists.contiguity.end());
      std::sort(lists.recalled.begin(), lists.recalled.end());
      write_lists(layers.at(static_cast<std::int64_t>(l)), p, lists);
    }
  retention.load_graph(handed, from.events().size(), stream);
  timeline.write(from, handed, stream);
  retention.write_recalled_events(static_cast<unsigned long long>(handed.recalled_events), stream);
  host.shared = {handed.tokens, {}};
  for (std::int64_t s = 0; s < sizes.scopes; ++s) {
    host.shared.events.push_back(from.events(s).size());
    std::vector<kernels::RecallCount> counts;
    for (const EventRecalls& of : from.recall_counts(s))
      counts.push_back(
          {static_cast<std::uint32_t>(of.recalls), static_cast<std::uint32_t>(of.last_recall + 1)});
    retention.write_counts(s, counts, stream);
  }
  step.tokens = handed.tokens;
  step.n_steps = static_cast<std::uint32_t>(handed.steps);
  accept_report(device::DeviceTimeline::states_of(from, handed));
  step.steps_since_recall = handed.steps_since_recall;
  step.far_in_last_step = step.tokens > sizes.config.n_local;
  host.twin = host.shared;
  host.saved.assign(1, host.shared);
}

/// Keys, values and representatives of all closed events, a few at a time.
void DeviceMemory::Impl::write_events(const EpisodicMemory& from) {
  for (std::int64_t s = 0; s < sizes.scopes; ++s)
    timeline.write_events(s, from.events(s).all(), stream);
  if (sizes.recalling == 0) return;
  std::vector<std::int32_t> counts;  // of each table that lanes have
  for (std::int64_t s = 0; s < sizes.scopes; ++s) {
    if (layers.lanes_of(s).count == 0) continue;
    write_events(from, s);
    counts.push_back(static_cast<std::int32_t>(from.events(s).size()));
    for (const EventId e : retention.forgotten(s)) tiers.forget(s, e);
    for (EventId e = 0; e < from.events(s).size(); ++e)
      if (from.pinned(e, s)) set_pinned(s, e, true);
  }
  if (!sizes.keeps_codes()) return;
  const kernels::ClosedEvents all = tiers.write_closed(counts, stream);
  const std::vector<kernels::CodeParams> codes = {layers.code_params(all)};
  device::launch_batch(kernels::encode_representatives_batch, codes, stream,
                       "codes of representatives");
}

/// Of one scope.
void DeviceMemory::Impl::write_events(const EpisodicMemory& from, std::int64_t scope) {
  device::LowerTiers* const files = tiers.files();
  const std::vector<TokenRange>& all = from.events(scope).all();
  const auto [first_lane, n_lanes] = layers.lanes_of(scope);
  const DType stored = from.config().kv_dtype;
  const StoreShape of_store{sizes.lanes.n_lanes, sizes.lanes.n_kv_heads, sizes.shape.head_dim,
                            stored};
  const std::int64_t before = device::keys_in_block(of_store), of_event = sizes.scales_of_event();
  const std::int64_t most = sizes.most_closed_tokens(), dtype_bytes = size_of(sizes.options.dtype);
  const std::int64_t part_bytes = files ? files->staging_lane_bytes() : most * sizes.token_bytes;
  std::vector<std::byte> part(static_cast<std::size_t>(part_bytes)), block, row;
  std::vector<float> wide, scales;
  std::vector<EventRange> ranges;
  for (const TokenRange& e : all) ranges.push_back({e.start, e.end});
  /// Those that are not forgotten, a run at a time; the places of the others stay zero.
  const auto read_kept = [&](EventId begin, EventId end, std::int64_t lane, const auto& place) {
    while (begin < end) {
      EventId stop = begin;
      while (stop < end && !retention.is_forgotten(scope, stop)) ++stop;
      from.read_events(begin, stop, lane, place);
      begin = stop + 1;
    }
  };
  for_groups(all, 0, most, [&](std::size_t begin, std::size_t end) {
    const std::int64_t first = all[begin].start;
    const std::int64_t bytes_of_group = (all[end - 1].end - first) * sizes.token_bytes;
    const auto begin_id = static_cast<EventId>(begin), end_id = static_cast<EventId>(end);
    for (std::int64_t lane = first_lane; lane < first_lane + n_lanes; ++lane) {
      const auto [layer, p] = layers.recalling_lane(lane);
      std::byte* const to = files ? tiers.staging(lane) : part.data();
      const auto place_of = [&](EventId e) {
        return to + (all[static_cast<std::size_t>(e)].start - first) * sizes.token_bytes;
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
          if (retention.is_forgotten(scope, e)) continue;
          std::memcpy(scales.data() + (e - begin_id) * of_event, block_of(e),
                      static_cast<std::size_t>(of_event) * sizeof(float));
          std::memcpy(place_of(e), block_of(e) + before,
                      static_cast<std::size_t>(all[static_cast<std::size_t>(e)].size() *
                                               sizes.token_bytes));
        }
        device::write(tiers.scales_of(lane) + begin_id * of_event, scales.data(),
                      static_cast<std::int64_t>(scales.size()), stream);
        if (files) std::copy(scales.begin(), scales.end(), files->staged_scales(lane));
      } else if (stored == sizes.options.dtype) {
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
        device::narrow(wide.data(), count, sizes.options.dtype, to);
      }
      const std::int64_t number = layers.number(*layer) * sizes.lanes.per_layer + p;
      /// What a lane has of each event; of forgotten ones zeros.
      const auto write_vectors = [&](std::byte* to_all, std::int64_t of_event_bytes,
                                     const auto& vectors_of) {
        row.assign((end - begin) * static_cast<std::size_t>(of_event_bytes), std::byte{0});
        for (EventId e = begin_id; e < end_id; ++e) {
          if (retention.is_forgotten(scope, e)) continue;
          const std::vector<float> vectors = vectors_of(e);
          device::narrow(vectors.data(), static_cast<std::int64_t>(vectors.size()),
                         sizes.options.representatives,
                         row.data() + (e - begin_id) * of_event_bytes);
        }
        device::write(to_all + (p * sizes.max_events + begin_id) * of_event_bytes, row.data(),
                      static_cast<std::int64_t>(row.size()), stream);
      };
      write_vectors(layer->representatives, sizes.repr_row(),
                    [&](EventId e) { return from.representative(number, e); });
      if (sizes.keeps_each())
        write_vectors(layer->each, sizes.each_row(),
                      [&](EventId e) { return from.individual_representatives(number, e); });
      tiers.write_home(lane, first, part.data(), bytes_of_group, stream);
    }
    if (files) tiers.keep(scope, std::span(ranges).subspan(begin, end - begin));
  });
  for (std::int64_t lane = first_lane; lane < first_lane + n_lanes; ++lane)
    tiers.all_at_home(lane, all, stream);
}

}  // namespace episodic
