// SPDX-License-Identifier: Apache-2.0
// infinity-Bench's row of the table of suites.
#include "data/prompts.hpp"
#include "episodic/base/error.hpp"
#include "make/generate.hpp"
#include "scoring/infinitebench.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace infinitebench {

Scores scores_of(const ScoreOptions& options, const Predictions& predictions) {
  const InfiniteTask& task = infinitebench_task(options.task);
  Scores scores;
  for (const Prediction& p : predictions.kept) {
    const ExampleScore s = naming(options, p, [&] {
      return score_infinitebench(task, p.text, p.gold, {options.scorer, options.drop_first_number});
    });
    scores.each.push_back(s.score);
    if (s.guessed) scores.guessed.push_back(p.id);
    if (s.undefined) scores.undefined.push_back(p.id);
  }
  return scores;
}

void averages(const std::map<std::string, double>& scores, Json& json) {
  // There is no official mean over infinity-Bench; EM-LLM averages its six tasks.
  std::vector<double> six;
  Json missing = Json::array();
  for (const InfiniteTask& task : infinitebench_tasks()) {
    if (!task.em_llm) continue;
    const auto found = scores.find(std::string(task.name));
    if (found != scores.end())
      six.push_back(found->second / 100);
    else
      missing.push_back(task.name);
  }
  json["em_llm"] = {{"average", number_or_null(mean_percent(six))}};
  json["missing"] = {{"em_llm", missing}};
}

/// The paper's six tasks.
std::vector<EmLlmColumn> columns() {
  std::vector<EmLlmColumn> all;
  for (const auto& [name, task] :
       {std::pair<std::string_view, std::string_view>{"C.D", "code_debug"},
        {"M.F", "math_find"},
        {"MC", "longbook_choice_eng"},
        {"R.KV", "kv_retrieval"},
        {"R.P", "passkey"},
        {"R.N", "number_string"}})
    all.push_back({name, {{"infinitebench", task, infinitebench_task(task).examples}}});
  return all;
}

}  // namespace infinitebench

const SuiteRow kInfiniteBench{
    .suite = Suite::infinitebench,
    .name = "infinitebench",
    .title = "infinity-Bench: tasks of OpenBMB/InfiniteBench, made, run and scored as there",
    .example_task = "passkey",
    .needs_prompts = false,
    .scores_by_length = false,
    .compares_code = false,
    .drops_first_number = true,
    .check_task = [](const std::string& task) { infinitebench_task(task); },
    .built_in_prompt =
        [](const std::string& task) {
          return BuiltInPrompt{own_template(task).text(), "own wording"};
        },
    .read = [](const std::filesystem::path& path,
               const std::string& task) { return read_infinitebench(path, task); },
    .slots = [](const Example& example,
                const std::string& task) { return infinitebench_slots(example, task); },
    .max_new =
        [](const std::string& task, Limits limits) {
          const InfiniteTask& t = infinitebench_task(task);
          return limits == Limits::official ? t.max_new : t.em_max_new;
        },
    .in_chat_format = [](const std::string&) { return true; },
    .ends_with_line = [](const std::string&) { return false; },
    .scores = infinitebench::scores_of,
    .task_score = mean_percent,
    .averages = infinitebench::averages,
    .em_llm_columns = infinitebench::columns,
    .make = [](const MakeOptions& options, const TokenCounter& count,
               const RowSink& emit) { make_rows(options, count, emit); },
    .make_help =
        "Tasks: passkey, number_string, kv_retrieval, math_find, math_calc, code_run, after the "
        "official script;\npasskey__long, EM-LLM's construction from rows of passkey in --source. "
        "With --haystack, pass keys and\nnumbers lie in a text of yours: needles in a haystack, "
        "over every length and depth named. --tokens bounds\nthe context.\n\nExample:\n  "
        "infinitebench make --task passkey --model M --tokens 4000,16000 --depth 0,0.5,1 --count 2 "
        "--out passkey.jsonl",
};

}  // namespace episodic::suites
