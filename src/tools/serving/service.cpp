// SPDX-License-Identifier: Apache-2.0
#include "service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic::tools {
namespace {

bool begins_with(std::span<const std::int64_t> ids, std::span<const std::int64_t> start) {
  return ids.size() >= start.size() && std::equal(start.begin(), start.end(), ids.begin());
}

}  // namespace

Service::Service(Engine& engine) : engine_(engine), goes_on_(engine.tokens() > 0) {
  if (const std::string why = engine.refusal(Capability::snapshot); !why.empty())
    throw ConfigError(fmt::format("serving goes back to the same state for each request: {}", why));
  try {
    template_ = load_model_chat_template(engine.model_dir(), engine.tokenizer());
  } catch (const FileError& e) {  // completions need none
    no_template_ = e.what();
  }
  start_ = engine_.snapshot();
}

ChatPrompt Service::prepare(const ServedRequest& request) const {
  const Tokenizer& tokenizer = engine_.tokenizer();
  ChatPrompt prompt;
  try {
    if (request.kind == RequestKind::chat) {
      if (!template_) throw RequestError(no_template_, "messages");
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
  if (prompt.text.empty() && prompt.question.empty())
    throw RequestError("the prompt is empty", "prompt");
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
  engine_.restore(*start_);
  read_.clear();
}

Served Service::answer(const ServedRequest& request, const ChatPrompt& prompt,
                       const TokenCallback& on_token) {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> all = prompt.text;
  all.insert(all.end(), prompt.question.begin(), prompt.question.end());
  Served served;
  served.prompt_tokens = static_cast<std::int64_t>(all.size());
  if (stopped_) {
    served.result.finish = FinishReason::cancelled;
    return served;
  }
  try {
    const std::size_t reused = go_back_for(all);
    served.reused_tokens = static_cast<std::int64_t>(reused);
    // What asks is read in steps of its own, and the last token too: the answer starts from it.
    std::size_t at = reused;
    for (const std::size_t end : {prompt.text.size(), all.size() - 1}) {
      if (at >= end) continue;
      const auto rest = std::span(all).subspan(at, std::min(end, all.size() - 1) - at);
      at += static_cast<std::size_t>(
          engine_.read(rest, [&](std::int64_t, std::int64_t) { return !stopped_; }));
      read_.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at));
      if (stopped_) {
        served.result.finish = FinishReason::cancelled;
        return served;
      }
    }
    if (at > 0) prompt_ = {read_, engine_.snapshot()};
    GenerateOptions options = request.options;
    options.feed_last = true;  // the next turn goes on behind the whole answer
    options.on_token = [&](std::int64_t id, std::string_view text) {
      return !stopped_ && (!on_token || on_token(id, text));
    };
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
