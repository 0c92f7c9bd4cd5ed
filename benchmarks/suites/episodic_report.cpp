// SPDX-License-Identifier: Apache-2.0
// `episodic-report`: results of longbench and infinitebench side by side.

#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "common.hpp"
#include "csv.hpp"
#include "episodic/base/error.hpp"
#include "report/report.hpp"

int main(int argc, char** argv) {
  using namespace episodic;
  std::vector<std::filesystem::path> files;
  std::filesystem::path out, json, curves;
  suites::ReportOptions options;
  tools::CommonFlags common;
  tools::CommandLine app{"Tables and plots of results of `score --json`", "episodic-report"};
  app.footer(
      "Writes report.md, scores.csv, scores.svg, and for generated tasks heat maps of depth and "
      "length.\n\nExample:\n  episodic-report --out report --baseline window scores/*.json");
  const tools::Option results = app.option("results", files, "Result files");
  app.option("--curves", curves,
             "Instead: a table (CSV) with columns plot, line, x and y; writes a plot for each")
      .excludes(results);
  app.option("--out", out, "Folder for the report").required();
  app.option("--baseline", options.baseline,
             "Method that the others are compared with, example by example");
  app.option("--resamples", options.resamples, "Of the bootstrap");
  app.option("--seed", options.seed, "Of the bootstrap");
  app.option("--json", json, "Names of the files written, as JSON; - is stdout");
  common.add_to(app, false);
  try {
    if (!app.parse(argc, argv)) return 0;
    if (curves.empty() && files.empty()) throw tools::UsageError("results or --curves is required");
    std::vector<suites::Json> read;
    for (const auto& file : files) read.push_back(tools::read_json(file));
    const suites::ReportFiles written =
        curves.empty()
            ? suites::make_report(read, options)
            : suites::curve_plots(tools::parse_csv(tools::read_text(curves), curves.string()),
                                  curves.string());
    std::error_code error;
    std::filesystem::create_directories(out, error);
    if (error)
      throw FileError(fmt::format("{}: cannot be made ({})", out.string(), error.message()));
    tools::Json names = tools::Json::array();
    for (const auto& [name, text] : written) {
      tools::write_text(out / name, text);
      names.push_back((out / name).string());
    }
    if (!json.empty())
      tools::write_json(json == "-" ? std::filesystem::path() : json, {{"files", names}});
    if (json != "-")
      std::fputs(
          fmt::format("{} files: {}\n", written.size(), (out / written.front().first).string())
              .c_str(),
          stdout);
  } catch (const tools::UsageError& e) {
    return app.refuse(e);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "episodic-report: %s\n", tools::on_one_line(e).c_str());
    return 1;
  }
  return tools::finished("episodic-report");
}
