// SPDX-License-Identifier: Apache-2.0
#include "service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

/// Whether the model's template shows what a tool said.
bool shows(const ChatTemplate& chat_template, std::vector<ChatMessage> messages, std::size_t i,
           const std::string& variables) {
  ChatOptions options;
  options.variables = variables;
  const std::string before = chat_template.render(messages, options);
  messages[i].content += "x";
  return chat_template.render(messages, options) != before;
}

}  // namespace

Service::Service(Engine& engine, const ServiceOptions& options)
    : engine_(engine), options_(options), goes_on_(engine.tokens() > 0) {
  if (engine.has_memory())
    if (const std::string why = engine.refusal(Capability::snapshot); !why.empty())
      throw ConfigError(
          fmt::format("serving goes back to the same state for each request: {}", why));
  try {
    template_ = &engine.model().chat_template();
  } catch (const FileError& e) {  // completions need none
    no_template_ = e.what();
  }
  const std::size_t n = std::max<std::size_t>(1, options_.parallel);
  for (std::size_t i = 1; i < n; ++i) forks_.push_back(engine.fork());
  lanes_.push_back(std::make_unique<Lane>(engine, options_.max_tokens));
  for (Sequence& fork : forks_) lanes_.push_back(std::make_unique<Lane>(fork, options_.max_tokens));
  thread_ = std::thread([this] { compute_all(); });
}

Service::~Service() {
  stop();
  thread_.join();
}

// -- places and the queue -------------------------------------------------------------------------

Service::Place Service::take_place() {
  const std::lock_guard lock(mutex_);
  if (stopped_) throw RequestError("the server is going down", "", 503);
  if (places_ >= options_.queue + lanes_.size()) {
    ++counters_.refused;
    throw RequestError(
        fmt::format("{} requests wait already, and more may not (--queue); ask again later",
                    options_.queue),
        "", 429, "rate_limit_exceeded");
  }
  ++places_;
  return {this, [](Service* service) { --service->places_; }};
}

std::shared_ptr<InFlight> Service::submit(Place place, ServedRequest request, ChatPrompt prompt) {
  auto in_flight = std::make_shared<InFlight>(std::move(request), std::move(prompt),
                                              options_.in_flight, std::move(place));
  const std::lock_guard lock(mutex_);
  if (stopped_) throw RequestError("the server is going down", "", 503);
  ++counters_.requests;
  waiting_.push_back(in_flight);
  more_.notify_one();
  return in_flight;
}

void Service::withdraw(InFlight& request, GivenUp why) {
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

Served Service::answer(const ServedRequest& request, const ChatPrompt& prompt) {
  const std::shared_ptr<InFlight> in_flight = submit(take_place(), request, prompt);
  while (!in_flight->wait(std::chrono::seconds(10)).ended) {
  }
  return in_flight->served();
}

void Service::stop() {
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

int Service::seconds_to_wait() const {
  const std::lock_guard lock(mutex_);
  const double all =
      mean_seconds_ * static_cast<double>(waiting_.size() + 1) / static_cast<double>(lanes_.size());
  return static_cast<int>(std::clamp(std::ceil(all), 1.0, 60.0));
}

ServiceCounters Service::counters() const {
  const std::lock_guard lock(mutex_);
  ServiceCounters counters = counters_;
  counters.places = places_;
  return counters;
}

// -- the thread that computes ---------------------------------------------------------------------

void Service::compute_all() {
  while (take_requests()) {
    make_step();
    hand_out();
  }
}

/// Gives waiting requests to free lanes; waits while there is nothing to do. \return false: it has
/// stopped, and nothing is under way
bool Service::take_requests() {
  for (;;) {
    std::shared_ptr<InFlight> next;
    {
      std::unique_lock lock(mutex_);
      const auto busy = [&] { return !answering_.empty(); };
      more_.wait(lock, [&] { return stopped_ || busy() || !waiting_.empty(); });
      if (waiting_.empty() || answering_.size() == lanes_.size()) return busy() || !stopped_;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      answering_.push_back(next);
    }
    std::vector<std::int64_t> prompt = next->prompt().text;
    prompt.insert(prompt.end(), next->prompt().question.begin(), next->prompt().question.end());
    next->begin();
    lane_for(prompt).begin(next, std::move(prompt));
    hand_out();
  }
}

/// The free lane that has most of a prompt already; of equals the one that was used least lately.
Lane& Service::lane_for(std::span<const std::int64_t> prompt) {
  Lane* best = nullptr;
  for (const auto& lane : lanes_) {
    if (!lane->free()) continue;
    const auto rank = [&](const Lane& l) { return std::pair(l.reusable(prompt), ~l.last_used()); };
    if (!best || rank(*lane) > rank(*best)) best = lane.get();
  }
  return *best;
}

/// One step: a token of every answer, and a piece of one prompt, each in its turn.
void Service::make_step() {
  std::vector<Lane*> lanes;
  std::vector<SequenceInput> inputs;
  const auto add = [&](Lane& lane) {
    lanes.push_back(&lane);
    inputs.push_back(lane.next_input());
  };
  Lane* reader = nullptr;
  for (std::size_t i = 1; i <= lanes_.size(); ++i) {
    const std::size_t at = (reader_ + i) % lanes_.size();
    Lane& lane = *lanes_[at];
    if (lane.free()) continue;
    if (!lane.request()->wanted()) {
      lane.give_up();
    } else if (!lane.reads()) {
      add(lane);
    } else if (!reader) {
      reader = &lane;
      reader_ = at;
      add(lane);
    }
  }
  if (inputs.empty()) return;
  ++steps_;
  std::vector<StepResult> results(inputs.size());
  try {
    results = run(engine_.model(), inputs);
  } catch (...) {  // no memory for the step itself
    for (StepResult& result : results) result.error = std::current_exception();
  }
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i]->take(results[i], steps_);
}

/// Ends the requests whose outcome is there.
void Service::hand_out() {
  for (const auto& lane : lanes_) {
    const std::shared_ptr<InFlight> request = lane->request();
    if (!request) continue;
    std::optional<Lane::Outcome> outcome = lane->take_outcome();
    if (!outcome) continue;
    const Served& served = outcome->served;
    {
      const std::lock_guard lock(mutex_);
      std::erase(answering_, request);
      mean_seconds_ += 0.25 * (request->computed() - mean_seconds_);
      const bool whole = !outcome->failure && served.result.finish != FinishReason::cancelled;
      counters_.given_up += whole ? 0 : 1;
      counters_.prompt_tokens += static_cast<std::uint64_t>(served.prompt_tokens);
      counters_.reused_tokens += static_cast<std::uint64_t>(served.reused_tokens);
      counters_.written_tokens += served.result.ids.size();
    }
    // its place is free, and it is counted, before its client hears of it
    if (outcome->failure)
      request->fail(outcome->failure);
    else
      request->finish(std::move(outcome->served));
  }
}

// -- one request ----------------------------------------------------------------------------------

ChatPrompt Service::prepare(const ServedRequest& request) const {
  const Tokenizer& tokenizer = engine_.tokenizer();
  ChatPrompt prompt;
  try {
    if (request.kind == RequestKind::chat) {
      if (!template_) throw RequestError(no_template_, "messages");
      bool tools = false;
      for (std::size_t i = 0; i < request.messages.size(); ++i) {
        const ChatMessage& message = request.messages[i];
        const std::string name = fmt::format("messages[{}]", i);
        if (message.role != "tool" && message.role != "function") continue;
        // all of them or none: one is enough to see
        if (!std::exchange(tools, true) &&
            !shows(*template_, request.messages, i, request.variables))
          throw RequestError(fmt::format("the model's chat format shows nothing of messages whose "
                                         "role is {}; put what the tool said into a user's",
                                         message.role),
                             name + ".role");
      }
      prompt =
          conversation_prompt(*template_, tokenizer, request.messages, request.variables, goes_on_);
    } else if (request.ids) {
      prompt.text = *request.ids;
    } else {
      prompt.text = goes_on_ ? encode_continuation(tokenizer, request.prompt)
                             : tokenizer.encode(request.prompt);
    }
  } catch (const Error& e) {
    throw RequestError(e.what(), request.kind == RequestKind::chat ? "messages" : "prompt");
  }
  const char* field = request.kind == RequestKind::chat ? "messages" : "prompt";
  const auto tokens = static_cast<std::int64_t>(prompt.text.size() + prompt.question.size());
  if (tokens == 0) throw RequestError("the prompt is empty", field);
  if (options_.max_tokens > 0 &&
      tokens + (request.options.max_new > 0 ? 1 : 0) > options_.max_tokens)
    throw RequestError(
        fmt::format("the prompt has {} tokens; a request may come to {}, its answer included "
                    "(--max-tokens)",
                    tokens, options_.max_tokens),
        field, 400, "context_length_exceeded");
  const std::int64_t vocabulary = engine_.config().vocab_size;
  for (const std::int64_t id : prompt.text)
    if (id < 0 || id >= vocabulary)
      throw RequestError(
          fmt::format("'prompt' has the token {}; the vocabulary has {}", id, vocabulary),
          "prompt");
  return prompt;
}

}  // namespace episodic::tools
