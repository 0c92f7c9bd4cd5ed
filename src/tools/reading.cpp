// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <algorithm>
#include <chrono>

namespace episodic::tools {

double Reading::mean_surprise(TokenRange range) const {
  range.start = std::max<std::int64_t>(1, range.start);  // nothing comes before token 0
  if (range.size() <= 0) return 0;
  double sum = 0;
  for (std::int64_t t = range.start; t < range.end; ++t)
    sum += static_cast<double>(surprise[static_cast<std::size_t>(t)]);
  return sum / static_cast<double>(range.size());
}

Reading read_recording(Session& session, const std::function<StepRecord()>& last_step,
                       std::span<const std::int64_t> ids, const ProgressCallback& progress) {
  Reading reading;
  reading.surprise.reserve(ids.size());
  reading.boundaries.reserve(ids.size());
  const auto start = std::chrono::steady_clock::now();
  session.prefill(ids, [&](std::int64_t done, std::int64_t total) {
    const StepRecord s = last_step();
    reading.surprise.insert(reading.surprise.end(), s.surprise.begin(), s.surprise.end());
    reading.boundaries.insert(reading.boundaries.end(), s.final_boundaries.begin(),
                              s.final_boundaries.end());
    return !progress || progress(done, total);
  });
  reading.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return reading;
}

std::string text_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                    TokenRange range) {
  const auto first = ids.begin() + range.start, last = ids.begin() + range.end;
  if (range.start > 0) {
    const std::string before = tokenizer.decode({first - 1, first});
    const std::string both = tokenizer.decode({first - 1, last});
    if (both.compare(0, before.size(), before) == 0) return both.substr(before.size());
  }
  return tokenizer.decode({first, last});
}

std::vector<std::string> texts_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                  TokenRange range) {
  std::vector<std::string> texts;
  StreamDecoder decoder(tokenizer);
  if (range.start > 0) decoder.push(ids[static_cast<std::size_t>(range.start - 1)]);
  for (std::int64_t t = range.start; t < range.end; ++t)
    texts.push_back(decoder.push(ids[static_cast<std::size_t>(t)]));
  if (!texts.empty()) texts.back() += decoder.finish();
  return texts;
}

}  // namespace episodic::tools
