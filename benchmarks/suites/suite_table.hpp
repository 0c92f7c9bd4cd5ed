// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A suite is a row of a table: its name, tasks, loader, prompts, scorer and averages. A new one is
/// a file beside suite_longbench.cpp, a value of `Suite` (data/suite.hpp), a line in
/// suite_table.cpp and its name in CMakeLists.txt, which makes its program.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/suite.hpp"
#include "episodic/base/error.hpp"
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
  bool makes_rows;           ///< some tasks are generated here: the program has `make`
  bool scores_by_length, compares_code, drops_first_number;  ///< flags of `score`
  /// \throws ConfigError listing the suite's tasks
  void (*check_task)(const std::string& task);
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
};

extern const SuiteRow kLongBench, kInfiniteBench;

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

}  // namespace episodic::suites
