// SPDX-License-Identifier: Apache-2.0
#include "key_voice.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "episodic/base/error.hpp"
#include "episodic/session/sequence.hpp"

namespace episodic {
namespace {

/// Questions that have nothing in common but that they ask.
constexpr std::array<std::string_view, 8> kQuestions = {
    "What is the name of the king?", "Where did they meet in the evening?",
    "Why was the road closed?",      "When does the next train leave?",
    "How many people live there?",   "Who wrote the letter?",
    "Which colour has the flag?",    "What happened after the storm?"};
/// Before each: the first tokens of a sequence have keys like no others.
constexpr std::string_view kBefore = "Questions about a text follow.\n\n";

constexpr double kRidge = 1e-3;             // of the mean variance, added to each channel's
constexpr std::int64_t kFewest = 16;        // events that have a covariance worth the name
constexpr std::int64_t kMostFitted = 8192;  // events that a covariance is taken from

/// The inverse of the lower Cholesky factor of a covariance [d, d], lower triangular itself.
std::vector<float> inverse_cholesky(std::vector<double> c, std::size_t d) {
  for (std::size_t j = 0; j < d; ++j)
    for (std::size_t i = j; i < d; ++i) {
      double sum = c[i * d + j];
      for (std::size_t k = 0; k < j; ++k) sum -= c[i * d + k] * c[j * d + k];
      c[i * d + j] = i == j ? std::sqrt(std::max(sum, 1e-30)) : sum / c[j * d + j];
    }
  std::vector<double> inverse(d * d, 0.0);
  for (std::size_t j = 0; j < d; ++j) {
    inverse[j * d + j] = 1 / c[j * d + j];
    for (std::size_t i = j + 1; i < d; ++i) {
      double sum = 0;
      for (std::size_t k = j; k < i; ++k) sum -= c[i * d + k] * inverse[k * d + j];
      inverse[i * d + j] = sum / c[i * d + i];
    }
  }
  return {inverse.begin(), inverse.end()};
}

void to_unit_length(std::vector<float>& v) {
  double squares = 0;
  for (const float x : v) squares += static_cast<double>(x) * x;
  const auto length = static_cast<float>(std::sqrt(squares));
  if (length > 0)
    for (float& x : v) x /= length;
}

}  // namespace

/// [end - first][G * d] mean of each key/value head's representatives; empty where forgotten.
std::vector<std::vector<float>> KeyVoice::keys_of(const SequenceMemory& memory, EventId first,
                                                  EventId end, std::int64_t layer) const {
  const std::int64_t lanes = memory.config().lanes_per_layer(n_kv_heads_);
  const std::int64_t group = n_heads_ / n_kv_heads_;
  std::vector<std::vector<float>> keys(static_cast<std::size_t>(end - first));
  for (EventId e = first; e < end; ++e) {
    std::vector<float> all;
    try {
      for (std::int64_t p = 0; p < lanes; ++p) {
        const std::vector<float> part = memory.representative(layer * lanes + p, e);
        all.insert(all.end(), part.begin(), part.end());
      }
    } catch (const DataError&) {  // forgotten
      continue;
    }
    std::vector<float>& key = keys[static_cast<std::size_t>(e - first)];
    key.assign(static_cast<std::size_t>(n_kv_heads_ * d_), 0.0f);
    for (std::int64_t h = 0; h < n_heads_; ++h)
      for (std::int64_t c = 0; c < d_; ++c)
        key[static_cast<std::size_t>(h / group * d_ + c)] +=
            all[static_cast<std::size_t>(h * d_ + c)] / static_cast<float>(group);
  }
  return keys;
}

void KeyVoice::fit(Head& head, const std::vector<std::vector<float>>& keys) const {
  const auto d = static_cast<std::size_t>(d_);
  const auto from = static_cast<std::size_t>(head.head * d_);
  std::vector<double> mean(d, 0.0), covariance(d * d, 0.0), x(d);
  std::vector<const std::vector<float>*> some;
  const std::size_t step = keys.size() / static_cast<std::size_t>(kMostFitted) + 1;
  for (std::size_t e = 0; e < keys.size(); e += step)
    if (!keys[e].empty()) some.push_back(&keys[e]);
  const auto n = static_cast<double>(std::max<std::size_t>(some.size(), 1));
  for (const auto* key : some)
    for (std::size_t c = 0; c < d; ++c) mean[c] += (*key)[from + c] / n;
  for (const auto* key : some) {
    for (std::size_t c = 0; c < d; ++c) x[c] = (*key)[from + c] - mean[c];
    for (std::size_t i = 0; i < d; ++i)
      for (std::size_t j = 0; j <= i; ++j) covariance[i * d + j] += x[i] * x[j] / n;
  }
  double trace = 0;
  for (std::size_t i = 0; i < d; ++i) trace += covariance[i * d + i];
  // few events say little of many channels: the fewer, the more all channels count alike
  const double ridge = std::max(kRidge, 0.1 * static_cast<double>(d_) / n) *
                       std::max(trace, 1e-20) / static_cast<double>(d);
  for (std::size_t i = 0; i < d; ++i) covariance[i * d + i] += ridge;
  head.mean.assign(mean.begin(), mean.end());
  head.whitening = inverse_cholesky(std::move(covariance), d);
  head.codes.clear();
  head.scales.clear();
}

/// \param key [d], replaced
void KeyVoice::whiten(const Head& head, std::vector<float>& key) const {
  const auto d = static_cast<std::size_t>(d_);
  for (std::size_t i = d; i-- > 0;) {  // from the last row on: it reads those before
    const float* row = head.whitening.data() + i * d;
    float sum = 0;
    for (std::size_t j = 0; j <= i; ++j) sum += row[j] * key[j];
    key[i] = sum;
  }
}

void KeyVoice::encode(Head& head, const std::vector<std::vector<float>>& keys) const {
  const auto from = head.head * d_;
  std::vector<float> x;
  for (const std::vector<float>& key : keys) {
    float scale = 0;
    x.assign(static_cast<std::size_t>(d_), 0.0f);
    if (!key.empty()) {
      std::copy_n(key.begin() + from, d_, x.begin());
      for (std::size_t c = 0; c < x.size(); ++c) x[c] -= head.mean[c];
      whiten(head, x);
      to_unit_length(x);
      for (const float v : x) scale = std::max(scale, std::abs(v) / 127);
    }
    head.scales.push_back(scale);
    for (const float v : x)
      head.codes.push_back(static_cast<std::int8_t>(scale > 0 ? std::lround(v / scale) : 0));
  }
}

void KeyVoice::add(const SequenceMemory& memory) {
  n_heads_ = memory.shape().n_heads;
  n_kv_heads_ = memory.shape().n_kv_heads;
  d_ = memory.shape().head_dim;
  const std::int64_t layers = memory.shape().n_layers, all = memory.events().size();
  if (all == events_) return;
  if (heads_.empty())
    for (std::int64_t l = layers > 1 ? 1 : 0; l < layers; l += 2)
      for (std::int64_t h = 0; h < n_kv_heads_; ++h) heads_.push_back({l, h, {}, {}, {}, {}});
  const bool fits = fitted_ == 0 || all > 2 * fitted_;
  const EventId first = fits ? 0 : events_;
  std::vector<std::vector<float>> keys;
  std::int64_t layer = -1;
  for (Head& head : heads_) {
    if (head.layer != layer) keys = keys_of(memory, first, all, layer = head.layer);
    if (fits) fit(head, keys);
    encode(head, keys);
  }
  if (fits) fitted_ = all;
  events_ = all;
}

void KeyVoice::clear() {
  heads_.clear();
  events_ = fitted_ = 0;
}

std::vector<std::vector<float>> KeyVoice::mean_keys(std::string_view text) const {
  const Tokenizer& tokenizer = model_->tokenizer();
  std::vector<std::int64_t> ids = tokenizer.encode(std::string(kBefore));
  const std::size_t before = ids.size();
  const std::vector<std::int64_t> own = tokenizer.encode(std::string(text), false);
  ids.insert(ids.end(), own.begin(), own.end());
  const auto width = static_cast<std::size_t>(n_kv_heads_ * d_);
  const std::vector<std::int64_t> served = model_->config().memory_layers();
  std::vector<std::vector<float>> sums(served.size(), std::vector<float>(width, 0.0f));
  Sequence sequence(model_);
  sequence.attach_full_attention(std::ssize(ids));  // for which a device takes its room
  std::size_t read = 0;
  sequence.set_keys_hook([&](std::int64_t layer, std::span<const float> keys) {
    const auto at = std::find(served.begin(), served.end(), layer);
    if (at == served.end()) return;
    std::vector<float>& sum = sums[static_cast<std::size_t>(at - served.begin())];
    for (std::size_t t = 0; t < keys.size() / width; ++t)
      if (read + t >= before)
        for (std::size_t c = 0; c < width; ++c) sum[c] += keys[t * width + c];
  });
  while (read < ids.size()) {
    const std::size_t n = std::min(ids.size() - read, static_cast<std::size_t>(sequence.chunk()));
    sequence.step(std::span(ids).subspan(read, n), StepKind::prompt);
    read += n;
  }
  for (std::vector<float>& sum : sums)
    for (float& x : sum) x /= static_cast<float>(std::max<std::size_t>(own.size(), 1));
  return sums;
}

std::vector<double> KeyVoice::score(std::string_view question) {
  std::vector<double> scores(static_cast<std::size_t>(events_), 0.0);
  if (events_ < kFewest) return scores;
  if (usual_.empty()) {
    for (const std::string_view q : kQuestions) {
      const std::vector<std::vector<float>> keys = mean_keys(q);
      usual_.resize(keys.size(), std::vector<float>(keys.front().size(), 0.0f));
      for (std::size_t l = 0; l < keys.size(); ++l)
        for (std::size_t c = 0; c < keys[l].size(); ++c)
          usual_[l][c] += keys[l][c] / static_cast<float>(kQuestions.size());
    }
  }
  const std::vector<std::vector<float>> asked = mean_keys(question);
  const auto d = static_cast<std::size_t>(d_);
  std::vector<double> cosines(scores.size());
  for (const Head& head : heads_) {
    std::vector<float> x(d);
    for (std::size_t c = 0; c < d; ++c) {
      const std::size_t at = static_cast<std::size_t>(head.head) * d + c;
      x[c] = asked[static_cast<std::size_t>(head.layer)][at] -
             usual_[static_cast<std::size_t>(head.layer)][at];
    }
    whiten(head, x);
    to_unit_length(x);
    double sum = 0, squares = 0;
    for (std::size_t e = 0; e < cosines.size(); ++e) {
      const std::int8_t* code = head.codes.data() + e * d;
      float dot = 0;
      for (std::size_t c = 0; c < d; ++c) dot += x[c] * static_cast<float>(code[c]);
      cosines[e] = head.scales[e] > 0 ? dot * head.scales[e] : -1.0;
      sum += cosines[e];
      squares += cosines[e] * cosines[e];
    }
    // heads count alike, however much their cosines differ
    const double n = static_cast<double>(cosines.size()), mean = sum / n;
    const double deviation = std::sqrt(std::max(squares / n - mean * mean, 1e-12));
    for (std::size_t e = 0; e < cosines.size(); ++e) scores[e] += (cosines[e] - mean) / deviation;
  }
  return scores;
}

std::int64_t KeyVoice::bytes() const {
  std::int64_t bytes = 0;
  for (const Head& h : heads_)
    bytes += std::ssize(h.codes) +
             4 * (std::ssize(h.scales) + std::ssize(h.mean) + std::ssize(h.whitening));
  return bytes;
}

}  // namespace episodic
