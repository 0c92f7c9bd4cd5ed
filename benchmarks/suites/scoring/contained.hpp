// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Scores that look for an answer in what a model wrote: RULER's, BABILong's, LongBench v2's, and
/// ours of needles and of LongMemEval.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::suites {

/// RULER's string_match_all: the share of the answers that stand in the prediction, without regard
/// to case. \param answers not empty
double matched_share(std::string_view prediction, std::span<const std::string> answers);
/// RULER's string_match_part: whether one of them does.
bool matched_any(std::string_view prediction, std::span<const std::string> answers);

/// What a model may answer in a BABILong task, as published: six places, and in qa5 people and
/// things.
std::span<const std::string_view> babilong_labels(std::string_view task);
/// BABILong's rule: of the labels that the question does not name, the first sentence of the
/// prediction holds the target and no other.
bool babilong_right(std::string_view prediction, std::string_view target, std::string_view question,
                    std::span<const std::string_view> labels);

/// LongBench v2's extraction: the letter of "The correct answer is (B)", or without brackets of
/// "The correct answer is B"; asterisks are left out. \param last letter that is one: D
std::optional<char> stated_choice(std::string_view prediction, char last = 'D');

/// Of every list one form stands in the prediction as whole words. Commas and spaces between digits
/// are no part of a number; case does not count.
bool holds_facts(std::string_view prediction, const std::vector<std::vector<std::string>>& lists);

/// The answer's words stand in the prediction one after the other, both lower-cased and without
/// punctuation and articles.
bool holds_words(std::string_view prediction, std::string_view answer);
/// Whether an answer says that it cannot be known: by phrases, which a model that judges would see
/// better.
bool declines(std::string_view prediction);

}  // namespace episodic::suites
