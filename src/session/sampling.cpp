// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

constexpr double kForbids = -100;  // as a bias
constexpr double kNever = -std::numeric_limits<double>::infinity();

/// SplitMix64: number `counter` of the stream of a seed.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

/// \throws DataError for NaN and +infinity
void require_numbers(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  int wrong = 0;  // no branch in the loop: the vocabulary is long, and this runs for each token
  for (const float x : logits) wrong |= x < kInfinity ? 0 : 1;
  if (wrong == 0) return;
  const auto at =
      std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
  throw DataError(
      fmt::format("the logit of token {} is {}: no token can be sampled; check the model's weights",
                  at - logits.begin(), std::isnan(*at) ? "NaN" : "infinite"));
}

/// The first of the largest numbers, none of which is NaN. \param x not empty
template <class T>
std::size_t first_largest(std::span<const T> x) {
  constexpr std::size_t kLanes = 16;  // independent of one another, for vectors
  T lanes[kLanes];
  std::fill_n(lanes, kLanes, x[0]);
  const std::size_t whole = x.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes)
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  T most = *std::max_element(lanes, lanes + kLanes);
  for (const T other : x.subspan(whole)) most = std::max(most, other);
  return static_cast<std::size_t>(std::find(x.begin(), x.end(), most) - x.begin());
}

}  // namespace

void SamplingOptions::validate() const {
  if (!std::isfinite(temperature) || temperature < 0)
    throw ConfigError(fmt::format("temperature is {}, must be >= 0 (0: greedy)", temperature));
  if (top_k < 0) throw ConfigError(fmt::format("top_k is {}, must be >= 0 (0: off)", top_k));
  if (!(top_p >= 0 && top_p <= 1))
    throw ConfigError(fmt::format("top_p is {}, must be in [0, 1] (1: off)", top_p));
  if (!(min_p >= 0 && min_p <= 1))
    throw ConfigError(fmt::format("min_p is {}, must be in [0, 1] (0: off)", min_p));
  if (!std::isfinite(repetition_penalty) || repetition_penalty <= 0)
    throw ConfigError(
        fmt::format("repetition_penalty is {}, must be > 0 (1: off)", repetition_penalty));
  const auto within = [](const char* name, double penalty) {
    if (!(penalty >= -2 && penalty <= 2))
      throw ConfigError(fmt::format("{} is {}, must be in [-2, 2] (0: off)", name, penalty));
  };
  within("presence_penalty", presence_penalty);
  within("frequency_penalty", frequency_penalty);
  for (const auto& [id, bias] : logit_bias)
    if (!(bias >= kForbids && bias <= -kForbids))
      throw ConfigError(fmt::format(
          "logit_bias of token {} is {}, must be in [-100, 100] (-100: never drawn)", id, bias));
}

Sampler::Sampler(const SamplingOptions& options, std::uint64_t draws)
    : options_(options), draws_(draws) {
  options_.validate();
}

void Sampler::see_one(std::int64_t id) {
  if (id < 0) return;
  const auto i = static_cast<std::size_t>(id);
  if (i >= seen_.size()) seen_.resize(std::max(i + 1, 2 * seen_.size()), false);
  if (seen_[i]) return;
  seen_[i] = true;
  seen_list_.push_back(id);
}

void Sampler::see(std::span<const std::int64_t> ids) {
  if (options_.repetition_penalty == 1) return;
  for (const std::int64_t id : ids) see_one(id);
}

void Sampler::see(std::span<const std::int32_t> ids) {
  if (options_.repetition_penalty == 1) return;
  for (const std::int32_t id : ids) see_one(id);
}

void Sampler::generated(std::int64_t id) {
  see(id);
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) ++generated_[id];
}

std::int64_t Sampler::draw(std::span<const float> logits,
                           const std::span<const std::uint64_t>* allowed) {
  if (logits.empty()) throw DataError("logits to sample from are empty");
  require_numbers(logits);
  const bool as_they_are = !allowed && options_.logit_bias.empty() &&
                           options_.repetition_penalty == 1 && options_.presence_penalty == 0 &&
                           options_.frequency_penalty == 0;
  if (options_.temperature == 0 && as_they_are) {
    const std::size_t best = first_largest(logits);
    if (!std::isinf(logits[best])) return static_cast<std::int64_t>(best);
  }
  scores_.assign(logits.begin(), logits.end());
  bias();
  penalize();
  if (allowed)
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      const std::uint64_t word = i / 64 < allowed->size() ? (*allowed)[i / 64] : 0;
      if ((word >> i % 64 & 1) == 0) scores_[i] = kNever;
    }
  const auto best = scores_.begin() +
                    static_cast<std::ptrdiff_t>(first_largest(std::span<const double>(scores_)));
  if (std::isinf(*best) && (allowed || !options_.logit_bias.empty()))
    throw DataError(
        "no token that the grammar and logit_bias allow has a finite logit, so none can be "
        "sampled; "
        "allow more tokens");
  if (std::isinf(*best)) throw DataError("every logit is infinite, no token can be sampled");
  if (options_.temperature == 0) return best - scores_.begin();

  const double max = *best;  // subtracted before the division, which could overflow
  weights_.resize(scores_.size());
  for (std::size_t i = 0; i < scores_.size(); ++i)
    weights_[i] = std::exp((scores_[i] - max) / options_.temperature);
  order_.resize(scores_.size());
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  const std::size_t kept = keep_min_p(keep_top_p(keep_top_k()));

  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weights_[static_cast<std::size_t>(order_[i])];
  const double target = uniform() * total;
  double below = 0;
  std::int64_t last = best - scores_.begin();  // if rounding leaves the target above all
  for (std::size_t i = 0; i < kept; ++i) {
    const double w = weights_[static_cast<std::size_t>(order_[i])];
    if (w == 0) continue;
    last = order_[i];
    below += w;
    if (below > target) break;
  }
  return last;
}

double& Sampler::score_of(std::int64_t id, const char* what) {
  if (id < 0 || id >= static_cast<std::int64_t>(scores_.size()))
    throw DataError(fmt::format("token {} of {} is not among {} logits", id, what, scores_.size()));
  return scores_[static_cast<std::size_t>(id)];
}

void Sampler::bias() {
  for (const auto& [id, bias] : options_.logit_bias) {
    double& score = score_of(id, "logit_bias");
    score = bias == kForbids ? kNever : score + bias;
  }
}

void Sampler::penalize() {
  for (const std::int64_t id : seen_list_) {
    double& score = score_of(id, "the context");
    score = score < 0 ? score * options_.repetition_penalty : score / options_.repetition_penalty;
  }
  for (const auto& [id, count] : generated_)
    score_of(id, "the answer") -=
        static_cast<double>(count) * options_.frequency_penalty + options_.presence_penalty;
}

// Candidates are the first so many of order_.
std::size_t Sampler::keep_top_k() {
  if (options_.top_k == 0 || options_.top_k >= static_cast<std::int64_t>(order_.size()))
    return order_.size();
  const auto score = [&](std::int64_t id) { return scores_[static_cast<std::size_t>(id)]; };
  const auto kth = order_.begin() + static_cast<std::ptrdiff_t>(options_.top_k) - 1;
  std::nth_element(order_.begin(), kth, order_.end(),
                   [&](std::int64_t a, std::int64_t b) { return score(a) > score(b); });
  const double least = score(*kth);
  const auto end =
      std::partition(kth + 1, order_.end(), [&](std::int64_t id) { return score(id) == least; });
  std::sort(order_.begin(), end);  // nth_element orders differently in every library
  return static_cast<std::size_t>(end - order_.begin());
}

std::size_t Sampler::keep_top_p(std::size_t kept) {
  if (options_.top_p == 1) return kept;
  const auto weight = [&](std::int64_t id) { return weights_[static_cast<std::size_t>(id)]; };
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weight(order_[i]);
  const auto later = [&](std::int64_t a, std::int64_t b) {
    return weight(a) != weight(b) ? weight(a) < weight(b) : a > b;
  };
  // a heap gives the likeliest first without sorting the whole vocabulary
  const auto begin = order_.begin();
  auto end = begin + static_cast<std::ptrdiff_t>(kept);
  std::make_heap(begin, end, later);
  std::vector<std::int64_t> chosen;
  for (double mass = 0; end != begin && (chosen.empty() || mass < options_.top_p * total); --end) {
    std::pop_heap(begin, end, later);
    chosen.push_back(*(end - 1));
    mass += weight(chosen.back());
  }
  std::copy(chosen.begin(), chosen.end(), begin);
  return chosen.size();
}

std::size_t Sampler::keep_min_p(std::size_t kept) {
  if (options_.min_p == 0) return kept;
  // the likeliest token's weight is e^0
  const auto begin = order_.begin();
  const auto end = std::stable_partition(
      begin, begin + static_cast<std::ptrdiff_t>(kept),
      [&](std::int64_t id) { return weights_[static_cast<std::size_t>(id)] >= options_.min_p; });
  return static_cast<std::size_t>(end - begin);
}

double Sampler::uniform() {
  return static_cast<double>(random_bits(options_.seed, draws_++) >> 11) * 0x1p-53;
}

Logprobs logprobs_of(std::span<const float> logits, std::int64_t id, std::int64_t top) {
  if (id < 0 || id >= static_cast<std::int64_t>(logits.size()))
    throw DataError(fmt::format("token {} is not among {} logits", id, logits.size()));
  const auto max = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  const double norm = max + std::log(sum);
  const auto of = [&](std::int64_t i) {
    return TokenLogprob{i, static_cast<double>(logits[static_cast<std::size_t>(i)]) - norm};
  };
  Logprobs out{of(id), {}};
  const std::int64_t n = std::clamp<std::int64_t>(top, 0, static_cast<std::int64_t>(logits.size()));
  std::vector<std::int64_t> ids(logits.size());
  if (n > 0) std::iota(ids.begin(), ids.end(), std::int64_t{0});
  std::partial_sort(ids.begin(), ids.begin() + n, ids.end(), [&](std::int64_t a, std::int64_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (std::int64_t i = 0; i < n; ++i) out.top.push_back(of(ids[static_cast<std::size_t>(i)]));
  return out;
}

}  // namespace episodic
