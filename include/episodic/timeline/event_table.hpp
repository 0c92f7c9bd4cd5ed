// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Closed events as token ranges, and the rule that closes them (EM 3.1).

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/shared_list.hpp"

namespace EPISODIC_NAMESPACE {

/// Tokens [start, end).
struct TokenRange {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - start; }
  bool operator==(const TokenRange&) const = default;
};

namespace event_table_detail {

/// A number that no other object of the process has or had; a copy has one of its own.
struct Unique {
  Unique() : number_(next()) {}
  Unique(const Unique&) noexcept : number_(next()) {}
  Unique& operator=(const Unique&) noexcept {
    number_ = next();
    return *this;
  }
  std::uint64_t number() const { return number_; }

 private:
  static std::uint64_t next() noexcept {
    // a library and its program may count apart: each begins somewhere else
    static std::atomic<std::uint64_t> last{reinterpret_cast<std::uintptr_t>(&last) *
                                           0x9e3779b97f4a7c15U};
    std::uint64_t number;
    do number = last.fetch_add(1, std::memory_order_relaxed) + 1;
    while (number == 0);
    return number;
  }
  std::uint64_t number_;
};

}  // namespace event_table_detail

/// The closed events of a sequence, in order of time and without gaps: event 0 starts at n_init.
/// Copies of a table that was shared hold its events together, and those that they add alone.
class EventTable {
 public:
  EventTable() = default;
  EventTable(std::int64_t n_init, std::int64_t min_block, std::int64_t max_block)
      : n_init_(n_init), min_block_(min_block), max_block_(max_block), pending_start_(n_init) {}

  /// What the closing rule closes up to `limit` = (tokens so far) - n_local. The table stays as
  /// it is until `extend`.
  /// \param is_boundary callable: int64_t token -> bool, the final boundary flags; asked only for
  ///        tokens in (pending_start, limit)
  /// \param closed overwritten: the events to be closed, in order of time
  template <class IsBoundary>
  void find_closed(std::int64_t limit, IsBoundary&& is_boundary,
                   std::vector<TokenRange>& closed) const {
    closed.clear();
    std::int64_t start = pending_start_;
    const auto close = [&](std::int64_t end) {
      closed.push_back({start, end});
      start = end;
    };
    for (std::int64_t b = start + 1; b < limit; ++b) {
      if (!is_boundary(b)) continue;
      while (b - start >= max_block_) close(start + max_block_);
      if (b - start < min_block_) continue;  // merged into the next event
      close(b);
    }
    while (limit - start >= max_block_) close(start + max_block_);
  }

  /// Room for `n` more events, so that extending by them cannot fail.
  void reserve(std::int64_t n) { events_.reserve(static_cast<std::size_t>(n)); }
  /// Appends what find_closed found. \pre reserve(closed.size())
  void extend(const std::vector<TokenRange>& closed) noexcept {
    events_.append(closed.begin(), closed.end());
    if (!closed.empty()) pending_start_ = closed.back().end;
  }

  /// Finds and appends at once. \return number of events closed; they are the last ones of the
  /// table
  template <class IsBoundary>
  std::int64_t close_up_to(std::int64_t limit, IsBoundary&& is_boundary) {
    std::vector<TokenRange> closed;
    find_closed(limit, is_boundary, closed);
    reserve(static_cast<std::int64_t>(closed.size()));
    extend(closed);
    return static_cast<std::int64_t>(closed.size());
  }

  /// Takes over an event that was closed by the same rule elsewhere.
  /// \throws DataError if it does not begin where the last one ends, or is empty or too long
  void append(const TokenRange& event) {
    if (event.start != pending_start_ || event.size() < 1 || event.size() > max_block_)
      throw DataError("event table: tokens " + std::to_string(event.start) + " to " +
                      std::to_string(event.end) + " are no event that could follow token " +
                      std::to_string(pending_start_));
    push(event.start, event.end);
    pending_start_ = event.end;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(events_.size()); }
  const TokenRange& operator[](std::int64_t event) const {
    return events_[static_cast<std::size_t>(event)];
  }
  /// The first event that ends behind a token; size() if none does.
  std::int64_t first_behind(std::int64_t token) const {
    std::int64_t first = 0;
    for (std::int64_t end = size(); first < end;) {
      const std::int64_t middle = first + (end - first) / 2;
      if ((*this)[middle].end > token)
        end = middle;
      else
        first = middle + 1;
    }
    return first;
  }
  /// All of them, copied.
  std::vector<TokenRange> all() const { return events_.all(); }
  /// From now on a copy of the table takes no room for its events.
  void share() { events_.share(); }

  /// First token that is in no closed event (n_init before the first).
  std::int64_t pending_start() const { return pending_start_; }
  /// A number that stays the same while events are added, and for no longer: where it does, the
  /// events that were there still are, and so are their tokens. Copies have others. Never 0.
  std::uint64_t line() const { return line_.number(); }
  /// Tokens in closed events.
  std::int64_t tokens() const { return pending_start_ - n_init_; }

  /// The events to bytes, and back into a table of the same settings.
  void save(ByteWriter& to) const {
    to.put(static_cast<std::uint64_t>(events_.size()));
    for (std::size_t e = 0; e < events_.size(); ++e)
      to.put(static_cast<std::uint32_t>(events_[e].size()));
  }
  /// \throws FileError for an event longer than max_block or empty
  void load(ByteReader& from) {
    line_ = {};
    events_.clear();
    pending_start_ = n_init_;
    for (auto n = from.get<std::uint64_t>(); n > 0; --n) {
      const std::int64_t size = from.get<std::uint32_t>();
      if (size < 1 || size > max_block_)
        throw FileError(from.where() + ": an event of " + std::to_string(size) +
                        " tokens; the file is damaged");
      push(pending_start_, pending_start_ + size);
      pending_start_ += size;
    }
  }

  /// Forgets the events from `n_events` on (rewind).
  void truncate(std::int64_t n_events) noexcept {
    if (n_events < size()) line_ = {};
    events_.truncate(static_cast<std::size_t>(n_events));
    pending_start_ = events_.empty() ? n_init_ : events_.back().end;
  }

 private:
  void push(std::int64_t start, std::int64_t end) { events_.push_back({start, end}); }

  std::int64_t n_init_ = 0, min_block_ = 1, max_block_ = 1, pending_start_ = 0;
  SharedList<TokenRange> events_;
  event_table_detail::Unique line_;
};

}  // namespace EPISODIC_NAMESPACE
