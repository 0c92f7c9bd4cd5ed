// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Group`: ranks that compute one thing together, on one machine or several, and add up what each
/// of them has (docs/parallel.md).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

struct GroupOptions {
  /// How long a rank waits for one message of another before it gives the group up; > 0.
  std::chrono::milliseconds timeout{60'000};
};

/// What a rank has sent to others.
struct GroupCounters {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;  ///< of sums, gathers and broadcasts; not of outcomes (`agree`)
};

/// One rank's end of a group. Every rank makes the same calls in the same order, with arrays of the
/// same sizes, from one thread. All ranks get the same bits, and those depend on the number of
/// ranks alone: sums are made in the order of ranks.
///
/// A call throws an Error when a rank has sent nothing for `timeout` or is out of step. The group
/// is then given up, and every later call throws at once. Host memory only: arrays on devices are
/// for a group of their own kind, which this one starts.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  /// Adds the arrays of all ranks, element by element, into every rank's. Bytes that a rank sends:
  /// `sum_bytes`.
  void sum(std::span<float> x);
  void sum(std::span<double> x);
  /// \param all [size, mine.size()] bytes, written: those of each rank in the order of ranks
  void gather(std::span<const std::byte> mine, std::span<std::byte> all);
  /// What `root` has, to all. \param x of the same length everywhere
  void broadcast(std::span<std::byte> x, int root = 0);
  /// Returns once every rank has called it.
  void barrier();

  /// The numbers that rank 0 has, whatever the others have.
  std::vector<std::int64_t> of_first(std::vector<std::int64_t> numbers);
  /// The same of a text.
  std::string of_first(std::string text);

  /// Ends an act that all ranks begin together and that counts for all of them or for none: a step,
  /// a commit. Returns where no rank had an error. A rank that fails in the midst of an act calls
  /// it at once: the others then throw in the sum, gather or broadcast that they wait in, and agree
  /// in their turn. The group goes on behind it. \param error what this rank has met, or null
  /// \throws `error`, if there is one; else an Error that says which rank failed, and by what
  void agree(const std::exception_ptr& error = nullptr);
  /// This rank ends, for a reason that the others learn in the call that they wait in, or in their
  /// next one. Does not wait for them; the group is given up here.
  void leave(const std::string& why) noexcept;
  /// Whether a call has given the group up, or this rank has left.
  bool given_up() const { return !given_up_.empty(); }
  /// The rank that has sent nothing for the time-out; -1: none.
  int lost_rank() const { return lost_; }
  /// How many acts all ranks have agreed on.
  std::int64_t agreed() const { return agreed_; }

  const GroupCounters& counters() const { return counters_; }

  /// Bytes that one of `size` ranks sends for a sum of n elements. \param rank whose bytes
  static std::int64_t sum_bytes(std::int64_t n, std::int64_t element, int size, int rank);

 protected:
  /// \throws ConfigError for numbers that are no rank of a group, or a time-out that is none
  Group(int rank, int size, const GroupOptions& options);

  enum class Kind : int { sum = 1, gather, broadcast, barrier, outcome };
  struct Incoming {
    Kind kind = Kind::sum;
    std::size_t bytes = 0;
  };
  using Deadline = std::chrono::steady_clock::time_point;

  // -- what carries the messages. Those from one rank to another arrive in their order ------------

  /// Takes a copy and returns.
  virtual void send(int to, Kind kind, std::span<const std::byte> bytes) = 0;
  /// The next message of a rank, which stays until `take`; nothing by the deadline.
  virtual std::optional<Incoming> wait(int from, Deadline until) = 0;
  /// The bytes of the message that `wait` has found. \return false: they did not come by then
  virtual bool take(int from, std::span<std::byte> to, Deadline until) = 0;
  /// Waits until what was sent has been handed over. \return false: it was not by then
  virtual bool flush(Deadline until) = 0;

 private:
  template <class T>
  void add_up(std::span<T> x);
  void check_usable() const;
  Deadline deadline() const { return std::chrono::steady_clock::now() + options_.timeout; }
  void post(int to, Kind kind, std::span<const std::byte> bytes);
  /// Seconds of the time-out, for messages.
  double seconds() const { return static_cast<double>(options_.timeout.count()) / 1000; }
  void receive(int from, Kind kind, std::span<std::byte> to);
  void finish_sends();
  [[noreturn]] void give_up(const std::string& why);
  [[noreturn]] void lost(int rank);
  /// Sends all but one the outcome of a rank that has failed.
  void tell(int but, const std::string& why);

  int rank_, size_;
  GroupOptions options_;
  GroupCounters counters_;
  std::int64_t agreed_ = 0;
  std::string given_up_;  // why; empty: it is in use
  int lost_ = -1;
  std::vector<std::optional<std::string>> outcomes_;  // of ranks that have agreed before this one
  std::vector<std::byte> scratch_;
};

/// Runs f as one act of the group, unless f has ended it by itself (`agree`).
/// \param group null: one process
template <class F>
auto as_one(Group* group, F&& f) {
  if (!group) return f();
  const std::int64_t before = group->agreed();
  const auto end = [&](const std::exception_ptr& error) {
    if (group->agreed() == before) group->agree(error);
    if (error) std::rethrow_exception(error);
  };
  if constexpr (std::is_void_v<decltype(f())>) {
    std::exception_ptr error;
    try {
      f();
    } catch (...) {
      error = std::current_exception();
    }
    end(error);
  } else {
    std::optional<decltype(f())> result;
    std::exception_ptr error;
    try {
      result.emplace(f());
    } catch (...) {
      error = std::current_exception();
    }
    end(error);
    return *std::move(result);
  }
}

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/group/impl/group.hpp"
#endif
