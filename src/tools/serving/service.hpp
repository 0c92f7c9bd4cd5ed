// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model that answers one request after another, whatever brings them.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "chat.hpp"
#include "episodic/session/engine.hpp"
#include "in_flight.hpp"
#include "lane.hpp"
#include "request.hpp"

namespace episodic::tools {

struct ServiceOptions {
  std::int64_t max_tokens = 0;  ///< that a request may come to, answer included; 0: no limit
  std::size_t queue = 64;       ///< requests that may wait behind those that are answered
  std::size_t parallel = 1;     ///< requests that are answered at once, >= 1
  InFlight::Limits in_flight;
};

/// What a service has done so far.
struct ServiceCounters {
  std::uint64_t requests = 0;  ///< taken
  std::uint64_t refused = 0;   ///< for want of a place
  std::uint64_t given_up = 0;  ///< not answered to the end
  std::uint64_t prompt_tokens = 0, reused_tokens = 0, written_tokens = 0;
  std::size_t places = 0;  ///< requests that wait or are answered now
};

/// Answers requests with one model, all of which begin where the engine stood: at the end of a
/// memory, or with nothing. Up to `parallel` of them are answered in the same steps: each step has
/// a token of every answer and a piece of one prompt, so that nobody waits longer than for a piece.
/// What fails for one touches no other. A request whose prompt begins with what an earlier one
/// read, or read and answered, continues from there, so that a conversation's earlier turns are not
/// read again. Safe to use from several threads: a thread of its own computes.
///
/// A request takes a place, is read (`prepare`), and handed over (`submit`); its InFlight is then
/// both threads'.
class Service {
 public:
  /// Held by a request until it has ended.
  using Place = std::shared_ptr<void>;

  /// \param engine must outlive it, and is nobody else's from now on
  /// \throws ConfigError if its memory has no snapshots, and for `parallel` above 1 where it has no
  ///         forks (Sequence::fork)
  explicit Service(Engine& engine, const ServiceOptions& options = {});
  /// Stops.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// \throws RequestError 429 where all are taken, 503 where it has stopped
  Place take_place();

  /// The tokens of a request's prompt, in two steps of which the second may be empty.
  /// \throws RequestError where the prompt is empty, too long or holds tokens that are none, or the
  ///         model has no chat format, or refuses the messages
  ChatPrompt prepare(const ServedRequest& request) const;

  std::shared_ptr<InFlight> submit(Place place, ServedRequest request, ChatPrompt prompt);
  /// Nobody wants its answer any more. It ends at once if it waits, after the step if it is
  /// answered.
  void withdraw(InFlight& request, GivenUp why);

  /// All of that at once: takes a place and waits for the answer.
  Served answer(const ServedRequest& request, const ChatPrompt& prompt);

  /// Ends the request that computes, and all that wait. For good.
  void stop();

  /// Seconds after which a place will be free, by what answers have taken so far.
  int seconds_to_wait() const;
  ServiceCounters counters() const;
  const Engine& engine() const { return engine_; }
  const ServiceOptions& options() const { return options_; }

 private:
  void compute_all();
  bool take_requests();
  void make_step();
  void hand_out();
  Lane& lane_for(std::span<const std::int64_t> prompt);

  Engine& engine_;
  const ServiceOptions options_;
  const ChatTemplate* template_ = nullptr;  // the model's
  std::string no_template_;                 // why there is none
  bool goes_on_;                            // behind a memory

  // of the thread that computes
  std::vector<Sequence> forks_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::size_t reader_ = 0;  // the lane that read last
  std::uint64_t steps_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::shared_ptr<InFlight>> waiting_;
  std::vector<std::shared_ptr<InFlight>> answering_;
  bool stopped_ = false;
  double mean_seconds_ = 1;  // of an answer, of late
  ServiceCounters counters_;
  std::atomic<std::size_t> places_ = 0;
  std::thread thread_;
};

}  // namespace episodic::tools
