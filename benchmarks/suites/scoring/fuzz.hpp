// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The two code similarities that are in the wild (both named fuzz.ratio in Python).

#include <cstdint>
#include <string_view>

namespace episodic::suites {

enum class CodeSimilarity : std::uint8_t {
  difflib,     ///< SequenceMatcher(None, a, b).ratio(): fuzzywuzzy without python-Levenshtein
  levenshtein  ///< (length of both - insertions - deletions) / length of both
};

/// difflib.SequenceMatcher(None, a, b).ratio(), with its rule for frequent characters of a long b
/// ("autojunk"). The order of the arguments matters.
double difflib_ratio(std::u32string_view a, std::u32string_view b);

/// Levenshtein.ratio(a, b).
double levenshtein_ratio(std::u32string_view a, std::u32string_view b);

/// fuzz.ratio(a, b): 100 for equal texts, 0 where one is empty, else the ratio in whole percent,
/// halves to even.
int fuzz_ratio(std::u32string_view a, std::u32string_view b, CodeSimilarity kind);

}  // namespace episodic::suites
