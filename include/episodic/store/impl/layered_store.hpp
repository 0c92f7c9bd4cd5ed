// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of store/event_store.hpp; how they become functions: base/inline.hpp.
// A store whose first events are another one's, which many share and none changes.
#include <memory>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"
#include "episodic/store/event_store.hpp"

namespace EPISODIC_NAMESPACE {
namespace layered_store_detail {

/// Reads the first events from one reader, those behind them from another, which may be a store.
template <class Added>
class TwoParts {
 public:
  TwoParts(std::unique_ptr<StoreReader> base, EventId n_base, std::unique_ptr<Added> added,
           std::int64_t n_lanes)
      : base_(std::move(base)), n_base_(n_base), added_(std::move(added)), n_lanes_(n_lanes) {}

  StoreReader& base() const { return *base_; }
  Added& added() const { return *added_; }
  bool of_base(EventId event) const { return event < n_base_; }
  EventId n_base() const { return n_base_; }
  /// The number that `added` knows an event by.
  EventId behind(EventId event) const { return event - n_base_; }

  void acquire(std::int64_t lane, std::span<const EventId> events, std::vector<KvSegment>& out) {
    if (lane < 0 || lane >= n_lanes_)
      throw DataError(concat("store: no lane ", lane, " among ", n_lanes_));
    divide(events);
    out.clear();
    out.reserve(events.size());
    base_->acquire(lane, of_base_, base_segments_);
    try {
      added_->acquire(lane, of_added_, added_segments_);
    } catch (...) {
      base_->release(lane);
      throw;
    }
    std::size_t from_base = 0, from_added = 0;
    for (const EventId event : events)
      out.push_back(of_base(event) ? base_segments_[from_base++] : added_segments_[from_added++]);
  }

  void release(std::int64_t lane) {
    base_->release(lane);  // refuses where nothing is held
    added_->release(lane);
  }

  void read(EventId event, std::int64_t lane, std::byte* block) {
    of_base(event) ? base_->read(event, lane, block) : added_->read(behind(event), lane, block);
  }

  void prefetch(std::int64_t lane, std::span<const EventId> events) {
    divide(events);
    base_->prefetch(lane, of_base_);
    added_->prefetch(lane, of_added_);
  }

  /// Those of `added`, and what was read.
  StoreCounters counters() const {
    const StoreCounters read = base_->counters();
    StoreCounters c = added_->counters();
    c.bytes_reserved += read.bytes_reserved;
    c.acquires += read.acquires;
    c.hits += read.hits;
    c.prefetched += read.prefetched;
    c.evictions += read.evictions;
    c.read_bytes += read.read_bytes;
    c.read_errors += read.read_errors;
    return c;
  }

 private:
  void divide(std::span<const EventId> events) {
    of_base_.clear();
    of_added_.clear();
    for (const EventId event : events)
      of_base(event) ? of_base_.push_back(event) : of_added_.push_back(behind(event));
  }

  std::unique_ptr<StoreReader> base_;
  EventId n_base_;
  std::unique_ptr<Added> added_;
  std::int64_t n_lanes_;
  std::vector<EventId> of_base_, of_added_;  // of the events asked for
  std::vector<KvSegment> base_segments_, added_segments_;
};

class LayeredReader final : public StoreReader {
 public:
  explicit LayeredReader(TwoParts<StoreReader> parts) : parts_(std::move(parts)) {}
  void acquire(std::int64_t lane, std::span<const EventId> events,
               std::vector<KvSegment>& out) override {
    parts_.acquire(lane, events, out);
  }
  void release(std::int64_t lane) override { parts_.release(lane); }
  void read(EventId event, std::int64_t lane, std::byte* block) override {
    parts_.read(event, lane, block);
  }
  void prefetch(std::int64_t lane, std::span<const EventId> events) override {
    parts_.prefetch(lane, events);
  }
  StoreCounters counters() const override { return parts_.counters(); }

 private:
  TwoParts<StoreReader> parts_;
};

class LayeredStore final : public EventStore {
 public:
  LayeredStore(const EventStore& base, std::unique_ptr<EventStore> added)
      : base_(base), parts_(base.reader(), base.size(), std::move(added), base.n_lanes()) {}

  using EventStore::append;
  void append(std::span<const TokenRange> events, LaneRange lanes) override {
    parts_.added().append(events, lanes);
  }
  std::int64_t n_lanes() const override { return base_.n_lanes(); }
  void write(EventId event, std::int64_t lane, const RingView& source) override {
    check_added(event, "write");
    parts_.added().write(parts_.behind(event), lane, source);
  }
  void acquire(std::int64_t lane, std::span<const EventId> events,
               std::vector<KvSegment>& out) override {
    parts_.acquire(lane, events, out);
  }
  void release(std::int64_t lane) override { parts_.release(lane); }
  void read(EventId event, std::int64_t lane, std::byte* block) override {
    parts_.read(event, lane, block);
  }
  void prefetch(std::int64_t lane, std::span<const EventId> events) override {
    parts_.prefetch(lane, events);
  }
  void forget(EventId event) override {
    check_added(event, "forget");
    parts_.added().forget(parts_.behind(event));
  }
  void pin(EventId event, bool pinned) override {
    check_added(event, "pin");
    parts_.added().pin(parts_.behind(event), pinned);
  }
  /// A base's event: when the base itself last recalled it.
  std::int64_t last_recall(EventId event) const override {
    return parts_.of_base(event) ? base_.last_recall(event)
                                 : parts_.added().last_recall(parts_.behind(event));
  }
  void begin_step(std::int64_t step) override { parts_.added().begin_step(step); }
  void truncate(std::int64_t n_events) override {
    if (n_events < parts_.n_base())
      throw DataError(concat("store: cannot truncate to ", n_events, " events, the first ",
                             parts_.n_base(), " are the base's"));
    parts_.added().truncate(parts_.behind(n_events));
  }
  EventId size() const override { return parts_.n_base() + parts_.added().size(); }
  std::unique_ptr<StoreReader> reader() const override {
    return std::make_unique<LayeredReader>(
        TwoParts<StoreReader>(base_.reader(), parts_.n_base(), parts_.added().reader(), n_lanes()));
  }
  StoreCounters counters() const override { return parts_.counters(); }

 private:
  void check_added(EventId event, const char* what) const {
    if (parts_.of_base(event))
      throw ConfigError(concat("store: cannot ", what, " event ", event,
                               ", it belongs to a base that others read"));
  }

  const EventStore& base_;
  TwoParts<EventStore> parts_;
};

}  // namespace layered_store_detail

EPISODIC_INLINE std::unique_ptr<EventStore> make_store_over(const EventStore& base,
                                                            std::unique_ptr<EventStore> added) {
  return std::make_unique<layered_store_detail::LayeredStore>(base, std::move(added));
}

}  // namespace EPISODIC_NAMESPACE
