// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/in_flight.hpp"

#include <algorithm>
#include <iterator>

namespace episodic::server {
namespace {

constexpr std::size_t kFarTooMany = 16;  // times Limits::parts
constexpr std::size_t kAtOnce = 64;      // the rest still counts as waiting

}  // namespace

Served InFlight::unanswered() const {
  Served served;
  served.result.finish = FinishReason::cancelled;
  served.prompt_tokens = work_.prompt_tokens();
  served.passages = work_.passages;
  served.passages_only = work_.passages_only;
  return served;
}

void InFlight::begin() {
  const std::lock_guard lock(mutex_);
  began_ = Clock::now();
}

bool InFlight::wanted_locked() {
  if (ended_) return given_up_ == GivenUp::no;
  const Clock::time_point now = Clock::now();
  if (given_up_ == GivenUp::no && limits_.whole.count() > 0 && now - came_ > limits_.whole)
    given_up_ = GivenUp::overdue;
  if (given_up_ == GivenUp::no && parts_.size() > limits_.parts &&
      (parts_.size() > kFarTooMany * limits_.parts || full_since_ < now - limits_.slow))
    given_up_ = GivenUp::client_slow;
  return given_up_ == GivenUp::no;
}

bool InFlight::wanted() {
  const std::lock_guard lock(mutex_);
  return wanted_locked();
}

bool InFlight::progress(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  read_ = tokens;
  news_.notify_all();
  return wanted_locked();
}

bool InFlight::put(Part part) {
  const std::lock_guard lock(mutex_);
  first_token_ = std::min(first_token_, Clock::now());
  if (!work_.streams) return wanted_locked();  // it gets the whole answer at the end
  parts_.push_back(std::move(part));
  if (parts_.size() > limits_.parts) full_since_ = std::min(full_since_, Clock::now());
  news_.notify_all();
  return wanted_locked();
}

void InFlight::end_locked() {
  ended_ = true;
  place_.reset();
  news_.notify_all();
}

void InFlight::finish(Served served) {
  const std::lock_guard lock(mutex_);
  served_ = std::move(served);
  end_locked();
}

void InFlight::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  end_locked();
}

InFlight::News InFlight::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, most, [&] { return ended_ || !parts_.empty() || read_ != told_; });
  News news;
  news.read = told_ = read_;
  const auto end = parts_.begin() + static_cast<std::ptrdiff_t>(std::min(parts_.size(), kAtOnce));
  news.parts.assign(std::make_move_iterator(parts_.begin()), std::make_move_iterator(end));
  parts_.erase(parts_.begin(), end);
  if (parts_.size() <= limits_.parts) full_since_ = Clock::time_point::max();
  news.ended = ended_ && parts_.empty();
  return news;
}

const Served& InFlight::served() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  return served_;
}

void InFlight::give_up(GivenUp why) {
  const std::lock_guard lock(mutex_);
  if (given_up_ == GivenUp::no && !ended_) given_up_ = why;
}

GivenUp InFlight::given_up() const {
  const std::lock_guard lock(mutex_);
  return given_up_;
}

bool InFlight::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

double InFlight::waited() const {
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> seconds = std::min(began_, Clock::now()) - came_;
  return seconds.count();
}

std::optional<double> InFlight::first_token() const {
  const std::lock_guard lock(mutex_);
  if (first_token_ == Clock::time_point::max()) return std::nullopt;
  return std::chrono::duration<double>(first_token_ - came_).count();
}

double InFlight::computed() const {
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> seconds = Clock::now() - std::min(began_, Clock::now());
  return seconds.count();
}

}  // namespace episodic::server
