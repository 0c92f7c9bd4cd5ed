// SPDX-License-Identifier: Apache-2.0
#include "lane.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/host_memory.hpp"

namespace episodic::server {

Lane::Lane(std::shared_ptr<StartingPoint> start, std::int64_t max_tokens, bool alone)
    : start_(std::move(start)), sequence_(start_->sequence(alone)), max_tokens_(max_tokens) {
  if (sequence_->has_memory()) start_state_ = sequence_->snapshot();
}

Lane::Lane(std::shared_ptr<Sequence> sequence, std::int64_t max_tokens)
    : sequence_(std::move(sequence)), max_tokens_(max_tokens) {}

/// Whether a prompt continues behind these tokens. Its last one is read again: the answer starts
/// from it.
bool Lane::continues(std::span<const std::int64_t> prompt, const std::vector<std::int64_t>& ids) {
  return ids.size() < prompt.size() && std::equal(ids.begin(), ids.end(), prompt.begin());
}

std::size_t Lane::reusable(std::span<const std::int64_t> prompt) const {
  if (continues(prompt, read_)) return read_.size();
  return prompt_end_.state && continues(prompt, prompt_end_.ids) ? prompt_end_.ids.size() : 0;
}

std::size_t Lane::to_read() const {
  return request_->work().reads_only ? prompt_.size() : prompt_.size() - 1;
}

void Lane::begin(std::shared_ptr<InFlight> request, std::vector<std::int64_t> prompt) {
  request_ = std::move(request);
  bytes_ = std::max(bytes_, request_->bytes());
  prompt_ = std::move(prompt);
  served_ = request_->unanswered();
  before_ = {};
  at_ = 0;
  if (!request_->wanted()) return give_up();
  try {
    if (start_) {
      if (continues(prompt_, read_)) {
      } else if (prompt_end_.state && continues(prompt_, prompt_end_.ids)) {
        sequence_->restore(*prompt_end_.state);
        read_ = prompt_end_.ids;
      } else {
        forget_requests();
      }
      at_ = read_.size();
    }
    served_.reused_tokens = static_cast<std::int64_t>(at_);
    before_ = counts();
    if (at_ == to_read()) begin_answer();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Lane::forget_requests() {
  prompt_end_ = {};
  read_.clear();
  if (start_state_)
    sequence_->restore(*start_state_);
  else if (sequence_->tokens() > 0)
    sequence_->attach_full_attention(max_tokens_);  // which has no states to go back to
}

void Lane::begin_answer() {
  if (start_ && at_ > 0 && start_state_) {
    prompt_end_ = {};  // first, for a device has room for few states at a time
    prompt_end_ = {read_, sequence_->snapshot()};
  }
  GenerateOptions options = request_->work().options;
  if (max_tokens_ > 0)
    options.max_new = std::min(options.max_new, max_tokens_ - served_.prompt_tokens);
  options.feed_last = true;  // the next turn continues behind the whole answer
  if (request_->work().ends) options.ends = request_->work().ends();
  InFlight* const to = request_.get();
  options.on_token = [this, to, known = options.logprobs >= 0](std::int64_t id,
                                                               std::string_view text) {
    Part part{std::string(text), std::nullopt};
    if (known && id != kNoToken) part.logprobs = answer_->result().logprobs.back();
    return to->put(std::move(part));
  };
  const bool penalty = options.sampling.repetition_penalty != 1;
  answer_ = sequence_->model().generation(
      {prompt_.begin() + static_cast<std::ptrdiff_t>(at_), prompt_.end()}, std::move(options));
  if (penalty) {
    std::vector<std::int64_t> known = sequence_->known_ids();
    if (start_)  // a fork knows what was read behind it alone
      std::copy_n(start_->ids().begin(), std::min(start_->ids().size(), known.size()),
                  known.begin());
    answer_->see(known);
  }
}

SequenceInput Lane::next_input() {
  if (answer_) return {sequence_.get(), answer_->next_input(sequence_->chunk())};
  // What asks is read in steps of its own, and the last token too: the answer starts from it.
  const std::size_t text = request_->work().prompt.text.size(), last = to_read();
  const std::size_t end = at_ < text ? std::min(text, last) : last;
  pending_ = std::min(static_cast<std::size_t>(sequence_->chunk()), end - at_);
  return {sequence_.get(), std::span(prompt_).subspan(at_, pending_), StepKind::prompt, false};
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
  note_recalls();
  if (answer_) {
    try {
      answer_->accept(result.logits);
    } catch (const DataError&) {  // traced to the weights where those are at fault
      if (!std::all_of(result.logits.begin(), result.logits.end(),
                       [](float x) { return std::isfinite(x); }))
        sequence_->explain_not_finite();
      throw;
    }
    if (answer_->done()) end_answer();
    return;
  }
  const auto from = prompt_.begin() + static_cast<std::ptrdiff_t>(at_);
  read_.insert(read_.end(), from, from + static_cast<std::ptrdiff_t>(pending_));
  at_ += pending_;
  if (!request_->progress(static_cast<std::int64_t>(at_))) return give_up();
  if (at_ < to_read()) return;
  if (!request_->work().reads_only) return begin_answer();
  served_.result.finish = FinishReason::stop_token;
  end(nullptr);
}

/// Of the question's steps and the answer's: what the text's chunks recall says little.
void Lane::note_recalls() {
  const Work& work = request_->work();
  if (!work.recall || !sequence_->has_memory()) return;
  if (at_ < work.prompt.text.size() && at_ + 1 < prompt_.size()) return;
  if (!notes_) notes_.emplace(*sequence_, dynamic_cast<EpisodicMemory*>(sequence_->memory()));
  notes_->note();
}

/// What was read and written is where the next turn continues.
void Lane::end_answer() {
  served_.result = answer_->result();
  read_.assign(prompt_.begin(),
               prompt_.begin() + static_cast<std::ptrdiff_t>(at_) + answer_->prompt_read());
  read_.insert(read_.end(), served_.result.ids.begin(),
               served_.result.ids.begin() + static_cast<std::ptrdiff_t>(served_.result.fed));
  if (notes_) {
    served_.recalled = notes_->ranked();
    const Model& model = sequence_->model();
    std::vector<std::int64_t> ids = sequence_->known_ids();
    if (start_)
      std::copy_n(start_->ids().begin(), std::min(start_->ids().size(), ids.size()), ids.begin());
    for (const RecalledEvent& e : served_.recalled)
      served_.recalled_texts.push_back(
          model.has_tokenizer() ? event_text(model.tokenizer(), ids, 0, e.tokens) : std::string());
  }
  end(nullptr);
}

void Lane::end(std::exception_ptr failure) {
  notes_.reset();
  outcome_ = Outcome{std::move(served_), std::move(failure), {}};
  try {
    const Counts now = counts();
    outcome_->counts = {std::max<std::int64_t>(0, now.recalled - before_.recalled),
                        std::max<std::int64_t>(0, now.reads - before_.reads),
                        std::max<std::int64_t>(0, now.hits - before_.hits)};
  } catch (const Error&) {  // a device that failed; the request's outcome counts
  }
}

MemoryUsage Lane::usage() const {
  return sequence_->has_memory() ? sequence_->usage() : MemoryUsage();
}

Lane::Counts Lane::counts() const {
  Counts counts;
  counts.recalled = usage().recalled_events;
  if (const auto* memory = dynamic_cast<const HostMemory*>(sequence_->memory())) {
    const StoreCounters store = memory->counters().store;
    counts.reads = store.acquires;
    counts.hits = store.hits;
  }
  return counts;
}

void Lane::give_up() {
  if (outcome_) return;
  if (!answer_) return end(nullptr);
  answer_->cancel();
  end_answer();
}

void Lane::fail(std::exception_ptr failure) {
  end(std::move(failure));
  if (!start_) return;  // its user goes back to the last commit
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

}  // namespace episodic::server
