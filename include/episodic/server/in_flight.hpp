// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `InFlight`: work on its way: what the scheduler makes of it, and what its client has taken.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/server/work.hpp"

namespace episodic::server {

/// Why nobody wants the rest of an answer.
enum class GivenUp : std::uint8_t { no, client_left, client_slow, overdue, stopping };

/// Two threads hold one: the one that computes puts texts into it and never waits; the client's
/// takes them and writes them to its socket, which may take as long as it likes.
class InFlight {
 public:
  using Clock = std::chrono::steady_clock;

  struct Limits {
    std::size_t parts = 1024;  ///< texts that wait for the client
    /// A client with more than that for so long is given up, one with 16 times as many at once.
    std::chrono::milliseconds slow{5'000};
    std::chrono::milliseconds whole{0};  ///< from now to the answer's end; 0: no limit
  };

  /// \param place what is given back once it has ended
  InFlight(Work work, const Limits& limits, std::shared_ptr<void> place)
      : work_(std::move(work)),
        bytes_(work_.start || work_.sequence ? work_.bytes() : 0),
        limits_(limits),
        place_(std::move(place)) {}

  const Work& work() const { return work_; }
  /// Work::bytes, before it begins.
  std::int64_t bytes() const { return bytes_; }
  /// What is served where nothing was computed for it.
  Served unanswered() const;

  // -- of the thread that computes

  void begin();
  /// Asked between two steps: false if nobody waits for the answer any more.
  bool wanted();
  /// What became certain with a token. \return wanted()
  bool put(Part part);
  /// So many tokens of the prompt are read. \return wanted()
  bool progress(std::int64_t tokens);
  void finish(Served served);
  void fail(std::exception_ptr failure);

  // -- of the client's thread

  struct News {
    std::vector<Part> parts;  ///< the next ones of the answer, a few at a time
    std::int64_t read = 0;    ///< tokens of the prompt so far
    bool ended = false;       ///< and nothing more will come
  };
  /// Waits for news, no longer than `most`: parts, tokens read, the end.
  News wait(std::chrono::milliseconds most);
  /// After the end. \throws what ended it
  const Served& served() const;

  // -- of any thread

  /// The first reason counts.
  void give_up(GivenUp why);
  GivenUp given_up() const;
  bool ended() const;
  /// Seconds that it waited for the engine.
  double waited() const;
  /// Seconds since it waits no more.
  double computed() const;

 private:
  bool wanted_locked();
  void end_locked();

  const Work work_;
  const std::int64_t bytes_;
  const Limits limits_;
  const Clock::time_point came_ = Clock::now();
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::shared_ptr<void> place_;
  Clock::time_point began_ = Clock::time_point::max();
  std::deque<Part> parts_;
  std::int64_t read_ = 0, told_ = 0;  // tokens of the prompt; those that the client knows of
  Clock::time_point full_since_ = Clock::time_point::max();
  GivenUp given_up_ = GivenUp::no;
  bool ended_ = false;
  Served served_;
  std::exception_ptr failure_;
};

}  // namespace episodic::server
