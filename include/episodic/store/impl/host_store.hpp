// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of store/event_store.hpp; how they become functions: base/inline.hpp.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"
#include "episodic/store/event_store.hpp"

namespace EPISODIC_NAMESPACE {
namespace host_store_detail {

inline constexpr std::int64_t kSlabBytes = std::int64_t{8} << 20;
inline constexpr std::align_val_t kAlignment{64};

struct FreeSlab {
  void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
};

/// Events are stacked in a slab in order of time, so forgetting the latest lowers `used`.
struct Slab {
  std::unique_ptr<std::byte, FreeSlab> memory;
  std::int64_t bytes = 0;
  std::int64_t used = 0;
  std::int64_t events = 0;  ///< that are not forgotten; a slab without any begins anew
};

struct StoredEvent {
  TokenRange range;
  LaneRange lanes;
  std::size_t slab = 0;
  std::int64_t offset = 0;
  std::int64_t last_recall = -1;
  bool forgotten = false;
};

class HostStore final : public EventStore {
 public:
  HostStore(const StoreShape& shape, std::int64_t budget, std::int64_t max_block)
      : shape_(shape),
        budget_(budget),
        max_block_(max_block),
        max_event_bytes_(event_bytes(max_block, shape.n_lanes)) {
    if (shape.n_lanes < 1 || shape.n_kv_heads < 1 || shape.head_dim < 1 || max_block < 1)
      throw ConfigError(concat("host store: ", shape.n_lanes, " lanes, ", shape.n_kv_heads,
                               " key/value heads, ", shape.head_dim, " channels, max_block ",
                               max_block, "; each must be at least 1"));
    if (budget < 0)
      throw ConfigError(concat("host store: host_bytes = ", budget, ", must be >= 0"));
    if (budget > 0 && budget < max_event_bytes_)
      throw BudgetError(concat(
          "host store: host_bytes = ", budget, " cannot hold one event of max_block = ", max_block,
          " tokens, which takes ", max_event_bytes_, " bytes; set host_bytes to at least ",
          max_event_bytes_, " (0: no bound), or lower max_block"));
  }

  void append(std::span<const TokenRange> events, LaneRange lanes) override {
    check_lanes(lanes);
    for (const TokenRange& range : events)
      if (range.size() < 1 || range.size() > max_block_)
        throw DataError(concat("host store: an event of ", range.size(),
                               " tokens; events have 1 to ", max_block_, " (max_block)"));
    const std::size_t n_slabs = slabs_.size();
    const std::size_t n_events = events_.size();
    try {
      for (std::size_t i = 0; i < events.size(); ++i) place(events.subspan(i), lanes);
    } catch (...) {
      forget_from(n_events);
      while (slabs_.size() > n_slabs) {
        bytes_reserved_ -= slabs_.back().bytes;
        slabs_.pop_back();
      }
      throw;
    }
  }

  using EventStore::append;
  std::int64_t n_lanes() const override { return shape_.n_lanes; }

  void write(EventId event, std::int64_t lane, const RingView& source) override {
    check_event(event, lane);
    const StoredEvent& stored = events_[static_cast<std::size_t>(event)];
    encode_block(shape_, stored.range, source, lane_data(stored, lane));
  }

  void acquire(std::int64_t lane, std::span<const EventId> events,
               std::vector<KvSegment>& out) override {
    own_.acquire(lane, events, out);
    for (const EventId event : events) events_[static_cast<std::size_t>(event)].last_recall = step_;
  }

  void release(std::int64_t lane) override { own_.release(lane); }

  void read(EventId event, std::int64_t lane, std::byte* block) override {
    copy_block(event, lane, block);
  }

  void forget(EventId event) override {
    check_event(event);
    own_.check_unleased("forget an event");
    give_back(events_[static_cast<std::size_t>(event)]);
  }

  std::int64_t last_recall(EventId event) const override {
    check_event(event);
    return events_[static_cast<std::size_t>(event)].last_recall;
  }

  void begin_step(std::int64_t step) override { step_ = step; }

  void truncate(std::int64_t n_events) override {
    if (n_events < 0 || n_events > static_cast<std::int64_t>(events_.size()))
      throw DataError(
          concat("host store: cannot truncate ", events_.size(), " events to ", n_events));
    own_.check_unleased("truncate");
    forget_from(static_cast<std::size_t>(n_events));
  }

  EventId size() const override { return static_cast<EventId>(events_.size()); }

  std::unique_ptr<StoreReader> reader() const override { return std::make_unique<Reader>(*this); }

  StoreCounters counters() const override {
    StoreCounters c = own_.counters();
    c.events = live_;
    c.bytes_used = bytes_used_;
    c.bytes_reserved = bytes_reserved_;
    return c;
  }

 private:
  /// One that reads: the store's user, and any others while nobody changes the store.
  class Reader final : public StoreReader {
   public:
    explicit Reader(const HostStore& store)
        : store_(store),
          leased_(static_cast<std::size_t>(std::max<std::int64_t>(0, store.shape_.n_lanes))) {}

    void acquire(std::int64_t lane, std::span<const EventId> events,
                 std::vector<KvSegment>& out) override {
      store_.check_lane(lane);
      for (const EventId event : events) store_.check_there(event, lane);
      if (leased_[static_cast<std::size_t>(lane)])
        throw Error(
            concat("host store: lane ", lane, " still holds its last lease; release it first"));
      out.clear();
      out.reserve(events.size());
      for (const EventId event : events) {
        const StoredEvent& stored = store_.events_[static_cast<std::size_t>(event)];
        out.push_back(segment_of(store_.shape_, stored.range, store_.lane_data(stored, lane)));
      }
      acquires_ += static_cast<std::int64_t>(events.size());
      leased_[static_cast<std::size_t>(lane)] = 1;
    }

    void release(std::int64_t lane) override {
      store_.check_lane(lane);
      if (!leased_[static_cast<std::size_t>(lane)])
        throw Error(concat("host store: lane ", lane, " holds no lease to release"));
      leased_[static_cast<std::size_t>(lane)] = 0;
    }

    void read(EventId event, std::int64_t lane, std::byte* block) override {
      store_.copy_block(event, lane, block);
    }

    StoreCounters counters() const override {
      StoreCounters c;
      c.acquires = acquires_;
      return c;
    }

    void check_unleased(const char* what) const {
      for (std::size_t lane = 0; lane < leased_.size(); ++lane)
        if (leased_[lane])
          throw Error(concat("host store: cannot ", what, " while lane ", lane,
                             " holds a lease; release it first"));
    }

   private:
    const HostStore& store_;
    std::vector<std::uint8_t> leased_;
    std::int64_t acquires_ = 0;
  };

  void copy_block(EventId event, std::int64_t lane, std::byte* block) const {
    check_there(event, lane);
    const StoredEvent& stored = events_[static_cast<std::size_t>(event)];
    std::memcpy(block, lane_data(stored, lane),
                static_cast<std::size_t>(block_bytes(shape_, stored.range.size())));
  }

  /// Of an event of n tokens in so many lanes.
  std::int64_t event_bytes(std::int64_t n, std::int64_t n_lanes) const {
    return n_lanes * block_bytes(shape_, n);
  }

  /// The end of a message that asks for room: what else would help.
  const char* smaller_dtype() const {
    switch (shape_.dtype) {
      case DType::float32:
        return ", or kv_dtype to \"bfloat16\", \"float16\", \"int8\" or \"fp8\"";
      case DType::bfloat16:
      case DType::float16:
        return ", or kv_dtype to \"int8\" or \"fp8\"";
      case DType::int8:
      case DType::fp8:
        break;
    }
    return "";
  }

  /// Finds room for the first of `rest`, which are all the events still to be placed.
  void place(std::span<const TokenRange> rest, LaneRange lanes) {
    const std::int64_t bytes = event_bytes(rest.front().size(), lanes.count);
    // The oldest slab with room: an event is much smaller than a slab, so little is left over.
    std::size_t at = 0;
    while (at < slabs_.size() && slabs_[at].bytes - slabs_[at].used < bytes) ++at;
    if (at == slabs_.size()) slabs_.push_back(make_slab(rest, lanes.count));
    events_.push_back({rest.front(), lanes, at, slabs_[at].used, -1, false});
    slabs_[at].used += bytes;
    ++slabs_[at].events;
    bytes_used_ += bytes;
    ++live_;
  }

  Slab make_slab(std::span<const TokenRange> rest, std::int64_t n_lanes) {
    const std::int64_t needed = event_bytes(rest.front().size(), n_lanes);
    std::int64_t bytes = std::max(kSlabBytes, 4 * max_event_bytes_);
    if (budget_ > 0) {
      const std::int64_t left = budget_ - bytes_reserved_;
      // The last slab takes all that is left, also what would be too little for another one.
      if (left - bytes < max_event_bytes_) bytes = left;
      if (bytes < needed) refuse(rest, n_lanes);
    }
    slabs_.reserve(slabs_.size() + 1);
    Slab slab;
    slab.memory.reset(static_cast<std::byte*>(
        ::operator new(static_cast<std::size_t>(bytes), kAlignment, std::nothrow)));
    if (!slab.memory)
      throw BudgetError(concat("host store: the system refused ", bytes, " bytes beyond the ",
                               bytes_reserved_, " reserved; set host_bytes to bound the store",
                               smaller_dtype()));
    slab.bytes = bytes;
    bytes_reserved_ += bytes;
    return slab;
  }

  [[noreturn]] void refuse(std::span<const TokenRange> rest, std::int64_t n_lanes) const {
    std::int64_t missing = 0;
    for (const TokenRange& range : rest) missing += event_bytes(range.size(), n_lanes);
    throw BudgetError(
        concat("host store: host_bytes = ", budget_, " is used up (", bytes_used_, " bytes in ",
               events_.size(), " events) and ", missing, " more bytes are needed for ", rest.size(),
               " events; set host_bytes to at least ", bytes_reserved_ + missing + max_event_bytes_,
               " (0: no bound)", smaller_dtype()));
  }

  void forget_from(std::size_t n_events) {
    while (events_.size() > n_events) {
      StoredEvent& last = events_.back();
      if (!last.forgotten) {
        slabs_[last.slab].used = last.offset;
        give_back(last);
      }
      events_.pop_back();
    }
  }

  void give_back(StoredEvent& event) {
    if (event.forgotten) return;
    event.forgotten = true;
    bytes_used_ -= event_bytes(event.range.size(), event.lanes.count);
    --live_;
    Slab& slab = slabs_[event.slab];
    if (--slab.events == 0) slab.used = 0;
  }

  std::byte* lane_data(const StoredEvent& stored, std::int64_t lane) const {
    return slabs_[stored.slab].memory.get() + stored.offset +
           (lane - stored.lanes.first) * block_bytes(shape_, stored.range.size());
  }

  void check_event(EventId event) const {
    if (event < 0 || event >= static_cast<std::int64_t>(events_.size()))
      throw DataError(concat("host store: no event ", event, " among ", events_.size()));
  }

  void check_lane(std::int64_t lane) const {
    if (lane < 0 || lane >= shape_.n_lanes)
      throw DataError(concat("host store: no lane ", lane, " among ", shape_.n_lanes));
  }

  void check_event(EventId event, std::int64_t lane) const {
    check_event(event);
    check_lane(lane);
    if (!events_[static_cast<std::size_t>(event)].lanes.holds(lane))
      throw DataError(concat("host store: event ", event, " is none of lane ", lane));
  }

  void check_there(EventId event, std::int64_t lane) const {
    check_event(event, lane);
    if (events_[static_cast<std::size_t>(event)].forgotten)
      throw DataError(concat("host store: event ", event, " was forgotten"));
  }

  void check_lanes(LaneRange lanes) const {
    if (lanes.first < 0 || lanes.count < 1 || lanes.first > shape_.n_lanes - lanes.count)
      throw DataError(concat("host store: events of lanes ", lanes.first, " to ",
                             lanes.first + lanes.count - 1, " among ", shape_.n_lanes));
  }

  StoreShape shape_;
  std::int64_t budget_, max_block_, max_event_bytes_;
  std::vector<Slab> slabs_;
  std::vector<StoredEvent> events_;
  std::int64_t bytes_used_ = 0, bytes_reserved_ = 0, step_ = 0;
  std::int64_t live_ = 0;
  Reader own_{*this};
};

}  // namespace host_store_detail

EPISODIC_INLINE std::unique_ptr<EventStore> make_host_store(const StoreShape& shape,
                                                            std::int64_t budget_bytes,
                                                            std::int64_t max_block) {
  return std::make_unique<host_store_detail::HostStore>(shape, budget_bytes, max_block);
}

}  // namespace EPISODIC_NAMESPACE
