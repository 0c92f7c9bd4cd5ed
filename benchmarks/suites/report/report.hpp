// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Results of `score --json` side by side: tables, plots, and how sure the differences are.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/jsonl.hpp"

namespace episodic::suites {

/// A mean with the ends of its 95 % interval.
struct Interval {
  double mean = 0, low = 0, high = 0;
};

/// Percentile bootstrap of the mean. \param values not empty
Interval bootstrap_mean(const std::vector<double>& values, std::int64_t resamples,
                        std::uint64_t seed);

/// The same of the mean difference b - a over the examples that both have; nothing if there are
/// none. Pairs are drawn, not examples of each side: what both find hard cancels out.
std::optional<Interval> bootstrap_difference(const std::map<std::string, double>& a,
                                             const std::map<std::string, double>& b,
                                             std::int64_t resamples, std::uint64_t seed);

struct ReportOptions {
  std::string baseline;  ///< label of the method that others are compared with; may be empty
  std::int64_t resamples = 10000;
  std::uint64_t seed = 1;
};

/// Files of a report by name: report.md, scores.csv, scores.svg, heat_<task>_<method>.svg.
using ReportFiles = std::vector<std::pair<std::string, std::string>>;

/// \param results of score_file; one of the same task, data and method more than once is an error
/// \throws ConfigError naming what is doubled, missing or no result
ReportFiles make_report(const std::vector<Json>& results, const ReportOptions& options);

/// Plots of a table with columns plot, line, x and y: curve_<plot>.svg for each plot, a curve for
/// each line, in the order of the rows. \param label of the table, for messages
/// \throws FileError naming the column or row
ReportFiles curve_plots(const std::vector<std::vector<std::string>>& rows,
                        const std::string& label);

}  // namespace episodic::suites
