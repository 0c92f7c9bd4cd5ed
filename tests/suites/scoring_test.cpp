// SPDX-License-Identifier: Apache-2.0
// The scorers against what the published programs gave, bit for bit.
#include "support/test.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "scoring/fuzz.hpp"
#include "scoring/infinitebench.hpp"
#include "scoring/jieba.hpp"
#include "scoring/longbench.hpp"
#include "scoring/python_random.hpp"
#include "scoring/rouge.hpp"
#include "scoring/unicode.hpp"
#include "suites/vectors.hpp"

using namespace episodic;
using namespace episodic::suites;
using namespace suite_vectors;

namespace {

bool have_jieba() {
  try {
    Jieba::find();
    return true;
  } catch (const FileError&) {
    return false;
  }
}

std::vector<std::string> strings(const Json& list) { return list.get<std::vector<std::string>>(); }

/// One row of longbench_metric_edge_cases.json.
double edge_case(const Json& row) {
  const auto metric = row["metric"].get<std::string>();
  const auto pred = row["pred"].get<std::string>(), gold = row["gold"].get<std::string>();
  if (metric == "classification_score")
    return classification_score(pred, gold, strings(row["all_classes"]));
  if (metric == "count_score") return count_score(pred, gold);
  if (metric == "retrieval_score") return retrieval_score(pred, gold);
  if (metric == "retrieval_zh_score") return retrieval_zh_score(pred, gold);
  if (metric == "code_sim_score") return code_similarity_score(pred, gold, CodeSimilarity::difflib);
  if (metric == "qa_f1_score") return qa_f1(pred, gold);
  if (metric == "qa_f1_zh_score") return qa_f1_zh(pred, gold);
  throw std::runtime_error(metric);
}

}  // namespace

TEST_CASE("text is lower-cased and cut as Python does it") {
  const auto low = [](std::u32string_view s) { return lower(s); };
  CHECK(low(U"AbC") == U"abc");
  CHECK(low(U"\u0130x") == U"i\u0307x");
  CHECK(low(U"\u039f\u03a3 \u03a3\u039f\u03a3.") == U"\u03bf\u03c2 \u03c3\u03bf\u03c2.");
  CHECK(low(U"\u03a3") == U"\u03c3");
  CHECK(upper(U"stra\u00dfe \u00e9") == U"STRASSE \u00c9");
  CHECK(split_words(U"\u3000a\u00a0b\x1c c\u200b").size() == 3);  // U+200B is no space
  CHECK(split_at(U"a..b", U'.').size() == 3);
  CHECK(strip(U" \u2003x\n") == U"x");
  CHECK(digit_runs(U"1a\u0663\u0664,5").size() == 3);
  CHECK(digit_value(U'\u0664') == 4);
  CHECK(digit_value(U'\U0001d7d9') == 1);  // the second of five alphabets of digits in a row
  CHECK(to_utf8(to_code_points("\xc3\xa9\xff!")) == "\xc3\xa9\xef\xbf\xbd!");
}

TEST_CASE("int() of Python") {
  CHECK(python_int(U"-11") == -11);
  CHECK(python_int(U" +1_000 ") == 1000);
  CHECK(python_int(U"\uff15") == 5);
  for (const auto* none :
       {U"", U"-", U"1__0", U"_1", U"1_", U"4.0", U"4!", U"0x1", U"- 1", U"99999999999999999999"})
    CHECK_FALSE(python_int(none));
}

/// Both measures of one sentence each, by the whole table of lengths.
struct PlainRouge {
  double distinct = 0, counted = 0;
};

PlainRouge plain_rouge(const std::vector<int>& hyp, const std::vector<int>& ref) {
  const std::size_t n = ref.size(), m = hyp.size();
  std::vector<std::vector<int>> length(n + 1, std::vector<int>(m + 1, 0));
  for (std::size_t i = 1; i <= n; ++i)
    for (std::size_t j = 1; j <= m; ++j)
      length[i][j] = ref[i - 1] == hyp[j - 1] ? length[i - 1][j - 1] + 1
                                              : std::max(length[i - 1][j], length[i][j - 1]);
  const auto path = [&](bool ties_shorten_hyp) {
    std::vector<int> words;
    for (std::size_t i = n, j = m; i > 0 && j > 0;) {
      const int up = length[i - 1][j], left = length[i][j - 1];
      if (ref[i - 1] == hyp[j - 1])
        words.push_back(ref[i - 1]), --i, --j;
      else if (up > left || (up == left && !ties_shorten_hyp))
        --i;
      else
        --j;
    }
    return words;
  };
  const auto different = [](const std::vector<int>& words) {
    return static_cast<double>(std::set<int>(words.begin(), words.end()).size());
  };
  PlainRouge out;
  const double common = different(path(true));
  const double recall = common / different(ref), precision = common / different(hyp);
  out.distinct = 2.0 * ((precision * recall) / (precision + recall + 1e-8));
  const auto hits = static_cast<double>(path(false).size());  // each word of it is in both texts
  const double p = hits / static_cast<double>(m), r = hits / static_cast<double>(n);
  out.counted = hits == 0 ? 0 : 2 * p * r / (p + r);
  return out;
}

std::u32string sentence(const std::vector<int>& words) {
  std::string text;
  for (const int word : words) text += "w" + std::to_string(word) + " ";
  return to_code_points(text);
}

TEST_CASE("a common subsequence in bits is the one that the whole table gives") {
  std::mt19937 random(7);
  const auto drawn = [&](std::size_t n, int vocabulary) {
    std::vector<int> words(n);
    for (int& word : words) word = static_cast<int>(random() % static_cast<unsigned>(vocabulary));
    return words;
  };
  const std::pair<std::size_t, std::size_t> sizes[] = {
      {1, 1},     {1, 64},    {63, 65},     {64, 64},    {65, 127}, {128, 1},
      {200, 300}, {31, 1000}, {3000, 3100}, {3500, 2900}};  // the last two in several parts
  for (const auto& [n, m] : sizes)
    for (const int vocabulary : {1, 2, 3, 40, 2000}) {
      const std::vector<int> hyp = drawn(n, vocabulary), ref = drawn(m, vocabulary);
      const PlainRouge plain = plain_rouge(hyp, ref);
      CAPTURE(n, m, vocabulary);
      CHECK(rouge_l(sentence(hyp), sentence(ref)) == plain.distinct);
      CHECK(rouge_lsum(sentence(hyp), sentence(ref)) == plain.counted);
    }
}

TEST_CASE("ROUGE of long sentences takes memory in proportion to them") {
  std::mt19937 random(8);
  std::vector<int> words(60'000);
  for (int& word : words) word = static_cast<int>(random() % 3000);
  const std::u32string text = sentence(words);
  std::reverse(words.begin(), words.end());
  const std::u32string back = sentence(words);
  const auto peak = [] {  // KiB
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before = peak();
  CHECK(rouge_l(text, text) == Approx(1.0));
  CHECK(rouge_lsum(text, text) == 1.0);
  CHECK(rouge_lsum(text, back) < 0.2);
  CHECK(peak() - before < 200 * 1024);  // the table of lengths would have taken 14 GB
}

TEST_CASE("ROUGE-L is that of Python's rouge") {
  if (!have("scorers/rouge_l_pltrdy_vectors.jsonl")) EPISODIC_SKIP("../shared is not there");
  int n = 0, different = 0;
  for (const Json& row : rows_of("scorers/rouge_l_pltrdy_vectors.jsonl")) {
    ++n;
    different += rouge_score(row["pred"].get<std::string>(), row["ref"].get<std::string>()) !=
                 row["rouge_score"].get<double>();
  }
  CHECK(n == 500);
  CHECK(different == 0);
}

TEST_CASE("ROUGE-L of texts without words") {
  CHECK(rouge_l(U"", U"a") == 0);
  CHECK(rouge_l(U"...", U"a") == 0);
  CHECK(rouge_l(U"a", U"") == 0);
  // two sentences of spaces share the empty word
  CHECK(rouge_l(U" ", U" ") == Approx(1.0));
  CHECK(rouge_lsum(U"", U"a") == 0);
  CHECK(rouge_lsum(U"?", U"!") == 0);
}

TEST_CASE("fuzz.ratio is difflib's") {
  if (!have("scorers/fuzz_ratio_difflib_vectors.jsonl")) EPISODIC_SKIP("../shared is not there");
  int n = 0, different = 0;
  for (const Json& row : rows_of("scorers/fuzz_ratio_difflib_vectors.jsonl")) {
    const auto a = to_code_points(row["a"].get<std::string>());
    const auto b = to_code_points(row["b"].get<std::string>());
    ++n;
    different += difflib_ratio(a, b) != row["difflib"].get<double>() ||
                 fuzz_ratio(a, b, CodeSimilarity::difflib) != row["ratio"].get<int>();
  }
  CHECK(n == 600);
  CHECK(different == 0);
}

TEST_CASE("the other code similarity counts insertions and deletions") {
  CHECK(levenshtein_ratio(U"x = 1", U"x=1") == 0.75);
  CHECK(levenshtein_ratio(U"abcd", U"dabc") == 0.75);
  CHECK(levenshtein_ratio(U"", U"") == 1.0);
  CHECK(fuzz_ratio(U"", U"a", CodeSimilarity::levenshtein) == 0);
  CHECK(fuzz_ratio(U"", U"", CodeSimilarity::levenshtein) == 100);
  // a substitution costs two
  CHECK(fuzz_ratio(U"abc", U"abd", CodeSimilarity::levenshtein) == 67);
}

TEST_CASE("Chinese words are jieba's") {
  if (!have("scorers/jieba_cut_vectors.jsonl")) EPISODIC_SKIP("../shared is not there");
  if (!have_jieba()) EPISODIC_SKIP("Debian's python3-jieba is not installed");
  int n = 0, different = 0;
  for (const Json& row : rows_of("scorers/jieba_cut_vectors.jsonl")) {
    const std::u32string text = to_code_points(row["text"].get<std::string>());
    std::vector<std::string> words;
    for (const auto word : Jieba::shared().cut(text)) words.push_back(to_utf8(word));
    ++n;
    different += words != strings(row["tokens"]);
  }
  CHECK(n == 316);
  CHECK(different == 0);
}

TEST_CASE("jieba without its data says what to install") {
  CHECK_THROWS_WITH(Jieba("/nonexistent"),
                    Catch::Contains("dict.txt") && Catch::Contains("python3-jieba"));
}

TEST_CASE("LongBench metrics at their edges") {
  if (!have("scorers/longbench_metric_edge_cases.json")) EPISODIC_SKIP("../shared is not there");
  int n = 0;
  for (const Json& row : json_of("scorers/longbench_metric_edge_cases.json")) {
    if (row["metric"] == "qa_f1_zh_score" && !have_jieba()) continue;
    INFO(row.dump());
    CHECK(edge_case(row) == row["score"].get<double>());
    ++n;
  }
  CHECK(n >= 48);
}

TEST_CASE("LongBench-E by length is the published score") {
  if (!have("scorers/longbench_e_allam")) EPISODIC_SKIP("../shared is not there");
  const Json published = json_of("scorers/longbench_e_allam/official_scores.json");
  int tasks = 0;
  for (const LongBenchTask& task : longbench_tasks()) {
    const std::string name(task.name);
    if (!published.contains(name)) continue;
    const std::vector<Json> rows = rows_of("scorers/longbench_e_allam/" + name + ".jsonl");
    std::vector<std::string> classes;
    if (rows.back()["all_classes"].is_array()) classes = strings(rows.back()["all_classes"]);
    for (const CodeSimilarity kind : {CodeSimilarity::difflib, CodeSimilarity::levenshtein}) {
      const std::string key = kind == CodeSimilarity::difflib ? name : name + "_levenshtein";
      if (!published.contains(key)) continue;
      std::vector<double> scores;
      std::vector<std::int64_t> lengths;
      for (const Json& row : rows) {
        scores.push_back(score_longbench(task, row["pred"].get<std::string>(),
                                         strings(row["answers"]), classes, kind));
        lengths.push_back(row["length"].get<std::int64_t>());
      }
      const auto found = scores_by_length(scores, lengths);
      for (std::size_t b = 0; b < found.size(); ++b) {
        INFO(key << " " << kLengthBuckets[b]);
        if (published[key][b].is_null())
          CHECK(std::isnan(found[b]));
        else
          CHECK(found[b] == published[key][b].get<double>());
      }
      ++tasks;
    }
  }
  CHECK(tasks == 14);
}

TEST_CASE("infinity-Bench: every example's official score") {
  if (!have("scorers/infinitebench_chatglm3")) EPISODIC_SKIP("../shared is not there");
  const Json published = json_of("scorers/infinitebench_chatglm3/official_scores.json");
  int tasks = 0;
  for (const InfiniteTask& task : infinitebench_tasks()) {
    const std::string name(task.name);
    REQUIRE(published.contains(name));
    const auto rows = rows_of("scorers/infinitebench_chatglm3/preds_" + name + ".jsonl");
    const auto expected = published[name]["per_example"].get<std::vector<double>>();
    REQUIRE(rows.size() == expected.size());
    int different = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const ExampleScore s = score_infinitebench(task, rows[i]["prediction"].get<std::string>(),
                                                 rows[i]["ground_truth"]);
      different += s.score != expected[i];
    }
    INFO(name);
    CHECK(different == 0);
    ++tasks;
  }
  CHECK(tasks == 12);
}

TEST_CASE("infinity-Bench: both scorers at their edges") {
  if (!have("scorers/infinitebench_scorer_edge_cases.json"))
    EPISODIC_SKIP("../shared is not there");
  for (const Json& row : json_of("scorers/infinitebench_scorer_edge_cases.json")) {
    INFO(row.dump());
    const InfiniteTask& task = infinitebench_task(row["task"].get<std::string>());
    const auto pred = row["pred"].get<std::string>();
    InfiniteScoring how;
    // These two vectors are of the official program with a model called gpt4.
    how.drop_first_number = task.name == "math_calc" && row["official"] == 1.0 &&
                            (row["label"] == Json{4, 8} || row["label"] == Json{{4, 8}});
    const ExampleScore official = score_infinitebench(task, pred, row["label"], how);
    if (row["official"].is_number()) {
      CHECK(official.score == row["official"].get<double>());
      CHECK_FALSE(official.undefined);
    } else {
      CHECK(official.score == 0);
      CHECK(official.undefined);
    }
    how = {Scorer::em_llm, false};
    if (row["em_llm"].is_number()) {
      CHECK(score_infinitebench(task, pred, row["label"], how).score ==
            row["em_llm"].get<double>());
    } else if (task.name == "math_calc" || task.name == "longbook_sum_eng") {
      CHECK_THROWS_AS(score_infinitebench(task, pred, row["label"], how), ConfigError);
    } else {
      const ExampleScore s = score_infinitebench(task, pred, row["label"], how);
      CHECK(s.score == 0);
      CHECK(s.undefined);
    }
  }
}

TEST_CASE("the authors' random letter is Python's") {
  const auto letter = [](const char* name) { return "ABCD"[python_choice(name, 4)]; };
  CHECK(letter("repack_carchive") == 'C');
  CHECK(letter("cmd_gen") == 'C');
  CHECK(letter("Configer._set_option") == 'C');
  CHECK(letter("f") == 'D');
  const InfiniteTask& task = infinitebench_task("code_debug");
  const ExampleScore s =
      score_infinitebench(task, "no idea", Json{"cmd_gen", "C"}, {Scorer::em_llm, false});
  CHECK(s.score == 1);
  CHECK(s.guessed);
  CHECK_FALSE(score_infinitebench(task, "no idea", Json{"cmd_gen", "C"}).guessed);
}

TEST_CASE("answers of every shape that the released files hold") {
  const auto score = [](const char* task, const char* pred, const Json& gold) {
    return score_infinitebench(infinitebench_task(task), pred, gold).score;
  };
  CHECK(score("math_find", "88", Json(88)) == 1);
  CHECK(score("math_find", "48", Json(48.0)) == 1);
  CHECK(score("math_find", "88", Json::array({88})) == 1);
  CHECK(score("math_calc", "4 8", Json::array({Json::array({4, 8})})) == 1);
  CHECK(score("passkey", "123", Json("123")) == 1);
  CHECK(score("longbook_qa_eng", "a dog", Json("dog")) == 1);
  CHECK_THROWS_AS(score("passkey", "1", Json(1)), DataError);
  CHECK_THROWS_AS(score("code_debug", "1", Json("f")), DataError);
  CHECK_THROWS_AS(score("math_calc", "1", Json::array()), DataError);
  CHECK_THROWS_WITH(retrieval_score("1", "Page 1"), Catch::Contains("Page 1"));
}

TEST_CASE("an unknown task lists those there are") {
  CHECK_THROWS_WITH(longbench_task("squad"),
                    Catch::Contains("squad") && Catch::Contains("narrativeqa, qasper"));
  CHECK_THROWS_WITH(infinitebench_task("squad"), Catch::Contains("passkey, number_string"));
  CHECK(longbench_task("trec_e").name == "trec");
}

TEST_CASE("averages are those of the two papers") {
  // EM-LLM with LLaMA-3.1-8B: table 1 of the paper gives 51.58.
  const std::map<std::string, double> em_llm = {
      {"narrativeqa", 26.05}, {"qasper", 44.41},      {"multifieldqa_en", 52.52},
      {"hotpotqa", 54.02},    {"2wikimqa", 45.72},    {"musique", 25.37},
      {"gov_report", 35.04},  {"qmsum", 24.31},       {"multi_news", 27.76},
      {"trec", 71.50},        {"triviaqa", 92.34},    {"samsum", 43.31},
      {"lcc", 67.45},         {"repobench-p", 64.33}, {"passage_retrieval_en", 99.50}};
  const LongBenchAverages a = longbench_averages(em_llm);
  CHECK(a.em_llm == Approx(51.58).margin(0.005));
  CHECK(a.em_columns.at("SQA") == Approx((26.05 + 44.41 + 52.52) / 3));
  CHECK(a.missing_em_llm.empty());
  CHECK(a.missing_en == std::vector<std::string>{"passage_count"});
  CHECK(a.groups_zh.at("code") == Approx((67.45 + 64.33) / 2));
  CHECK(std::isnan(longbench_averages({}).em_llm));
  // The overall score weighs groups, not tasks.
  CHECK(longbench_averages({{"narrativeqa", 10}, {"qasper", 30}, {"lcc", 50}}).overall_en == 35);
}

TEST_CASE("rounding is Python's") {
  CHECK(task_score(std::vector<double>{0.125, 0.0}) == 6.25);
  CHECK(task_score(std::vector<double>{1, 1, 0}) == 66.67);
  CHECK(task_score(std::vector<double>{0.00125}) == 0.12);  // 0.125 is exact: half to even
  CHECK(std::isnan(task_score({})));
}

TEST_CASE("ten thousand predictions are scored in seconds") {
  const std::string pred = "The committee met on the 4th of May; it was decided to go on.";
  const auto start = std::chrono::steady_clock::now();
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    sum += qa_f1(pred, "on the 4th of May") + count_score(pred, "4");
    sum += code_similarity_score(pred, "the committee met in May and it was decided", {});
    sum += rouge_score(pred, "The committee decided to go on. It met in May.");
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(sum > 0);
  CHECK(seconds < 20);  // half a second on an idle machine
}
