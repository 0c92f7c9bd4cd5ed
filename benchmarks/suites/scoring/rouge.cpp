// SPDX-License-Identifier: Apache-2.0
#include "scoring/rouge.hpp"

#include <algorithm>
#include <cmath>
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

/// Longest common subsequences of all prefixes of two sentences, in bits and a part at a time: a
/// table of lengths would take 160 GB for two sentences of 200,000 words.
///
/// With L(i, j) the length for the first i words of a and j of b, bit j of row i says whether
/// L(i, j + 1) > L(i, j). A row follows from the one above it by an addition (Hyyro, "Bit-Parallel
/// LCS-length Computation Revisited", 2004). Some rows are kept, and those between two of them made
/// anew when the path comes there.
class LcsRows {
 public:
  LcsRows(const Sentence& a, const Sentence& b) : a_(a), words_(b.size() / 64 + 1) {
    for (std::size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
    const auto root = static_cast<std::size_t>(std::sqrt(static_cast<double>(a.size())));
    block_ = std::max({root, kBlockWords / words_, std::size_t{1}});
    std::vector<std::uint64_t> row(words_, 0);
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (i % block_ == 0) kept_.insert(kept_.end(), row.begin(), row.end());
      advance(row, a[i]);
    }
  }

  /// Whether L(i, j + 1) > L(i, j). \param i in [1, size of a], from call to call no greater
  bool grows(std::size_t i, std::size_t j) {
    const std::size_t first = (i - 1) / block_ * block_;  // of the kept row above row i
    if (rows_.empty() || first != first_) make(first);
    return rows_[(i - first_ - 1) * words_ + j / 64] >> (j % 64) & 1;
  }

 private:
  static constexpr std::size_t kBlockWords = std::size_t{1} << 17;  // 1 MiB

  void make(std::size_t first) {
    first_ = first;
    const std::size_t n = std::min(block_, a_.size() - first);
    rows_.resize(n * words_);
    const auto kept = kept_.begin() + static_cast<std::ptrdiff_t>(first / block_ * words_);
    std::vector<std::uint64_t> row(kept, kept + static_cast<std::ptrdiff_t>(words_));
    for (std::size_t i = 0; i < n; ++i) {
      advance(row, a_[first + i]);
      std::copy(row.begin(), row.end(), rows_.begin() + static_cast<std::ptrdiff_t>(i * words_));
    }
  }

  /// From row i - 1 to row i, of whose word it is.
  void advance(std::vector<std::uint64_t>& row, int word) {
    const auto found = places_.find(word);
    if (found == places_.end()) return;
    matches_.resize(words_, 0);
    for (const std::size_t j : found->second) matches_[j / 64] |= std::uint64_t{1} << (j % 64);
    // Hyyro's V has zeros where a row here has ones: V' = (V + (V & M)) | (V & ~M).
    std::uint64_t carry = 0;
    for (std::size_t w = 0; w < words_; ++w) {
      const std::uint64_t v = ~row[w], u = v & matches_[w];
      const std::uint64_t sum = v + u, with_carry = sum + carry;
      carry = sum < v || with_carry < sum ? 1 : 0;
      row[w] = ~(with_carry | (v & ~matches_[w]));
    }
    for (const std::size_t j : found->second) matches_[j / 64] = 0;
  }

  const Sentence& a_;
  std::size_t words_, block_ = 1, first_ = 0;
  std::unordered_map<int, std::vector<std::size_t>> places_;  // of each word in b
  std::vector<std::uint64_t> kept_;                           // row 0, row block_, ...
  std::vector<std::uint64_t> rows_;                           // rows first_ + 1, ...
  std::vector<std::uint64_t> matches_;
};

/// Indices in x of one longest common subsequence, the last first. Where two paths are as long,
/// the ways of the two packages part, and with sets of words that changes scores: the one whose
/// bits a row holds is then the shorter.
std::vector<std::size_t> lcs_indices(const Sentence& x, const Sentence& y, bool ties_shorten_y) {
  const Sentence& a = ties_shorten_y ? x : y;
  const Sentence& b = ties_shorten_y ? y : x;
  LcsRows rows(a, b);
  std::vector<std::size_t> found;
  std::size_t i = a.size(), j = b.size();
  while (i > 0 && j > 0) {
    if (a[i - 1] == b[j - 1])
      --i, --j, found.push_back(ties_shorten_y ? i : j);
    else if (rows.grows(i, j - 1))
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
