// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/words.hpp"

#include <utf8proc.h>

#include <array>
#include <cstdint>

#include "text/utf8.hpp"

namespace episodic {
namespace {

/// Ideographs, kana and hangul: languages that write no spaces, or whose words carry endings.
bool is_word_alone(std::uint32_t c) {
  return (c >= 0x3041 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x9fff) ||
         (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0x20000 && c <= 0x3ffff);
}

bool is_part_of_word(std::uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

std::string stem_of(std::string word) {
  constexpr std::size_t kLeft = 3;
  for (const std::string_view ending : {"ing", "ed", "es", "s"})
    if (word.size() >= kLeft + ending.size() && word.ends_with(ending)) {
      word.resize(word.size() - ending.size());
      break;
    }
  return word;
}

}  // namespace

std::vector<Word> words_of(std::string_view text) {
  std::vector<Word> words;
  Word open;
  const auto close = [&] {
    if (!open.stem.empty()) words.push_back({stem_of(std::move(open.stem)), open.begin});
    open.stem.clear();
  };
  for (std::size_t at = 0, n = 0; at < text.size(); at += n) {
    n = text::utf8_length(text, at);
    if (n == 0) {
      n = 1;
      close();
      continue;
    }
    const std::uint32_t c = text::utf8_code_point(text, at, n);
    const bool alone = is_word_alone(c);
    if (alone || !is_part_of_word(c)) close();
    if (!alone && !is_part_of_word(c)) continue;
    if (open.stem.empty()) open.begin = at;
    open.stem += text::utf8_of(
        static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    if (alone) close();
  }
  close();
  return words;
}

}  // namespace episodic
