// SPDX-License-Identifier: Apache-2.0
#include "scoring/rouge.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "scoring/unicode.hpp"

namespace episodic::suites {
namespace {

using Sentence = std::vector<int>;  // words by number

/// Gives equal words equal numbers.
class Vocabulary {
 public:
  int number(std::u32string word) {
    return numbers_.try_emplace(std::move(word), static_cast<int>(numbers_.size())).first->second;
  }
  std::size_t size() const { return numbers_.size(); }

 private:
  std::unordered_map<std::u32string, int> numbers_;
};

/// Lengths of the longest common subsequences of all prefixes.
class LcsTable {
 public:
  LcsTable(const Sentence& x, const Sentence& y)
      : width_(y.size() + 1), cells_((x.size() + 1) * width_, 0) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::int32_t* above = &cells_[i * width_];
      std::int32_t* row = &cells_[(i + 1) * width_];
      for (std::size_t j = 0; j < y.size(); ++j)
        row[j + 1] = x[i] == y[j] ? above[j] + 1 : std::max(above[j + 1], row[j]);
    }
  }
  std::int32_t operator()(std::size_t i, std::size_t j) const { return cells_[i * width_ + j]; }

 private:
  std::size_t width_;
  std::vector<std::int32_t> cells_;
};

/// Indices in x of one longest common subsequence, the last first. Where two paths are as long,
/// the ways of the two packages part, and with sets of words that changes scores.
std::vector<std::size_t> lcs_indices(const Sentence& x, const Sentence& y, bool ties_shorten_y) {
  const LcsTable table(x, y);
  std::vector<std::size_t> found;
  std::size_t i = x.size(), j = y.size();
  while (i > 0 && j > 0) {
    const std::int32_t up = table(i - 1, j), left = table(i, j - 1);
    if (x[i - 1] == y[j - 1])
      found.push_back(i - 1), --i, --j;
    else if (up > left || (up == left && !ties_shorten_y))
      --i;
    else
      --j;
  }
  return found;
}

std::size_t count_different(const std::vector<Sentence>& sentences) {
  std::unordered_set<int> words;
  for (const Sentence& s : sentences) words.insert(s.begin(), s.end());
  return words.size();
}

std::size_t count_words(const std::vector<Sentence>& sentences) {
  std::size_t n = 0;
  for (const Sentence& s : sentences) n += s.size();
  return n;
}

/// Sentences between full stops. A sentence of spaces alone is one empty word, as str.split(" ")
/// of an empty text has it.
std::vector<Sentence> sentences_at_stops(std::u32string_view text, Vocabulary& vocabulary) {
  std::vector<Sentence> sentences;
  for (const std::u32string_view piece : split_at(text, U'.')) {
    if (piece.empty()) continue;
    Sentence& sentence = sentences.emplace_back();
    for (const std::u32string_view word : split_words(piece))
      sentence.push_back(vocabulary.number(std::u32string(word)));
    if (sentence.empty()) sentence.push_back(vocabulary.number({}));
  }
  return sentences;
}

/// Lines that are not empty, as runs of ASCII letters and digits.
std::vector<Sentence> sentences_at_lines(std::u32string_view text, Vocabulary& vocabulary) {
  std::vector<Sentence> sentences;
  for (const std::u32string_view line : split_at(text, U'\n')) {
    if (line.empty()) continue;
    Sentence& sentence = sentences.emplace_back();
    std::u32string word, lowered = lower(line);
    lowered.push_back(U' ');  // ends the last word
    for (const char32_t c : lowered) {
      if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
        word.push_back(c);
      } else if (!word.empty()) {
        sentence.push_back(vocabulary.number(std::move(word)));
        word.clear();
      }
    }
  }
  return sentences;
}

}  // namespace

double rouge_l(std::u32string_view hypothesis, std::u32string_view reference) {
  Vocabulary vocabulary;
  const std::vector<Sentence> hyp = sentences_at_stops(hypothesis, vocabulary);
  const std::vector<Sentence> ref = sentences_at_stops(reference, vocabulary);
  if (hyp.empty() || ref.empty()) return 0;
  std::vector<bool> in_common(vocabulary.size());
  std::size_t common = 0;
  for (const Sentence& r : ref)
    for (const Sentence& h : hyp)
      for (const std::size_t i : lcs_indices(r, h, true)) {
        const auto word = static_cast<std::size_t>(r[i]);
        if (!in_common[word]) in_common[word] = true, ++common;
      }
  const auto llcs = static_cast<double>(common);
  const double recall = llcs / static_cast<double>(count_different(ref));
  const double precision = llcs / static_cast<double>(count_different(hyp));
  return 2.0 * ((precision * recall) / (precision + recall + 1e-8));
}

double rouge_lsum(std::u32string_view hypothesis, std::u32string_view reference) {
  Vocabulary vocabulary;
  const std::vector<Sentence> hyp = sentences_at_lines(hypothesis, vocabulary);
  const std::vector<Sentence> ref = sentences_at_lines(reference, vocabulary);
  const std::size_t n_hyp = count_words(hyp), n_ref = count_words(ref);
  if (n_hyp == 0 || n_ref == 0) return 0;
  // A word counts as often as it stands in both texts, at most.
  std::vector<std::int64_t> left_hyp(vocabulary.size(), 0), left_ref(vocabulary.size(), 0);
  for (const Sentence& s : hyp)
    for (const int w : s) ++left_hyp[static_cast<std::size_t>(w)];
  for (const Sentence& s : ref)
    for (const int w : s) ++left_ref[static_cast<std::size_t>(w)];
  std::size_t hits = 0;
  for (const Sentence& r : ref) {
    std::set<std::size_t> covered;
    for (const Sentence& h : hyp)
      for (const std::size_t i : lcs_indices(r, h, false)) covered.insert(i);
    for (const std::size_t i : covered) {
      const auto w = static_cast<std::size_t>(r[i]);
      if (left_hyp[w] > 0 && left_ref[w] > 0) ++hits, --left_hyp[w], --left_ref[w];
    }
  }
  if (hits == 0) return 0;
  const double precision = static_cast<double>(hits) / static_cast<double>(n_hyp);
  const double recall = static_cast<double>(hits) / static_cast<double>(n_ref);
  return 2 * precision * recall / (precision + recall);
}

}  // namespace episodic::suites
