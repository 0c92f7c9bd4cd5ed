// SPDX-License-Identifier: Apache-2.0
#include "scoring/words.hpp"

#include "scoring/unicode.hpp"

namespace episodic::suites {
namespace {

/// The words a, an and the, between word boundaries, give way to a space.
std::u32string without_articles(const std::u32string& text) {
  std::u32string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end == at) {
      out.push_back(text[at++]);
      continue;
    }
    const std::u32string_view word = std::u32string_view(text).substr(at, end - at);
    if (word == U"a" || word == U"an" || word == U"the")
      out.push_back(U' ');
    else
      out += word;
    at = end;
  }
  return out;
}

}  // namespace

std::vector<std::u32string> normalized_words(std::u32string_view text) {
  std::u32string kept = lower(text);
  std::erase_if(kept, is_ascii_punctuation);
  kept = without_articles(kept);
  std::vector<std::u32string> words;
  for (const std::u32string_view word : split_words(kept)) words.emplace_back(word);
  return words;
}

std::u32string normalized_chinese(std::u32string_view text) {
  std::u32string kept = lower(text);
  std::erase_if(kept, [](char32_t c) {
    return is_ascii_punctuation(c) || is_chinese_punctuation(c) || is_space(c);
  });
  return kept;
}

}  // namespace episodic::suites
