// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of group/group.hpp; how they become functions: base/inline.hpp.
#include "episodic/group/group.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace group_detail {

inline constexpr std::int64_t kOneRound = 4096;  // bytes up to which more ranks send all at once
inline constexpr std::size_t kLongestReason = 1000;

/// First element of a rank's part of n.
inline std::int64_t part(std::int64_t n, int rank, int size) {
  return n / size * rank + n % size * rank / size;
}

/// Whether every rank sends all that it has to every other: two ranks send as much as in parts, and
/// of few bytes the second round would cost more than it saves.
inline bool one_round(std::int64_t n, std::int64_t element, int size) {
  return size == 2 || n * element <= kOneRound;
}

/// Another rank has failed: its outcome came where something else was awaited.
class PeerFailed final : public Error {
 public:
  using Error::Error;
};

// An outcome is one of these, and behind it why.
inline constexpr char kGood = 0, kFailed = 1, kPassedOn = 2;

inline std::string outcome_of(const std::exception_ptr& error) {
  if (!error) return std::string(1, kGood);
  const auto told = [](char as, const char* why) {
    return as + std::string(why).substr(0, kLongestReason);
  };
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailed& e) {
    return told(kPassedOn, e.what());
  } catch (const std::exception& e) {
    return told(kFailed, e.what());
  } catch (...) {
    return told(kFailed, "an exception of another library");
  }
}

}  // namespace group_detail

EPISODIC_INLINE Group::Group(int rank, int size, const GroupOptions& options)
    : rank_(rank), size_(size), options_(options) {
  if (size < 1 || rank < 0 || rank >= size)
    throw ConfigError(
        concat("group: rank ", rank, " of ", size, " is none; give 0 <= rank < size"));
  if (options.timeout.count() <= 0)
    throw ConfigError(concat("group: timeout = ", options.timeout.count(), " ms, must be above 0"));
  outcomes_.resize(static_cast<std::size_t>(size));
}

EPISODIC_INLINE void Group::check_usable() const {
  if (!given_up_.empty()) throw Error(given_up_);
}

EPISODIC_INLINE void Group::give_up(const std::string& why) {
  given_up_ = why;
  throw Error(why);
}

EPISODIC_INLINE void Group::tell(int but, const std::string& why) {
  const std::string outcome = group_detail::kFailed + why.substr(0, group_detail::kLongestReason);
  for (int to = 0; to < size_; ++to)
    if (to != rank_ && to != but)
      send(to, Kind::outcome, std::as_bytes(std::span(outcome.data(), outcome.size())));
}

EPISODIC_INLINE void Group::leave(const std::string& why) noexcept {
  try {
    if (!given_up_.empty()) return;
    given_up_ = "group: this rank has left it: " + why;
    tell(rank_, why);
  } catch (...) {  // the others then wait for their time-out
  }
}

EPISODIC_INLINE void Group::lost(int from) {
  lost_ = from;
  given_up_ = concat("group: rank ", from, " of ", size_, " has sent nothing for ", seconds(),
                     " s: it has ended or hangs. Start all ranks again; a kept memory goes on from "
                     "its last commit. Where a rank is only slow, raise the group's timeout");
  tell(from, given_up_);  // those that wait for this one
  throw Error(given_up_);
}

EPISODIC_INLINE void Group::post(int to, Kind kind, std::span<const std::byte> bytes) {
  send(to, kind, bytes);
  ++counters_.messages;
  counters_.bytes += static_cast<std::int64_t>(bytes.size());
}

EPISODIC_INLINE void Group::receive(int from, Kind kind, std::span<std::byte> to) {
  const auto incoming = wait(from, deadline());
  if (!incoming) lost(from);
  if (incoming->kind == Kind::outcome) {
    std::string outcome(incoming->bytes, '\0');
    if (!take(from, std::as_writable_bytes(std::span(outcome.data(), outcome.size())), deadline()))
      lost(from);
    outcomes_[static_cast<std::size_t>(from)] = outcome;
    throw group_detail::PeerFailed(outcome.empty() || outcome[0] == group_detail::kGood
                                       ? std::string("it has ended a step that this rank is in")
                                       : outcome.substr(1));
  }
  if (incoming->kind != kind || incoming->bytes != to.size())
    give_up(concat("group: rank ", from, " of ", size_, " is out of step with rank ", rank_, " (",
                   incoming->bytes, " bytes of kind ", static_cast<int>(incoming->kind), " came, ",
                   to.size(), " of kind ", static_cast<int>(kind),
                   " were due); give all ranks the same model, settings and text"));
  if (!take(from, to, deadline())) lost(from);
}

EPISODIC_INLINE void Group::finish_sends() {
  if (!flush(deadline()))
    give_up(concat("group: what rank ", rank_, " of ", size_, " sent was not taken for ", seconds(),
                   " s: a rank has ended or hangs. Start all ranks again; a kept memory goes on "
                   "from its last commit"));
}

EPISODIC_INLINE std::int64_t Group::sum_bytes(std::int64_t n, std::int64_t element, int size,
                                              int rank) {
  if (group_detail::one_round(n, element, size)) return (size - 1) * n * element;
  const std::int64_t own =
      group_detail::part(n, rank + 1, size) - group_detail::part(n, rank, size);
  return (n - own + (size - 1) * own) * element;
}

template <class T>
void Group::add_up(std::span<T> x) {
  check_usable();
  if (size_ == 1) return;
  using group_detail::part;
  const auto n = static_cast<std::int64_t>(x.size());
  const bool once = group_detail::one_round(n, sizeof(T), size_);
  const auto of = [&](int r) {
    const std::int64_t first = part(n, r, size_), end = part(n, r + 1, size_);
    return once ? x
                : x.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
  };
  for (int to = 0; to < size_; ++to)
    if (to != rank_) post(to, Kind::sum, std::as_bytes(of(to)));
  // In the order of ranks, this one's own among them.
  const std::span<T> own = of(rank_);
  scratch_.resize(2 * own.size_bytes());
  T* const total = reinterpret_cast<T*>(scratch_.data());
  T* const next = total + own.size();
  for (int from = 0; from < size_; ++from) {
    const T* added = own.data();
    if (from != rank_) {
      T* const to = from == 0 ? total : next;
      receive(from, Kind::sum, std::as_writable_bytes(std::span(to, own.size())));
      added = to;
    }
    if (from == 0) {
      if (added != total) std::copy_n(added, own.size(), total);
    } else {
      for (std::size_t i = 0; i < own.size(); ++i) total[i] += added[i];
    }
  }
  std::copy_n(total, own.size(), own.data());
  if (!once) {
    for (int to = 0; to < size_; ++to)
      if (to != rank_) post(to, Kind::sum, std::as_bytes(own));
    for (int from = 0; from < size_; ++from)
      if (from != rank_) receive(from, Kind::sum, std::as_writable_bytes(of(from)));
  }
  finish_sends();
}

EPISODIC_INLINE void Group::sum(std::span<float> x) { add_up(x); }
EPISODIC_INLINE void Group::sum(std::span<double> x) { add_up(x); }

EPISODIC_INLINE void Group::gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  check_usable();
  if (all.size() != mine.size() * static_cast<std::size_t>(size_))
    throw DataError(concat("group: gather of ", mine.size(), " bytes from ", size_, " ranks into ",
                           all.size(), " bytes"));
  const auto of = [&](int r) {
    return all.subspan(static_cast<std::size_t>(r) * mine.size(), mine.size());
  };
  std::copy(mine.begin(), mine.end(), of(rank_).begin());
  for (int to = 0; to < size_; ++to)
    if (to != rank_) post(to, Kind::gather, mine);
  for (int from = 0; from < size_; ++from)
    if (from != rank_) receive(from, Kind::gather, of(from));
  finish_sends();
}

EPISODIC_INLINE void Group::broadcast(std::span<std::byte> x, int root) {
  check_usable();
  if (root < 0 || root >= size_)
    throw DataError(concat("group: broadcast from rank ", root, " of ", size_));
  if (rank_ != root) return receive(root, Kind::broadcast, x);
  for (int to = 0; to < size_; ++to)
    if (to != rank_) post(to, Kind::broadcast, x);
  finish_sends();
}

EPISODIC_INLINE void Group::barrier() {
  check_usable();
  for (int to = 0; to < size_; ++to)
    if (to != rank_) post(to, Kind::barrier, {});
  for (int from = 0; from < size_; ++from)
    if (from != rank_) receive(from, Kind::barrier, {});
  finish_sends();
}

EPISODIC_INLINE std::vector<std::int64_t> Group::of_first(std::vector<std::int64_t> numbers) {
  std::int64_t n = static_cast<std::int64_t>(numbers.size());
  broadcast(std::as_writable_bytes(std::span(&n, 1)));
  numbers.resize(static_cast<std::size_t>(n));
  broadcast(std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

EPISODIC_INLINE std::string Group::of_first(std::string text) {
  std::int64_t n = static_cast<std::int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&n, 1)));
  text.resize(static_cast<std::size_t>(n));
  broadcast(std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

EPISODIC_INLINE void Group::agree(const std::exception_ptr& error) {
  ++agreed_;
  if (!given_up_.empty()) {
    if (error) std::rethrow_exception(error);
    throw Error(given_up_);
  }
  if (size_ == 1) {
    if (error) std::rethrow_exception(error);
    return;
  }
  const std::string mine = group_detail::outcome_of(error);
  for (int to = 0; to < size_; ++to)
    if (to != rank_) send(to, Kind::outcome, std::as_bytes(std::span(mine.data(), mine.size())));
  for (int from = 0; from < size_; ++from) {
    std::optional<std::string>& outcome = outcomes_[static_cast<std::size_t>(from)];
    if (from == rank_) outcome = mine;
    while (!outcome) {
      const auto incoming = wait(from, deadline());
      if (!incoming) lost(from);
      std::string bytes(incoming->bytes, '\0');
      if (!take(from, std::as_writable_bytes(std::span(bytes.data(), bytes.size())), deadline()))
        lost(from);
      // what else comes was meant for a part of the act that this rank did not come to
      if (incoming->kind == Kind::outcome) outcome = std::move(bytes);
    }
  }
  finish_sends();
  std::string why;
  for (const char kind : {group_detail::kFailed, group_detail::kPassedOn})
    for (int r = 0; r < size_ && why.empty(); ++r) {
      const std::string& outcome = *outcomes_[static_cast<std::size_t>(r)];
      if (!outcome.empty() && outcome[0] == kind)
        why = concat("rank ", r, " of ", size_, ": ", outcome.substr(1));
    }
  for (std::optional<std::string>& outcome : outcomes_) outcome.reset();
  if (mine[0] == group_detail::kFailed) std::rethrow_exception(error);
  if (!why.empty()) throw Error(why);
}

}  // namespace EPISODIC_NAMESPACE
