// SPDX-License-Identifier: Apache-2.0
#include "encoder_voice.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace episodic {
namespace {

constexpr std::size_t kAtOnce = 16;  // windows, between two calls of the progress

std::span<const std::int32_t> tokens_of(std::span<const std::int32_t> ids, std::int64_t window) {
  const auto first = std::min(ids.size(), static_cast<std::size_t>(window * EncoderVoice::kStep));
  return ids.subspan(first,
                     std::min(ids.size() - first, static_cast<std::size_t>(EncoderVoice::kWindow)));
}

/// Tokens without text leave a gap.
std::string text_of(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::string text;
  StreamDecoder decoder(tokenizer);
  for (const std::int32_t id : ids)
    if (id >= 0) text += decoder.push(id);
  return text + decoder.finish();
}

}  // namespace

std::int64_t EncoderVoice::windows(std::int64_t tokens) {
  if (tokens == 0) return 0;
  return 1 + (std::max<std::int64_t>(0, tokens - kWindow) + kStep - 1) / kStep;
}

std::int64_t EncoderVoice::window_of(const TokenRange& event, std::int64_t windows) {
  const std::int64_t middle = (event.start + event.end) / 2;
  return std::clamp<std::int64_t>((middle - kWindow / 2 + kStep / 2) / kStep, 0, windows - 1);
}

void EncoderVoice::update(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                          const ProgressCallback& progress) {
  const auto count = static_cast<std::size_t>(windows(std::ssize(ids)));
  vectors_.resize(count);
  std::vector<std::size_t> wanted;
  std::vector<std::string> texts;
  for (std::size_t w = 0; w < count; ++w) {
    const auto now = tokens_of(ids, static_cast<std::int64_t>(w)),
               then = tokens_of(ids_, static_cast<std::int64_t>(w));
    if (!std::equal(now.begin(), now.end(), then.begin(), then.end())) vectors_[w].clear();
    if (!vectors_[w].empty()) continue;
    std::string text = text_of(tokenizer, now);
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    wanted.push_back(w);
    texts.push_back(std::move(text));
  }
  ids_.assign(ids.begin(), ids.end());
  const auto width = static_cast<std::size_t>(encoder_->width());
  for (std::size_t first = 0; first < wanted.size(); first += kAtOnce) {
    const std::size_t n = std::min(kAtOnce, wanted.size() - first);
    const std::vector<float> all = encoder_->encode_all(std::span(texts).subspan(first, n));
    for (std::size_t i = 0; i < n; ++i)
      vectors_[wanted[first + i]].assign(
          all.begin() + static_cast<std::ptrdiff_t>(i * width),
          all.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
    if (progress && !progress(static_cast<std::int64_t>(first + n), std::ssize(wanted))) return;
  }
}

std::vector<double> EncoderVoice::score(std::string_view question,
                                        std::span<const TokenRange> events) const {
  const std::vector<float> asked = encoder_->encode(question);
  std::vector<double> of_windows(vectors_.size(), -1);
  for (std::size_t w = 0; w < vectors_.size(); ++w)
    if (!vectors_[w].empty())
      of_windows[w] = std::inner_product(asked.begin(), asked.end(), vectors_[w].begin(), 0.0);
  std::vector<double> scores;
  for (const TokenRange& e : events)
    scores.push_back(
        of_windows.empty()
            ? -1
            : of_windows[static_cast<std::size_t>(window_of(e, std::ssize(of_windows)))]);
  return scores;
}

std::int64_t EncoderVoice::bytes() const {
  std::int64_t bytes = 4 * std::ssize(ids_);
  for (const std::vector<float>& v : vectors_)
    bytes += static_cast<std::int64_t>(sizeof v + v.size() * sizeof(float));
  return bytes;
}

}  // namespace episodic
