// SPDX-License-Identifier: Apache-2.0
#include "report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>

#include "episodic/base/error.hpp"
#include "report/em_llm_table.hpp"
#include "report/origin.hpp"
#include "report/result.hpp"
#include "scoring/longbench.hpp"
#include "svg.hpp"

namespace episodic::suites {
namespace {

using tools::Bar;
using tools::bar_chart;
using tools::heat_map;

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class T>
std::size_t place_of(std::vector<T>& list, const T& value) {
  const auto found = std::find(list.begin(), list.end(), value);
  if (found != list.end()) return static_cast<std::size_t>(found - list.begin());
  list.push_back(value);
  return list.size() - 1;
}

/// Results by row (task and data) and column (method).
struct Grid {
  std::vector<std::string> rows, labels;
  std::vector<std::vector<const Result*>> at;
};

Grid grid_of(const std::vector<Result>& results) {
  Grid grid;
  std::map<std::string, std::set<std::string>> data;
  for (const Result& r : results) data[r.task].insert(r.data);
  for (const Result& r : results) {
    const std::string row = data[r.task].size() > 1 ? named_by_data(r) : r.task;
    const std::size_t i = place_of(grid.rows, row), j = place_of(grid.labels, r.label);
    grid.at.resize(grid.rows.size());
    for (auto& line : grid.at) line.resize(grid.labels.size(), nullptr);
    if (grid.at[i][j])
      throw ConfigError(
          fmt::format("two results of {} with the method {}; give each task, data and "
                      "method once",
                      row, r.label));
    grid.at[i][j] = &r;
  }
  return grid;
}

std::vector<double> values_of(const Result& r) {
  std::vector<double> values;
  for (const auto& [id, score] : r.scores) values.push_back(score);
  return values;
}

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

/// A length as it is spoken of: two digits, thousands and millions.
double rounded_tokens(double tokens) {
  if (tokens < 1) return tokens;
  const double unit = std::pow(10, std::floor(std::log10(tokens)) - 1);
  return std::round(tokens / unit) * unit;
}

std::string tokens_text(double tokens) {
  if (tokens >= 1e6) return fmt::format("{:g}M", tokens / 1e6);
  return tokens >= 1e3 ? fmt::format("{:g}K", tokens / 1e3) : fmt::format("{:g}", tokens);
}

std::string bytes_text(std::int64_t bytes) {
  return bytes >= 1 << 30 ? fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30))
                          : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string table_head(const std::string& first, const std::vector<std::string>& labels) {
  std::string head = fmt::format("| {} |", first), rule = "|---|";
  for (const std::string& l : labels) head += fmt::format(" {} |", l), rule += "---|";
  return fmt::format("{}\n{}\n", head, rule);
}

std::string file_part(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  return text;
}

/// Depth and length of a task's examples under one method, over all its data.
std::string heat_of(const std::string& task, const std::string& label,
                    const std::vector<Result::Cell>& cells) {
  std::map<std::pair<double, double>, std::pair<double, int>> sums;  // by depth and length
  std::set<double> depths, lengths;
  for (const Result::Cell& c : cells) {
    const double depth = std::round(100 * c.depth), length = rounded_tokens(c.tokens);
    depths.insert(depth);
    lengths.insert(length);
    auto& [sum, n] = sums[{depth, length}];
    sum += c.score, ++n;
  }
  std::vector<std::string> columns, rows;
  std::vector<std::vector<std::optional<double>>> grid;
  for (const double l : lengths) columns.push_back(tokens_text(l));
  for (const double d : depths) {
    rows.push_back(fmt::format("{:.0f} %", d));
    auto& line = grid.emplace_back();
    for (const double l : lengths) {
      const auto found = sums.find({d, l});
      line.push_back(found == sums.end()
                         ? std::nullopt
                         : std::optional(100 * found->second.first / found->second.second));
    }
  }
  return heat_map(fmt::format("{}, {}: percent right", task, label), columns, rows, grid);
}

/// Means with their intervals, in percent, where there is a result.
using Means = std::vector<std::vector<std::optional<Bar>>>;

Means means_of(const Grid& grid, const ReportOptions& options) {
  Means means;
  for (const auto& line : grid.at) {
    auto& row = means.emplace_back();
    for (const Result* r : line) {
      if (!r) {
        row.push_back(std::nullopt);
        continue;
      }
      const Interval i = bootstrap_mean(values_of(*r), options.resamples, options.seed);
      row.push_back(Bar{100 * i.mean, 100 * i.low, 100 * i.high});
    }
  }
  return means;
}

std::string score_table(const Grid& grid, const Means& means) {
  std::string table = table_head("task", grid.labels);
  for (std::size_t i = 0; i < grid.rows.size(); ++i) {
    table += fmt::format("| {} |", grid.rows[i]);
    for (const std::optional<Bar>& m : means[i])
      table += m ? fmt::format(" {:.1f} [{:.1f}, {:.1f}] |", m->value, m->low, m->high) : " - |";
    table += "\n";
  }
  return table;
}

std::string difference_section(const Grid& grid, const ReportOptions& options) {
  std::string text = fmt::format(
      "\n# Differences from {}\n\nPercentage points, paired by example. An interval without 0 is a "
      "difference.\n\n{}",
      options.baseline, table_head("task", grid.labels));
  const auto base = static_cast<std::size_t>(
      std::find(grid.labels.begin(), grid.labels.end(), options.baseline) - grid.labels.begin());
  for (std::size_t i = 0; i < grid.rows.size(); ++i) {
    text += fmt::format("| {} |", grid.rows[i]);
    for (std::size_t j = 0; j < grid.labels.size(); ++j) {
      const Result *a = grid.at[i][base], *b = grid.at[i][j];
      std::optional<Interval> d;
      if (j != base && a && b)
        d = bootstrap_difference(a->scores, b->scores, options.resamples, options.seed);
      text += d ? fmt::format(" {:+.1f} [{:+.1f}, {:+.1f}] |", 100 * d->mean, 100 * d->low,
                              100 * d->high)
                : " |";
    }
    text += "\n";
  }
  return text;
}

/// What our own runs say of their cost; other programs' files say nothing.
struct Cost {
  std::optional<double> read_rate, new_rate;  // tokens a second
  double seconds = 0;                         // an example: retrieve, read and answer
  std::int64_t event_bytes = 0, peak_bytes = 0;
};
std::optional<Cost> cost_of(const Result* r) {
  if (!r || !r->cost.is_object()) return std::nullopt;
  Cost cost;
  const Json rate = r->cost.value("read_tokens_per_second", Json());
  if (rate.is_number()) cost.read_rate = rate.get<double>();
  const Json& seconds = r->cost.at("seconds");
  const double answer = seconds.value("answer", 0.0);
  cost.seconds = (seconds.value("read", 0.0) + seconds.value("retrieve", 0.0) + answer) /
                 static_cast<double>(r->scores.size());
  if (answer > 0) cost.new_rate = r->cost.value("new_tokens", 0.0) / answer;
  cost.event_bytes = r->cost.at("event_bytes").get<std::int64_t>();
  cost.peak_bytes = r->cost.at("peak_resident_bytes").get<std::int64_t>();
  return cost;
}

std::string rate_text(const std::optional<double>& rate, const char* none) {
  return rate ? fmt::format("{:.1f}", *rate) : none;
}

std::string cost_section(const Grid& grid, const Means& means) {
  std::string rows;
  for (std::size_t i = 0; i < grid.rows.size(); ++i)
    for (std::size_t j = 0; j < grid.labels.size(); ++j)
      if (const auto cost = cost_of(grid.at[i][j]))
        rows += fmt::format("| {} | {} | {:.1f} | {:.2f} | {} | {} | {} | {} |\n", grid.rows[i],
                            grid.labels[j], means[i][j]->value, cost->seconds,
                            rate_text(cost->read_rate, "-"), rate_text(cost->new_rate, "-"),
                            cost->event_bytes > 0 ? bytes_text(cost->event_bytes) : "-",
                            bytes_text(cost->peak_bytes));
  if (rows.empty()) return rows;
  return fmt::format(
      "\n# Cost beside the score\n\nSeconds an example are those of all its parts: to find chunks "
      "(retrieval), read and answer. Tokens read are those the\nmodel reads: with retrieval the "
      "chosen chunks alone. Tokens generated per second count the question's step in.\n\n| task | "
      "method | score | seconds an example | tokens read per second | tokens generated per second "
      "| keys and values of events | peak resident |\n|---|---|---|---|---|---|---|---|\n{}",
      rows);
}

std::string csv_of(const Grid& grid, const Means& means) {
  std::string csv =
      "task,method,examples,score,low,high,seconds_per_example,read_tokens_per_second,"
      "new_tokens_per_second,event_bytes,peak_resident_bytes\n";
  for (std::size_t i = 0; i < grid.rows.size(); ++i)
    for (std::size_t j = 0; j < grid.labels.size(); ++j) {
      const std::optional<Bar>& m = means[i][j];
      if (!m) continue;
      csv += fmt::format("\"{}\",\"{}\",{},{:.4f},{:.4f},{:.4f}", grid.rows[i], grid.labels[j],
                         grid.at[i][j]->scores.size(), m->value, m->low, m->high);
      const auto cost = cost_of(grid.at[i][j]);
      csv +=
          cost ? fmt::format(",{:.3f},{},{},{},{}\n", cost->seconds, rate_text(cost->read_rate, ""),
                             rate_text(cost->new_rate, ""), cost->event_bytes, cost->peak_bytes)
               : ",,,,,\n";
    }
  return csv;
}

/// Heat maps of the generated tasks, each a file of its own.
std::string heat_section(const std::vector<Result>& results, ReportFiles& files) {
  std::map<std::pair<std::string, std::string>, std::vector<Result::Cell>> maps;
  for (const Result& r : results)
    if (!r.cells.empty()) {
      auto& cells = maps[{series_of(r).first, r.label}];
      cells.insert(cells.end(), r.cells.begin(), r.cells.end());
    }
  std::string text;
  for (const auto& [name, cells] : maps) {
    const auto& [task, label] = name;
    std::string file = fmt::format("heat_{}_{}.svg", file_part(task), file_part(label));
    text += fmt::format("\n![{}, {}]({})\n", task, label, file);
    files.emplace_back(std::move(file), heat_of(task, label, cells));
  }
  return text.empty() ? text : fmt::format("\n# By depth and length\n{}", text);
}

/// Methods in the layout of the authors' table; generated data of several lengths are rows each,
/// for not every method was run at every length.
std::string em_llm_section(const std::vector<Result>& results, const Grid& grid) {
  std::vector<std::pair<std::pair<std::size_t, double>, TaskScore>> scores;
  for (const Result& r : results) {
    const double length = series_of(r).second;
    const auto column = static_cast<std::size_t>(
        std::find(grid.labels.begin(), grid.labels.end(), r.label) - grid.labels.begin());
    scores.push_back({{column, length},
                      {r.suite, r.task,
                       length > 0 ? fmt::format("{}, {}", r.label, tokens_text(length)) : r.label,
                       r.percent, static_cast<std::int64_t>(r.scores.size())}});
  }
  std::stable_sort(scores.begin(), scores.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<TaskScore> sorted;
  for (auto& [place, score] : scores) sorted.push_back(std::move(score));
  const std::string table = em_llm_table(sorted);
  return table.empty() ? table
                       : fmt::format("\n# In the layout of EM-LLM's first table\n\n{}", table);
}

std::string number_or_dash(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.2f}", value);
}

/// LongBench's overall scores of each method, over the tasks that there is one file of.
std::string longbench_section(const std::vector<Result>& results, const Grid& grid) {
  std::string rows;
  for (const std::string& label : grid.labels) {
    std::map<std::string, std::vector<double>> by_task;
    for (const Result& r : results)
      if (r.suite == "longbench" && r.label == label) by_task[r.task].push_back(r.percent);
    std::map<std::string, double> scores;
    for (const auto& [task, percents] : by_task)
      if (percents.size() == 1 && !task.ends_with("_e")) scores[task] = percents.front();
    if (scores.empty()) continue;
    const LongBenchAverages a = longbench_averages(scores);
    rows += fmt::format("| {} | {} | {} | {} | {} |\n", label, number_or_dash(a.overall_en),
                        a.missing_en.size(), number_or_dash(a.overall_zh), a.missing_zh.size());
  }
  if (rows.empty()) return rows;
  return fmt::format(
      "\n# LongBench's overall scores\n\nThe mean of the groups' means. Where tasks are missing it "
      "is none of the published kind.\n\n| method | English | tasks missing | Chinese | tasks "
      "missing |\n|---|---|---|---|---|\n{}",
      rows);
}

}  // namespace

Interval bootstrap_mean(const std::vector<double>& values, std::int64_t resamples,
                        std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto n = static_cast<double>(values.size());
  std::vector<double> means;
  for (std::int64_t r = 0; r < resamples; ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += values[random() % values.size()];
    means.push_back(sum / n);
  }
  std::sort(means.begin(), means.end());
  return {std::accumulate(values.begin(), values.end(), 0.0) / n, percentile(means, 0.025),
          percentile(means, 0.975)};
}

std::optional<Interval> bootstrap_difference(const std::map<std::string, double>& a,
                                             const std::map<std::string, double>& b,
                                             std::int64_t resamples, std::uint64_t seed) {
  std::vector<double> differences;
  for (const auto& [id, score] : b)
    if (const auto found = a.find(id); found != a.end())
      differences.push_back(score - found->second);
  if (differences.empty()) return std::nullopt;
  return bootstrap_mean(differences, resamples, seed);
}

ReportFiles make_report(const std::vector<Json>& json, const ReportOptions& options) {
  if (options.resamples < 100) throw ConfigError("--resamples: must be at least 100");
  const std::vector<Result> results = read_results(json);
  const Grid grid = grid_of(results);
  if (!options.baseline.empty() && !contains(grid.labels, options.baseline))
    throw ConfigError(
        fmt::format("--baseline {}: the results are of {}", options.baseline, listed(grid.labels)));
  const Means means = means_of(grid, options);
  ReportFiles files{{"scores.csv", csv_of(grid, means)},
                    {"scores.svg", bar_chart("Scores in percent", grid.rows, grid.labels, means)}};
  std::string text = fmt::format(
      "# Scores\n\nPercent, with 95 % intervals (bootstrap over examples, {} resamples, seed {}). "
      "Where all examples score\nalike the interval has no width: of few examples (their number is "
      "in scores.csv) it then says nothing.\n\n{}\n![scores](scores.svg)\n",
      options.resamples, options.seed, score_table(grid, means));
  if (!options.baseline.empty()) text += difference_section(grid, options);
  text += em_llm_section(results, grid) + longbench_section(results, grid) +
          cost_section(grid, means) + heat_section(results, files) + origin_sections(results);
  files.emplace_back("report.md", std::move(text));
  return files;
}

ReportFiles curve_plots(const std::vector<std::vector<std::string>>& rows,
                        const std::string& label) {
  const std::vector<std::string> columns{"plot", "line", "x", "y"};
  if (rows.empty() || rows.front() != columns)
    throw FileError(label + ": expected a table with the columns plot, line, x, y");
  std::vector<std::string> names;
  std::vector<std::vector<tools::Line>> plots;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    double at[2];
    for (int i = 0; i < 2; ++i) {
      const std::string& field = rows[r][static_cast<std::size_t>(2 + i)];
      char* end = nullptr;
      at[i] = std::strtod(field.c_str(), &end);
      if (field.empty() || *end != '\0' || !std::isfinite(at[i]))
        throw FileError(fmt::format("{}: row {}: x and y must be numbers", label, r));
    }
    const std::size_t plot = place_of(names, rows[r][0]);
    plots.resize(names.size());
    auto line = std::find_if(plots[plot].begin(), plots[plot].end(),
                             [&](const tools::Line& l) { return l.name == rows[r][1]; });
    if (line == plots[plot].end()) line = plots[plot].insert(line, {rows[r][1], {}});
    line->points.emplace_back(at[0], at[1]);
  }
  ReportFiles files;
  for (std::size_t i = 0; i < names.size(); ++i)
    files.emplace_back(fmt::format("curve_{}.svg", file_part(names[i])),
                       tools::line_chart(names[i], names[i], plots[i]));
  return files;
}

}  // namespace episodic::suites
