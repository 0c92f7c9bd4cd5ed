// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/generation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic {

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

void check_token_ids(std::span<const std::int64_t> ids, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      throw DataError(
          fmt::format("token {} has id {}, outside the model's vocabulary of {}; was it made "
                      "by another model's tokenizer?",
                      i, ids[i], vocab_size));
}

Generation::Generation(std::vector<std::int64_t> prompt, GenerateOptions options,
                       const Model& model, const Tokenizer* tokenizer)
    : prompt_(std::move(prompt)),
      options_(std::move(options)),
      stop_tokens_(options_.stop_tokens),
      sampler_(options_.sampling),
      matcher_(options_.stop),
      vocab_size_(model.vocab_size) {
  if (prompt_.empty())
    throw DataError(
        "generate: the prompt is empty; give at least one token (the BOS token, for one)");
  if (options_.max_new < 0)
    throw ConfigError(fmt::format("generate: max_new = {}, must be >= 0", options_.max_new));
  if (!options_.stop.empty() && !tokenizer)
    throw ConfigError("generate: stop strings need a tokenizer; construct the Session with one");
  check_token_ids(prompt_, model.vocab_size);
  for (const auto& [id, bias] : options_.sampling.logit_bias)
    if (id < 0 || id >= model.vocab_size)
      throw DataError(fmt::format("logit_bias: token {} is outside the model's vocabulary of {}",
                                  id, model.vocab_size));
  if (options_.grammar) grammar_.emplace(options_.grammar);
  if (stop_tokens_.empty() && !options_.ignore_eos) stop_tokens_ = model.eos_tokens;
  // The repetition penalty looks at the whole context: what was read, the prompt and the answer.
  sampler_.see(prompt_);
  if (tokenizer) {
    decoder_.emplace(*tokenizer, options_.shown_tokens);
    decoder_->push(prompt_.back());  // so that a space between it and the answer is not lost
  }
}

Generation::Input Generation::next_input(std::int64_t chunk) {
  if (chunk < 1) throw ConfigError(fmt::format("generate: chunk = {}, must be >= 1", chunk));
  switch (stage_) {
    case Stage::reading: {
      const std::size_t body = prompt_.size() - 1;
      const bool last = read_ == body;
      pending_ = last ? 1 : std::min(static_cast<std::size_t>(chunk), body - read_);
      return {std::span(prompt_).subspan(read_, pending_), StepKind::prompt,
              last && options_.max_new > 0};
    }
    case Stage::writing:
    case Stage::last_token:
      pending_ = 1;
      return {std::span(result_.ids).last(1), StepKind::decode, stage_ == Stage::writing};
    case Stage::done:
      break;
  }
  return {};
}

void Generation::accept(std::span<const float> logits) {
  if (pending_ == 0)
    throw ConfigError("generate: no step is open; call next_input, make that step, then accept");
  const bool prompt_ends = stage_ == Stage::reading && read_ + pending_ == prompt_.size();
  if (stage_ == Stage::writing || (prompt_ends && options_.max_new > 0)) {
    if (static_cast<std::int64_t>(logits.size()) != vocab_size_)
      throw DataError(fmt::format("generate: {} logits, the vocabulary has {} tokens",
                                  logits.size(), vocab_size_));
    const std::optional<std::int64_t> id = draw(logits);
    std::optional<Logprobs> known;
    if (id && options_.logprobs >= 0 && !stops(*id))
      known = logprobs_of(logits, *id, options_.logprobs);
    if (id && grammar_ && !stops(*id)) grammar_->advance(*id);
    if (stage_ == Stage::writing) ++result_.fed;
    read_ = prompt_.size();
    pending_ = 0;
    stage_ = Stage::writing;
    if (known) result_.logprobs.push_back(std::move(*known));
    return id ? take(*id) : end(FinishReason::stop_token);
  }
  if (stage_ == Stage::reading) {
    read_ += pending_;
    pending_ = 0;
    if (prompt_ends) end(FinishReason::length);
    return;
  }
  ++result_.fed;
  pending_ = 0;
  stage_ = Stage::done;
}

/// The next token; nothing where a grammar's text is complete and no stop token could say so.
std::optional<std::int64_t> Generation::draw(std::span<const float> logits) {
  if (!grammar_) return sampler_.sample(logits);
  TokenMask allowed = *grammar_->allowed();
  allowed.resize(static_cast<std::size_t>(vocab_size_ + 63) / 64, 0);
  if (vocab_size_ % 64 != 0)  // a tokenizer may have more tokens than the model
    allowed.back() &= (std::uint64_t{1} << vocab_size_ % 64) - 1;
  // a stop token ends the answer whatever its text is
  const bool may_end = grammar_->may_end();
  bool can_stop = false;
  for (const std::int64_t id : stop_tokens_) {
    if (id < 0 || id >= vocab_size_) continue;
    const std::uint64_t bit = std::uint64_t{1} << id % 64;
    std::uint64_t& word = allowed[static_cast<std::size_t>(id) / 64];
    word = may_end ? word | bit : word & ~bit;
    can_stop = can_stop || may_end;
  }
  const bool goes_on =
      std::any_of(allowed.begin(), allowed.end(), [](std::uint64_t word) { return word != 0; });
  if (!goes_on && may_end && !can_stop) return std::nullopt;
  if (!goes_on)
    throw DataError(fmt::format(
        "generate: after {} tokens no token of the vocabulary goes on as the grammar asks for, and "
        "its text may not end there; change the grammar",
        result_.ids.size()));
  return sampler_.sample_among(logits, allowed);
}

bool Generation::stops(std::int64_t id) const {
  return std::find(stop_tokens_.begin(), stop_tokens_.end(), id) != stop_tokens_.end();
}

/// A token that was drawn.
void Generation::take(std::int64_t id) {
  if (stops(id)) return end(FinishReason::stop_token);
  result_.ids.push_back(id);
  sampler_.generated(id);
  std::string text;
  if (decoder_) text = matcher_.push(decoder_->push(id));
  result_.text += text;
  if (options_.on_token && !options_.on_token(id, text)) return end(FinishReason::cancelled);
  if (matcher_.stopped()) return end(FinishReason::stop_string);
  if (options_.ends && options_.ends(text)) return end(FinishReason::stop_token);
  if (static_cast<std::int64_t>(result_.ids.size()) == options_.max_new) end(FinishReason::length);
}

void Generation::end(FinishReason reason) {
  result_.finish = reason;
  if (reason == FinishReason::stop_string) result_.stop = matcher_.matched();
  const bool unfed = result_.fed < static_cast<std::int64_t>(result_.ids.size());
  stage_ = options_.feed_last && unfed ? Stage::last_token : Stage::done;
  if (!decoder_ || result_.ids.empty() || reason == FinishReason::stop_string) return;
  // what was held back: an incomplete character, and what could have begun a stop string
  std::string rest = matcher_.push(decoder_->finish());
  if (!matcher_.stopped()) rest += matcher_.finish();
  result_.text += rest;
  if (!rest.empty() && options_.on_token && reason != FinishReason::cancelled &&
      !options_.on_token(kNoToken, rest))
    result_.finish = FinishReason::cancelled;
}

void Generation::cancel() {
  if (done()) return;
  if (stage_ != Stage::last_token) end(FinishReason::cancelled);
  pending_ = 0;
  stage_ = Stage::done;
}

}  // namespace episodic
