// SPDX-License-Identifier: Apache-2.0
#include "word_voice.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "episodic/text/words.hpp"

namespace episodic {
namespace {

constexpr double kReach = 24;          // tokens at which a word counts 1 / e
constexpr double kDocument = 96;       // tokens of a soft document, for how rare a word is
constexpr double kSaturation = 1.2;    // BM25's k1
constexpr std::int64_t kPiece = 4096;  // tokens whose text is held at once

}  // namespace

void WordVoice::add(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  std::vector<std::size_t> behind;  // byte behind each token
  std::int64_t first = tokens_;
  const auto flush = [&] {
    text += decoder.finish();
    decoder = StreamDecoder(tokenizer);
    take(text, behind, first);
    text.clear();
    behind.clear();
    first = tokens_;
  };
  for (const std::int32_t id : ids) {
    if (id < 0) {
      flush();
      first = ++tokens_;
      continue;
    }
    text += decoder.push(id);
    behind.push_back(text.size());
    ++tokens_;
    // a piece ends where a line or a word does, so that no word is cut
    if (std::ssize(behind) >= kPiece && (text.ends_with(' ') || text.ends_with('\n'))) flush();
  }
  flush();
}

void WordVoice::take(const std::string& text, std::span<const std::size_t> behind,
                     std::int64_t first) {
  std::size_t token = 0;
  for (Word& word : words_of(text)) {
    while (token < behind.size() && behind[token] <= word.begin) ++token;
    const auto [at, is_new] = places_.try_emplace(std::move(word.stem));
    at->second.push_back(static_cast<std::int32_t>(first + static_cast<std::int64_t>(token)));
    bytes_ += 4 + (is_new ? 64 + std::ssize(at->first) : 0);
  }
}

WordVoice::Scores WordVoice::score(std::string_view question,
                                   std::span<const TokenRange> events) const {
  std::vector<double> scores(events.size(), 0.0);
  double possible = 0;  // by one occurrence of each word
  std::vector<double> near(events.size(), 0.0);
  std::vector<std::size_t> touched;
  const auto middle = [&](std::size_t e) {
    return 0.5 * static_cast<double>(events[e].start + events[e].end);
  };
  std::set<std::string> asked;
  for (Word& word : words_of(question)) asked.insert(std::move(word.stem));
  for (const std::string& word : asked) {
    static const std::vector<std::int32_t> nowhere;
    const auto found = places_.find(word);
    const std::vector<std::int32_t>& places = found == places_.end() ? nowhere : found->second;
    const double rarity = std::log1p(static_cast<double>(tokens_) / kDocument /
                                     (static_cast<double>(places.size()) + 0.5));
    possible += std::pow(rarity, 1.5);
    touched.clear();
    for (const std::int32_t place : places) {
      const double t = place;
      auto e = static_cast<std::size_t>(
          std::partition_point(events.begin(), events.end(),
                               [&](const TokenRange& r) {
                                 return 0.5 * static_cast<double>(r.start + r.end) < t - 3 * kReach;
                               }) -
          events.begin());
      for (; e < events.size() && middle(e) <= t + 3 * kReach; ++e) {
        const double far = (middle(e) - t) / kReach;
        if (near[e] == 0) touched.push_back(e);
        near[e] += std::exp(-far * far);
      }
    }
    for (const std::size_t e : touched) {
      scores[e] += std::pow(rarity, 1.5) * near[e] * (1 + kSaturation) / (near[e] + kSaturation);
      near[e] = 0;
    }
  }
  const double best = scores.empty() ? 0.0 : *std::max_element(scores.begin(), scores.end());
  return {std::move(scores), possible > 0 ? std::min(1.0, best / possible) : 0.0};
}

}  // namespace episodic
