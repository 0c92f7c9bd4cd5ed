// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Result files of `score --json`, as a report needs them.

#include <map>
#include <string>
#include <vector>

#include "data/jsonl.hpp"

namespace episodic::suites {

struct Result {
  std::string suite, task, data;
  /// Names the report's column: "episodic", "episodic em-llm-sm" with a preset, or the file of
  /// predictions where another program made it. Where two results of the same data would have the
  /// same, what their settings differ in is part of it: "episodic, n_mem 64".
  std::string label;
  std::map<std::string, double> scores;  ///< by example id, in [0, 1]
  double percent = 0;                    ///< as the suite rounds it
  struct Cell {
    double depth, tokens, score;
  };
  std::vector<Cell> cells;  ///< of generated rows
  Json cost, settings;      ///< null where another program made the predictions
  Json json;                ///< all of the file
};

/// \throws ConfigError naming what is no result of `score --json`, or one that is there twice
std::vector<Result> read_results(const std::vector<Json>& json);

/// A string of an object, or `otherwise` where there is none.
std::string text_or(const Json& json, const char* key, const std::string& otherwise);

/// The settings of a result that say how it came about, by name: model, limits, scorer, the
/// memory's, ...; not where and when it was made, and not what belongs to the task.
std::map<std::string, std::string> ways_of(const Result& result);

/// A result's row where its task has several data files: passkey-4000.
std::string named_by_data(const Result& result);

/// What files of several lengths have in common, passkey-text of passkey-text-4000.jsonl, and the
/// length, 4000; 0 for a file whose name says none.
std::pair<std::string, double> series_of(const Result& result);

}  // namespace episodic::suites
