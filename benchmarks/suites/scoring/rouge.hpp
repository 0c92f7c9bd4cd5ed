// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// ROUGE-L as the two suites compute it; their definitions differ.

#include <string_view>

namespace episodic::suites {

/// F of ROUGE-L as Python's package `rouge` 1.0.1 gives it (LongBench): sentences end at full
/// stops, words count once, case and punctuation stay. 0 where that package raises: an empty text,
/// or a hypothesis of nothing but full stops. Its RecursionError for sentences of about a thousand
/// words is not imitated.
double rouge_l(std::u32string_view hypothesis, std::u32string_view reference);

/// F of rougeLsum as Google's `rouge_score` gives it without stemming (infinity-Bench): sentences
/// are lines, words runs of ASCII letters and digits.
double rouge_lsum(std::u32string_view hypothesis, std::u32string_view reference);

}  // namespace episodic::suites
