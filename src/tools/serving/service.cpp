// SPDX-License-Identifier: Apache-2.0
#include "service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic::tools {
namespace {

bool begins_with(std::span<const std::int64_t> ids, std::span<const std::int64_t> start) {
  return ids.size() >= start.size() && std::equal(start.begin(), start.end(), ids.begin());
}

/// Every text within JSON, keys included.
void for_each_text(const nlohmann::json& tree, const std::function<void(const std::string&)>& f) {
  if (tree.is_string()) return f(tree.get_ref<const std::string&>());
  if (tree.is_object())
    for (const auto& [key, value] : tree.items()) f(key);
  if (tree.is_structured())
    for (const nlohmann::json& value : tree) for_each_text(value, f);
}

/// What a template is given beside messages' texts must not end a turn either.
void refuse_special(const Tokenizer& tokenizer, const std::string& object,
                    const std::string& field) {
  if (object.empty()) return;
  JsonLimits limits;
  limits.depth = 64;
  for_each_text(parse_strict(object, field, limits), [&](const std::string& text) {
    std::vector<std::int64_t> ids = tokenizer.encode(text, false);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const std::int64_t id : ids) {
      const std::vector<std::int64_t> one{id};
      if (tokenizer.decode(one, true) != tokenizer.decode(one, false))
        throw RequestError(
            fmt::format("'{}' holds '{}', which is a special token of the model; take it out",
                        field, printable(tokenizer.token(id))),
            field);
    }
  });
}

/// Whether the model's template shows what a tool said.
bool shows(const ChatTemplate& chat_template, std::vector<ChatMessage> messages, std::size_t i,
           const std::string& variables) {
  ChatOptions options;
  options.variables = variables;
  const std::string before = chat_template.render(messages, options);
  messages[i].content += "x";
  return chat_template.render(messages, options) != before;
}

/// Of a request before anything was computed for it.
Served cancelled(const InFlight& request) {
  Served served;
  served.result.finish = FinishReason::cancelled;
  served.prompt_tokens =
      static_cast<std::int64_t>(request.prompt().text.size() + request.prompt().question.size());
  return served;
}

}  // namespace

Service::Service(Engine& engine, const ServiceOptions& options)
    : engine_(engine), options_(options), goes_on_(engine.tokens() > 0) {
  if (engine.has_memory())
    if (const std::string why = engine.refusal(Capability::snapshot); !why.empty())
      throw ConfigError(
          fmt::format("serving goes back to the same state for each request: {}", why));
  try {
    template_ = load_model_chat_template(engine.model_dir(), engine.tokenizer());
  } catch (const FileError& e) {  // completions need none
    no_template_ = e.what();
  }
  if (engine.has_memory()) start_ = engine_.snapshot();
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
  if (places_ > options_.queue) {
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
  waited->finish(cancelled(*waited));
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
    if (answering_) answering_->give_up(GivenUp::stopping);
    more_.notify_all();
  }
  for (const auto& request : waiting) {
    request->give_up(GivenUp::stopping);
    request->finish(cancelled(*request));
  }
}

int Service::seconds_to_wait() const {
  const std::lock_guard lock(mutex_);
  const double all = mean_seconds_ * static_cast<double>(waiting_.size() + 1);
  return static_cast<int>(std::clamp(std::ceil(all), 1.0, 60.0));
}

ServiceCounters Service::counters() const {
  const std::lock_guard lock(mutex_);
  ServiceCounters counters = counters_;
  counters.places = places_;
  return counters;
}

void Service::compute_all() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      answering_ = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const auto began = InFlight::Clock::now();
    InFlight& request = *answering_;
    request.begin();
    Served served;
    std::exception_ptr failure;
    try {
      served = compute(request);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::chrono::duration<double> seconds = InFlight::Clock::now() - began;
    std::shared_ptr<InFlight> answered;
    {
      const std::lock_guard lock(mutex_);
      answered = std::move(answering_);
      mean_seconds_ += 0.25 * (seconds.count() - mean_seconds_);
      counters_.given_up += failure || served.result.finish == FinishReason::cancelled ? 1 : 0;
      counters_.prompt_tokens += static_cast<std::uint64_t>(served.prompt_tokens);
      counters_.reused_tokens += static_cast<std::uint64_t>(served.reused_tokens);
      counters_.written_tokens += served.result.ids.size();
    }
    // its place is free, and it is counted, before its client hears of it
    if (failure)
      answered->fail(failure);
    else
      answered->finish(std::move(served));
  }
}

// -- one request ----------------------------------------------------------------------------------

ChatPrompt Service::prepare(const ServedRequest& request) const {
  const Tokenizer& tokenizer = engine_.tokenizer();
  ChatPrompt prompt;
  try {
    if (request.kind == RequestKind::chat) {
      if (!template_) throw RequestError(no_template_, "messages");
      refuse_special(tokenizer, request.variables, "chat_template_kwargs");
      bool tools = false;
      for (std::size_t i = 0; i < request.messages.size(); ++i) {
        const ChatMessage& message = request.messages[i];
        const std::string name = fmt::format("messages[{}]", i);
        refuse_special(tokenizer, message.fields, name);
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

/// Puts the engine where the prompt goes on from. \return tokens of it that are read by then, less
/// than all
std::size_t Service::go_back_for(std::span<const std::int64_t> prompt) {
  const auto usable = [&](const std::vector<std::int64_t>& ids) {
    return ids.size() < prompt.size() && begins_with(prompt, ids);
  };
  if (usable(read_)) return read_.size();
  if (prompt_.state && usable(prompt_.ids)) {
    engine_.restore(*prompt_.state);
    read_ = prompt_.ids;
  } else {
    forget_requests();
  }
  return read_.size();
}

void Service::forget_requests() {
  prompt_ = {};
  read_.clear();
  if (start_)
    engine_.restore(*start_);
  else if (engine_.tokens() > 0)
    engine_.attach_full_attention(options_.max_tokens);  // which has no states to go back to
}

Served Service::compute(InFlight& request) {
  const ChatPrompt& prompt = request.prompt();
  std::vector<std::int64_t> all = prompt.text;
  all.insert(all.end(), prompt.question.begin(), prompt.question.end());
  Served served = cancelled(request);
  if (!request.wanted()) return served;
  try {
    const std::size_t reused = go_back_for(all);
    served.reused_tokens = static_cast<std::int64_t>(reused);
    // What asks is read in steps of its own, and the last token too: the answer starts from it.
    std::size_t at = reused;
    for (const std::size_t end : {prompt.text.size(), all.size() - 1}) {
      if (at >= end) continue;
      const auto rest = std::span(all).subspan(at, std::min(end, all.size() - 1) - at);
      at += static_cast<std::size_t>(
          engine_.read(rest, [&](std::int64_t, std::int64_t) { return request.wanted(); }));
      read_.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at));
      if (!request.wanted()) return served;
    }
    if (at > 0 && start_) prompt_ = {read_, engine_.snapshot()};
    GenerateOptions options = request.request().options;
    if (options_.max_tokens > 0)
      options.max_new = std::min(options.max_new, options_.max_tokens - served.prompt_tokens);
    options.feed_last = true;  // the next turn goes on behind the whole answer
    options.on_token = [&](std::int64_t, std::string_view text) { return request.put(text); };
    served.result = engine_.generate(std::span(all).subspan(at), options);
    read_ = std::move(all);
    read_.insert(read_.end(), served.result.ids.begin(),
                 served.result.ids.begin() + static_cast<std::ptrdiff_t>(served.result.fed));
  } catch (...) {
    forget_requests();
    throw;
  }
  return served;
}

}  // namespace episodic::tools
