// SPDX-License-Identifier: Apache-2.0
// RULER's row of the table of suites.
#include <fmt/format.h>

#include <cmath>

#include "episodic/base/error.hpp"
#include "make/ruler.hpp"
#include "scoring/contained.hpp"
#include "scoring/unicode.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace ruler {

/// The last line of a question: what is asked, without the instruction before it.
std::string last_line(const std::string& question) {
  const std::size_t at = question.rfind('\n');
  return at == std::string::npos ? question : question.substr(at + 1);
}

/// A row of the published program has the whole prompt in "input": cut where the question begins.
void cut_input(const Row& row, const RulerTask& task, Example& e) {
  const std::string input = row.text("input");
  std::size_t at = std::string::npos;
  for (const std::string_view asks : {task.asks, task.asks_too})
    if (!asks.empty())
      if (const std::size_t found = input.rfind(asks);
          found != std::string::npos && (at == std::string::npos || found > at))
        at = found;
  if (at == std::string::npos || at == 0)
    row.fail(
        fmt::format("\"input\" does not ask \"{}...\" as the task {} does", task.asks, task.name));
  while (at > 0 && (input[at - 1] == '\n' || input[at - 1] == ' ')) --at;
  e.context = input.substr(0, at);
  e.slots = {{"head", ""}, {"question", input.substr(at)}};
  e.reply_start = row.has("answer_prefix") ? row.text("answer_prefix") : "";
}

std::vector<Example> read(const std::filesystem::path& path, const std::string& name) {
  const RulerTask& task = ruler_task(name);
  const DataRows rows(path, "id");
  std::vector<Example> all;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    Example e;
    e.id = rows.id(i);
    if (row.has("context")) {
      e.context = row.text("context");
      e.slots = {{"head", row.text("head")}, {"question", row.text("question")}};
      e.reply_start = row.text("answer_prefix");
    } else {
      cut_input(row, task, e);
    }
    e.slots["context"] = e.context;
    e.input = last_line(e.slots["question"]);
    e.gold = row.texts("outputs");
    if (e.gold.empty()) row.fail("\"outputs\" must hold an answer");
    e.length = count_words(e.context);
    e.depth = or_null(row.find({"depth"}));
    e.tokens = or_null(row.find({"tokens", "length"}));
    all.push_back(std::move(e));
  }
  return all;
}

Scores scores_of(const ScoreOptions& options, const Predictions& predictions) {
  const RulerTask& task = ruler_task(options.task);
  Scores scores;
  for (const Prediction& p : predictions.kept) {
    const std::vector<std::string> golds = golds_of(options, p);
    scores.each.push_back(task.any_answer ? (matched_any(p.text, golds) ? 1.0 : 0.0)
                                          : matched_share(p.text, golds));
  }
  return scores;
}

/// Rounded to two digits, as published.
double task_score(const std::vector<double>& scores) {
  return std::round(100 * mean_percent(scores)) / 100;
}

}  // namespace ruler

const SuiteRow kRuler{
    .suite = Suite::ruler,
    .name = "ruler",
    .title = "RULER: its 13 tasks, made, run and scored as there",
    .example_task = "niah_single_1",
    .needs_prompts = false,
    .scores_by_length = false,
    .compares_code = false,
    .drops_first_number = false,
    .check_task = [](const std::string& task) { ruler_task(task); },
    .built_in_prompt =
        [](const std::string&) {
          return BuiltInPrompt{"{head}{context}{question}", "the data's own"};
        },
    .read = ruler::read,
    .slots =
        [](const Example& example, const std::string&) {
          std::map<std::string, std::string> slots = example.slots;
          slots["context"] = example.context;
          return slots;
        },
    .max_new = [](const std::string& task, Limits) { return ruler_task(task).max_new; },
    .in_chat_format = [](const std::string&) { return true; },
    .ends_with_line = [](const std::string&) { return false; },
    .scores = ruler::scores_of,
    .task_score = ruler::task_score,
    .averages = [](const std::map<std::string, double>& scores,
                   Json& json) { plain_average(ruler_names(), scores, json); },
    .em_llm_columns = nullptr,
    .make = make_ruler_rows,
    .make_help =
        "Tasks: niah_single_1 to 3, niah_multikey_1 to 3, niah_multivalue, niah_multiquery, vt, "
        "cwe, "
        "fwe, qa_1, qa_2.\n--tokens bounds prompt and answer together, as RULER's program counts. "
        "--haystack is the text that needles\nlie in and that the words of cwe come from (default: "
        "the King James Bible of package bible-kjv). qa_1 takes\nits questions from a file of "
        "SQuAD, "
        "qa_2 from one of HotpotQA: --source. --depth places the needle where\none is asked "
        "for.\n\nExample:\n  ruler make --task niah_single_2 --model M --tokens 4096,16384 --count "
        "10 "
        "--out niah_single_2.jsonl",
};

}  // namespace episodic::suites
