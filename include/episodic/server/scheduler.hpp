// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Scheduler`: many answers of one model in the same steps. Torch-free, knows nothing of HTTP.
///
/// \code
/// server::Scheduler scheduler(model, {.parallel = 4});
/// server::Work work;
/// work.start = std::make_shared<server::StartingPoint>(std::make_shared<Sequence>(model));
/// work.prompt.text = model->tokenizer().encode("The pass key is");
/// const auto request = scheduler.submit(scheduler.take_place(), work);
/// while (!request->wait(std::chrono::seconds(1)).ended) {}
/// std::puts(request->served().result.text.c_str());
/// \endcode

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "episodic/server/histogram.hpp"
#include "episodic/server/in_flight.hpp"
#include "episodic/server/request_error.hpp"
#include "episodic/server/work.hpp"

namespace episodic::server {

class Lane;

struct SchedulerOptions {
  std::int64_t max_tokens = 0;  ///< that work may come to, answer included; 0: no limit
  std::size_t queue = 64;       ///< requests that may wait behind those that are answered
  std::size_t parallel = 1;     ///< requests that are answered at once, >= 1
  /// Memory that the answers on their way may take together, where the model computes
  /// (Sequence::bytes_for); what does not fit waits. 0: no bound.
  std::int64_t bytes = 0;
  InFlight::Limits in_flight;
};

/// What a scheduler has done so far.
struct SchedulerCounters {
  std::uint64_t requests = 0;  ///< taken
  std::uint64_t refused = 0;   ///< for want of a place
  std::uint64_t given_up = 0;  ///< not answered to the end
  std::uint64_t prompt_tokens = 0, reused_tokens = 0, written_tokens = 0;
  std::uint64_t steps = 0;
  std::size_t places = 0;   ///< requests that wait or are answered now
  std::size_t waiting = 0;  ///< of these, those that wait
  std::size_t running = 0;  ///< and those that are answered
  std::int64_t bytes = 0;   ///< that the sequences of answers take, about

  // Of answers that were complete, why they ended; and requests that an error ended.
  std::uint64_t stopped = 0, cut_off = 0, failed = 0;

  // Of all steps of requests that have ended.
  std::uint64_t recalled_events = 0;  ///< over all layers
  std::uint64_t event_reads = 0;      ///< of the host's memories, per lane of a memory
  std::uint64_t event_read_hits = 0;  ///< of these, of events in a disk tier, found in host memory

  /// What its sequences have of their own, and how many there are, after the last request.
  MemoryUsage own;
  std::size_t sequences = 0;
};

/// How long requests took, in seconds. Those that only read a text are not among them.
struct SchedulerTimes {
  SchedulerTimes();
  Histogram first_token;  ///< from a request's coming
  Histogram whole;        ///< from its coming to its end
  Histogram waiting;      ///< until it was taken up
  Histogram each_token;   ///< of an answer behind its first, in the mean of the answer
};

/// Answers requests with one model. Up to `parallel` of them are answered in the same steps: each
/// step has a token of every answer and a piece of one prompt, so that nobody waits longer than for
/// a piece; prompts take turns. What fails for one touches no other. A request whose prompt begins
/// with what an earlier one at the same StartingPoint read, or read and answered, continues from
/// there, so that a conversation's earlier turns are not read again.
///
/// Safe to use from several threads: a thread of its own computes.
class Scheduler {
 public:
  /// Held by a request until it has ended.
  using Place = std::shared_ptr<void>;

  /// \throws ConfigError for a null model
  explicit Scheduler(std::shared_ptr<const Model> model, const SchedulerOptions& options = {});
  /// Stops.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// \throws RequestError 429 where all are taken, 503 where it has stopped
  Place take_place();
  /// \throws RequestError 503 where it has stopped, 400 for work that alone takes more than
  /// `bytes`;
  ///         ConfigError for work without a prompt or
  ///         without a place to begin
  std::shared_ptr<InFlight> submit(Place place, Work work);
  /// Nobody wants its answer any more. It ends at once if it waits, after the step if it is
  /// answered.
  void withdraw(InFlight& request, GivenUp why);
  /// All of that at once: takes a place and waits for the end.
  Served answer(Work work);

  /// Ends the requests that are computed, and all that wait. For good.
  void stop();
  bool stopped() const;
  /// Frees what idle sequences hold of a starting point, once the next request comes.
  void release(const std::shared_ptr<StartingPoint>& start);

  /// Seconds after which a place will be free, by what answers have taken so far.
  int seconds_to_wait() const;
  SchedulerCounters counters() const;
  SchedulerTimes times() const;
  const SchedulerOptions& options() const { return options_; }
  const Model& model() const { return *model_; }

 private:
  void compute_all();
  bool take_requests();
  bool begin_one();
  Lane* lane_for(const InFlight& request, std::span<const std::int64_t> prompt);
  std::int64_t bytes_of_lanes() const;
  std::unique_ptr<Lane> new_lane(const Work& work, bool others_end);
  bool give_up_oldest(const Lane* kept);
  void make_room(std::int64_t bytes, std::size_t lanes, const Lane* kept);
  void make_step();
  std::vector<Lane*> choose_readers(bool answer_starts);
  void hand_out();
  MemoryUsage own_usage() const;

  const std::shared_ptr<const Model> model_;
  const SchedulerOptions options_;

  // of the thread that computes
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::size_t reader_ = 0;  // the lane that read last
  int passed_over_ = 0;     // steps in which long prompts waited for short ones, since one was read

  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::shared_ptr<InFlight>> waiting_;
  std::vector<std::shared_ptr<InFlight>> answering_;
  std::vector<std::shared_ptr<StartingPoint>> released_;
  bool stopped_ = false;
  double mean_seconds_ = 1;  // of an answer, of late
  SchedulerCounters counters_;
  SchedulerTimes times_;
  std::atomic<std::size_t> places_ = 0;
  std::thread thread_;
};

}  // namespace episodic::server
