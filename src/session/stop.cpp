// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/stop.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic {

std::vector<std::int64_t> end_tokens(const ModelConfig& config, const Tokenizer* tokenizer) {
  std::vector<std::int64_t> ends = config.eos_tokens;
  const std::int64_t eos = tokenizer ? tokenizer->eos() : -1;
  if (eos >= 0 && eos < config.vocab_size && std::find(ends.begin(), ends.end(), eos) == ends.end())
    ends.push_back(eos);
  return ends;
}

std::string end_tokens_warning(const ModelConfig& config, const Tokenizer* tokenizer) {
  const std::vector<std::int64_t> ends = end_tokens(config, tokenizer);
  if (ends.size() == config.eos_tokens.size()) return config.ends_note;
  return fmt::format(
      "answers end at the tokens {}: the tokenizer's eos_token '{}' ({}) stands in neither "
      "config.json nor generation_config.json; add it to eos_token_id there",
      fmt::join(ends, ", "), tokenizer->token(ends.back()), ends.back());
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    if (stop.empty()) throw ConfigError("stop strings must not be empty");
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped()) return {};
  held_ += text;
  std::size_t best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const std::size_t end = at + stop.size();
    if (end > best_end || (end == best_end && stop.size() <= matched_.size())) continue;
    best_end = end;
    matched_ = stop;
  }
  std::size_t keep = 0;  // bytes at the end that begin a stop string
  if (!stopped()) {
    for (const std::string& stop : stops_)
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
        if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
  }
  const std::size_t out = stopped() ? best_end - matched_.size() : held_.size() - keep;
  std::string ready = held_.substr(0, out);
  stopped() ? held_.clear() : static_cast<void>(held_.erase(0, out));
  return ready;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace episodic
