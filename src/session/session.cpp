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

std::int64_t Session::read(std::span<const std::int64_t> ids, const ProgressCallback& progress,
                           std::int64_t total) {
  const Clock::time_point start = Clock::now();
  const auto chunk = static_cast<std::size_t>(model_->chunk());
  std::size_t done = 0;
  while (done < ids.size()) {
    const std::size_t n = std::min(chunk, ids.size() - done);
    model_->step(ids.subspan(done, n));
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
  std::vector<std::int64_t> stop_tokens = options.stop_tokens;
  if (stop_tokens.empty() && !options.ignore_eos) stop_tokens = model_->config().eos_tokens;

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
  model_->step(prompt.last(1));
  std::span<const float> logits = model_->logits();
  result.prefill_seconds = seconds_since(start);
  counters_.prefill_tokens += 1;

  start = Clock::now();
  // The repetition penalty looks at the whole of prompt and answer.
  std::vector<std::int64_t> history(prompt.begin(), prompt.end());
  std::optional<StreamDecoder> decoder;
  if (tokenizer_) decoder.emplace(*tokenizer_);
  StopMatcher matcher(options.stop);
  for (std::int64_t i = 0; i < options.max_new; ++i) {
    const std::int64_t id = sampler.sample(logits, history);
    if (std::find(stop_tokens.begin(), stop_tokens.end(), id) != stop_tokens.end()) {
      result.finish = FinishReason::stop_token;
      break;
    }
    result.ids.push_back(id);
    history.push_back(id);
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
      model_->step(std::span(&id, 1));
      logits = model_->logits();
      ++counters_.decode_tokens;
    }
  }
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
