// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The words of a text, as a search compares them.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace episodic {

/// A word, and the byte of the text at which it begins.
struct Word {
  std::string stem;
  std::size_t begin = 0;
  bool operator==(const Word&) const = default;
};

/// A word is a run of letters, digits and the marks that belong to them. A character of Chinese,
/// Japanese or Korean is a word alone. Stems are in lower case and end before the usual English
/// endings (s, es, ed, ing) where three letters or more are left. Bytes that are no UTF-8 part
/// words.
std::vector<Word> words_of(std::string_view text);

}  // namespace episodic
