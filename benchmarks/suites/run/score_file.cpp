// SPDX-License-Identifier: Apache-2.0
#include "run/score_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"
#include "run/prediction_file.hpp"
#include "scoring/longbench.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace {

Json by_length(const Predictions& predictions, const Scores& scores) {
  std::vector<std::int64_t> lengths;
  for (const Prediction& p : predictions.kept) {
    if (!p.length)
      throw ConfigError(
          fmt::format("--by-length: the prediction of id {} has no \"length\"; name "
                      "the task's data with --data",
                      printable(p.id)));
    lengths.push_back(*p.length);
  }
  const auto buckets = scores_by_length(scores.each, lengths);
  Json json;
  for (std::size_t i = 0; i < buckets.size(); ++i)
    json[kLengthBuckets[i]] = number_or_null(buckets[i]);
  return json;
}

/// A count that a row says, 0 where it says none that can be.
std::int64_t count_in(const Json& object, const char* name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;  // sums of them stay numbers
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() && *found >= 0 && *found <= kMost
             ? found->get<std::int64_t>()
             : 0;
}

double seconds_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

/// Ids of predictions that our own program cut at the task's limit, with nothing right in them.
Json cut_of(const Predictions& predictions, const Scores& scores) {
  Json ids = Json::array();
  for (std::size_t i = 0; i < scores.each.size(); ++i)
    if (scores.each[i] == 0 && predictions.kept[i].row.value("finish", Json()) == "length")
      ids.push_back(predictions.kept[i].id);
  return ids;
}

/// Sums of what the rows of our own program say of their cost; null for other programs' files.
Json cost_of(const Predictions& predictions) {
  std::int64_t tokens = 0, generated = 0, peak = 0, store = 0;
  double read = 0, answer = 0, retrieve = 0;
  for (const Prediction& p : predictions.kept) {
    const auto seconds = p.row.find("seconds");
    if (seconds == p.row.end() || !seconds->is_object()) return {};
    tokens += count_in(p.row, "read_tokens");
    generated += count_in(p.row, "new_tokens");
    read += seconds_in(*seconds, "read");
    answer += seconds_in(*seconds, "answer");
    retrieve += seconds_in(*seconds, "retrieve");
    peak = std::max(peak, count_in(p.row, "peak_resident_bytes"));
    if (const auto memory = p.row.find("memory"); memory != p.row.end() && memory->is_object())
      store = std::max(store, count_in(*memory, "store_bytes"));
  }
  return {{"read_tokens", tokens},
          {"new_tokens", generated},
          {"seconds", {{"read", read}, {"answer", answer}, {"retrieve", retrieve}}},
          {"read_tokens_per_second", read > 0 ? Json(static_cast<double>(tokens) / read) : Json()},
          {"event_bytes", store},
          {"peak_resident_bytes", peak}};
}

}  // namespace

Json score_file(const ScoreOptions& options) {
  check_task(options.suite, options.task);
  const SuiteRow& suite = row_of(options.suite);
  if (options.scorer == Scorer::em_llm && suite.em_llm_columns == nullptr)
    throw ConfigError(fmt::format(
        "--scorer em-llm: EM-LLM's program does not score {}; leave it out", suite.name));
  std::vector<Example> data;
  if (!options.data.empty()) data = read_examples(options.suite, options.data, options.task);
  const Predictions predictions =
      read_predictions(options.preds, options.data.empty() ? nullptr : &data);
  if (predictions.kept.empty())
    throw FileError(fmt::format("{}: holds no prediction{}", options.preds.string(),
                                data.empty() ? "" : " of the data's ids"));
  const Scores scores = suite.scores(options, predictions);
  const double score = suite.task_score(scores.each);
  Json result{{"suite", name_of(options.suite)},
              {"task", options.task},
              {"preds", options.preds.filename().string()},
              {"count", scores.each.size()},
              {"score", score},
              {"scorer", options.scorer == Scorer::official ? "official" : "em-llm"}};
  result.update(scores.said);
  if (options.by_length) result["by_length"] = by_length(predictions, scores);
  // The mean is over the predictions there are; one that is missing is 0 in the second figure.
  result["missing"] = predictions.missing;
  if (!predictions.missing.empty())
    result["score_with_missing_as_zero"] =
        score * static_cast<double>(scores.each.size()) /
        static_cast<double>(scores.each.size() + predictions.missing.size());
  result["doubled"] = predictions.doubled;
  result["unknown"] = predictions.unknown;
  result["guessed"] = scores.guessed;
  result["undefined"] = scores.undefined;
  result["cut"] = cut_of(predictions, scores);
  if (const Json cost = cost_of(predictions); !cost.is_null()) result["cost"] = cost;
  if (std::filesystem::exists(settings_path(options.preds)))
    result["settings"] = tools::read_json(settings_path(options.preds));
  result["per_example"] = scores.each;
  result["examples"] = Json::array();
  for (std::size_t i = 0; i < scores.each.size(); ++i) {
    const Json& row = predictions.kept[i].row;
    result["examples"].push_back({{"id", predictions.kept[i].id},
                                  {"score", scores.each[i]},
                                  {"depth", row.value("depth", Json())},
                                  {"tokens", row.value("tokens", Json())}});
  }
  return result;
}

std::string score_text(const Json& r) {
  std::string text = fmt::format(
      "{:<22} {:>7.2f}  {} examples, scorer {}{}\n", r["task"].get<std::string>(),
      r["score"].get<double>(), r["count"].get<std::int64_t>(), r["scorer"].get<std::string>(),
      r.contains("code_sim") ? ", " + r["code_sim"].get<std::string>() : std::string());
  if (r.contains("by_length"))
    for (const auto& [bucket, score] : r["by_length"].items())
      text += score.is_null() ? fmt::format("  {:<20} {:>7}\n", bucket, "-")
                              : fmt::format("  {:<20} {:>7.2f}\n", bucket, score.get<double>());
  const std::pair<const char*, const char*> notes[] = {
      {"missing", "of the data's ids have no prediction; the score is over the others"},
      {"doubled", "predictions with an id that was there already; the first counts"},
      {"unknown", "predictions with an id that the data has not; left out"},
      {"guessed", "were scored by the authors' random letter: nothing could be read off them"},
      {"undefined", "make the published program fail; scored 0"},
      {"cut",
       "scored 0 and were cut at the task's limit of generated tokens: the answer may have been "
       "still to come"}};
  const SuiteRow* suite = suite_named(r["suite"].get<std::string>());
  const char* remedy = suite != nullptr && suite->em_llm_columns != nullptr
                           ? "; `run --limits em-llm` allows more, `run --raw` has no chat format"
                           : "; `run --raw` has no chat format";
  for (const auto& [key, what] : notes)
    if (!r[key].empty())
      text += fmt::format("  {} {}{}\n", r[key].size(), what,
                          std::string_view(key) == "cut" ? remedy : "");
  return text;
}

Json averages_of(const std::vector<Json>& results) {
  std::map<std::string, double> scores;
  for (const Json& r : results) {
    const auto is = [&](const char* name, bool (Json::*kind)() const noexcept) {
      return r.contains(name) && (r[name].*kind)();
    };
    if (!r.is_object() || !is("suite", &Json::is_string) || !is("task", &Json::is_string) ||
        !is("score", &Json::is_number))
      throw ConfigError("average: takes result files of `score --json`");
    if (r["suite"] != results.front()["suite"])
      throw ConfigError("average: the results are of two suites");
    std::string task = r["task"].get<std::string>();
    if (!scores.emplace(task, r["score"].get<double>()).second)
      throw ConfigError(fmt::format("average: the task {} is given twice", printable(task)));
  }
  if (results.empty()) throw ConfigError("average: names no result file");
  Json json{{"suite", results.front()["suite"]}, {"scores", scores}};
  const SuiteRow* row = suite_named(json["suite"].get<std::string>());
  if (row == nullptr)
    throw ConfigError(
        fmt::format("average: there is no suite {}", printable(json["suite"].get<std::string>())));
  row->averages(scores, json);
  return json;
}

}  // namespace episodic::suites
