// SPDX-License-Identifier: Apache-2.0
#include "report/em_llm_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "suite_table.hpp"

namespace episodic::suites {
namespace {

std::vector<EmLlmColumn> columns() {
  std::vector<EmLlmColumn> all;
  for (const SuiteRow* suite : suite_table()) {
    if (suite->em_llm_columns == nullptr) continue;
    for (EmLlmColumn& column : suite->em_llm_columns()) all.push_back(std::move(column));
  }
  return all;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::string em_llm_table(const std::vector<TaskScore>& scores) {
  using Name = std::pair<std::string_view, std::string_view>;  // suite and task
  std::map<Name, std::int64_t> released;
  const std::vector<EmLlmColumn> all = columns();
  for (const EmLlmColumn& c : all)
    for (const EmLlmColumn::Task& task : c.tasks) released[{task.suite, task.name}] = task.examples;

  std::vector<std::string> methods, counts;
  std::map<std::pair<std::string, Name>, std::vector<double>> percents;  // by method and task
  std::set<std::string> counted;
  for (const TaskScore& s : scores) {
    const auto task = released.find({s.suite, s.task});
    if (task == released.end()) continue;
    if (std::find(methods.begin(), methods.end(), s.method) == methods.end())
      methods.push_back(s.method);
    percents[{s.method, task->first}].push_back(s.percent);
    std::string count = fmt::format("{} {} of {}", s.task, s.examples, task->second);
    if (counted.insert(count).second) counts.push_back(std::move(count));
  }
  if (methods.empty()) return {};

  std::string text = "| method |", rule = "|---|";
  for (const EmLlmColumn& c : all) text += fmt::format(" {} |", c.name), rule += "---|";
  text += "\n" + rule + "\n";
  for (const std::string& method : methods) {
    text += fmt::format("| {} |", method);
    for (const EmLlmColumn& c : all) {
      std::vector<double> values;
      for (const EmLlmColumn::Task& task : c.tasks)
        if (const auto found = percents.find({method, {task.suite, task.name}});
            found != percents.end())
          values.push_back(mean(found->second));
      if (!values.empty()) text += fmt::format(" {:.1f}", mean(values));
      if (!values.empty() && values.size() < c.tasks.size())
        text += fmt::format(" ({} of {})", values.size(), c.tasks.size());
      text += " |";
    }
    text += "\n";
  }
  return fmt::format("{}\nExamples in a file, of those that were released: {}.\n", text,
                     fmt::join(counts, ", "));
}

}  // namespace episodic::suites
