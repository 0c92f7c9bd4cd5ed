// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A suite is a row of a table: its name, tasks, loader, prompts, scorer, averages and the maker of
/// its rows. A new one is a file beside suite_longbench.cpp, a value of `Suite` (data/suite.hpp), a
/// line in suite_table.cpp and its name in CMakeLists.txt, which makes its program.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/suite.hpp"
#include "episodic/base/error.hpp"
#include "make/row_maker.hpp"
#include "run/score_file.hpp"

namespace episodic::suites {

/// Scores of a file of predictions, one each.
struct Scores {
  std::vector<double> each;                                 ///< in [0, 1]
  Json guessed = Json::array(), undefined = Json::array();  ///< ids
  Json said = Json::object();                               ///< further fields of the result
};

/// A column of EM-LLM's first table, and the tasks that it is the mean of.
struct EmLlmColumn {
  struct Task {
    std::string_view suite, name;
    std::int64_t examples;  ///< in the released file
  };
  std::string_view name;
  std::vector<Task> tasks;
};

struct SuiteRow {
  Suite suite;
  const char* name;          ///< of its program, and in results
  const char* title;         ///< what the program says of itself
  const char* example_task;  ///< of the program's help
  bool needs_prompts;        ///< the example task has no built-in prompt
  bool scores_by_length, compares_code, drops_first_number;  ///< flags of `score`
  /// \throws ConfigError listing the suite's tasks
  void (*check_task)(const std::string& task);
  /// The wording of a task where no file of prompts is named.
  /// \throws ConfigError for a task that needs one, which says where it is
  BuiltInPrompt (*built_in_prompt)(const std::string& task);
  std::vector<Example> (*read)(const std::filesystem::path& path, const std::string& task);
  std::map<std::string, std::string> (*slots)(const Example& example, const std::string& task);
  std::int64_t (*max_new)(const std::string& task, Limits limits);
  bool (*in_chat_format)(const std::string& task);
  bool (*ends_with_line)(const std::string& task);
  Scores (*scores)(const ScoreOptions& options, const Predictions& predictions);
  /// The task's score in percent, as published. \param scores at least one
  double (*task_score)(const std::vector<double>& scores);
  /// Adds the published averages over tasks. \param scores percent by task
  void (*averages)(const std::map<std::string, double>& scores, Json& result);
  std::vector<EmLlmColumn> (*em_llm_columns)();  ///< null: none
  /// Rows of a generated task; null: none is, and the program has no `make`.
  void (*make)(const MakeOptions& options, const TokenCounter& count, const RowSink& emit);
  const char* make_help;
};

extern const SuiteRow kLongBench, kInfiniteBench, kRuler, kBabiLong, kNeedles, kLongBenchV2,
    kLongMemEval;

std::span<const SuiteRow* const> suite_table();
const SuiteRow& row_of(Suite suite);
/// Null where no suite has the name.
const SuiteRow* suite_named(std::string_view name);

// -- what rows are made of ----------------------------------------------------------------------

/// A string, or each of a list. \throws FileError naming file and id
std::vector<std::string> golds_of(const ScoreOptions& options, const Prediction& p);
/// The same error with file and id before it.
[[noreturn]] void fail_at(const ScoreOptions& options, const Prediction& p,
                          const std::string& what);
/// Errors of a gold answer name its file and id.
template <class F>
auto naming(const ScoreOptions& options, const Prediction& p, F&& score) {
  try {
    return score();
  } catch (const DataError& e) {
    fail_at(options, p, e.what());
  }
}
/// NaN for none.
double mean_percent(const std::vector<double>& scores);
/// JSON has no NaN.
Json number_or_null(double value);
/// The published average over a suite's tasks is their plain mean: {"average", "missing"}.
void plain_average(std::span<const std::string_view> tasks,
                   const std::map<std::string, double>& scores, Json& result);
/// Fails for a task that is none of them, listing them. \throws ConfigError
void check_listed(const char* suite, std::span<const std::string_view> tasks,
                  const std::string& task);
/// A detail of a prediction that is a text: of its data, else of its row; empty if neither has it.
std::string detail(const Prediction& p, const char* name);
/// Means in percent of the predictions with each value of a detail, and how many those are.
Json scores_by(const char* name, const Predictions& predictions, const std::vector<double>& scores);

}  // namespace episodic::suites
