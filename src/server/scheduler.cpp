// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "lane.hpp"

namespace episodic::server {
namespace {

std::vector<std::int64_t> whole_prompt(const Work& work) {
  std::vector<std::int64_t> prompt = work.prompt.text;
  prompt.insert(prompt.end(), work.prompt.question.begin(), work.prompt.question.end());
  return prompt;
}

std::uint64_t as_count(std::int64_t n) { return static_cast<std::uint64_t>(n); }

/// A request that has ended.
void count_ended(const InFlight& request, const Lane::Outcome& outcome, SchedulerCounters& counters,
                 SchedulerTimes& times) {
  const Served& served = outcome.served;
  const FinishReason finish = served.result.finish;
  const bool whole = !outcome.failure && finish != FinishReason::cancelled;
  counters.given_up += whole ? 0 : 1;
  counters.failed += outcome.failure ? 1 : 0;
  counters.prompt_tokens += as_count(served.prompt_tokens);
  counters.reused_tokens += as_count(served.reused_tokens);
  counters.written_tokens += served.result.ids.size();
  counters.recalled_events += as_count(outcome.counts.recalled);
  counters.event_reads += as_count(outcome.counts.reads);
  counters.event_read_hits += as_count(outcome.counts.hits);
  if (request.work().reads_only) return;
  times.waiting.add(request.waited());
  const double all = request.waited() + request.computed();
  const std::optional<double> first = request.first_token();
  if (first) times.first_token.add(*first);
  if (!whole) return;
  (finish == FinishReason::length ? counters.cut_off : counters.stopped) += 1;
  times.whole.add(all);
  const std::size_t written = served.result.ids.size();
  if (first && written > 1) times.each_token.add((all - *first) / static_cast<double>(written - 1));
}

}  // namespace

// vLLM's bounds, so that dashboards made for it fit.
SchedulerTimes::SchedulerTimes()
    : first_token({0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                   1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560}),
      whole({0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
             30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680}),
      waiting(whole),
      each_token({0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
                  20, 40, 80}) {}

Scheduler::Scheduler(std::shared_ptr<const Model> model, const SchedulerOptions& options)
    : model_(std::move(model)), options_(options) {
  if (!model_) throw ConfigError("Scheduler: the model is null");
  thread_ = std::thread([this] { compute_all(); });
}

Scheduler::~Scheduler() {
  stop();
  thread_.join();
}

// -- places and the queue -------------------------------------------------------------------------

Scheduler::Place Scheduler::take_place() {
  const std::lock_guard lock(mutex_);
  if (stopped_) throw RequestError("the server is going down", "", 503);
  if (places_ >= options_.queue + std::max<std::size_t>(1, options_.parallel)) {
    ++counters_.refused;
    throw RequestError(
        fmt::format(
            "{} requests wait already, and more may not (queue of the server); ask again later",
            options_.queue),
        "", 429, "rate_limit_exceeded");
  }
  ++places_;
  return {this, [](Scheduler* scheduler) { --scheduler->places_; }};
}

std::shared_ptr<InFlight> Scheduler::submit(Place place, Work work) {
  if (work.prompt_tokens() == 0) throw ConfigError("Work::prompt: is empty");
  if (!work.start && !work.sequence)
    throw ConfigError("Work: neither `start` nor `sequence` is given");
  auto in_flight =
      std::make_shared<InFlight>(std::move(work), options_.in_flight, std::move(place));
  if (options_.bytes > 0 && in_flight->bytes() > options_.bytes)
    throw RequestError(
        fmt::format(
            "{} tokens take about {} of memory here, and answers may take {}; ask for fewer "
            "tokens, or for smaller windows",
            in_flight->work().most_tokens(), bytes_text(in_flight->bytes()),
            bytes_text(options_.bytes)),
        "max_tokens", 400, "context_length_exceeded");
  const std::lock_guard lock(mutex_);
  if (stopped_) throw RequestError("the server is going down", "", 503);
  ++counters_.requests;
  waiting_.push_back(in_flight);
  more_.notify_one();
  return in_flight;
}

void Scheduler::withdraw(InFlight& request, GivenUp why) {
  request.give_up(why);
  std::shared_ptr<InFlight> waited;
  {
    const std::lock_guard lock(mutex_);
    const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const auto& other) { return other.get() == &request; });
    if (at == waiting_.end()) return;  // being answered, or answered
    waited = std::move(*at);
    waiting_.erase(at);
    ++counters_.given_up;
  }
  waited->finish(waited->unanswered());
}

Served Scheduler::answer(Work work) {
  const std::shared_ptr<InFlight> in_flight = submit(take_place(), std::move(work));
  while (!in_flight->wait(std::chrono::seconds(10)).ended) {
  }
  return in_flight->served();
}

bool Scheduler::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void Scheduler::stop() {
  std::deque<std::shared_ptr<InFlight>> waiting;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    waiting.swap(waiting_);
    for (const auto& request : answering_) request->give_up(GivenUp::stopping);
    more_.notify_all();
  }
  for (const auto& request : waiting) {
    request->give_up(GivenUp::stopping);
    request->finish(request->unanswered());
  }
}

void Scheduler::release(const std::shared_ptr<StartingPoint>& start) {
  const std::lock_guard lock(mutex_);
  released_.push_back(start);
  more_.notify_one();
}

int Scheduler::seconds_to_wait() const {
  const std::lock_guard lock(mutex_);
  const double all = mean_seconds_ * static_cast<double>(waiting_.size() + 1) /
                     static_cast<double>(std::max<std::size_t>(1, options_.parallel));
  return static_cast<int>(std::clamp(std::ceil(all), 1.0, 60.0));
}

SchedulerCounters Scheduler::counters() const {
  const std::lock_guard lock(mutex_);
  SchedulerCounters counters = counters_;
  counters.places = places_;
  counters.waiting = waiting_.size();
  counters.running = answering_.size();
  return counters;
}

SchedulerTimes Scheduler::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

// -- the thread that computes ---------------------------------------------------------------------

void Scheduler::compute_all() {
  while (take_requests()) {
    make_step();
    hand_out();
  }
  lanes_.clear();
}

/// Gives waiting requests to lanes; waits while there is nothing to do. \return false: it has
/// stopped, and nothing is under way
bool Scheduler::take_requests() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [&] {
        return stopped_ || !answering_.empty() || !waiting_.empty() || !released_.empty();
      });
      std::erase_if(lanes_, [&](const auto& lane) {
        return lane->free() &&
               std::find(released_.begin(), released_.end(), lane->start()) != released_.end();
      });
      released_.clear();
      if (stopped_ && answering_.empty()) return false;
    }
    if (begin_one()) {
      hand_out();
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (!answering_.empty()) return true;
    if (stopped_) return false;
  }
}

/// The first waiting request that a lane can take begins. \return false: there is none
bool Scheduler::begin_one() {
  std::deque<std::shared_ptr<InFlight>> waiting;
  {
    const std::lock_guard lock(mutex_);
    // asked before each step: nobody's prompt is looked at while no lane can be free
    if (answering_.size() >= std::max<std::size_t>(1, options_.parallel)) return false;
    waiting = waiting_;
  }
  for (const std::shared_ptr<InFlight>& next : waiting) {
    std::vector<std::int64_t> prompt = whole_prompt(next->work());
    Lane* lane = nullptr;
    std::exception_ptr failure;
    try {
      lane = lane_for(*next, prompt);
    } catch (...) {
      failure = std::current_exception();
    }
    if (!lane && !failure) continue;
    {
      const std::lock_guard lock(mutex_);
      const auto at = std::find(waiting_.begin(), waiting_.end(), next);
      if (at == waiting_.end()) continue;  // withdrawn meanwhile
      waiting_.erase(at);
      if (lane) answering_.push_back(next);
    }
    next->begin();
    if (lane)
      lane->begin(next, std::move(prompt));
    else
      next->fail(failure);
    return true;
  }
  return false;
}

/// A free lane at the work's starting point that has most of the prompt already; of equals the one
/// that was used least lately. Else a new one. Lanes that nobody uses make room for it, those that
/// were used least lately first. Null: the work must wait.
Lane* Scheduler::lane_for(const InFlight& request, std::span<const std::int64_t> prompt) {
  const Work& work = request.work();
  const std::size_t most = std::max<std::size_t>(1, options_.parallel);
  Lane* best = nullptr;
  std::size_t busy = 0;
  std::int64_t busy_bytes = 0;
  for (const auto& lane : lanes_) {
    const bool same = work.start && lane->start() == work.start;
    if (!lane->free()) {
      ++busy;
      busy_bytes += lane->bytes();
      if (same && work.start->single()) return nullptr;
      continue;
    }
    if (!same) continue;
    const auto rank = [&](const Lane& l) { return std::pair(l.reusable(prompt), ~l.last_used()); };
    if (!best || rank(*lane) > rank(*best)) best = lane.get();
  }
  const auto too_many = [&](std::int64_t bytes) {
    return options_.bytes > 0 && bytes > options_.bytes;
  };
  if (busy >= most || too_many(busy_bytes + request.bytes())) return nullptr;
  // a lane that holds another conversation is worth more than its place, while there are places
  const bool room = lanes_.size() < most && !too_many(bytes_of_lanes() + request.bytes());
  if (best && (best->reusable(prompt) > 0 || !room || work.start->single())) {
    make_room(std::max<std::int64_t>(0, request.bytes() - best->bytes()), 0, best);
    return best;
  }
  make_room(request.bytes(), 1, nullptr);
  std::unique_ptr<Lane> made = new_lane(work, busy > 0);
  if (!made) return nullptr;
  lanes_.push_back(std::move(made));
  return lanes_.back().get();
}

/// Where a device has no room for another sequence, lanes that nobody uses are given up, and then
/// the work waits for those that are. \return null then
std::unique_ptr<Lane> Scheduler::new_lane(const Work& work, bool others_end) {
  if (work.sequence) return std::make_unique<Lane>(work.sequence, options_.max_tokens);
  for (;;) {
    try {
      return std::make_unique<Lane>(work.start, options_.max_tokens, options_.parallel <= 1);
    } catch (const BudgetError&) {
      if (give_up_oldest(nullptr)) continue;
      if (others_end) return nullptr;
      throw;
    }
  }
}

std::int64_t Scheduler::bytes_of_lanes() const {
  std::int64_t bytes = 0;
  for (const auto& lane : lanes_) bytes += lane->bytes();
  return bytes;
}

/// Gives up free lanes until so many bytes and lanes more are within bounds. \param kept is not one
/// of them
void Scheduler::make_room(std::int64_t bytes, std::size_t lanes, const Lane* kept) {
  const std::size_t most = std::max<std::size_t>(1, options_.parallel);
  while (lanes_.size() + lanes > most ||
         (options_.bytes > 0 && bytes_of_lanes() + bytes > options_.bytes))
    if (!give_up_oldest(kept)) return;
}

/// Of the lanes that nobody uses. \return false: there is none
bool Scheduler::give_up_oldest(const Lane* kept) {
  auto oldest = lanes_.end();
  for (auto at = lanes_.begin(); at != lanes_.end(); ++at)
    if ((*at)->free() && at->get() != kept &&
        (oldest == lanes_.end() || (*at)->last_used() < (*oldest)->last_used()))
      oldest = at;
  if (oldest == lanes_.end()) return false;
  lanes_.erase(oldest);
  return true;
}

/// Whose prompts the next step reads, of those that have some left: each in its turn. What is left
/// of a short prompt is read without pieces of long ones, and an answer's first token is written
/// without: a question does not wait for a second piece of a book. At most kPassedOver such steps
/// follow one another.
std::vector<Lane*> Scheduler::choose_readers(bool answer_starts) {
  constexpr int kPassedOver = 3;  // a text's end, what asks, and the answer's first token
  Lane* long_one = nullptr;
  std::vector<Lane*> short_ones;  // a chunk's tokens together
  std::size_t tokens = 0;
  for (std::size_t i = 1; i <= lanes_.size(); ++i) {
    Lane& lane = *lanes_[(reader_ + i) % lanes_.size()];
    if (lane.free() || lane.ended() || !lane.reads()) continue;
    const std::size_t left = lane.left_to_read();
    if (left > lane.chunk()) {
      if (!long_one) long_one = &lane;
    } else if (tokens + left <= lane.chunk()) {
      tokens += left;
      short_ones.push_back(&lane);
    }
  }
  const bool passes_over =
      long_one && passed_over_ < kPassedOver && (answer_starts || !short_ones.empty());
  passed_over_ = passes_over ? passed_over_ + 1 : 0;
  return long_one && !passes_over ? std::vector<Lane*>{long_one} : short_ones;
}

/// One step: a token of every answer, and pieces of prompts.
void Scheduler::make_step() {
  std::vector<Lane*> lanes;
  bool answer_starts = false;
  for (const auto& lane : lanes_) {
    if (lane->free() || lane->ended()) continue;
    if (!lane->request()->wanted()) {
      lane->give_up();
    } else if (!lane->reads()) {
      lanes.push_back(lane.get());
      answer_starts = answer_starts || lane->starts_answer();
    }
  }
  for (Lane* reader : choose_readers(answer_starts)) {
    lanes.push_back(reader);
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      if (lanes_[i].get() == reader) reader_ = i;
  }
  std::vector<SequenceInput> inputs;
  std::erase_if(lanes, [&](Lane* lane) {
    try {
      inputs.push_back(lane->next_input());
      return false;
    } catch (...) {  // its request ends, not the server
      StepResult failed;
      failed.error = std::current_exception();
      lane->take(failed, lane->last_used());
      return true;
    }
  });
  if (inputs.empty()) return;
  std::uint64_t step = 0;
  {
    const std::lock_guard lock(mutex_);
    step = ++counters_.steps;
    counters_.bytes = bytes_of_lanes();
  }
  std::vector<StepResult> results(inputs.size());
  try {
    results = run(*model_, inputs);
  } catch (...) {  // no memory for the step itself
    for (StepResult& result : results) result.error = std::current_exception();
  }
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i]->take(results[i], step);
}

/// What the sequences have beside what their starting points share with them.
MemoryUsage Scheduler::own_usage() const {
  MemoryUsage all;
  for (const auto& lane : lanes_) {
    MemoryUsage one;
    try {
      one = lane->usage();
    } catch (const Error&) {  // a device that failed: its requests say so
      continue;
    }
    if (lane->at_root()) continue;  // the starting point has counted it
    all.store_bytes += one.store_bytes;
    all.host_bytes += one.host_bytes;
    all.disk_bytes += one.disk_bytes;
    all.index_bytes += one.index_bytes;
    all.window_bytes += one.window_bytes;
  }
  return all;
}

/// Ends the requests whose outcome is there.
void Scheduler::hand_out() {
  for (std::size_t i = 0; i < lanes_.size();) {
    const std::shared_ptr<InFlight> request = lanes_[i]->request();
    std::optional<Lane::Outcome> outcome = request ? lanes_[i]->take_outcome() : std::nullopt;
    if (!outcome) {
      ++i;
      continue;
    }
    // a sequence of its user's is only its user's again before that one hears of it
    if (lanes_[i]->start())
      ++i;
    else
      lanes_.erase(lanes_.begin() + static_cast<std::ptrdiff_t>(i));
    const MemoryUsage own = own_usage();
    {
      const std::lock_guard lock(mutex_);
      std::erase(answering_, request);
      count_ended(*request, *outcome, counters_, times_);
      mean_seconds_ += 0.25 * (request->computed() - mean_seconds_);
      counters_.own = own;
      counters_.sequences = lanes_.size();
    }
    // its place is free, and it is counted, before its client hears of it
    if (outcome->failure)
      request->fail(outcome->failure);
    else
      request->finish(std::move(outcome->served));
  }
}

}  // namespace episodic::server
