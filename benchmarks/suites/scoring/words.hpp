// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the question-answering scores of both suites share: normalised words, and F1 over them.

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::suites {

/// Lower case; then without ASCII punctuation; then without the words a, an, the; then its words.
std::vector<std::u32string> normalized_words(std::u32string_view text);

/// Lower case, without ASCII and Chinese punctuation and without white space.
std::u32string normalized_chinese(std::u32string_view text);

/// F1 of two bags of tokens; 0 if they have nothing in common.
template <class Tokens>
double bag_f1(const Tokens& prediction, const Tokens& gold) {
  std::map<typename Tokens::value_type, std::int64_t> left;
  for (const auto& token : gold) ++left[token];
  std::int64_t common = 0;
  for (const auto& token : prediction)
    if (const auto found = left.find(token); found != left.end() && found->second > 0)
      --found->second, ++common;
  if (common == 0) return 0;
  const double precision = static_cast<double>(common) / static_cast<double>(prediction.size());
  const double recall = static_cast<double>(common) / static_cast<double>(gold.size());
  return (2 * precision * recall) / (precision + recall);
}

}  // namespace episodic::suites
