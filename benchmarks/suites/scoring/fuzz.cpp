// SPDX-License-Identifier: Apache-2.0
#include "scoring/fuzz.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

namespace episodic::suites {
namespace {

struct Range {
  std::size_t a_start, a_end, b_start, b_end;
};

struct Match {
  std::size_t a = 0, b = 0, size = 0;
};

/// Ratcliff-Obershelp matching as difflib does it.
class SequenceMatcher {
 public:
  SequenceMatcher(std::u32string_view a, std::u32string_view b)
      : a_(a), b_(b), length_(b.size() + 1), next_(b.size() + 1) {
    for (std::size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
    if (b.size() < kAutojunk) return;
    const std::size_t most = b.size() / 100 + 1;
    std::erase_if(places_, [&](const auto& entry) { return entry.second.size() > most; });
  }

  std::size_t matching_characters() {
    std::size_t sum = 0;
    std::vector<Range> open{{0, a_.size(), 0, b_.size()}};
    while (!open.empty()) {
      const Range r = open.back();
      open.pop_back();
      const Match m = longest_match(r);
      if (m.size == 0) continue;
      sum += m.size;
      if (r.a_start < m.a && r.b_start < m.b) open.push_back({r.a_start, m.a, r.b_start, m.b});
      if (m.a + m.size < r.a_end && m.b + m.size < r.b_end)
        open.push_back({m.a + m.size, r.a_end, m.b + m.size, r.b_end});
    }
    return sum;
  }

 private:
  static constexpr std::size_t kAutojunk = 200;

  /// The longest common run; of several the one that starts first in a, then in b.
  Match longest_match(const Range& r) {
    Match best{r.a_start, r.b_start, 0};
    // length_[j + 1]: of the run that ends at the last character of a looked at and at b[j]
    std::fill(length_.begin(), length_.end(), 0);
    std::vector<std::size_t> written;
    for (std::size_t i = r.a_start; i < r.a_end; ++i) {
      std::vector<std::size_t> now;
      if (const auto found = places_.find(a_[i]); found != places_.end()) {
        for (const std::size_t j : found->second) {
          if (j < r.b_start) continue;
          if (j >= r.b_end) break;
          const std::size_t k = length_[j] + 1;
          next_[j + 1] = k;
          now.push_back(j + 1);
          if (k > best.size) best = {i + 1 - k, j + 1 - k, k};
        }
      }
      for (const std::size_t j : written) length_[j] = 0;
      for (const std::size_t j : now) length_[j] = next_[j];
      written = std::move(now);
    }
    // Frequent characters start no run, but lengthen one.
    while (best.a > r.a_start && best.b > r.b_start && a_[best.a - 1] == b_[best.b - 1])
      --best.a, --best.b, ++best.size;
    while (best.a + best.size < r.a_end && best.b + best.size < r.b_end &&
           a_[best.a + best.size] == b_[best.b + best.size])
      ++best.size;
    return best;
  }

  std::u32string_view a_, b_;
  std::unordered_map<char32_t, std::vector<std::size_t>> places_;  // of each character in b
  std::vector<std::size_t> length_, next_;
};

}  // namespace

double difflib_ratio(std::u32string_view a, std::u32string_view b) {
  const std::size_t total = a.size() + b.size();
  if (total == 0) return 1.0;
  return 2.0 * static_cast<double>(SequenceMatcher(a, b).matching_characters()) /
         static_cast<double>(total);
}

double levenshtein_ratio(std::u32string_view a, std::u32string_view b) {
  const std::size_t total = a.size() + b.size();
  if (total == 0) return 1.0;
  // Insertions and deletions only: the distance is what the longest common subsequence leaves.
  std::vector<std::size_t> row(b.size() + 1, 0);
  for (const char32_t c : a) {
    std::size_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = c == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  const std::size_t distance = total - 2 * row.back();
  return static_cast<double>(total - distance) / static_cast<double>(total);
}

int fuzz_ratio(std::u32string_view a, std::u32string_view b, CodeSimilarity kind) {
  if (a == b) return 100;
  if (a.empty() || b.empty()) return 0;
  const double ratio =
      kind == CodeSimilarity::difflib ? difflib_ratio(a, b) : levenshtein_ratio(a, b);
  return static_cast<int>(std::nearbyint(100 * ratio));
}

}  // namespace episodic::suites
