// SPDX-License-Identifier: Apache-2.0
// Files of the suites that somebody made to do harm: each is refused in a line of its own, or does
// none.
#include "support/test.hpp"

#include <functional>
#include <string>
#include <vector>

#include "common.hpp"
#include "data/examples.hpp"
#include "data/prompts.hpp"
#include "episodic/base/error.hpp"
#include "make/generate.hpp"
#include "report/report.hpp"
#include "run/prediction_file.hpp"
#include "run/score_file.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;
using namespace episodic::suites;

namespace {

std::string repeated(const std::string& text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string row(const std::string& fields) {
  return "{\"id\": 1, \"pred\": \"1\", \"answers\": [\"1\"]" + fields + "}\n";
}

/// What a call says that throws one of the library's errors; empty if it throws nothing.
std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

/// Fit for a terminal: UTF-8 without control characters, and not endless.
bool is_one_clean_line(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = tools::utf8_length(text, i);
    if (n == 0 || static_cast<unsigned char>(text[i]) < 0x20) return false;
    i += n;
  }
  return text.size() < 1000;
}

struct Hostile {
  const char* what;
  std::string text;
  const char* says;  ///< part of the refusal; "" where the file is taken
};

void check(const std::vector<Hostile>& files,
           const std::function<void(const std::filesystem::path&)>& read) {
  const TempDir dir;
  for (const Hostile& file : files) {
    INFO(file.what);
    const auto path = dir.write("rows.jsonl", file.text);
    const std::string said = refused([&] { read(path); });
    CAPTURE(said.substr(0, 2000));
    CHECK(is_one_clean_line(said));
    if (*file.says == '\0')
      CHECK(said == "");
    else
      CHECK(said.find(file.says) != std::string::npos);
  }
}

ScoreOptions scoring(const std::filesystem::path& preds) {
  ScoreOptions options;
  options.suite = Suite::infinitebench;
  options.task = "passkey";
  options.preds = preds;
  return options;
}

}  // namespace

TEST_CASE("hostile predictions are refused by file and line, or do no harm") {
  const std::string deep = repeated("[", 500'000);
  const std::string control = R"("\u0000\u001b[31m\u202e)" + std::string(5000, 'x') + "\"";
  check(
      {
          {"an extra field of 500,000 lists", row(", \"x\": " + deep), "rows.jsonl:1: nested"},
          {"the same, closed", row(", \"x\": " + deep + repeated("]", 500'000)), "nested more"},
          {"objects as deep", row(", \"x\": " + repeated("{\"a\":", 100'000)), "nested more"},
          {"an id of lists", "{\"id\": " + deep, "nested more"},
          {"a prediction of lists", "{\"id\": 1, \"pred\": " + deep, "nested more"},
          {"a gold answer of lists", "{\"id\": 1, \"pred\": \"\", \"answers\": " + deep,
           "nested more"},
          {"a field twice", row(", \"pred\": \"2\""), "rows.jsonl:1: the key 'pred' stands twice"},
          {"a field twice below", row(", \"seconds\": {\"read\": 1, \"read\": 2}"),
           "'read' stands twice"},
          {"bytes that are no UTF-8", row(", \"x\": \"\xff\xfe\""), "rows.jsonl:1: not valid JSON"},
          {"half a character", row(", \"x\": \"\xe2\x82\""), "not valid JSON"},
          {"a surrogate alone", row(", \"x\": \"\\ud800\""), "not valid JSON"},
          {"UTF-16", std::string("\xff\xfe{\0}\0", 6), "not valid JSON"},
          {"zero bytes", std::string("\0\0\0\0", 4), "not valid JSON"},
          {"NaN", row(", \"length\": NaN"), "not valid JSON"},
          {"a number beyond all", row(", \"length\": 1e999"), "not valid JSON"},
          {"a length that is none", row(", \"length\": 1e300"), "\"length\" must be an integer"},
          {"an id of control characters, twice", "{\"id\": " + control + ", \"pred\": \"\"}\n",
           "no gold answer"},
          {"golds of a control character",
           "{\"id\": " + control + ", \"pred\": \"\", \"answers\": {\"a\": " + control + "}}\n",
           "rows.jsonl: id ??"},
          {"a second line cut off", row("") + "{\"id\": 2, \"pr", "rows.jsonl:2: not valid JSON"},
          {"a mark of byte order, and a line of spaces", "\xef\xbb\xbf" + row("") + "  \r\n", ""},
          {"costs of other kinds", row(", \"seconds\": 3, \"memory\": []"), ""},
          {"costs beyond all",
           row(R"(, "seconds": {"read": "x"}, "read_tokens": 1e300, "new_tokens": 18446744073709551615)"),
           ""},
          {"50,000 keys",
           row(", \"x\": {" +
               [] {
                 std::string all;
                 for (int i = 0; i < 50'000; ++i)
                   all += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
                 return all;
               }() +
               "}"),
           "more than 4096 entries"},
      },
      [](const std::filesystem::path& path) { score_file(scoring(path)); });
}

TEST_CASE("a score names predictions that were cut with nothing right in them") {
  const TempDir dir;
  dir.write("p.jsonl", R"({"id": 1, "pred": "The pass key", "answers": ["7"], "finish": "length"})"
                       "\n"
                       R"({"id": 2, "pred": "7 it", "answers": ["7"], "finish": "length"})"
                       "\n"
                       R"({"id": 3, "pred": "no", "answers": ["7"], "finish": "stop_token"})"
                       "\n"
                       R"({"id": 4, "pred": "no", "answers": ["7"]})"
                       "\n");
  const Json result = score_file(scoring(dir / "p.jsonl"));
  CHECK(result["cut"] == Json::array({"1"}));
  CHECK(score_text(result).find("  1 scored 0 and were cut at the task's limit") !=
        std::string::npos);
}

TEST_CASE("hostile data of a task is refused by file and line") {
  const std::string head = R"({"id": 0, "context": "c", "input": "q", )";
  const std::string id = "\"\\u001b" + std::string(100'000, 'a') + "\"";
  const std::string with_id = "{\"id\": " + id +
                              R"(, "context": "c", "input": "q", "answer": 1})"
                              "\n";
  check({{"an answer of lists", head + "\"answer\": " + repeated("[", 200'000), "nested more"},
         {"an id of 100,000 letters, twice", with_id + with_id, "rows.jsonl:2: the id \"?aaa"},
         {"an option of another kind", head + R"("answer": "A", "options": [{}]})", "\"options\""},
         {"an answer that is an object", head + R"("answer": {"a": 1}})", "\"answer\" must be"}},
        [](const std::filesystem::path& path) { read_infinitebench(path, "math_find"); });
}

TEST_CASE("an input of a million digits asks for a function all the same") {
  Example example;
  example.id = "1";
  const std::string digits(1'000'000, '7');
  example.input = "func_" + digits + " func_12(" + digits + "x func_() func_3(-" + digits + ")";
  CHECK(infinitebench_slots(example, "code_run").at("func") == "func_3");
  CHECK(infinitebench_slots(example, "code_run").at("func_call") == "func_3(-" + digits + ")");
  example.input = "func_1 (2) func_1(-) func_1(2";
  CHECK(refused([&] { infinitebench_slots(example, "code_run"); }).find("has no call") !=
        std::string::npos);
}

TEST_CASE("hostile settings beside predictions are refused") {
  const TempDir dir;
  dir.write("a.jsonl", "{\"id\": 1, \"index\": 0}\n");
  const auto merged = [&](const std::string& settings) {
    dir.write("a.jsonl.settings.json", settings);
    return refused([&] { merge_predictions({dir / "a.jsonl"}, dir / "out.jsonl"); });
  };
  CHECK(merged("[1]").find("must be a JSON object") != std::string::npos);
  CHECK(merged(R"({"examples": 1e18})").find("\"examples\" is 1e+18") != std::string::npos);
  CHECK(merged(R"({"examples": 999999999999})").find("expected an integer") != std::string::npos);
  CHECK(merged(R"({"examples": 1, "later_environments": "x"})") == "");
}

TEST_CASE("files that are no results are refused by what is wrong with them") {
  const auto said = [](const char* text) {
    return refused([&] { make_report({Json::parse(text)}, {}); });
  };
  struct Bad {
    const char *text, *says;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"[]", "result file 1: not of"},
           {R"({"task": 1, "examples": []})", "\"task\" is 1"},
           {R"({"task": "a", "examples": {"b": 1}})", "\"examples\" is {"},
           {R"({"task": "a", "examples": [1]})", "\"score\" is missing"},
           {R"({"task": "a", "examples": [{"score": "1", "id": "1"}]})", "\"score\" is \"1\""},
           {R"({"task": "a", "examples": [{"score": 1, "id": 1}]})", "\"id\" is 1"},
           {R"({"task": "a", "examples": [], "cost": {"event_bytes": 1e300}})",
            "\"event_bytes\" is 1e+300"},
           {R"({"task": "a", "examples": [], "settings": {"question_step": 3}})",
            "\"question_step\" is 3"}}) {
    INFO(bad.text);
    CHECK(said(bad.text).find(bad.says) != std::string::npos);
  }
  // a depth without a number of tokens
  CHECK(said(R"({"suite": "infinitebench", "task": "passkey",
                 "examples": [{"score": 1, "id": "1", "depth": 0.5}]})") == "");
  CHECK(refused([] {
          averages_of({Json::parse(R"({"suite": 1, "task": "a", "score": "x"})")});
        }).find("average: takes result files") != std::string::npos);
}

TEST_CASE("a row to stretch without a text for an answer is refused") {
  for (const char* answer : {"[]", "1", "[[1]]", "null"})
    CHECK_THROWS_AS(stretch_passkey(Json{{"context", "c"}, {"answer", Json::parse(answer)}}, 4),
                    DataError);
}
