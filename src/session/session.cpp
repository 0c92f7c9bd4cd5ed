// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/session.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/session/stop.hpp"

namespace episodic {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

Session::Session(LanguageModel& model, const Tokenizer* tokenizer)
    : model_(&model), tokenizer_(tokenizer) {}

void Session::step(std::span<const std::int64_t> ids, StepKind kind) {
  model_->step(ids, kind);
  if (!model_->keeps_ids()) history_.add(ids);
}

void Session::follow_model() {
  if (!model_->keeps_ids() && model_->tokens() >= 0) history_.follow(model_->tokens());
}

std::int64_t Session::read(std::span<const std::int64_t> ids, const ProgressCallback& progress,
                           std::int64_t total) {
  const Clock::time_point start = Clock::now();
  const auto chunk = static_cast<std::size_t>(model_->chunk());
  follow_model();
  std::size_t done = 0;
  while (done < ids.size()) {
    const std::size_t n = std::min(chunk, ids.size() - done);
    step(ids.subspan(done, n), StepKind::prompt);
    done += n;
    if (progress && !progress(static_cast<std::int64_t>(done), total)) break;
  }
  counters_.prefill_tokens += static_cast<std::int64_t>(done);
  counters_.prefill_seconds += seconds_between(start, Clock::now());
  return static_cast<std::int64_t>(done);
}

std::int64_t Session::prefill(std::span<const std::int64_t> ids, const ProgressCallback& progress) {
  check_token_ids(ids, model_->config().vocab_size);
  return read(ids, progress, static_cast<std::int64_t>(ids.size()));
}

GenerateResult Session::generate(std::span<const std::int64_t> prompt,
                                 const GenerateOptions& options, const ProgressCallback& progress) {
  const ModelConfig& config = model_->config();
  Generation generation({prompt.begin(), prompt.end()}, options,
                        {config.vocab_size, end_tokens(config, tokenizer_)}, tokenizer_);
  follow_model();
  // The repetition penalty looks at the whole context: what was read, the prompt and the answer.
  if (options.sampling.repetition_penalty != 1) {
    generation.see(history_.ids());
    generation.see(model_->known_ids());
  }

  double prefill_seconds = 0, decode_seconds = 0;
  while (!generation.done()) {
    const Clock::time_point start = Clock::now();
    const Generation::Input input = generation.next_input(model_->chunk());
    const bool reads = input.kind == StepKind::prompt;
    step(input.ids, input.kind);
    const std::span<const float> logits =
        input.wants_logits ? model_->logits() : std::span<const float>();
    const Clock::time_point computed = Clock::now();
    accept(generation, logits);
    // what is drawn behind the prompt counts as the answer's
    (reads ? prefill_seconds : decode_seconds) += seconds_between(start, computed);
    decode_seconds += seconds_between(computed, Clock::now());
    (reads ? counters_.prefill_tokens : counters_.decode_tokens) +=
        reads ? static_cast<std::int64_t>(input.ids.size()) : 1;
    if (!generation.writing() && progress &&
        !progress(generation.prompt_read(), generation.prompt_tokens()))
      generation.cancel();
  }
  counters_.prefill_seconds += prefill_seconds;
  counters_.decode_seconds += decode_seconds;
  GenerateResult result = generation.result();
  result.prefill_seconds = prefill_seconds;
  result.decode_seconds = decode_seconds;
  return result;
}

/// Numbers that nothing can be drawn from are traced to the weights where those are at fault.
void Session::accept(Generation& generation, std::span<const float> logits) {
  try {
    generation.accept(logits);
  } catch (const DataError&) {
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
      model_->explain_not_finite();
    throw;
  }
}

}  // namespace episodic
