// SPDX-License-Identifier: Apache-2.0
// Files of both suites: what is read, and what is said of a file that is not right.
#include "support/test.hpp"

#include <string>

#include "data/examples.hpp"
#include "data/prompts.hpp"
#include "data/sha256.hpp"
#include "episodic/base/error.hpp"
#include "suites/vectors.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;
using namespace episodic::suites;

namespace {

constexpr const char* kLongBenchRow =
    R"({"input": "q", "context": "c", "answers": ["a"], "length": 3, "all_classes": null, "_id": "x"})";
constexpr const char* kInfiniteRow =
    R"({"id": 0, "context": "c d", "input": "q", "answer": 88, "options": []})";

/// The hashes of prompts filled with the rows of a released or sample file.
void check_hashes(const std::string& hashes, const Template& prompt, const std::string& data,
                  const std::string& task, bool longbench) {
  const auto expected = suite_vectors::json_of("scorers/prompt_sha256.json")
                            .at(hashes)
                            .get<std::vector<std::string>>();
  const auto path = suite_vectors::data_dir() / data;
  const std::vector<Example> rows =
      longbench ? read_longbench(path) : read_infinitebench(path, task);
  REQUIRE(rows.size() == expected.size());
  int different = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto slots = longbench ? longbench_slots(rows[i]) : infinitebench_slots(rows[i], task);
    different += sha256_of(prompt.fill(slots).text()) != expected[i];
  }
  INFO(hashes);
  CHECK(different == 0);
}

}  // namespace

TEST_CASE("a bad line is named by file and number") {
  const TempDir dir;
  const std::string good = kInfiniteRow;
  struct Bad {
    std::string text, names;
  };
  for (const Bad& bad : std::vector<Bad>{
           {good + "\n\n{\"id\": 1\n", "rows.jsonl:3: not valid JSON"},
           {good + good + "\n", "rows.jsonl:1: not valid JSON"},  // two glued together
           {"[1]\n", "rows.jsonl:1: not a JSON object"},
           {R"({"id": 1, "context": "c", "input": "q"})", "rows.jsonl:1: the field \"answer\""},
           {R"({"id": 1, "input": "q", "answer": 1})", "rows.jsonl:1: the field \"context\""},
           {R"({"id": 1, "context": 2, "input": "q", "answer": 1})",
            "\"context\" must be a string"},
           {R"({"id": null, "context": "", "input": "q", "answer": 1})", "\"id\" must be"},
           {R"({"id": 1, "context": "", "input": "q", "answer": null})", "\"answer\" must be"},
           {R"({"id": 1, "context": "", "input": "q", "answer": 1, "options": [1]})",
            "\"options\""}}) {
    INFO(bad.text);
    const auto path = dir.write("rows.jsonl", bad.text);
    CHECK_THROWS_WITH(read_infinitebench(path, "math_find"), Catch::Contains(bad.names));
    CHECK_THROWS_AS(read_infinitebench(path, "math_find"), FileError);
  }
  CHECK_THROWS_AS(read_infinitebench(dir / "none.jsonl", "math_find"), FileError);
  // answers are told apart by the ids of their examples
  CHECK_THROWS_WITH(read_infinitebench(dir.write("twice.jsonl", good + "\n\n" + good), "math_find"),
                    Catch::Contains("twice.jsonl:3: the id \"0\" stands in line 1 too"));
  CHECK_THROWS_WITH(read_longbench(dir.write("empty.jsonl", "\n")),
                    Catch::Contains("empty.jsonl: holds no example"));
  const auto path = dir.write("lb.jsonl", std::string(kLongBenchRow) + "\n" + R"({"input": ""})");
  CHECK_THROWS_WITH(read_longbench(path), Catch::Contains("lb.jsonl:2: the field \"_id\""));
}

TEST_CASE("every shape of an answer is read") {
  const TempDir dir;
  for (const char* answer : {"88", "48.0", "\"x\"", "[\"x\", \"y\"]", "[88]", "[[1, 2]]"}) {
    const auto path = dir.write(
        "rows.jsonl",
        std::string(R"({"id": 7, "content": "c d", "input": "q", "answer": )") + answer + "}");
    const auto rows = read_infinitebench(path, "math_find");
    CHECK(rows.at(0).gold == Json::parse(answer));
    CHECK(rows.at(0).id == "7");
    CHECK(rows.at(0).length == 2);
  }
  const auto choice = [&](const std::string& answer) {
    const auto path = dir.write(
        "rows.jsonl", R"({"id": 7, "context": "c", "input": "q", "options": ["f", "g", "h", "i"],)"
                      "\"answer\": " +
                          answer + "}");
    return read_infinitebench(path, "code_debug").at(0).gold;
  };
  CHECK(choice("\"g\"") == Json{"g", "B"});
  CHECK(choice("[\"i\"]") == Json{"i", "D"});
  CHECK(choice("[\"h\", \"C\"]") == Json{"h", "C"});
  CHECK_THROWS_WITH(choice("\"z\""), Catch::Contains("none of \"options\""));
}

TEST_CASE("predictions of both suites' programs and of ours are read") {
  const TempDir dir;
  const auto official = dir.write(
      "lb.jsonl", R"({"pred": "p", "answers": ["a"], "all_classes": null, "length": 5})"
                  "\n"
                  R"({"pred": "q", "answers": ["b"], "all_classes": ["c"], "length": 6})");
  const Predictions p = read_predictions(official);
  REQUIRE(p.kept.size() == 2);
  CHECK(p.kept[1].text == "q");
  CHECK(p.kept[1].length == 6);
  CHECK(p.kept[1].id == "2");
  const auto infinite =
      dir.write("ib.jsonl", R"({"id": 3, "prediction": "p", "ground_truth": ["a"]})");
  CHECK(read_predictions(infinite).kept.at(0).gold == Json{"a"});
  const auto bare = dir.write("bare.jsonl", R"({"id": 3, "pred": "p"})");
  CHECK_THROWS_WITH(read_predictions(bare), Catch::Contains("bare.jsonl:1: no gold answer"));
  const auto none = dir.write("none.jsonl", R"({"id": 3, "answer": "p"})");
  CHECK_THROWS_WITH(read_predictions(none), Catch::Contains("none.jsonl:1: the field \"pred\""));
}

TEST_CASE("missing, doubled and unknown ids are counted") {
  const TempDir dir;
  std::vector<Example> data(3);
  for (int i = 0; i < 3; ++i) data[static_cast<std::size_t>(i)].id = std::to_string(i);
  data[2].gold = "two";
  const auto path = dir.write("preds.jsonl", R"({"id": 2, "pred": "first"})"
                                             "\n"
                                             R"({"id": 0, "pred": "zero"})"
                                             "\n"
                                             R"({"id": 2, "pred": "again"})"
                                             "\n"
                                             R"({"id": 9, "pred": "nine"})");
  const Predictions p = read_predictions(path, &data);
  CHECK(p.doubled == std::vector<std::string>{"2"});
  CHECK(p.missing == std::vector<std::string>{"1"});
  CHECK(p.unknown == std::vector<std::string>{"9"});
  REQUIRE(p.kept.size() == 2);  // in the data's order
  CHECK(p.kept[0].text == "zero");
  CHECK(p.kept[1].text == "first");
  CHECK(p.kept[1].gold == "two");
}

TEST_CASE("prompts are filled as str.format fills them") {
  const Template t("a {{b}} {context}|{input}", "here");
  const Prompt p = t.fill({{"context", "{input}"}, {"input", "}{"}});
  CHECK(p.document == "a {b} {input}");
  CHECK(p.question == "|}{");
  CHECK(Template("no slots", "here").fill({}).question == "no slots");
  CHECK_THROWS_WITH(t.fill({{"context", ""}}),
                    Catch::Contains("{input}") && Catch::Contains("here"));
  for (const char* bad : {"{", "}", "a } b", "{context"})
    CHECK_THROWS_AS(Template(bad, "here"), ConfigError);
}

TEST_CASE("prompts come from the user's file, by task and family") {
  const TempDir dir;
  const auto flat = dir.write("flat.json", R"({"qasper": "Q {context} {input}"})");
  CHECK(load_template(flat, "", "qasper").text() == "Q {context} {input}");
  CHECK_THROWS_WITH(load_template(flat, "", "trec"),
                    Catch::Contains("flat.json") && Catch::Contains("trec"));
  const auto families =
      dir.write("families.json", R"({"gpt4": {"passkey": "{context}"}, "kimi": {}})");
  CHECK(load_template(families, "gpt4", "passkey").text() == "{context}");
  CHECK_THROWS_WITH(load_template(families, "gpt5", "passkey"), Catch::Contains("gpt4, kimi"));
  CHECK_THROWS_AS(load_template(families, "kimi", "passkey"), FileError);
  CHECK(own_template("passkey").text().find("{context}") == 0);
  CHECK_THROWS_WITH(own_template("qasper"), Catch::Contains("dataset2prompt.json"));
}

TEST_CASE("the official prompts give the published hashes") {
  if (!suite_vectors::have("scorers/prompt_sha256.json")) EPISODIC_SKIP("../shared is not there");
  const auto data = suite_vectors::data_dir();
  const auto longbench = data / "benchmarks/longbench/config/dataset2prompt.json";
  const auto infinite = data / "benchmarks/infinitebench_templates.json";
  const auto em_llm = data / "benchmarks/em_llm/config/dataset2prompt.json";
  for (const char* task : {"multi_news", "passage_retrieval_zh"}) {
    const Template t = load_template(longbench, "", task);
    CHECK(t.published_as(task) == "official");
    check_hashes(std::string("longbench/") + task, t,
                 std::string("benchmarks/longbench/") + task + ".jsonl", task, true);
  }
  for (const char* task :
       {"passkey", "number_string", "kv_retrieval", "math_find", "math_calc", "code_run"}) {
    const std::string rows = std::string("benchmarks/infinitebench_small/") + task + ".jsonl";
    for (const char* family : {"gpt4", "yarn-mistral"}) {
      // The official program hands GPT-4 an expression alone, in an exchange of several turns.
      const bool turns = std::string(family) == "gpt4" && std::string(task) == "math_calc";
      const Template t =
          turns ? Template("{context}", "here") : load_template(infinite, family, task);
      CHECK(t.published_as(task).starts_with("official") != turns);
      check_hashes(std::string("official/") + family + "/" + task, t, rows, task, false);
    }
    // em-llm's math_calc hash is of its prompt with its template's last line, see below
    check_hashes(std::string("em-llm/") + task, load_template(em_llm, "", task), rows, task, false);
  }
  CHECK(own_template("passkey").published_as("passkey").empty());
}
