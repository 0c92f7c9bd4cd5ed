// SPDX-License-Identifier: Apache-2.0
#include "scoring/longbench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "scoring/jieba.hpp"
#include "scoring/rouge.hpp"
#include "scoring/unicode.hpp"
#include "scoring/words.hpp"

namespace episodic::suites {
namespace {

constexpr std::string_view kSingle = "single-document QA", kMulti = "multi-document QA",
                           kSummary = "summarisation", kFewShot = "few-shot",
                           kSynthetic = "synthetic", kCode = "code";

constexpr std::array<LongBenchTask, 21> kLongBenchTasks{{
    // name, language, max_new, metric, chat, first line, EM-LLM, group, EM-LLM's column[, examples]
    {"narrativeqa", "en", 128, Metric::qa_f1, true, false, true, kSingle, "SQA"},
    {"qasper", "en", 128, Metric::qa_f1, true, false, true, kSingle, "SQA"},
    {"multifieldqa_en", "en", 64, Metric::qa_f1, true, false, true, kSingle, "SQA", 150},
    {"multifieldqa_zh", "zh", 64, Metric::qa_f1_zh, true, false, false, kSingle, ""},
    {"hotpotqa", "en", 32, Metric::qa_f1, true, false, true, kMulti, "MQA"},
    {"2wikimqa", "en", 32, Metric::qa_f1, true, false, true, kMulti, "MQA"},
    {"musique", "en", 32, Metric::qa_f1, true, false, true, kMulti, "MQA"},
    {"dureader", "zh", 128, Metric::rouge_zh, true, false, false, kMulti, ""},
    {"gov_report", "en", 512, Metric::rouge, true, false, true, kSummary, "Sum"},
    {"qmsum", "en", 512, Metric::rouge, true, false, true, kSummary, "Sum"},
    {"multi_news", "en", 512, Metric::rouge, true, false, true, kSummary, "Sum"},
    {"vcsum", "zh", 512, Metric::rouge_zh, true, false, false, kSummary, ""},
    {"trec", "en", 64, Metric::classification, false, true, true, kFewShot, "FSL"},
    {"triviaqa", "en", 32, Metric::qa_f1, false, true, true, kFewShot, "FSL"},
    {"samsum", "en", 128, Metric::rouge, false, true, true, kFewShot, "FSL"},
    {"lsht", "zh", 64, Metric::classification, false, true, false, kFewShot, ""},
    {"passage_count", "en", 32, Metric::count, true, false, false, kSynthetic, ""},
    {"passage_retrieval_en", "en", 32, Metric::retrieval, true, false, true, kSynthetic, "Ret"},
    {"passage_retrieval_zh", "zh", 32, Metric::retrieval_zh, true, false, false, kSynthetic, ""},
    {"lcc", "code", 64, Metric::code_similarity, false, false, true, kCode, "Cod", 500},
    {"repobench-p", "code", 64, Metric::code_similarity, false, false, true, kCode, "Cod", 500},
}};

/// Share of the numbers in the prediction that are the gold's digits; 0 without numbers.
double share_of_numbers(std::u32string_view prediction, std::u32string_view gold) {
  const auto numbers = digit_runs(prediction);
  if (numbers.empty()) return 0;
  const auto right = std::count(numbers.begin(), numbers.end(), gold);
  return static_cast<double>(right) / static_cast<double>(numbers.size());
}

double retrieval(std::string_view prediction, std::string_view gold, std::string_view before) {
  const std::u32string text = to_code_points(gold), label = to_code_points(before);
  for (std::size_t at = 0; (at = text.find(label, at)) != std::u32string::npos; ++at) {
    const std::u32string_view rest = std::u32string_view(text).substr(at + label.size());
    if (rest.empty() || !is_digit(rest.front())) continue;
    return share_of_numbers(to_code_points(prediction), digit_runs(rest).front());
  }
  throw DataError(
      fmt::format("gold answer \"{}\": must be \"{}<number>\"", printable(gold), before));
}

std::string_view first_line(std::string_view text) {
  const std::size_t start = std::min(text.find_first_not_of('\n'), text.size());
  return text.substr(start, text.find('\n', start) - start);
}

/// The words with spaces between them, as the scorer hands Chinese text to `rouge`.
std::u32string spaced(const std::vector<std::u32string_view>& words) {
  std::u32string out;
  for (const std::u32string_view word : words) {
    if (!out.empty()) out.push_back(U' ');
    out += word;
  }
  return out;
}

std::vector<std::u32string> chinese_words(std::string_view text) {
  const std::u32string points = to_code_points(text);
  std::vector<std::u32string> words;
  for (const std::u32string_view word : Jieba::shared().cut(points))
    if (std::u32string kept = normalized_chinese(word); !kept.empty())
      words.push_back(std::move(kept));
  return words;
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return LongBenchAverages::kNone;
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

}  // namespace

std::span<const LongBenchTask> longbench_tasks() { return kLongBenchTasks; }

const LongBenchTask& longbench_task(std::string_view name) {
  std::string_view plain = name;
  if (plain.ends_with("_e")) plain.remove_suffix(2);
  std::string known;
  for (const LongBenchTask& task : kLongBenchTasks) {
    if (task.name == plain) return task;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", task.name);
  }
  throw ConfigError(fmt::format("--task {}: not a LongBench task; there are {}", name, known));
}

double qa_f1(std::string_view prediction, std::string_view gold) {
  return bag_f1(normalized_words(to_code_points(prediction)),
                normalized_words(to_code_points(gold)));
}

double qa_f1_zh(std::string_view prediction, std::string_view gold) {
  return bag_f1(chinese_words(prediction), chinese_words(gold));
}

double rouge_score(std::string_view prediction, std::string_view gold) {
  return rouge_l(to_code_points(prediction), to_code_points(gold));
}

double rouge_zh_score(std::string_view prediction, std::string_view gold) {
  const std::u32string p = to_code_points(prediction), g = to_code_points(gold);
  return rouge_l(spaced(Jieba::shared().cut(p)), spaced(Jieba::shared().cut(g)));
}

double classification_score(std::string_view prediction, std::string_view gold,
                            std::span<const std::string> classes) {
  std::vector<std::string_view> matches;
  for (const std::string& name : classes)
    if (prediction.find(name) != std::string_view::npos) matches.push_back(name);
  // The published loop removes from the list that it walks: the next element is passed over.
  for (std::size_t i = 0; i < matches.size(); ++i) {
    const std::string_view match = matches[i];
    if (match != gold && gold.find(match) != std::string_view::npos)
      matches.erase(std::find(matches.begin(), matches.end(), match));
  }
  if (std::find(matches.begin(), matches.end(), gold) == matches.end()) return 0;
  return 1.0 / static_cast<double>(matches.size());
}

double retrieval_score(std::string_view prediction, std::string_view gold) {
  return retrieval(prediction, gold, "Paragraph ");
}

double retrieval_zh_score(std::string_view prediction, std::string_view gold) {
  return retrieval(prediction, gold, "\xe6\xae\xb5\xe8\x90\xbd");  // the word for paragraph
}

double count_score(std::string_view prediction, std::string_view gold) {
  return share_of_numbers(to_code_points(prediction), to_code_points(gold));
}

double code_similarity_score(std::string_view prediction, std::string_view gold,
                             CodeSimilarity kind) {
  const std::size_t start = std::min(prediction.find_first_not_of('\n'), prediction.size());
  const std::u32string text = to_code_points(prediction.substr(start));
  for (const std::u32string_view line : split_at(text, U'\n')) {
    if (line.find_first_of(U"`#") != std::u32string_view::npos ||
        line.find(U"//") != std::u32string_view::npos)
      continue;
    return fuzz_ratio(line, to_code_points(gold), kind) / 100.0;
  }
  return fuzz_ratio({}, to_code_points(gold), kind) / 100.0;
}

double score_longbench(const LongBenchTask& task, std::string_view prediction,
                       std::span<const std::string> golds, std::span<const std::string> classes,
                       CodeSimilarity kind) {
  if (task.first_line) prediction = first_line(prediction);
  const auto one = [&](std::string_view gold) {
    switch (task.metric) {
      case Metric::qa_f1:
        return qa_f1(prediction, gold);
      case Metric::qa_f1_zh:
        return qa_f1_zh(prediction, gold);
      case Metric::rouge:
        return rouge_score(prediction, gold);
      case Metric::rouge_zh:
        return rouge_zh_score(prediction, gold);
      case Metric::classification:
        return classification_score(prediction, gold, classes);
      case Metric::retrieval:
        return retrieval_score(prediction, gold);
      case Metric::retrieval_zh:
        return retrieval_zh_score(prediction, gold);
      case Metric::count:
        return count_score(prediction, gold);
      case Metric::code_similarity:
        return code_similarity_score(prediction, gold, kind);
    }
    return 0.0;
  };
  double best = 0;
  for (const std::string& gold : golds) best = std::max(best, one(gold));
  return best;
}

double task_score(std::span<const double> scores) {
  if (scores.empty()) return LongBenchAverages::kNone;
  double sum = 0;
  for (const double s : scores) sum += s;
  // printf rounds the binary value itself to even, as Python's round does
  return std::strtod(fmt::format("{:.2f}", 100 * sum / static_cast<double>(scores.size())).c_str(),
                     nullptr);
}

std::array<double, 3> scores_by_length(std::span<const double> scores,
                                       std::span<const std::int64_t> lengths) {
  std::array<std::vector<double>, 3> buckets;
  for (std::size_t i = 0; i < scores.size(); ++i)
    buckets[lengths[i] < 4000 ? 0 : lengths[i] < 8000 ? 1 : 2].push_back(scores[i]);
  return {task_score(buckets[0]), task_score(buckets[1]), task_score(buckets[2])};
}

LongBenchAverages longbench_averages(const std::map<std::string, double>& scores) {
  LongBenchAverages out;
  std::map<std::string, std::vector<double>> en, zh, columns;
  std::vector<double> em;
  for (const LongBenchTask& task : kLongBenchTasks) {
    const std::string name(task.name), group(task.group);
    const auto found = scores.find(name);
    const bool there = found != scores.end();
    if (task.language != "zh") {
      if (there)
        en[group].push_back(found->second);
      else
        out.missing_en.push_back(name);
    }
    if (task.language != "en") {
      if (there)
        zh[group].push_back(found->second);
      else
        out.missing_zh.push_back(name);
    }
    if (task.em_llm) {
      if (there)
        em.push_back(found->second), columns[std::string(task.em_column)].push_back(found->second);
      else
        out.missing_em_llm.push_back(name);
    }
  }
  const auto means = [](const std::map<std::string, std::vector<double>>& of,
                        std::map<std::string, double>& to) {
    std::vector<double> all;
    for (const auto& [name, values] : of) all.push_back(to[name] = mean(values));
    return mean(all);
  };
  out.overall_en = means(en, out.groups_en);
  out.overall_zh = means(zh, out.groups_zh);
  means(columns, out.em_columns);
  out.em_llm = mean(em);
  return out;
}

}  // namespace episodic::suites
