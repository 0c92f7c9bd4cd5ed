// SPDX-License-Identifier: Apache-2.0
// LongBench v2's row of the table of suites: one task, questions with four choices.
#include <fmt/format.h>

#include <cmath>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "scoring/contained.hpp"
#include "scoring/unicode.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace longbench_v2 {

constexpr std::string_view kTasks[] = {"longbench_v2"};
constexpr const char* kChoices[] = {"choice_A", "choice_B", "choice_C", "choice_D"};

bool is_letter(const std::string& answer) {
  return answer.size() == 1 && answer[0] >= 'A' && answer[0] <= 'D';
}

/// Texts are put into the prompt without white space around them, as published.
std::string stripped_text(const Row& row, const char* field) {
  return to_utf8(strip(to_code_points(row.text(field))));
}

std::vector<Example> read(const std::filesystem::path& path, const std::string&) {
  const DataRows rows(path, "_id");
  std::vector<Example> all;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    Example e;
    e.id = rows.id(i);
    e.context = stripped_text(row, "context");
    e.input = stripped_text(row, "question");
    e.slots["question"] = e.input;
    for (const char* choice : kChoices) {
      e.slots[choice] = stripped_text(row, choice);
      e.input += "\n" + e.slots[choice];  // what is asked for is among them
    }
    const std::string answer = row.text("answer");
    if (!is_letter(answer))
      row.fail(fmt::format("\"answer\" is \"{}\", expected A, B, C or D", printable(answer)));
    e.gold = answer;
    for (const char* name : {"length", "difficulty", "domain"}) e.details[name] = row.text(name);
    e.length = count_words(e.context);
    all.push_back(std::move(e));
  }
  return all;
}

Scores scores_of(const ScoreOptions& options, const Predictions& predictions) {
  Scores scores;
  std::int64_t unread = 0;
  for (const Prediction& p : predictions.kept) {
    const std::vector<std::string> golds = golds_of(options, p);
    if (!is_letter(golds.front())) fail_at(options, p, "the gold answer must be A, B, C or D");
    const std::optional<char> choice = stated_choice(p.text);
    unread += !choice;
    scores.each.push_back(choice == golds.front()[0] ? 1 : 0);
  }
  // the published table's columns
  scores.said["by_difficulty"] = scores_by("difficulty", predictions, scores.each);
  scores.said["by_length_group"] = scores_by("length", predictions, scores.each);
  scores.said["by_domain"] = scores_by("domain", predictions, scores.each);
  scores.said["without_choice"] = unread;
  return scores;
}

/// Rounded to one digit, as published.
double task_score(const std::vector<double>& scores) {
  return std::round(10 * mean_percent(scores)) / 10;
}

}  // namespace longbench_v2

const SuiteRow kLongBenchV2{
    .suite = Suite::longbench_v2,
    .name = "longbench_v2",
    .title = "LongBench v2: questions with four choices, run and scored as published",
    .example_task = "longbench_v2",
    .needs_prompts = false,
    .scores_by_length = false,
    .compares_code = false,
    .drops_first_number = false,
    .check_task =
        [](const std::string& task) { check_listed("LongBench v2", longbench_v2::kTasks, task); },
    .built_in_prompt =
        [](const std::string&) {
          return BuiltInPrompt{
              "Please read the following text and answer the question below.\n\n<text>\n{context}\n"
              "</text>\n\nWhat is the correct answer to this question: {question}\nChoices:\n(A) "
              "{choice_A}\n(B) {choice_B}\n(C) {choice_C}\n(D) {choice_D}\n\nFormat your response "
              "as "
              "follows: \"The correct answer is (insert answer here)\".",
              "official, 0shot"};
        },
    .read = longbench_v2::read,
    .slots =
        [](const Example& example, const std::string&) {
          std::map<std::string, std::string> slots = example.slots;
          slots["context"] = example.context;
          return slots;
        },
    .max_new = [](const std::string&, Limits) -> std::int64_t { return 128; },
    .in_chat_format = [](const std::string&) { return true; },
    .ends_with_line = [](const std::string&) { return false; },
    .scores = longbench_v2::scores_of,
    .task_score = longbench_v2::task_score,
    .averages = [](const std::map<std::string, double>& scores,
                   Json& json) { plain_average(longbench_v2::kTasks, scores, json); },
    .em_llm_columns = nullptr,
    .make = nullptr,
    .make_help = "",
};

}  // namespace episodic::suites
