// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "episodic/base/error.hpp"
#include "episodic/session/stop.hpp"

namespace episodic {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
      return "length";
    case FinishReason::stop_token:
      return "stop_token";
    case FinishReason::stop_string:
      return "stop_string";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "?";
}

Session::Session(LanguageModel& model, const Tokenizer* tokenizer)
    : model_(&model), tokenizer_(tokenizer) {}

void Session::check_ids(std::span<const std::int64_t> ids) const {
  const std::int64_t vocab = model_->config().vocab_size;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw DataError(
          fmt::format("token {} has id {}, outside the model's vocabulary of {}; was it made "
                      "by another model's tokenizer?",
                      i, ids[i], vocab));
}

/// Brings the history in line with the model's count of tokens: shorter after a restore, and with
/// unknown tokens where another one fed the model.
void Session::align_history() {
  const std::int64_t tokens = model_->tokens();
  if (tokens < 0) return;
  if (!aligned_ || tokens < history_start_) {
    history_start_ = tokens;
    history_.clear();
    if (static_cast<std::int64_t>(earlier_.size()) > tokens)
      earlier_.resize(static_cast<std::size_t>(tokens));
  }
  aligned_ = true;
  history_.resize(static_cast<std::size_t>(tokens - history_start_), -1);
}

void Session::step(std::span<const std::int64_t> ids, StepKind kind) {
  model_->step(ids, kind);
  for (const std::int64_t id : ids) history_.push_back(static_cast<std::int32_t>(id));
}

std::int64_t Session::read(std::span<const std::int64_t> ids, const ProgressCallback& progress,
                           std::int64_t total) {
  const Clock::time_point start = Clock::now();
  const auto chunk = static_cast<std::size_t>(model_->chunk());
  align_history();
  std::size_t done = 0;
  while (done < ids.size()) {
    const std::size_t n = std::min(chunk, ids.size() - done);
    step(ids.subspan(done, n), StepKind::prompt);
    done += n;
    if (progress && !progress(static_cast<std::int64_t>(done), total)) break;
  }
  counters_.prefill_tokens += static_cast<std::int64_t>(done);
  counters_.prefill_seconds += seconds_since(start);
  return static_cast<std::int64_t>(done);
}

std::int64_t Session::prefill(std::span<const std::int64_t> ids, const ProgressCallback& progress) {
  check_ids(ids);
  return read(ids, progress, static_cast<std::int64_t>(ids.size()));
}

GenerateResult Session::generate(std::span<const std::int64_t> prompt,
                                 const GenerateOptions& options, const ProgressCallback& progress) {
  if (prompt.empty())
    throw DataError(
        "generate: the prompt is empty; give at least one token (the BOS token, for one)");
  if (options.max_new < 0)
    throw ConfigError(fmt::format("generate: max_new = {}, must be >= 0", options.max_new));
  if (!options.stop.empty() && !tokenizer_)
    throw ConfigError("generate: stop strings need a tokenizer; construct the Session with one");
  check_ids(prompt);
  Sampler sampler(options.sampling);
  StopMatcher matcher(options.stop);
  std::vector<std::int64_t> stop_tokens = options.stop_tokens;
  if (stop_tokens.empty() && !options.ignore_eos)
    stop_tokens = end_tokens(model_->config(), tokenizer_);

  GenerateResult result;
  Clock::time_point start = Clock::now();
  const std::span<const std::int64_t> body = prompt.first(prompt.size() - 1);
  const auto total = static_cast<std::int64_t>(prompt.size());
  const std::int64_t read_tokens = read(body, progress, total);
  if (read_tokens < static_cast<std::int64_t>(body.size())) {
    result.prefill_seconds = seconds_since(start);
    result.finish = FinishReason::cancelled;
    return result;
  }
  step(prompt.last(1), StepKind::prompt);
  std::span<const float> logits = model_->logits();
  result.prefill_seconds = seconds_since(start);
  counters_.prefill_tokens += 1;

  start = Clock::now();
  // The repetition penalty looks at the whole context: what was read, the prompt and the answer.
  sampler.see(earlier_);
  sampler.see(history_);
  std::optional<StreamDecoder> decoder;
  if (tokenizer_) {
    decoder.emplace(*tokenizer_);
    decoder->push(prompt.back());  // so that a space between it and the answer is not lost
  }
  for (std::int64_t i = 0; i < options.max_new; ++i) {
    std::int64_t id = 0;
    try {
      id = sampler.sample(logits);
    } catch (const DataError&) {
      model_->explain_not_finite();
      throw;
    }
    if (std::find(stop_tokens.begin(), stop_tokens.end(), id) != stop_tokens.end()) {
      result.finish = FinishReason::stop_token;
      break;
    }
    result.ids.push_back(id);
    sampler.see(id);
    std::string text;
    if (decoder) text = matcher.push(decoder->push(id));
    result.text += text;
    if (options.on_token && !options.on_token(id, text)) {
      result.finish = FinishReason::cancelled;
      break;
    }
    if (matcher.stopped()) {
      result.finish = FinishReason::stop_string;
      break;
    }
    if (i + 1 < options.max_new) {
      step(std::span(&id, 1), StepKind::decode);
      logits = model_->logits();
      ++result.fed;
    }
  }
  if (options.feed_last && result.fed < static_cast<std::int64_t>(result.ids.size())) {
    step(std::span(result.ids).last(1), StepKind::decode);
    ++result.fed;
  }
  counters_.decode_tokens += result.fed;
  if (decoder && result.finish != FinishReason::stop_string) {
    std::string rest = matcher.push(decoder->finish());
    if (!matcher.stopped()) rest += matcher.finish();
    result.text += rest;
    if (!rest.empty() && options.on_token && result.finish != FinishReason::cancelled)
      options.on_token(-1, rest);
  }
  result.decode_seconds = seconds_since(start);
  counters_.decode_seconds += result.decode_seconds;
  return result;
}

}  // namespace episodic
