// SPDX-License-Identifier: Apache-2.0
#include "suite_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic::suites {
namespace {

constexpr const SuiteRow* kSuites[] = {&kLongBench, &kInfiniteBench, &kRuler,      &kBabiLong,
                                       &kNeedles,   &kLongBenchV2,   &kLongMemEval};

}  // namespace

std::span<const SuiteRow* const> suite_table() { return kSuites; }

const SuiteRow& row_of(Suite suite) {
  for (const SuiteRow* row : kSuites)
    if (row->suite == suite) return *row;
  throw ConfigError("the suite has no row");
}

const SuiteRow* suite_named(std::string_view name) {
  for (const SuiteRow* row : kSuites)
    if (row->name == name) return row;
  return nullptr;
}

const char* name_of(Suite suite) { return row_of(suite).name; }

BuiltInPrompt built_in_prompt(Suite suite, const std::string& task) {
  return row_of(suite).built_in_prompt(task);
}

void check_task(Suite suite, const std::string& task) { row_of(suite).check_task(task); }

std::vector<Example> read_examples(Suite suite, const std::filesystem::path& path,
                                   const std::string& task) {
  return row_of(suite).read(path, task);
}

std::map<std::string, std::string> slots_of(Suite suite, const Example& example,
                                            const std::string& task) {
  return row_of(suite).slots(example, task);
}

std::int64_t max_new_of(Suite suite, const std::string& task, Limits limits) {
  return row_of(suite).max_new(task, limits);
}

bool in_chat_format(Suite suite, const std::string& task) {
  return row_of(suite).in_chat_format(task);
}

bool ends_with_line(Suite suite, const std::string& task) {
  return row_of(suite).ends_with_line(task);
}

void fail_at(const ScoreOptions& options, const Prediction& p, const std::string& what) {
  throw FileError(fmt::format("{}: id {}: {}",
                              (options.data.empty() ? options.preds : options.data).string(),
                              printable(p.id), what));
}

std::vector<std::string> golds_of(const ScoreOptions& options, const Prediction& p) {
  if (p.gold.is_string()) return {p.gold.get<std::string>()};
  std::vector<std::string> golds;
  if (p.gold.is_array())
    for (const Json& one : p.gold)
      if (one.is_string()) golds.push_back(one.get<std::string>());
  if (golds.empty() || golds.size() != p.gold.size())
    fail_at(options, p, "the gold answers must be a list of strings");
  return golds;
}

double mean_percent(const std::vector<double>& scores) {
  if (scores.empty()) return std::nan("");
  double sum = 0;
  for (const double s : scores) sum += s;
  return 100 * sum / static_cast<double>(scores.size());
}

void plain_average(std::span<const std::string_view> tasks,
                   const std::map<std::string, double>& scores, Json& result) {
  std::vector<double> there;
  Json missing = Json::array();
  for (const std::string_view task : tasks) {
    const auto found = scores.find(std::string(task));
    if (found != scores.end())
      there.push_back(found->second / 100);
    else
      missing.push_back(task);
  }
  result["average"] = number_or_null(mean_percent(there));
  result["missing"] = missing;
}

void check_listed(const char* suite, std::span<const std::string_view> tasks,
                  const std::string& task) {
  if (std::find(tasks.begin(), tasks.end(), task) != tasks.end()) return;
  throw ConfigError(
      fmt::format("--task {}: {} has {}", printable(task), suite, fmt::join(tasks, ", ")));
}

std::string detail(const Prediction& p, const char* name) {
  for (const Json* of : {&p.details, &p.row})
    if (of->is_object() && of->contains(name) && of->at(name).is_string())
      return of->at(name).get<std::string>();
  return {};
}

Json scores_by(const char* name, const Predictions& predictions,
               const std::vector<double>& scores) {
  std::map<std::string, std::vector<double>> groups;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (const std::string value = detail(predictions.kept[i], name); !value.empty())
      groups[value].push_back(scores[i]);
  Json json = Json::object();
  for (const auto& [value, of] : groups)
    json[value] = {{"score", mean_percent(of)}, {"count", of.size()}};
  return json;
}

Json number_or_null(double value) { return std::isnan(value) ? Json() : Json(value); }

}  // namespace episodic::suites
