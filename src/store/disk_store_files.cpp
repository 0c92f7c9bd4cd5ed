// SPDX-License-Identifier: Apache-2.0
// The disk store's segment files: taking and giving back room, commits, compaction.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>

#include "disk_store_impl.hpp"
#include "episodic/base/error.hpp"

namespace episodic::disk_store {

void Store::load(const StoreImage& image) {
  const std::lock_guard lock(mutex_);
  const io::Directory folder = options_.keep ? folder_ : io::Directory(calls_, options_.dir);
  for (const SegmentRef& ref : image.segments) open_segment(folder, ref);
  events_.reserve(image.events.size());
  for (std::size_t i = 0; i < image.events.size(); ++i) {
    const StoreImage::Event& e = image.events[i];
    Event event{e.range, e.lanes, e.segment, e.offset, e.last_recall, e.recalls, e.pinned};
    if (!lanes_are(e.lanes))
      throw FileError(
          fmt::format("{}: event {} is of lanes that are not there; restore from a copy",
                      options_.dir.string(), i));
    if (e.segment >= 0) {
      if (static_cast<std::size_t>(e.segment) >= segments_.size())
        throw FileError(fmt::format("{}: event {} lies in segment {} of {}; restore from a copy",
                                    options_.dir.string(), i, e.segment, segments_.size()));
      Segment& s = *segments_[static_cast<std::size_t>(e.segment)];
      if (e.range.size() < 1 || e.range.size() > options_.max_block || e.offset < kPage ||
          e.offset % kLine != 0 || e.offset > s.length || record_bytes(event) > s.length - e.offset)
        throw FileError(fmt::format(
            "{}: event {} of {} tokens (max_block {}) at byte {} does not fit; restore from a "
            "copy",
            where(s).string(), i, e.range.size(), options_.max_block, e.offset));
      count_in(event);
    }
    events_.push_back(event);
  }
  first_pending_ = static_cast<EventId>(events_.size());
  if (options_.keep) find_orphans();
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
  retry_writes();
  if (all_written()) forget_pending();
  const std::size_t n_events = events_.size(), n_segments = segments_.size();
  const std::size_t n_pending = pending_.size();
  const std::size_t current = current_;
  const bool closed = current != kNoSegment && segments_[current]->closed;
  const std::int64_t allocated = current != kNoSegment ? segments_[current]->allocated : 0;
  // Room first, so that an event that is counted is also listed, and can be taken back.
  const auto reserve_more = [](auto& list, std::size_t n) {
    if (list.size() + n > list.capacity())
      list.reserve(std::max(list.size() + n, 2 * list.capacity()));
  };
  {
    const std::lock_guard lock(mutex_);
    reserve_more(events_, events.size());
    reserve_more(pending_, events.size() * static_cast<std::size_t>(lanes.count));
    reserve_more(holes_, events.size());  // to take them back
  }
  try {
    for (std::size_t i = 0; i < events.size(); ++i) {
      Event event{events[i], lanes};
      place(event, events.subspan(i));
      const std::lock_guard lock(mutex_);
      count_in(event);
      event.flags = pending_.size();
      events_.push_back(event);
      pending_.resize(pending_.size() + static_cast<std::size_t>(lanes.count));
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    while (events_.size() > n_events) {
      give_back(events_.back());
      events_.pop_back();
    }
    if (pending_.size() > n_pending) pending_.resize(n_pending);
    while (segments_.size() > n_segments) {
      remove_file(*segments_.back());
      segments_.pop_back();
    }
    current_ = current;
    if (current != kNoSegment) {
      Segment& s = *segments_[current];
      s.closed = closed;
      // A file that was rolled has lost its reserve, one that grew has got more of it.
      cut(s, std::min(allocated, s.allocated));
    }
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
  drain();
  forget_pending();
  release_empty_segments();
  if (options_.keep) {
    bool names = false;
    const auto changed = [](const std::unique_ptr<Segment>& s) {
      return s && s->own && s->live_events > 0 && s->length > s->frozen;
    };
    for (std::size_t i = 0; i < segments_.size(); ++i)
      if (changed(segments_[i])) {
        freeze(*segments_[i], i);
        names |= segments_[i]->frozen == 0;
      }
    if (names) folder_.sync();
    for (const auto& s : segments_)
      if (changed(s)) s->frozen = s->length;
  }
  return image();
}

void Store::committed(const StoreImage& image) {
  const auto named = [&](std::uint64_t id) {
    return std::any_of(image.segments.begin(), image.segments.end(),
                       [&](const SegmentRef& ref) { return ref.id == id; });
  };
  if (!options_.keep) return;
  int failed = 0;
  std::string which;
  const auto remove = [&](const std::string& name) {
    const int r = folder_.remove(io::Kind::segment, name);
    if (r >= 0 || r == -ENOENT) return true;
    failed = -r;
    which = name;
    return false;
  };
  own_->drop_prefetched();
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < segments_.size(); ++i)
    if (const auto& s = segments_[i];
        s && s->live_events == 0 && s->frozen > 0 && !named(s->id) && remove(s->name))
      forget_file(i);
  std::erase_if(orphans_, [&](const auto& orphan) {
    if (!remove(orphan.first)) return false;
    taken_ -= orphan.second;
    return true;
  });
  if (failed != 0)
    io::fail(failed, folder_.path() / which, "remove it",
             "it is not needed any more; the next commit tries again");
}

void Store::compact(double dead_share) {
  if (!(dead_share > 0.0 && dead_share <= 1.0))
    throw ConfigError(
        fmt::format("disk store: compact at a dead share of {}; must be in (0, 1]", dead_share));
  if (!all_written())
    throw Error("disk store: compact before all lanes of all events were written");
  drain();
  own_->drop_prefetched();
  const std::size_t n = segments_.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (!segments_[i] || segments_[i]->live_events == 0) continue;
    const Segment& s = *segments_[i];
    const double dead = static_cast<double>(s.length - kPage - s.live_bytes);
    if (s.length > kPage && dead >= dead_share * static_cast<double>(s.length - kPage)) move_out(i);
  }
  const std::lock_guard lock(mutex_);
  release_empty_segments();
}

/// Opens a file once more to read from it with O_DIRECT, where that is wanted and works.
void Store::open_reader(Segment& s) {
  if (!want_direct_) return;
  int why = (s.write ? s.write : s.read).open_again(O_RDONLY | O_DIRECT);
  if (why >= 0) {
    io::File file = io::File::adopt(calls_, io::Kind::segment, where(s), why);
    const std::int64_t got =
        calls_.read(io::Kind::segment, file.fd(), own_->scratch_page(), kPage, 0);
    why = got < 0 ? static_cast<int>(got) : -EIO;
    if (got == kPage) {
      // Blocks begin at multiples of 64. In whole pages a block of 64 KiB would be 17 or 18 of
      // them; most media also take their sectors.
      const bool sectors = calls_.read(io::Kind::segment, file.fd(), own_->scratch_page(), kSector,
                                       kSector) == kSector;
      s.read = std::move(file);
      s.grain = sectors ? kSector : kPage;
      return;
    }
  }
  if (options_.direct == DirectIo::on)
    io::fail(-why, where(s), "read it with O_DIRECT", "set direct to automatic");
}

void Store::open_segment(const io::Directory& folder, const SegmentRef& ref) {
  auto s = std::make_unique<Segment>();
  s->id = ref.id;
  s->name = segment_name(ref.id);
  s->closed = true;
  s->length = s->frozen = ref.bytes;
  s->read = folder.open(io::Kind::segment, s->name);
  std::int64_t size = s->read.size();
  if (ref.bytes < kPage || size < ref.bytes)
    throw FileError(
        fmt::format("{}: {} bytes long, {} were committed; it is truncated: restore from a copy",
                    s->read.path().string(), size, ref.bytes));
  // A crash leaves a tail that nothing names. The file may be another memory's too, or a hard link
  // to something else: what has another name is never cut.
  if (options_.keep && size > ref.bytes) {
    io::File writable = folder.open(io::Kind::segment, s->name, O_RDWR);
    if (writable.links() == 1) {
      writable.truncate(ref.bytes);
      size = ref.bytes;
    }
  }
  open_reader(*s);
  std::byte* const page = own_->scratch_page();
  s->read.read({page, static_cast<std::size_t>(kPage)}, 0);
  if (const std::string fault = segment_file::header_fault(shape_, ref.id, page); !fault.empty())
    throw FileError(fmt::format("{}: {}; restore from a copy", s->read.path().string(), fault));
  if (options_.keep) {
    s->allocated = round_up(size, kPage);
    s->overhead = overhead_;
    taken_ += s->allocated + s->overhead;
  }
  segments_.push_back(std::move(s));
}

/// Segment files in the folder that the image does not name: of commits that were not finished.
void Store::find_orphans() {
  for (const std::string& name : folder_.names()) {
    if (name.size() != segment_name(0).size() || !name.starts_with("kv-") ||
        !name.ends_with(".seg") ||
        std::any_of(segments_.begin(), segments_.end(),
                    [&](const auto& s) { return s->name == name; }))
      continue;
    const auto entry = folder_.look(name);
    orphans_.emplace_back(name, round_up(entry ? entry->bytes : 0, kPage));
    taken_ += orphans_.back().second;
  }
}

/// Room in files for an event. \param rest it and all events still to be placed
void Store::place(Event& event, std::span<const TokenRange> rest) {
  const std::int64_t bytes = record_bytes(event);
  if (current_ == kNoSegment || !segments_[current_] || segments_[current_]->closed ||
      (segments_[current_]->length > kPage && segments_[current_]->length + bytes > roll_bytes_)) {
    if (current_ != kNoSegment && segments_[current_]) {
      Segment& full = *segments_[current_];
      full.closed = true;
      cut(full, round_up(full.length, kPage));
    }
    begin_segment(event, rest);
  }
  Segment& s = *segments_[current_];
  reserve(s, round_up(s.length + bytes, kPage), rest, event.lanes.count);
  event.segment = static_cast<std::int32_t>(current_);
  event.offset = s.length;
}

void Store::begin_segment(const Event& event, std::span<const TokenRange> rest) {
  auto s = std::make_unique<Segment>();
  s->own = true;
  if (options_.disk_bytes > 0 && taken_ + overhead_ > options_.disk_bytes)
    refuse(rest, event.lanes.count);
  std::random_device random;
  s->id = (std::uint64_t{random()} << 32) | random();
  try {
    if (options_.keep) {
      s->write = folder_.create(io::Kind::segment, segment_name(s->id));
      s->name = segment_name(s->id);
    } else {
      s->write = folder_.create_unnamed(io::Kind::segment, segment_name(s->id));
    }
    s->overhead = overhead_;
    taken_ += overhead_;
    reserve(*s, file_bytes(record_bytes(event)), rest, event.lanes.count);
    std::byte* const page = own_->scratch_page();
    segment_file::fill_header(shape_, s->id, page);
    s->write.write({page, static_cast<std::size_t>(kPage)}, 0);
    open_reader(*s);
    const std::lock_guard lock(mutex_);
    segments_.push_back(std::move(s));
    current_ = segments_.size() - 1;
  } catch (...) {
    if (s && s->write) remove_file(*s);
    throw;
  }
}

/// Takes room from the file system up to `end`, and ahead of it what is likely to be needed.
void Store::reserve(Segment& s, std::int64_t end, std::span<const TokenRange> rest,
                    std::int64_t n_lanes) {
  if (end <= s.allocated) return;
  const std::int64_t needed = end - s.allocated;
  std::int64_t extent = std::max(needed, std::clamp(s.allocated, kLeastExtentBytes, kExtentBytes));
  extent = std::max(needed, std::min(extent, round_up(roll_bytes_, kPage) - s.allocated));
  if (options_.disk_bytes > 0) {
    const std::int64_t left = (options_.disk_bytes - taken_) / kPage * kPage;
    if (needed > left) refuse(rest, n_lanes);
    // A sixteenth of a small budget at most lies idle.
    extent = std::max(needed, std::min({extent, left, options_.disk_bytes / 16 / kPage * kPage}));
  }
  int result = calls_.allocate(io::Kind::segment, s.write.fd(), s.allocated, extent);
  if ((result == -ENOSPC || result == -EDQUOT) && extent > needed) {
    calls_.truncate(io::Kind::segment, s.write.fd(), s.allocated);
    extent = needed;
    result = calls_.allocate(io::Kind::segment, s.write.fd(), s.allocated, extent);
  }
  if (result < 0) {
    calls_.truncate(io::Kind::segment, s.write.fd(), s.allocated);
    std::int64_t bytes = 0;
    for (const TokenRange& range : rest) bytes += record_bytes(range.size(), n_lanes);
    io::fail(
        -result, where(s), fmt::format("reserve {} bytes for {} events", bytes, rest.size()),
        result == -ENOSPC || result == -EDQUOT
            ? fmt::format("free at least {} bytes on its file system; what was stored stays", bytes)
            : "");
  }
  s.allocated += extent;
  taken_ += extent;
}

[[noreturn]] void Store::refuse(std::span<const TokenRange> rest, std::int64_t n_lanes) const {
  std::int64_t missing = 0;
  for (const TokenRange& range : rest)
    missing += file_bytes(record_bytes(range.size(), n_lanes)) + overhead_;
  throw BudgetError(fmt::format(
      "disk store: disk_bytes = {} is used up ({} bytes taken) and {} more bytes are needed for "
      "{} events; set disk_bytes to at least {} (0: no bound)",
      options_.disk_bytes, taken_, missing, rest.size(), taken_ + missing));
}

/// Gives back what a file of our own has reserved beyond `bytes`. A hint: a refusal costs room.
void Store::cut(Segment& s, std::int64_t bytes) {
  if (s.allocated <= bytes) return;
  if (calls_.truncate(io::Kind::segment, s.write.fd(), bytes) < 0) return;
  taken_ -= s.allocated - bytes;
  s.allocated = bytes;
}

void Store::remove_file(Segment& s) {
  if (!s.name.empty()) folder_.remove(io::Kind::segment, s.name);
  taken_ -= s.allocated + s.overhead;
  s.allocated = s.overhead = 0;
}

void Store::forget_file(std::size_t index) {
  std::erase_if(holes_, [&](const Hole& h) { return h.segment == index; });
  taken_ -= segments_[index]->allocated + segments_[index]->overhead;
  segments_[index].reset();
  if (current_ == index) current_ = kNoSegment;
}

/// Files of our own that no image can name go at once. One whose name cannot be removed stays,
/// and is tried again.
void Store::release_empty_segments() {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i]) continue;
    Segment& s = *segments_[i];
    if (!s.own || s.live_events > 0 || s.frozen > 0) continue;
    if (i == current_ && !s.closed) {  // begin it anew
      s.length = kPage;
      std::erase_if(holes_, [&](const Hole& h) { return h.segment == i; });
    } else if (s.name.empty() || folder_.remove(io::Kind::segment, s.name) >= 0) {
      forget_file(i);
    }
  }
}

/// Makes a file of our own durable up to its length, rounded up to a page.
void Store::freeze(Segment& s, std::size_t index) {
  static constexpr std::byte kZeros[kPage] = {};
  const auto zero = [&](std::int64_t offset, std::int64_t bytes) {
    for (; bytes > 0; offset += kPage, bytes -= kPage)
      s.write.write(std::span(kZeros).first(static_cast<std::size_t>(std::min(bytes, kPage))),
                    offset);
  };
  for (const Hole& hole : holes_)
    if (hole.segment == index) zero(hole.offset, hole.bytes);
  const std::int64_t end = round_up(s.length, kPage);
  zero(s.length, end - s.length);
  cut(s, end);
  s.write.sync();
  std::erase_if(holes_, [&](const Hole& h) { return h.segment == index; });
  s.length = end;
}

StoreImage Store::image() const {
  StoreImage image;
  std::vector<std::int32_t> number(segments_.size(), -1);
  for (std::size_t i = 0; i < segments_.size(); ++i)
    if (segments_[i] && segments_[i]->live_events > 0) {
      number[i] = static_cast<std::int32_t>(image.segments.size());
      image.segments.push_back({segments_[i]->id, segments_[i]->length});
    }
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
  const auto live = static_cast<std::size_t>(segments_[index]->live_events);
  moved.reserve(live);  // what is counted can be taken back
  {
    const std::lock_guard lock(mutex_);
    holes_.reserve(holes_.size() + 2 * live);
  }
  segments_[index]->closed = true;
  try {
    for (EventId id = 0; id < n_events(); ++id) {
      if (at(id).segment != static_cast<std::int32_t>(index)) continue;
      Event event = at(id);
      place(event, std::span(&event.range, 1));
      {
        const std::lock_guard lock(mutex_);
        count_in(event);
        moved.emplace_back(id, event);
      }
      Segment& to = segment_of_event(event);
      const std::int64_t stride = block_stride(shape_, event.range.size());
      for (std::int64_t lane = event.lanes.first; event.lanes.holds(lane); ++lane)
        own_->with_block(id, lane, [&](std::byte* block) {
          segment_file::seal_block(shape_, {to.id, id, lane, event.range}, block);
          to.write.write({block, static_cast<std::size_t>(stride)}, block_offset(event, lane));
        });
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    for (; !moved.empty(); moved.pop_back()) give_back(moved.back().second);
    throw;
  }
  const std::lock_guard lock(mutex_);
  for (auto& [id, event] : moved) {
    std::swap(at(id), event);
    give_back(event);
    counters_.written_bytes += record_bytes(at(id));
  }
}

}  // namespace episodic::disk_store
