// SPDX-License-Identifier: Apache-2.0
// Files of predictions: growing, cut off, sharded, merged, scored, and reported.
#include "support/test.hpp"

#include <cmath>
#include <cstdlib>
#include <set>
#include <string>

#include "common.hpp"
#include "episodic/base/error.hpp"
#include "report/em_llm_table.hpp"
#include "report/report.hpp"
#include "run/prediction_file.hpp"
#include "run/score_file.hpp"
#include "suite_table.hpp"
#include "suites/vectors.hpp"
#include "support/temp_dir.hpp"
#include "svg.hpp"

using namespace episodic;
using namespace episodic::suites;

namespace {

Json row_of(const std::string& id, std::int64_t index, const std::string& pred) {
  return {{"id", id}, {"index", index}, {"pred", pred}, {"answers", Json::array({"12345"})}};
}

/// The variables of the shell that runs the tests, put back at the end.
struct Variable {
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* was = std::getenv(name)) was_ = was, set_ = true;
    ::setenv(name, value, 1);
  }
  ~Variable() {
    if (set_)
      ::setenv(name_, was_.c_str(), 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::string was_;
  bool set_ = false;
};

/// A result as score_file makes it.
Json result_of(const std::string& task, const std::string& method,
               const std::vector<double>& scores, double tokens = 4000) {
  Json examples = Json::array();
  for (std::size_t i = 0; i < scores.size(); ++i)
    examples.push_back({{"id", std::to_string(i)},
                        {"score", scores[i]},
                        {"depth", static_cast<double>(i % 2)},
                        {"tokens", tokens}});
  return {{"suite", "infinitebench"},
          {"task", task},
          {"score", 50.0},
          {"examples", examples},
          {"settings", {{"method", method}, {"data", task + ".jsonl"}}}};
}

std::string file_of(const ReportFiles& files, const std::string& name) {
  for (const auto& [n, text] : files)
    if (n == name) return text;
  FAIL("no file " << name);
  return {};
}

}  // namespace

TEST_CASE("a run goes on where it was cut off") {
  const TempDir dir;
  const auto out = dir / "preds.jsonl";
  const Json settings{{"task", "passkey"}, {"environment", {{"date", "1"}}}};
  {
    PredictionFile file(out, settings);
    CHECK_FALSE(file.has("a"));
    file.append(row_of("a", 0, "1"));
    file.append(row_of("b", 1, "2"));
    CHECK(file.has("b"));
  }
  // a kill in the middle of a line
  dir.write("preds.jsonl", tools::read_text(out) + R"({"id": "c", "ind)");
  {
    PredictionFile file(out, {{"task", "passkey"}, {"environment", {{"date", "2"}}}});
    CHECK(file.has("a"));
    CHECK(file.has("b"));
    CHECK_FALSE(file.has("c"));
    file.append(row_of("c", 2, "3"));
  }
  const auto rows = read_rows(out);
  REQUIRE(rows.size() == 3);
  CHECK(rows[2].text("pred") == "3");
}

TEST_CASE("a file of predictions keeps where its rows were made") {
  const TempDir dir;
  const auto out = dir / "preds.jsonl";
  const auto made = [](const char* commit, const char* date) {
    return Json{{"task", "passkey"}, {"environment", {{"commit", commit}, {"date", date}}}};
  };
  const auto settings = [&] { return tools::read_json(settings_path(out)); };
  PredictionFile(out, made("before any row", "0"));
  PredictionFile(out, made("a", "1")).append(row_of("a", 0, "1"));
  CHECK(settings() == made("a", "1"));
  // a call that adds nothing changes nothing, nor does one at another time
  PredictionFile(out, made("b", "2"));
  PredictionFile(out, made("a", "3")).append(row_of("b", 1, "1"));
  CHECK(settings() == made("a", "1"));
  // rows made elsewhere are said, once
  PredictionFile(out, made("b", "4")).append(row_of("c", 2, "1"));
  PredictionFile(out, made("b", "5")).append(row_of("d", 3, "1"));
  CHECK(settings()["environment"]["commit"] == "a");
  REQUIRE(settings()["later_environments"].size() == 1);
  CHECK(settings()["later_environments"][0] == made("b", "4")["environment"]);
  // and so are those of shards
  PredictionFile(dir / "other", made("c", "6")).append(row_of("e", 4, "1"));
  merge_predictions({out, dir / "other"}, dir / "all");
  const Json all = tools::read_json(settings_path(dir / "all"));
  CHECK(all["environment"]["commit"] == "a");
  REQUIRE(all["later_environments"].size() == 2);
  CHECK(all["later_environments"][1]["commit"] == "c");
}

TEST_CASE("a file made with other settings, or damaged, or in use is refused") {
  const TempDir dir;
  const auto out = dir / "preds.jsonl";
  {
    PredictionFile file(out, {{"method", "full"}});
    file.append(row_of("a", 0, "1"));
    CHECK_THROWS_WITH(PredictionFile(out, {{"method", "full"}}),
                      Catch::Contains("another process"));
  }
  CHECK_THROWS_WITH(PredictionFile(out, {{"method", "episodic"}}), Catch::Contains("\"method\"") &&
                                                                       Catch::Contains("full") &&
                                                                       Catch::Contains("--out"));
  dir.write("preds.jsonl", "{}}\n");
  CHECK_THROWS_WITH(PredictionFile(out, {{"method", "full"}}), Catch::Contains("preds.jsonl:1"));
  CHECK_THROWS_AS(PredictionFile(dir / "none/preds.jsonl", Json::object()), FileError);
}

TEST_CASE("shards are named, and found in the environment of MPI, SLURM and torchrun") {
  CHECK(Shard::parse("1/4").file("x/preds.jsonl") == "x/preds.1-of-4.jsonl");
  CHECK(Shard::parse("0/1").file("preds.jsonl") == "preds.jsonl");
  for (const char* bad : {"4/4", "-1/2", "1", "a/b", "1/0", "1/2/3", ""})
    CHECK_THROWS_WITH(Shard::parse(bad), Catch::Contains("--shard"));
  const char* ranks[][2] = {{"RANK", "WORLD_SIZE"},
                            {"SLURM_PROCID", "SLURM_NTASKS"},
                            {"PMI_RANK", "PMI_SIZE"},
                            {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}};
  for (const auto& [rank, size] : ranks) {
    const Variable r(rank, "2"), s(size, "3");
    const Shard shard = Shard::parse("auto");
    CHECK(shard.part == 2);
    CHECK(shard.of == 3);
  }
}

TEST_CASE("shards are merged in the order of the data") {
  const TempDir dir;
  const Json settings{{"task", "passkey"}, {"examples", 5}};
  for (int part = 0; part < 2; ++part) {
    Json mine = settings;
    mine["shard"] = part;
    PredictionFile file(dir / ("p" + std::to_string(part)), mine);
    for (int i = part; i < 4; i += 2) file.append(row_of(std::to_string(i), i, "x"));
    if (part == 1) file.append(row_of("0", 0, "again"));
  }
  const Json found = merge_predictions({dir / "p1", dir / "p0"}, dir / "all");
  CHECK(found["rows"] == 4);
  CHECK(found["missing"] == 1);
  CHECK(found["missing_index"] == Json::array({4}));
  CHECK(found["doubled"] == Json::array({"0"}));
  const auto rows = read_rows(dir / "all");
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(rows[i].id("id") == std::to_string(i));
  CHECK(tools::read_json(settings_path(dir / "all")) == settings);
  PredictionFile other(dir / "p2", {{"task", "kv_retrieval"}});
  CHECK_THROWS_AS(merge_predictions({dir / "p0", dir / "p2"}, dir / "all"), ConfigError);
}

TEST_CASE("a file's score, and what is said of it") {
  const TempDir dir;
  ScoreOptions options;
  options.task = "passkey";
  options.preds = dir.write("p.jsonl", R"({"id": 0, "pred": "12345", "answers": ["12345"]})"
                                       "\n"
                                       R"({"id": 1, "pred": "1234", "answers": ["12345"]})"
                                       "\n"
                                       R"({"id": 1, "pred": "12345", "answers": ["12345"]})");
  options.data =
      dir.write("d.jsonl", R"({"id": 0, "context": "", "input": "", "answer": "12345"})"
                           "\n"
                           R"({"id": 1, "context": "", "input": "", "answer": "12345"})"
                           "\n"
                           R"({"id": 2, "context": "", "input": "", "answer": "12345"})");
  const Json r = score_file(options);
  CHECK(r["count"] == 2);
  CHECK(r["score"] == 50.0);
  CHECK(r["per_example"] == Json{1.0, 0.0});
  CHECK(r["missing"] == Json::array({"2"}));
  CHECK(r["doubled"] == Json::array({"1"}));
  CHECK(r["score_with_missing_as_zero"].get<double>() == Approx(100.0 / 3));
  const std::string text = score_text(r);
  CHECK(text.find("50.00") != std::string::npos);
  CHECK(text.find("1 of the data's ids have no prediction") != std::string::npos);

  options.preds = dir.write("bad.jsonl", R"({"id": 0, "pred": "1", "answers": 5})");
  options.data.clear();
  CHECK_THROWS_WITH(score_file(options),
                    Catch::Contains("bad.jsonl: id 0") && Catch::Contains("string"));
  options.preds = dir.write("empty.jsonl", "\n");
  CHECK_THROWS_AS(score_file(options), FileError);
  options.task = "nope";
  CHECK_THROWS_WITH(score_file(options), Catch::Contains("kv_retrieval"));
}

TEST_CASE("LongBench files are scored, by length too") {
  if (!suite_vectors::have("scorers/longbench_e_allam")) EPISODIC_SKIP("../shared is not there");
  const Json published = suite_vectors::json_of("scorers/longbench_e_allam/official_scores.json");
  ScoreOptions options;
  options.suite = Suite::longbench;
  options.by_length = true;
  for (const char* task : {"trec", "lcc", "multi_news"}) {
    options.task = task;
    options.preds =
        suite_vectors::data_dir() / "scorers/longbench_e_allam" / (std::string(task) + ".jsonl");
    const Json r = score_file(options);
    CHECK(r["by_length"]["0-4k"] == published[task][0]);
    CHECK(r["by_length"]["8k+"] == published[task][2]);  // null where there is no example
    CHECK(r.dump().find("NaN") == std::string::npos);
  }
}

TEST_CASE("averages over result files") {
  const auto score = [](const char* suite, const char* task, double value) {
    return Json{{"suite", suite}, {"task", task}, {"score", value}};
  };
  const Json a = averages_of({score("longbench", "qasper", 40), score("longbench", "lcc", 60)});
  CHECK(a["overall"]["en"] == 50.0);
  CHECK(a["em_llm"]["columns"]["Cod"] == 60.0);
  CHECK(a["missing"]["em_llm"].size() == 13);
  const Json b = averages_of({score("infinitebench", "passkey", 100)});
  CHECK(b["em_llm"]["average"] == 100.0);
  CHECK(b["missing"]["em_llm"].size() == 5);
  CHECK_THROWS_AS(averages_of({Json::object()}), ConfigError);
  CHECK_THROWS_AS(averages_of({score("none", "niah", 1)}), ConfigError);
  CHECK_THROWS_AS(averages_of({}), ConfigError);
  CHECK_THROWS_AS(averages_of({score("longbench", "lcc", 1), score("longbench", "lcc", 1)}),
                  ConfigError);
  CHECK_THROWS_AS(averages_of({score("longbench", "lcc", 1), score("infinitebench", "passkey", 1)}),
                  ConfigError);
}

TEST_CASE("intervals of the bootstrap") {
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) values.push_back(i % 2);
  const Interval i = bootstrap_mean(values, 4000, 1);
  CHECK(i.mean == 0.5);
  CHECK(i.low == Approx(0.402).margin(0.015));  // 0.5 -+ 1.96 sqrt(0.25 / 100)
  CHECK(i.high == Approx(0.598).margin(0.015));
  CHECK(bootstrap_mean({0.25}, 100, 1).low == 0.25);
  // Pairs: b is better by 0.1 on every example, however those differ among themselves.
  const std::map<std::string, double> a = {{"x", 0.0}, {"y", 0.5}, {"z", 0.9}, {"only a", 0}},
                                      b = {{"x", 0.1}, {"y", 0.6}, {"z", 1.0}, {"only b", 0}};
  const auto d = bootstrap_difference(a, b, 1000, 1);
  REQUIRE(d);
  CHECK(d->low == Approx(0.1));
  CHECK(d->high == Approx(0.1));
  CHECK_FALSE(bootstrap_difference({{"x", 0}}, {{"y", 0}}, 1000, 1));
}

TEST_CASE("a report sets methods side by side") {
  const std::vector<double> all(10, 1.0), half = {1, 0, 1, 0, 1, 0, 1, 0, 1, 0};
  ReportOptions options;
  options.baseline = "window";
  options.resamples = 500;
  const ReportFiles files =
      make_report({result_of("passkey", "episodic", all), result_of("passkey", "window", half),
                   result_of("kv_retrieval", "episodic", half)},
                  options);
  const std::string text = file_of(files, "report.md");
  CHECK(text.find("| task | episodic | window |") != std::string::npos);
  CHECK(text.find("| passkey | 100.0 [100.0, 100.0] | 50.0 [") != std::string::npos);
  CHECK(text.find("| kv_retrieval | 50.0 [") != std::string::npos);
  CHECK(text.find("+50.0 [+") != std::string::npos);
  const std::string csv = file_of(files, "scores.csv");
  CHECK(csv.find("\"passkey\",\"window\",10,50.0000") != std::string::npos);
  const std::string heat = file_of(files, "heat_passkey_window.svg");
  CHECK(heat.find(">4K<") != std::string::npos);
  CHECK(heat.find(">100 %<") != std::string::npos);
  for (const auto& [name, svg] : files)
    if (name.ends_with(".svg")) {
      CHECK(svg.starts_with("<svg"));
      CHECK(svg.ends_with("</svg>\n"));
    }
  // Several data files of a task are rows of their own.
  Json longer = result_of("passkey", "episodic", half);
  longer["settings"]["data"] = "passkey-16000.jsonl";
  const std::string rows =
      file_of(make_report({result_of("passkey", "episodic", all), longer}, {}), "report.md");
  CHECK(rows.find("| passkey | 100.0") != std::string::npos);
  CHECK(rows.find("| passkey-16000 | 50.0") != std::string::npos);
  CHECK_THROWS_WITH(
      make_report({result_of("passkey", "full", all), result_of("passkey", "full", all)}, {}),
      Catch::Contains("two results"));
  options.baseline = "rag";
  CHECK_THROWS_WITH(make_report({result_of("passkey", "full", all)}, options),
                    Catch::Contains("--baseline rag") && Catch::Contains("full"));
  CHECK_THROWS_AS(make_report({Json{{"score", 1}}}, {}), ConfigError);
}

TEST_CASE("a report says how its scores came about, and sets apart what is not alike") {
  const auto with = [](std::int64_t n_mem, const char* scorer, const char* commit) {
    Json r = result_of("passkey", "episodic", {1, 0});
    r["suite"] = "infinitebench";
    r["scorer"] = scorer;
    r["missing"] = Json::array({"7", "8"});
    r["settings"]["data"] = "passkey-4000.jsonl";
    r["settings"]["model"] = "m";
    r["settings"]["memory"] = {{"n_mem", n_mem}, {"n_init", 128}};
    r["settings"]["prompt"] = {{"source", "own wording"}, {"chat_format", false}};
    r["settings"]["max_new"] = 6;
    r["settings"]["limits"] = "official";
    r["settings"]["environment"] = {{"commit", commit}, {"cpu", "c"}, {"date", "2026-01-01T0"}};
    r["cost"] = {{"read_tokens", 100},
                 {"new_tokens", 12},
                 {"seconds", {{"read", 1.0}, {"answer", 2.0}, {"retrieve", 5.0}}},
                 {"read_tokens_per_second", 100.0},
                 {"event_bytes", 0},
                 {"peak_resident_bytes", 1 << 20}};
    return r;
  };
  const auto text = [](const std::vector<Json>& results) {
    return file_of(make_report(results, {}), "report.md");
  };
  // settings of the same method side by side
  const std::string memories = text({with(64, "official", "one"), with(128, "official", "two")});
  CHECK(memories.find("| task | episodic, n_mem 64 | episodic, n_mem 128 |") != std::string::npos);
  CHECK(memories.find("| one | c | 2026-01-01 | 1 |\n| two | c |") != std::string::npos);
  CHECK(memories.find("own wording, raw | official | 6 (official) |") != std::string::npos);
  CHECK(memories.find("several values") == std::string::npos);
  CHECK(memories.find("- passkey-4000, episodic, n_mem 64: 2 without a prediction") !=
        std::string::npos);
  CHECK(memories.find("| episodic, n_mem 64 | m | n_mem 64 | the question |") != std::string::npos);
  // all the seconds, of two examples; and a row for each length
  CHECK(memories.find("| passkey | episodic, n_mem 64 | 50.0 | 4.00 | 100.0 | 6.0 | - |") !=
        std::string::npos);
  CHECK(memories.find("| episodic, n_mem 64, 4K | | | | |") != std::string::npos);
  Json on_device = with(64, "official", "one");
  on_device["settings"]["environment"]["device"] = "d";
  CHECK(text({on_device}).find("| one | d beside c | 2026-01-01 | 1 |") != std::string::npos);
  // of settings that follow from another, that one alone is named
  Json entries = with(64, "official", "one");
  entries["settings"]["entries"] = 256;
  entries["settings"]["memory"]["segmenter"] = "given";
  CHECK(text({with(64, "official", "one"), entries})
            .find("| task | episodic, entries none | episodic, entries 256 |") !=
        std::string::npos);
  // and of two models the model, whose settings differ as well
  Json larger = with(128, "official", "one");
  larger["settings"]["model"] = "n";
  larger["settings"]["memory"]["chunk"] = 512;
  CHECK(text({with(64, "official", "one"), larger})
            .find("| task | episodic, model m | episodic, model n |") != std::string::npos);
  // scores of two kinds
  const std::string scorers = text({with(64, "official", "one"), with(64, "em-llm", "one")});
  CHECK(scorers.find("episodic, scorer em-llm |") != std::string::npos);
  CHECK(scorers.find("several values") != std::string::npos);
  // another program's
  Json theirs{{"suite", "longbench"}, {"task", "qasper"},     {"preds", "them.jsonl"},
              {"score", 40.0},        {"scorer", "official"}, {"examples", Json::array()}};
  theirs["examples"].push_back({{"id", "1"}, {"score", 0.4}});
  const std::string other = text({theirs});
  CHECK(other.find("| task | them.jsonl |") != std::string::npos);
  CHECK(other.find("| them.jsonl | 40.00 | 15 |") != std::string::npos);  // of 16 in English
}

TEST_CASE("a report has the layout of EM-LLM's table, and says what is missing of it") {
  // Two of the three tasks of a column, the last in two files: (20 + (40 + 60) / 2) / 2.
  const std::string table = em_llm_table({{"longbench", "qasper", "episodic", 20, 200},
                                          {"longbench", "narrativeqa", "episodic", 40, 10},
                                          {"longbench", "narrativeqa", "episodic", 60, 10},
                                          {"longbench", "lcc", "window", 10, 500},
                                          {"longbench", "repobench-p", "window", 30, 5},
                                          {"infinitebench", "passkey", "window", 50, 590},
                                          {"infinitebench", "code_run", "episodic", 99, 400},
                                          {"longbench", "passkey", "none", 99, 3},
                                          {"longbench", "lcc_e", "none", 99, 3}});
  CHECK(
      table ==
      "| method | SQA | MQA | Sum | FSL | Ret | Cod | Avg. | C.D | M.F | MC | R.KV | R.P | R.N |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
      "| episodic | 35.0 (2 of 3) | | | | | | 35.0 (2 of 15) | | | | | | |\n"
      "| window | | | | | | 20.0 | 20.0 (2 of 15) | | | | | 50.0 | |\n"
      "\nExamples in a file, of those that were released: qasper 200 of 200, narrativeqa 10 of "
      "200, lcc 500 of 500, repobench-p 5 of 500, passkey 590 of 590.\n");
  CHECK(em_llm_table({{"infinitebench", "code_run", "episodic", 99, 400}}).empty());
  Json result = result_of("passkey", "episodic", {1, 0});
  result["suite"] = "infinitebench";
  CHECK(file_of(make_report({result}, {}), "report.md").find("| 50.0 | |\n\nExamples") !=
        std::string::npos);
}

TEST_CASE("plots leave out what is not there and escape what they are given") {
  const std::string svg =
      tools::heat_map("a < b & c", {"4K"}, {"0 %", "50 %"}, {{100.0}, {std::nullopt}});
  CHECK(svg.find("a &lt; b &amp; c") != std::string::npos);
  CHECK(svg.find(">100<") != std::string::npos);
  std::size_t cells = 0;
  for (std::size_t at = 0; (at = svg.find("rgb(", at)) != std::string::npos; ++at) ++cells;
  CHECK(cells == 1);
  CHECK(tools::bar_chart("t", {"g"}, {"s"}, {{std::nullopt}}).find("#4477aa") != std::string::npos);
}

TEST_CASE("a table of curves is a plot for each of its plots") {
  using Rows = std::vector<std::vector<std::string>>;
  const Rows head{{"plot", "line", "x", "y"}};
  Rows rows = head;
  rows.insert(rows.end(), {{"gamma", "a", "0.5", "-1"},
                           {"gamma", "b", "1", "3"},
                           {"n mem", "a", "64", "2"},
                           {"gamma", "a", "1", "2"}});
  const ReportFiles files = curve_plots(rows, "t.csv");
  REQUIRE(files.size() == 2);
  CHECK(files[0].first == "curve_gamma.svg");
  CHECK(files[1].first == "curve_n_mem.svg");
  const std::string& svg = files[0].second;
  CHECK(svg.find(">b<") != std::string::npos);
  std::size_t curves = 0;
  for (std::size_t at = 0; (at = svg.find("<polyline", at)) != std::string::npos; ++at) ++curves;
  CHECK(curves == 2);
  rows.push_back({"gamma", "a", "2", "many"});
  CHECK_THROWS_WITH(curve_plots(rows, "t.csv"),
                    Catch::Contains("t.csv") && Catch::Contains("row 5"));
  CHECK_THROWS_AS(curve_plots({{"a", "b"}}, "t.csv"), FileError);
}

TEST_CASE("an axis holds its values and zero in a few round steps") {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 100}, {-3, 7}, {0, 0}, {1e-6, 3e-5}, {-20, -1}, {0.9, 1234}}) {
    const tools::Axis a = tools::Axis::around(low, high);
    INFO(low << " " << high << ": " << a.low << " " << a.high << " " << a.step);
    CHECK((a.low <= low && a.low <= 0 && a.high >= high && a.high > 0));
    const double steps = (a.high - a.low) / a.step;
    CHECK((steps >= 1 && steps < 13));
    CHECK(steps == Approx(std::round(steps)));
  }
}

TEST_CASE("every suite is a row of the table, found by its name") {
  std::set<Suite> seen;
  for (const SuiteRow* row : suite_table()) {
    INFO(row->name);
    CHECK(seen.insert(row->suite).second);
    CHECK(suite_named(row->name) == row);
    CHECK(&row_of(row->suite) == row);
    CHECK_NOTHROW(row->check_task(row->example_task));
    CHECK_THROWS_AS(row->check_task("no such task"), ConfigError);
    CHECK(row->max_new(row->example_task, Limits::official) > 0);
    const bool in_paper = row->suite == Suite::longbench || row->suite == Suite::infinitebench;
    REQUIRE((row->em_llm_columns != nullptr) == in_paper);
    if (!in_paper) continue;
    for (const EmLlmColumn& column : row->em_llm_columns())
      for (const EmLlmColumn::Task& task : column.tasks) {
        CHECK(task.suite == row->name);
        CHECK_NOTHROW(row->check_task(std::string(task.name)));
      }
  }
  CHECK(seen == std::set<Suite>{Suite::longbench, Suite::infinitebench, Suite::ruler,
                                Suite::babilong, Suite::needles, Suite::longbench_v2,
                                Suite::longmemeval});
  CHECK(suite_named("none") == nullptr);
}
