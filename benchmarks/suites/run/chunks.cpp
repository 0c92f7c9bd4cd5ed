// SPDX-License-Identifier: Apache-2.0
#include "run/chunks.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "scoring/unicode.hpp"

namespace episodic::suites {
namespace {

/// Characters that are words without spaces around them: ideographs, kana, hangul.
bool is_word_alone(char32_t c) {
  return (c >= 0x3041 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x9fff) ||
         (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0x20000 && c <= 0x3ffff);
}

/// Byte at which each word begins.
std::vector<std::size_t> word_starts(std::string_view text) {
  std::vector<std::size_t> starts;
  bool inside = false;  // of a word that goes on
  for (std::size_t at = 0; at < text.size();) {
    std::size_t n = 1;
    while (at + n < text.size() && (static_cast<unsigned char>(text[at + n]) & 0xc0) == 0x80) ++n;
    const char32_t c = to_code_points(text.substr(at, n)).front();
    if (is_space(c)) {
      inside = false;
    } else if (is_word_alone(c)) {
      starts.push_back(at);
      inside = false;
    } else if (!inside) {
      starts.push_back(at);
      inside = true;
    }
    at += n;
  }
  return starts;
}

}  // namespace

std::vector<Chunk> word_chunks(std::string_view text, std::int64_t words) {
  const std::vector<std::size_t> starts = word_starts(text);
  std::vector<Chunk> chunks;
  if (starts.empty() && !text.empty()) return {{0, text.size()}};
  for (std::size_t first = 0; first < starts.size(); first += static_cast<std::size_t>(words)) {
    const std::size_t next = first + static_cast<std::size_t>(words);
    chunks.push_back(
        {first == 0 ? 0 : starts[first], next < starts.size() ? starts[next] : text.size()});
  }
  return chunks;
}

std::vector<Chunk> event_chunks(std::string_view text, std::span<const std::size_t> ends,
                                std::int64_t words) {
  const std::vector<std::size_t> starts = word_starts(text);
  const auto words_of = [&](const Chunk& c) {
    return std::lower_bound(starts.begin(), starts.end(), c.end) -
           std::lower_bound(starts.begin(), starts.end(), c.begin);
  };
  std::vector<Chunk> chunks;
  const auto add = [&](const Chunk& event) {
    if (event.begin == event.end) return;
    if (!chunks.empty() && words_of({chunks.back().begin, event.end}) <= words)
      chunks.back().end = event.end;
    else
      chunks.push_back(event);
  };
  std::size_t begin = 0;
  for (const std::size_t end : ends) add({std::exchange(begin, end), end});
  add({begin, text.size()});
  return chunks;
}

std::string joined(std::string_view text, std::span<const Chunk> chunks,
                   std::span<const std::int64_t> chosen) {
  std::string out;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Chunk& c = chunks[static_cast<std::size_t>(chosen[i])];
    if (i > 0 && chosen[i] != chosen[i - 1] + 1) out += "\n\n";
    out += text.substr(c.begin, c.end - c.begin);
  }
  return out;
}

std::vector<std::int64_t> nearest_exact(std::span<const float> vectors,
                                        std::span<const float> query, std::int64_t top) {
  const std::size_t n = vectors.size() / query.size();
  std::vector<double> scores(n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t c = 0; c < query.size(); ++c)
      scores[i] +=
          static_cast<double>(query[c]) * static_cast<double>(vectors[i * query.size() + c]);
  std::vector<std::int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(n, static_cast<std::size_t>(top)));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace episodic::suites
