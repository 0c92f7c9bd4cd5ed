// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// infinity-Bench: its tasks, and the scores of OpenBMB/InfiniteBench's compute_scores.py and of
/// the file that EM-LLM and InfLLM use in its place.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace episodic::suites {

using Json = nlohmann::ordered_json;

enum class Scorer : std::uint8_t {
  official,
  em_llm  ///< the authors' variants; see ExampleScore::guessed
};

struct InfiniteTask {
  std::string_view name;
  std::string_view paper;            ///< its name in the papers
  std::int64_t examples;             ///< in the released file
  std::int64_t max_new, em_max_new;  ///< most tokens generated: official, EM-LLM's
  bool em_llm;                       ///< one of the six of the EM-LLM paper
};

std::span<const InfiniteTask> infinitebench_tasks();
/// \throws ConfigError listing the tasks
const InfiniteTask& infinitebench_task(std::string_view name);

struct InfiniteScoring {
  Scorer scorer = Scorer::official;
  /// math_calc: leave out the prediction's first number, as the official program does for a model
  /// called gpt4.
  bool drop_first_number = false;
};

struct ExampleScore {
  double score = 0;  ///< in [0, 1]
  /// EM-LLM's code_debug: nothing could be read off the prediction, and the published program drew
  /// a letter at random, seeded with the name of the function.
  bool guessed = false;
  /// The published program raises here; scored 0.
  bool undefined = false;
};

/// \param gold `answer` of the data in any of its shapes: a string, a number, a list of those, a
/// list
///   in a list; for code_debug and longbook_choice_eng [text, letter]
/// \throws DataError for a gold answer that the task cannot have; ConfigError where EM-LLM's
/// program
///   has no score for a whole task
ExampleScore score_infinitebench(const InfiniteTask& task, std::string_view prediction,
                                 const Json& gold, const InfiniteScoring& how = {});

}  // namespace episodic::suites
