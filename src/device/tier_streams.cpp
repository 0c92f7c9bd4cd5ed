// SPDX-License-Identifier: Apache-2.0
// What runs over the host's link, beside the stream and on it.
#include "device_tiers.hpp"

namespace episodic::device {

void DeviceTiers::make_side_streams() {
  write_stream_ = SideStream::create();
  fetch_stream_ = SideStream::create();
  for (std::int64_t first = 0; first < sizes_.recalling; first = 2 * first + 1)
    write_outs_.push_back({first, std::min(first + 1, sizes_.recalling - first), Event::create()});
  awaited_ = write_outs_.size();
}

/// The stream may now read at home what this layer, and those before it, closed in earlier steps.
void DeviceTiers::await_homes(std::int64_t place, cudaStream_t stream) {
  for (; awaited_ < write_outs_.size() && write_outs_[awaited_].first <= place; ++awaited_)
    write_outs_[awaited_].written.hold(stream);
}

void DeviceTiers::join(cudaStream_t stream) {
  await_homes(sizes_.recalling - 1, stream);
  if (fetches_ahead_) fetch_stream_.join(stream);
  fetches_ahead_ = false;
}

void DeviceTiers::write_out(cudaStream_t stream) {
  write_stream_.fork_from(stream);
  for (const WriteOut& part : write_outs_) {
    written_.assign(1, block_params(part.first, part.count));
    written_.front().max_blocks = kLinkBlocks;
    launch_batch(kernels::event_to_block_batch, written_, write_stream_.get(), "keeping events");
    part.written.record(write_stream_.get());
  }
  awaited_ = 0;
}

/// Brings the recalled events that lie in host memory alone into the layer's slots, in place of
/// those recalled longest ago.
/// \param ahead the events are those that an earlier layer recalled, a guess: it counts as no
///        recall, and what this layer recalled in its last step or might now stays
void DeviceTiers::add_fetch(const DeviceLayer& layer, const RecallLists& lists, bool ahead,
                            Fetches& to) const {
  const LayerSlots& slots = slots_of(layer);
  const std::int64_t scope = layers_.scope_of(layer, 0), lane = layers_.first_lane(layer);
  const std::int64_t listed = sizes_.lanes.per_layer * sizes_.room;
  // Tokens before the step serve as its number: they grow from step to step.
  const std::int64_t* step = timeline_.first_position();
  kernels::TouchParams& touch = to.touched.emplace_back();
  touch = {slots.residency,     step,        lists.recalled,
           lists.sizes + 2,     sizes_.room, exchange_.missing,
           exchange_.n_missing, !ahead};
  touch.maybe_n_events = timeline_.event_count(scope);
  touch.count_stride = sizes_.count_stride();
  kernels::VictimParams& room_for = to.room_for.emplace_back();
  room_for.map = slots.residency;
  room_for.since = ahead ? slots.residency.newest : step;
  room_for.n_needed = exchange_.n_missing;
  room_for.max_needed = listed;
  room_for.slots = exchange_.given_slots;
  room_for.n_given = exchange_.n_given;
  room_for.victims = exchange_.victims;
  room_for.n_victims = exchange_.n_victims;
  room_for.maybe_pinned = pins_ + scope * sizes_.max_events;
  room_for.pin_stride = sizes_.table_stride();
  if (ahead) {
    room_for.maybe_kept = lists.recalled;
    room_for.n_kept = lists.sizes + 2;
    room_for.kept_capacity = sizes_.room;
  }
  kernels::OccupyParams& p = to.occupied.emplace_back();
  p.map = slots.residency;
  p.missing = exchange_.missing;
  p.slots = exchange_.given_slots;
  p.n_given = exchange_.n_given;
  p.victims = exchange_.victims;
  p.n_victims = exchange_.n_victims;
  p.max_needed = listed;
  p.events = timeline_.events(scope);
  p.table_stride = sizes_.table_stride();
  p.n_init = sizes_.config.n_init;
  p.home = reinterpret_cast<unsigned char*>(home_ + lane * sizes_.lane_bytes);
  p.lane_bytes = sizes_.lane_bytes;
  if (host_.base)
    p.base_home = reinterpret_cast<unsigned char*>(host_.base->data() + lane * sizes_.lane_bytes);
  p.base_end = host_.base_end;
  p.token_bytes = sizes_.token_bytes;
  p.slot_memory = reinterpret_cast<unsigned char*>(slots.memory);
  p.slot_bytes = plan_.slot_bytes;
  p.blocks = blocks_ + lane * sizes_.max_events;
  p.runs = exchange_.copies;
  to.runs.push_back({exchange_.copies, exchange_.n_given, listed, kLinkBlocks});
}

void DeviceTiers::Fetches::clear() {
  touched.clear();
  room_for.clear();
  occupied.clear();
  runs.clear();
}

void DeviceTiers::Fetches::launch(cudaStream_t stream) const {
  launch_batch(kernels::touch_events_batch, touched, stream, "residency");
  launch_batch(kernels::choose_victims_batch, room_for, stream, "choosing what makes room");
  launch_batch(kernels::occupy_slots_batch, occupied, stream, "residency");
  launch_batch(kernels::copy_runs_batch, runs, stream, "fetching events");
}

void DeviceTiers::swap_in(std::int64_t l, std::span<const Recalled> memories, cudaStream_t stream) {
  if (memories.empty()) return;
  Fetches& fetches = memories.front().tiers->fetches_;
  fetches.clear();
  for (const Recalled& m : memories) {
    DeviceTiers& t = *m.tiers;
    const DeviceLayer& layer = t.layers_.at(l);
    t.await_homes(layer.place, stream);
    if (t.fetches_ahead_) t.fetch_stream_.join(stream);
    t.fetches_ahead_ = false;
    t.add_fetch(layer, layer.lists[m.lists], false, fetches);
  }
  fetches.launch(stream);
  fetch_ahead(l, memories, stream);
}

/// What layer l recalled, to the next layer that recalls: on the side stream of one of the
/// memories, behind which the others' come.
void DeviceTiers::fetch_ahead(std::int64_t l, std::span<const Recalled> memories,
                              cudaStream_t stream) {
  Fetches& fetches = memories.front().tiers->fetches_;
  fetches.clear();
  const SideStream* side = nullptr;
  for (const Recalled& m : memories) {
    DeviceTiers& t = *m.tiers;
    const DeviceLayer* const next = t.layers_.next_recalling(l);
    if (!next) continue;
    if (!side) {
      side = &t.fetch_stream_;
      side->fork_from(stream);
    }
    const std::vector<WriteOut>& parts = t.write_outs_;
    for (std::size_t i = t.awaited_; i < parts.size() && parts[i].first <= next->place; ++i)
      parts[i].written.hold(side->get());
    t.add_fetch(*next, t.layers_.at(l).lists[m.lists], true, fetches);
    t.fetches_ahead_ = true;
  }
  if (!side) return;
  fetches.launch(side->get());
  for (const Recalled& m : memories)
    if (m.tiers->fetches_ahead_ && &m.tiers->fetch_stream_ != side)
      m.tiers->fetch_stream_.fork_from(side->get());
}

}  // namespace episodic::device
