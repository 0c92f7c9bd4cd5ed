// SPDX-License-Identifier: Apache-2.0
// LongMemEval's row of the table of suites: questions about many dated chats, answered freely or by
// a choice.
#include <fmt/format.h>

#include <algorithm>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "scoring/contained.hpp"
#include "scoring/unicode.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace longmemeval {

constexpr std::string_view kFree = "longmemeval", kChoice = "longmemeval_choice";
constexpr std::string_view kTasks[] = {kFree, kChoice};
constexpr std::size_t kMostChoices = 26;

/// The sessions by their dates, laid out as in the published program's plain form.
std::string history(const Row& row) {
  const Field sessions = row.field().at("haystack_sessions");
  const Field dates =
      row.field().at(row.has("haystack_dates") || !row.has("haystack_session_datetimes")
                         ? "haystack_dates"
                         : "haystack_session_datetimes");
  if (dates.size() != sessions.size())
    dates.fail(fmt::format("has {} entries beside {} sessions", dates.size(), sessions.size()));
  struct Session {
    std::string date, text;
  };
  std::vector<Session> all;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    const Field session = sessions.at(i);
    std::string text;
    for (std::size_t t = 0; t < session.size(); ++t) {
      const Field turn = session.at(t);
      text += fmt::format("\n\n{}: {}", turn.at("role").text(),
                          to_utf8(strip(to_code_points(turn.at("content").text()))));
    }
    all.push_back({dates.at(i).text(), std::move(text)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Session& a, const Session& b) { return a.date < b.date; });
  std::string out;
  for (std::size_t i = 0; i < all.size(); ++i)
    out += fmt::format("\n### Session {}:\nSession Date: {}\nSession Content:\n{}\n", i + 1,
                       all[i].date, all[i].text);
  return out;
}

/// A text, or a number as some of the released answers are.
std::string text_or_number(const Row& row, const char* field) {
  const Json& value = row.at(field);
  if (value.is_number()) return value.dump();
  return row.text(field);
}

std::vector<Example> read(const std::filesystem::path& path, const std::string& task) {
  const DataRows rows(path, "question_id");
  std::vector<Example> all;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    Example e;
    e.id = rows.id(i);
    e.context = history(row);
    const std::string question = row.text("question");
    e.input = question;
    e.slots = {{"question", question},
               {"question_date", row.has("question_date") ? row.text("question_date") : "unknown"}};
    e.details = {{"question_type", row.text("question_type")}};
    if (task == kChoice) {
      const std::vector<std::string> choices = row.texts("choices");
      const std::int64_t right = row.integer("correct_choice_index");
      if (choices.size() < 2 || choices.size() > kMostChoices)
        row.fail(fmt::format("\"choices\" must hold 2 to {} texts", kMostChoices));
      if (right < 0 || right >= std::ssize(choices))
        row.fail(fmt::format("\"correct_choice_index\" is {}, expected 0 to {}", right,
                             choices.size() - 1));
      std::string& listed = e.slots["choices"];
      for (std::size_t c = 0; c < choices.size(); ++c)
        listed += fmt::format("({}) {}\n", static_cast<char>('A' + c), choices[c]);
      e.input += "\n" + listed;
      e.gold = std::string(1, static_cast<char>('A' + right));
      e.details["last_choice"] = std::string(1, static_cast<char>('A' + choices.size() - 1));
    } else {
      e.gold = text_or_number(row, "answer");
    }
    e.length = count_words(e.context);
    all.push_back(std::move(e));
  }
  return all;
}

Scores scores_of(const ScoreOptions& options, const Predictions& predictions) {
  const bool choice = options.task == kChoice;
  Scores scores;
  for (const Prediction& p : predictions.kept) {
    const std::string gold = p.gold.is_number() ? p.gold.dump() : golds_of(options, p).front();
    bool right = false;
    if (choice) {
      const std::string last = detail(p, "last_choice");
      if (gold.size() != 1 || last.size() != 1)
        fail_at(options, p, "the score takes the number of choices; name the data with --data");
      right = stated_choice(p.text, last[0]) == gold[0];
    } else {
      right = p.id.ends_with("_abs") ? declines(p.text) : holds_words(p.text, gold);
    }
    scores.each.push_back(right ? 1 : 0);
  }
  scores.said["judged_by"] = choice ? "the stated choice"
                                    : "the answer's words in the prediction; the published judge "
                                      "is a model";
  scores.said["by_type"] = scores_by("question_type", predictions, scores.each);
  return scores;
}

std::string wording(const std::string& task) {
  return fmt::format(
      "Below are chats between you and a user, each with its date. Answer the question after them "
      "by what was said there.\n\n{{context}}\n\nToday is {{question_date}}.\nQuestion: "
      "{{question}}\n{}",
      task == kChoice
          ? "Choices:\n{choices}\nAnswer in this form: \"The correct answer is (letter)\"."
          : "Answer:");
}

}  // namespace longmemeval

const SuiteRow kLongMemEval{
    .suite = Suite::longmemeval,
    .name = "longmemeval",
    .title = "LongMemEval: questions about dated chats, answered freely or by a choice",
    .example_task = "longmemeval_choice",
    .needs_prompts = false,
    .scores_by_length = false,
    .compares_code = false,
    .drops_first_number = false,
    .check_task =
        [](const std::string& task) { check_listed("LongMemEval", longmemeval::kTasks, task); },
    .built_in_prompt =
        [](const std::string& task) {
          return BuiltInPrompt{longmemeval::wording(task), "own wording"};
        },
    .read = longmemeval::read,
    .slots =
        [](const Example& example, const std::string&) {
          std::map<std::string, std::string> slots = example.slots;
          slots["context"] = example.context;
          return slots;
        },
    .max_new = [](const std::string& task, Limits) -> std::int64_t {
      return task == longmemeval::kChoice ? 128 : 500;
    },
    .in_chat_format = [](const std::string&) { return true; },
    .ends_with_line = [](const std::string&) { return false; },
    .scores = longmemeval::scores_of,
    .task_score = mean_percent,
    .averages = [](const std::map<std::string, double>& scores,
                   Json& json) { plain_average(longmemeval::kTasks, scores, json); },
    .em_llm_columns = nullptr,
    .make = nullptr,
    .make_help = "",
};

}  // namespace episodic::suites
