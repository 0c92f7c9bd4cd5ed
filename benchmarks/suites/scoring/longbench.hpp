// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// LongBench: its tasks, and the scores of THUDM/LongBench's eval.py and metrics.py.

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scoring/fuzz.hpp"

namespace episodic::suites {

enum class Metric : std::uint8_t {
  qa_f1,
  qa_f1_zh,
  rouge,
  rouge_zh,
  classification,
  retrieval,
  retrieval_zh,
  count,
  code_similarity
};

struct LongBenchTask {
  std::string_view name;
  std::string_view language;  ///< "en", "zh" or "code"
  std::int64_t max_new;       ///< most tokens generated, official and EM-LLM's
  Metric metric;
  bool chat;                    ///< the prompt goes into the model's chat format
  bool first_line;              ///< only the prediction's first line is scored
  bool em_llm;                  ///< one of the 15 tasks of the EM-LLM paper
  std::string_view group;       ///< of the official average
  std::string_view em_column;   ///< column of the EM-LLM paper's table
  std::int64_t examples = 200;  ///< in the released file
};

std::span<const LongBenchTask> longbench_tasks();

/// \param name also with `_e`, of LongBench-E
/// \throws ConfigError listing the tasks
const LongBenchTask& longbench_task(std::string_view name);

// -- metrics of one prediction against one gold answer; all in [0, 1] --

double qa_f1(std::string_view prediction, std::string_view gold);
/// F1 over jieba's words. \throws FileError without jieba's data
double qa_f1_zh(std::string_view prediction, std::string_view gold);
double rouge_score(std::string_view prediction, std::string_view gold);
/// rouge over jieba's words. \throws FileError without jieba's data
double rouge_zh_score(std::string_view prediction, std::string_view gold);
/// \param classes names of all classes, in the order of the data
double classification_score(std::string_view prediction, std::string_view gold,
                            std::span<const std::string> classes);
/// \throws DataError for a gold answer that names no paragraph
double retrieval_score(std::string_view prediction, std::string_view gold);
double retrieval_zh_score(std::string_view prediction, std::string_view gold);
double count_score(std::string_view prediction, std::string_view gold);
double code_similarity_score(std::string_view prediction, std::string_view gold,
                             CodeSimilarity kind);

/// Score of an example: the best over its gold answers.
/// \param classes `all_classes` of the data file's last row
double score_longbench(const LongBenchTask& task, std::string_view prediction,
                       std::span<const std::string> golds, std::span<const std::string> classes,
                       CodeSimilarity kind = CodeSimilarity::difflib);

/// round(100 * mean, 2) of Python; NaN for no scores.
double task_score(std::span<const double> scores);

/// LongBench-E: task scores of lengths below 4000, below 8000, and from there on; NaN where there
/// is no example. \param lengths of the data, one a score
inline constexpr std::array<const char*, 3> kLengthBuckets = {"0-4k", "4-8k", "8k+"};
std::array<double, 3> scores_by_length(std::span<const double> scores,
                                       std::span<const std::int64_t> lengths);

/// The published averages of several tasks' scores.
struct LongBenchAverages {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::map<std::string, double> groups_en, groups_zh;  ///< code counts in both languages
  double overall_en = kNone, overall_zh = kNone;       ///< mean of the group means
  std::map<std::string, double> em_columns;            ///< of the EM-LLM paper's table
  double em_llm = kNone;                               ///< plain mean over its tasks
  /// Tasks that the averages are missing to be those of the papers.
  std::vector<std::string> missing_en, missing_zh, missing_em_llm;
};
LongBenchAverages longbench_averages(const std::map<std::string, double>& scores);

}  // namespace episodic::suites
