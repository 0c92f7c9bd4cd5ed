// SPDX-License-Identifier: Apache-2.0
#pragma once
// A request on its way: what the engine makes of it, and what its client has taken of that.

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

#include "chat.hpp"
#include "request.hpp"

namespace episodic::tools {

struct Served {
  GenerateResult result;
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;  ///< of the prompt: read for an earlier request
};

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
  InFlight(ServedRequest request, ChatPrompt prompt, const Limits& limits,
           std::shared_ptr<void> place)
      : request_(std::move(request)),
        prompt_(std::move(prompt)),
        limits_(limits),
        place_(std::move(place)) {}

  const ServedRequest& request() const { return request_; }
  const ChatPrompt& prompt() const { return prompt_; }

  // -- of the thread that computes

  void begin();
  /// Asked between two steps: false if nobody waits for the answer any more.
  bool wanted();
  /// A token's text. \return wanted()
  bool put(std::string_view text);
  void finish(Served served);
  void fail(std::exception_ptr failure);

  // -- of the client's thread

  struct News {
    std::vector<std::string> parts;  ///< the next ones of the answer, a few at a time
    bool ended = false;              ///< and nothing more will come
  };
  /// Waits for news, no longer than `most`.
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

  const ServedRequest request_;
  const ChatPrompt prompt_;
  const Limits limits_;
  const Clock::time_point came_ = Clock::now();
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::shared_ptr<void> place_;
  Clock::time_point began_ = Clock::time_point::max();
  std::deque<std::string> parts_;
  Clock::time_point full_since_ = Clock::time_point::max();
  GivenUp given_up_ = GivenUp::no;
  bool ended_ = false;
  Served served_;
  std::exception_ptr failure_;
};

}  // namespace episodic::tools
