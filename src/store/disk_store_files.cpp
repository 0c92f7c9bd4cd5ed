// SPDX-License-Identifier: Apache-2.0
// The disk store's segment files: room for events, commits, compaction.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "disk_store_impl.hpp"
#include "episodic/base/error.hpp"

namespace episodic::disk_store {

void Store::load(const StoreImage& image) {
  files_->open(image.segments,
               options_.keep ? files_->folder() : io::Directory(calls_, options_.dir));
  events_.reserve(image.events.size());
  for (std::size_t i = 0; i < image.events.size(); ++i) {
    const StoreImage::Event& e = image.events[i];
    Event event{e.range, e.lanes, e.segment, e.offset, e.last_recall, e.recalls, e.pinned};
    if (!lanes_are(e.lanes))
      throw FileError(
          fmt::format("{}: event {} is of lanes that are not there; restore from a copy",
                      options_.dir.string(), i));
    if (e.segment >= 0) {
      const auto file = static_cast<std::size_t>(e.segment);
      if (file >= files_->size())
        throw FileError(fmt::format("{}: event {} lies in segment {} of {}; restore from a copy",
                                    options_.dir.string(), i, e.segment, files_->size()));
      const std::int64_t end = files_->file(file).end;
      if (e.range.size() < 1 || e.range.size() > options_.max_block || e.offset < kPage ||
          e.offset % kLine != 0 || e.offset > end || record_bytes(event) > end - e.offset)
        throw FileError(fmt::format(
            "{}: event {} of {} tokens (max_block {}) at byte {} does not fit; restore from a "
            "copy",
            files_->path(file).string(), i, e.range.size(), options_.max_block, e.offset));
      files_->count(file, record_bytes(event));
      count_in(event);
    }
    events_.push_back(event);
  }
  first_pending_ = static_cast<EventId>(events_.size());
}

void Store::append(std::span<const TokenRange> events, LaneRange lanes) {
  if (!lanes_are(lanes))
    throw DataError(fmt::format("disk store: events of lanes {} to {} among {}", lanes.first,
                                lanes.first + lanes.count - 1, shape_.n_lanes));
  for (const TokenRange& range : events)
    if (range.size() < 1 || range.size() > options_.max_block)
      throw DataError(
          fmt::format("disk store: an event of {} tokens; events have 1 to {} (max_block)",
                      range.size(), options_.max_block));
  files_->admit(0);
  if (all_written()) forget_pending();
  const std::size_t n_events = events_.size(), n_pending = pending_.size();
  const io::AppendFiles::Mark mark = files_->mark();
  // Room first, so that an event that is counted is also listed, and can be taken back.
  const auto reserve_more = [](auto& list, std::size_t n) {
    if (list.size() + n > list.capacity())
      list.reserve(std::max(list.size() + n, 2 * list.capacity()));
  };
  {
    const auto lock = this->lock();
    reserve_more(events_, events.size());
    reserve_more(pending_, events.size() * static_cast<std::size_t>(lanes.count));
    files_->reserve_holes(lock, events.size());  // to take them back
  }
  io::AppendFiles::Need need{0, static_cast<std::int64_t>(events.size())};
  for (const TokenRange& range : events) need.bytes += record_bytes(range.size(), lanes.count);
  try {
    for (const TokenRange& range : events) {
      Event event{range, lanes};
      place(event, need);
      need.bytes -= record_bytes(event);
      --need.parts;
      const auto lock = this->lock();
      count_in(event);
      event.flags = pending_.size();
      events_.push_back(event);
      pending_.resize(pending_.size() + static_cast<std::size_t>(lanes.count));
    }
  } catch (...) {
    auto lock = this->lock();
    for (; events_.size() > n_events; events_.pop_back()) give_back(lock, events_.back());
    pending_.resize(n_pending);
    files_->cut(lock, mark);
    throw;
  }
}

StoreImage Store::sync() {
  if (!all_written()) {
    for (EventId event = first_pending_; event < n_events(); ++event)
      for (std::int64_t lane = at(event).lanes.first; at(event).lanes.holds(lane); ++lane)
        if (!pending_[pending_at(event, lane)])
          throw Error(
              fmt::format("disk store: lane {} of event {} was never written; write all lanes "
                          "of an event before sync",
                          lane, event));
  }
  files_->sync();
  forget_pending();
  return image();
}

void Store::committed(const StoreImage& image) {
  own_->drop_prefetched();
  files_->committed(image.segments);
}

void Store::compact(double dead_share) {
  if (!(dead_share > 0.0 && dead_share <= 1.0))
    throw ConfigError(
        fmt::format("disk store: compact at a dead share of {}; must be in (0, 1]", dead_share));
  if (!all_written())
    throw Error("disk store: compact before all lanes of all events were written");
  settle();
  const std::size_t n = files_->size();
  for (std::size_t i = 0; i < n; ++i)
    if (files_->has(i) && files_->file(i).live > 0 && files_->dead_share(i) >= dead_share)
      move_out(i);
  auto lock = this->lock();
  files_->release_empty(lock);
}

void Store::settle() {
  {
    auto lock = this->lock();
    files_->queue().drain(lock);
  }
  own_->drop_prefetched();
}

bool Store::merge_files(std::size_t most) {
  const std::vector<std::size_t> merged = files_->to_merge(most);
  if (merged.empty() || !all_written()) return false;
  bool moved = false;
  try {
    settle();
    files_->close_current();  // into one that is none of them
    for (const std::size_t index : merged) {
      move_out(index);
      moved = true;
    }
  } catch (const Error&) {  // a damaged block, no room: a commit needs neither
  }
  auto lock = this->lock();
  files_->release_empty(lock);
  return moved;
}

/// Opens a file once more to read from it with O_DIRECT, where that is wanted and works.
void Store::open_reader(Segment& s) {
  if (!want_direct_) return;
  int why = s.file.open_again(O_RDONLY | O_DIRECT);
  if (why >= 0) {
    io::File file = io::File::adopt(calls_, io::Kind::segment, s.file.path(), why);
    const std::int64_t got =
        calls_.read(io::Kind::segment, file.fd(), own_->scratch_page(), kPage, 0);
    why = got < 0 ? static_cast<int>(got) : -EIO;
    if (got == kPage) {
      // Blocks begin at multiples of 64. In whole pages a block of 64 KiB would be 17 or 18 of
      // them; most media also take their sectors.
      const bool sectors = calls_.read(io::Kind::segment, file.fd(), own_->scratch_page(), kSector,
                                       kSector) == kSector;
      s.direct = std::move(file);
      s.grain = sectors ? kSector : kPage;
      return;
    }
  }
  if (options_.direct == DirectIo::on)
    io::fail(-why, s.file.path(), "read it with O_DIRECT", "set direct to automatic");
}

void Store::place(Event& event, io::AppendFiles::Need need) {
  const io::AppendFiles::Place place = files_->place(record_bytes(event), need);
  event.segment = static_cast<std::int32_t>(place.file);
  event.offset = place.offset;
}

StoreImage Store::image() const {
  StoreImage image;
  std::vector<std::int32_t> number;
  image.segments = files_->refs(number);
  image.events.reserve(events_.size());
  for (const Event& e : events_)
    image.events.push_back({e.range, e.lanes,
                            e.segment < 0 ? -1 : number[static_cast<std::size_t>(e.segment)],
                            e.segment < 0 ? 0 : e.offset, e.last_recall, e.recalls, e.pinned});
  return image;
}

/// Copies the live events of a file to where new ones go. All or nothing.
void Store::move_out(std::size_t index) {
  std::vector<std::pair<EventId, Event>> moved;
  const auto live =
      static_cast<std::size_t>(std::count_if(events_.begin(), events_.end(), [&](const Event& e) {
        return e.segment == static_cast<std::int32_t>(index);
      }));
  moved.reserve(live);  // what is counted can be taken back
  files_->reserve_holes(lock(), 2 * live);
  files_->close(index);
  try {
    for (EventId id = 0; id < n_events(); ++id) {
      if (at(id).segment != static_cast<std::int32_t>(index)) continue;
      Event event = at(id);
      place(event, {record_bytes(event), 1});
      {
        const auto lock = this->lock();
        count_in(event);
        moved.emplace_back(id, event);
      }
      const std::uint64_t to = segment_of_event(event).id;
      const std::int64_t stride = block_stride(shape_, event.range.size());
      for (std::int64_t lane = event.lanes.first; event.lanes.holds(lane); ++lane)
        own_->with_block(id, lane, [&](std::byte* block) {
          segment_file::seal_block(shape_, {to, id, lane, event.range}, block);
          files_->write_now(block_place(event, lane), {block, static_cast<std::size_t>(stride)});
        });
    }
  } catch (...) {
    auto lock = this->lock();
    for (; !moved.empty(); moved.pop_back()) give_back(lock, moved.back().second);
    throw;
  }
  auto lock = this->lock();
  for (auto& [id, event] : moved) {
    std::swap(at(id), event);
    give_back(lock, event);
    counters_.written_bytes += record_bytes(at(id));
  }
}

}  // namespace episodic::disk_store
