// SPDX-License-Identifier: Apache-2.0
// LongBench's row of the table of suites.
#include <fmt/format.h>

#include <cmath>

#include "data/prompts.hpp"
#include "episodic/base/error.hpp"
#include "scoring/longbench.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace longbench {

std::vector<std::string> texts(const Json& list) {
  return list.is_array() ? list.get<std::vector<std::string>>() : std::vector<std::string>();
}

Scores scores_of(const ScoreOptions& options, const Predictions& predictions) {
  const LongBenchTask& task = longbench_task(options.task);
  Scores scores;
  if (task.metric == Metric::code_similarity)
    scores.said["code_sim"] =
        options.code_similarity == CodeSimilarity::difflib ? "difflib" : "levenshtein";
  if (predictions.kept.empty()) return scores;
  // as published: the classes of the file's last row count for all
  const std::vector<std::string> classes = texts(predictions.kept.back().all_classes);
  if (task.metric == Metric::classification && classes.empty())
    throw FileError(
        fmt::format("{}: the last row's \"all_classes\" is no list; task {} is scored by "
                    "it: name the task's data with --data",
                    options.preds.string(), options.task));
  for (const Prediction& p : predictions.kept) {
    const std::vector<std::string> golds = golds_of(options, p);
    scores.each.push_back(naming(options, p, [&] {
      return score_longbench(task, p.text, golds, classes, options.code_similarity);
    }));
  }
  return scores;
}

void averages(const std::map<std::string, double>& scores, Json& json) {
  const LongBenchAverages a = longbench_averages(scores);
  json["groups"] = {{"en", a.groups_en}, {"zh", a.groups_zh}};
  json["overall"] = {{"en", number_or_null(a.overall_en)}, {"zh", number_or_null(a.overall_zh)}};
  json["em_llm"] = {{"columns", a.em_columns}, {"average", number_or_null(a.em_llm)}};
  json["missing"] = {{"en", a.missing_en}, {"zh", a.missing_zh}, {"em_llm", a.missing_em_llm}};
}

/// The paper's columns in the order of its tasks, and their average.
std::vector<EmLlmColumn> columns() {
  std::vector<EmLlmColumn> all;
  EmLlmColumn average{"Avg.", {}};
  for (const LongBenchTask& task : longbench_tasks()) {
    if (!task.em_llm) continue;
    if (all.empty() || all.back().name != task.em_column) all.push_back({task.em_column, {}});
    all.back().tasks.push_back({"longbench", task.name, task.examples});
    average.tasks.push_back(all.back().tasks.back());
  }
  all.push_back(std::move(average));
  return all;
}

}  // namespace longbench

const SuiteRow kLongBench{
    .suite = Suite::longbench,
    .name = "longbench",
    .title = "LongBench: tasks of THUDM/LongBench, run and scored as there",
    .example_task = "qasper",
    .needs_prompts = true,
    .scores_by_length = true,
    .compares_code = true,
    .drops_first_number = false,
    .check_task = [](const std::string& task) { longbench_task(task); },
    .built_in_prompt =
        [](const std::string& task) {
          return BuiltInPrompt{own_template(task).text(), "own wording"};
        },
    .read = [](const std::filesystem::path& path,
               const std::string&) { return read_longbench(path); },
    .slots = [](const Example& example, const std::string&) { return longbench_slots(example); },
    .max_new = [](const std::string& task, Limits) { return longbench_task(task).max_new; },
    .in_chat_format = [](const std::string& task) { return longbench_task(task).chat; },
    .ends_with_line = [](const std::string& task) { return longbench_task(task).name == "samsum"; },
    .scores = longbench::scores_of,
    .task_score = [](const std::vector<double>& scores) { return task_score(scores); },
    .averages = longbench::averages,
    .em_llm_columns = longbench::columns,
    .make = nullptr,
    .make_help = "",
};

}  // namespace episodic::suites
