// SPDX-License-Identifier: Apache-2.0
#include "lane.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

/// Of a request before anything was computed for it.
Served cancelled(const InFlight& request) {
  Served served;
  served.result.finish = FinishReason::cancelled;
  served.prompt_tokens =
      static_cast<std::int64_t>(request.prompt().text.size() + request.prompt().question.size());
  return served;
}

}  // namespace

Lane::Lane(Sequence& sequence, std::int64_t max_tokens)
    : sequence_(sequence), max_tokens_(max_tokens) {
  if (sequence_.has_memory()) start_ = sequence_.snapshot();
}

/// Whether a prompt continues behind these tokens. Its last one is read again: the answer starts
/// from it.
bool Lane::continues(std::span<const std::int64_t> prompt, const std::vector<std::int64_t>& ids) {
  return ids.size() < prompt.size() && std::equal(ids.begin(), ids.end(), prompt.begin());
}

std::size_t Lane::reusable(std::span<const std::int64_t> prompt) const {
  if (continues(prompt, read_)) return read_.size();
  return prompt_end_.state && continues(prompt, prompt_end_.ids) ? prompt_end_.ids.size() : 0;
}

void Lane::begin(std::shared_ptr<InFlight> request, std::vector<std::int64_t> prompt) {
  request_ = std::move(request);
  prompt_ = std::move(prompt);
  served_ = cancelled(*request_);
  at_ = 0;
  if (!request_->wanted()) return give_up();
  try {
    if (continues(prompt_, read_)) {
    } else if (prompt_end_.state && continues(prompt_, prompt_end_.ids)) {
      sequence_.restore(*prompt_end_.state);
      read_ = prompt_end_.ids;
    } else {
      forget_requests();
    }
    at_ = read_.size();
    served_.reused_tokens = static_cast<std::int64_t>(at_);
    if (at_ + 1 == prompt_.size()) begin_answer();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Lane::forget_requests() {
  prompt_end_ = {};
  read_.clear();
  if (start_)
    sequence_.restore(*start_);
  else if (sequence_.tokens() > 0)
    sequence_.attach_full_attention(max_tokens_);  // which has no states to go back to
}

void Lane::begin_answer() {
  if (at_ > 0 && start_) prompt_end_ = {read_, sequence_.snapshot()};
  GenerateOptions options = request_->request().options;
  if (max_tokens_ > 0)
    options.max_new = std::min(options.max_new, max_tokens_ - served_.prompt_tokens);
  options.feed_last = true;  // the next turn continues behind the whole answer
  InFlight* const to = request_.get();
  options.on_token = [to](std::int64_t, std::string_view text) { return to->put(text); };
  const bool penalty = options.sampling.repetition_penalty != 1;
  answer_ = sequence_.model().generation(
      {prompt_.begin() + static_cast<std::ptrdiff_t>(at_), prompt_.end()}, std::move(options));
  if (penalty) answer_->see(sequence_.known_ids());
}

SequenceInput Lane::next_input() {
  if (answer_) return {&sequence_, answer_->next_input(sequence_.chunk())};
  // What asks is read in steps of its own, and the last token too: the answer starts from it.
  const std::size_t text = request_->prompt().text.size(), last = prompt_.size() - 1;
  const std::size_t end = at_ < text ? std::min(text, last) : last;
  pending_ = std::min(static_cast<std::size_t>(sequence_.chunk()), end - at_);
  return {&sequence_, std::span(prompt_).subspan(at_, pending_), StepKind::prompt, false};
}

void Lane::take(const StepResult& result, std::uint64_t step) {
  last_used_ = step;
  if (result.error) return fail(result.error);
  try {
    accept(result);
  } catch (...) {
    fail(std::current_exception());
  }
}

void Lane::accept(const StepResult& result) {
  if (answer_) {
    try {
      answer_->accept(result.logits);
    } catch (const DataError&) {  // traced to the weights where those are at fault
      if (!std::all_of(result.logits.begin(), result.logits.end(),
                       [](float x) { return std::isfinite(x); }))
        sequence_.explain_not_finite();
      throw;
    }
    if (answer_->done()) end_answer();
    return;
  }
  at_ += pending_;
  read_.assign(prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(at_));
  if (!request_->wanted()) return give_up();
  if (at_ + 1 == prompt_.size()) begin_answer();
}

/// What was read and written is where the next turn continues.
void Lane::end_answer() {
  served_.result = answer_->result();
  read_.assign(prompt_.begin(),
               prompt_.begin() + static_cast<std::ptrdiff_t>(at_) + answer_->prompt_read());
  read_.insert(read_.end(), served_.result.ids.begin(),
               served_.result.ids.begin() + static_cast<std::ptrdiff_t>(served_.result.fed));
  outcome_ = Outcome{std::move(served_), nullptr};
}

void Lane::give_up() {
  if (outcome_) return;
  if (!answer_) {
    outcome_ = Outcome{std::move(served_), nullptr};
    return;
  }
  answer_->cancel();
  end_answer();
}

void Lane::fail(std::exception_ptr failure) {
  outcome_ = Outcome{std::move(served_), std::move(failure)};
  try {
    forget_requests();
  } catch (...) {  // the first failure is the request's; the next one begins anew
  }
}

std::optional<Lane::Outcome> Lane::take_outcome() {
  if (!outcome_) return std::nullopt;
  std::optional<Outcome> outcome = std::exchange(outcome_, std::nullopt);
  request_ = nullptr;
  answer_.reset();
  prompt_.clear();
  return outcome;
}

}  // namespace episodic::tools
