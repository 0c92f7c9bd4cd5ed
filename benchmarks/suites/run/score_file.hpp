// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Scores of a file of predictions.

#include <filesystem>
#include <string>

#include "data/suite.hpp"
#include "scoring/fuzz.hpp"
#include "scoring/infinitebench.hpp"

namespace episodic::suites {

struct ScoreOptions {
  Suite suite = Suite::infinitebench;
  std::string task;
  std::filesystem::path preds, data;  ///< data may be empty
  Scorer scorer = Scorer::official;   ///< LongBench's are the same in value
  CodeSimilarity code_similarity = CodeSimilarity::difflib;
  bool by_length = false;
  bool drop_first_number = false;
};

/// {"suite", "task", "count", "score" in percent, "per_example" in [0, 1], "examples": [{id, score,
/// depth, tokens}], ...}; docs/benchmarks.md names all keys. \throws Error
Json score_file(const ScoreOptions& options);

/// The same for people.
std::string score_text(const Json& result);

/// The published averages over several results of score_file. \throws ConfigError for results of
/// more than one suite or method, and for a task given twice
Json averages_of(const std::vector<Json>& results);

}  // namespace episodic::suites
