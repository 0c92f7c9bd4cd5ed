// SPDX-License-Identifier: Apache-2.0
// Generated rows: built as released rows are, and drawn as the official script draws.
#include "support/test.hpp"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "episodic/base/error.hpp"
#include "make/generate.hpp"
#include "scoring/infinitebench.hpp"
#include "suites/vectors.hpp"

using namespace episodic;
using namespace episodic::suites;

namespace {

std::int64_t words(const std::string& text) {
  std::istringstream in(text);
  std::int64_t n = 0;
  for (std::string w; in >> w;) ++n;
  return n;
}

std::vector<Json> make(MakeOptions options) {
  std::vector<Json> rows;
  make_rows(options, words, [&](Json row) { rows.push_back(std::move(row)); });
  return rows;
}

MakeOptions options_of(const std::string& task, std::int64_t tokens, std::int64_t count) {
  MakeOptions o;
  o.task = task;
  o.tokens = tokens;
  o.count = count;
  return o;
}

std::vector<Json> sample(const std::string& task) {
  return suite_vectors::rows_of("benchmarks/infinitebench_small/" + task + ".jsonl");
}

/// All matches of a pattern's first group.
std::vector<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex re(pattern);
  std::vector<std::string> all;
  for (std::sregex_iterator it(text.begin(), text.end(), re), end; it != end; ++it)
    all.push_back((*it)[1]);
  return all;
}

/// The program in a row of code_run, read back.
Program program_of(const Json& row) {
  const auto context = row["context"].get<std::string>(), input = row["input"].get<std::string>();
  const std::regex re(
      R"(def func_(\d+)\(x\):\n    return (?:x|func_(\d+)\(x\))(?: ([+-]) (\d+))?\n)");
  Program p;
  for (std::sregex_iterator it(context.begin(), context.end(), re), end; it != end; ++it) {
    const std::smatch& m = *it;
    const std::int64_t add = m[4].matched ? std::stoll(m[4]) : 0;
    p.functions.push_back(
        {std::stoll(m[1]), m[2].matched ? std::stoll(m[2]) : -1, m[3] == "-" ? -add : add});
  }
  std::smatch call;
  std::regex_search(input, call, std::regex(R"(func_(\d+)\((-?\d+)\))"));
  p.called = std::stoll(call[1]);
  p.argument = std::stoll(call[2]);
  return p;
}

Expression expression_of(const std::string& context) {
  std::istringstream in(context);
  Expression e;
  in >> e.start;
  std::string sign;
  for (std::int64_t x = 0; in >> sign >> x;) e.steps.push_back({sign == "+", x});
  return e;
}

/// Fields that a released row has, in our row.
void check_equal(const Json& ours, const Json& theirs) {
  for (const auto& [name, value] : theirs.items())
    if (name != "id") {
      INFO(name);
      CHECK(ours.at(name) == value);
    }
}

}  // namespace

TEST_CASE("rows are built as those of the released kind") {
  if (!suite_vectors::have("benchmarks/infinitebench_small"))
    EPISODIC_SKIP("../shared is not there");
  int rows = 0;
  for (const Json& row : sample("passkey")) {
    const auto context = row["context"].get<std::string>();
    check_equal(
        passkey_row(Haystack::noise(), 326,
                    static_cast<std::int64_t>(context.find("The pass key") / 90), row["answer"][0]),
        row);
    ++rows;
  }
  for (const Json& row : sample("number_string")) {
    const auto context = row["context"].get<std::string>();
    check_equal(number_string_row(Haystack::noise(), 326,
                                  static_cast<std::int64_t>(context.find("The sequence") / 90),
                                  row["answer"]),
                row);
    ++rows;
  }
  for (const Json& row : sample("kv_retrieval")) {
    const auto context = row["context"].get<std::string>();
    const auto keys = matches(context, R"re("([^"]+)": ")re"),
               values = matches(context, R"re(": "([^"]+)")re");
    REQUIRE(keys.size() == values.size());
    KeyValues pairs;
    for (std::size_t i = 0; i < keys.size(); ++i) pairs.emplace_back(keys[i], values[i]);
    const auto gold =
        std::find(values.begin(), values.end(), row["answer"].get<std::string>()) - values.begin();
    check_equal(kv_row(pairs, static_cast<std::size_t>(gold)), row);
    ++rows;
  }
  for (const Json& row : sample("math_find")) {
    static const std::vector<std::string> kKinds = {
        "The largest",         "The second largest", "The third largest", "The smallest",
        "The second smallest", "The third smallest", "The median"};
    const auto input = row["input"].get<std::string>();
    std::size_t kind = 0;
    while (input.find(kKinds[kind]) == std::string::npos) ++kind;
    check_equal(math_find_row(
                    Json::parse(row["context"].get<std::string>()).get<std::vector<std::int64_t>>(),
                    static_cast<Extreme>(kind)),
                row);
    ++rows;
  }
  for (const Json& row : sample("math_calc")) {
    check_equal(math_calc_row(expression_of(row["context"])), row);
    ++rows;
  }
  for (const Json& row : sample("code_run")) {
    check_equal(code_run_row(program_of(row)), row);
    ++rows;
  }
  CHECK(rows == 137);
}

TEST_CASE("EM-LLM's long passkey has the published lengths") {
  const Json released = passkey_row(Haystack::noise(), 5220, 2610, "12345");
  REQUIRE(words(released["context"]) == 99192);
  const std::map<std::int64_t, std::pair<std::int64_t, std::size_t>> published = {
      {256, {202229, 957929}}, {1024, {808956, 3831899}}, {10240, {8089585, 38319089}}};
  for (const auto& [thousands, size] : published) {
    const Json row = stretch_passkey(released, thousands);
    const auto context = row["context"].get<std::string>();
    CHECK(words(context) == size.first);
    CHECK(context.size() == size.second);
    const double depth =
        static_cast<double>(context.find("The pass key")) / static_cast<double>(context.size());
    CHECK(depth == Approx(0.5).margin(0.001));
    CHECK(row["answer"] == released["answer"]);
  }
  CHECK_THROWS_WITH(stretch_passkey(released, 100), Catch::Contains("100 thousand"));
  Json other = released;
  other["answer"] = Json{"54321"};
  CHECK_THROWS_AS(stretch_passkey(other, 256), DataError);
}

TEST_CASE("a context has as many tokens as fit") {
  for (const char* task :
       {"passkey", "number_string", "kv_retrieval", "math_find", "math_calc", "code_run"})
    for (const std::int64_t tokens : {400, 5000}) {
      INFO(task << " " << tokens);
      const auto rows = make(options_of(task, tokens, 7));
      REQUIRE(rows.size() == 7);
      for (const Json& row : rows) {
        const std::int64_t n = words(row["context"]);
        CHECK(n == row["tokens"]);
        CHECK(n <= tokens);
        CHECK(n >=
              tokens - (std::string(task) == "code_run" ? 80 : 40));  // a line, or ten functions
      }
    }
}

TEST_CASE("depth is where the needle lies") {
  for (const double depth : {0.0, 0.25, 1.0})
    for (const char* task : {"passkey", "number_string", "kv_retrieval"}) {
      MakeOptions o = options_of(task, 4000, 2);
      o.depth = depth;
      for (const Json& row : make(o)) {
        const Json& answer = row["answer"];
        const auto value = (answer.is_array() ? answer[0] : answer).get<std::string>();
        const auto context = row["context"].get<std::string>();
        const double found =
            static_cast<double>(context.find(value)) / static_cast<double>(context.size());
        CHECK(found == Approx(depth).margin(0.01));
        CHECK(row["depth"].get<double>() == Approx(depth).margin(0.01));
      }
    }
  const auto spread = make(options_of("passkey", 1000, 3));
  CHECK(spread[0]["depth"] == 0.0);
  CHECK(spread[1]["depth"] == 0.5);
  CHECK(spread[2]["depth"] == 1.0);
}

TEST_CASE("the seed alone decides what is drawn") {
  for (const char* task : {"passkey", "kv_retrieval", "math_find", "math_calc", "code_run"}) {
    MakeOptions o = options_of(task, 500, 3);
    const auto first = make(o), again = make(o);
    CHECK(first == again);
    CHECK(first[0] != first[1]);
    o.seed = 2;
    CHECK(make(o) != first);
  }
}

TEST_CASE("needles lie in any text") {
  MakeOptions o = options_of("passkey", 100, 1);
  o.haystack = {{"One line.\n", "Another one.\n"}};
  const auto context = make(o)[0]["context"].get<std::string>();
  CHECK(context.rfind("One line.\nAnother one.\nOne line.\n", 0) == 0);
  CHECK(context.find("is the pass key.\n") != std::string::npos);
}

TEST_CASE("draws are distributed as the official script's") {
  Draw draw(11);
  // digits with runs: 5 random ones, each later one a copy of one before it
  int equal_neighbours = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string s = random_digit_string(draw);
    REQUIRE(s.size() == 10);
    for (std::size_t k = 1; k < s.size(); ++k) equal_neighbours += s[k] == s[k - 1];
  }
  CHECK(equal_neighbours / 2000.0 == Approx(5 + 4 * 0.1).margin(0.1));
  const std::string uuid = random_uuid(draw);
  CHECK(std::regex_match(
      uuid, std::regex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")));
  std::map<std::int64_t, int> digits;
  for (int i = 0; i < 20000; ++i) ++digits[draw.between(0, 9)];
  for (const auto& [d, n] : digits) CHECK(n == Approx(2000).margin(200));

  // expressions stay in [0, 99]; half of the steps add
  std::int64_t plus = 0, steps = 0;
  for (int i = 0; i < 50; ++i) {
    const Expression e = random_expression(draw, 200);
    std::int64_t v = e.start;
    for (const auto& step : e.steps) {
      v += step.plus ? step.operand : -step.operand;
      REQUIRE(v >= 0);
      REQUIRE(v <= 99);
      plus += step.plus;
      ++steps;
    }
  }
  CHECK(static_cast<double>(plus) / static_cast<double>(steps) == Approx(0.5).margin(0.02));

  // of three numbers the largest is drawn anew in [79, 99]; so it is one of those, or a second one
  int high = 0;
  for (int i = 0; i < 500; ++i) {
    const auto n = random_numbers(draw, Extreme::largest, 3);
    high += *std::max_element(n.begin(), n.end()) >= 79;
    const auto low = random_numbers(draw, Extreme::smallest, 3);
    REQUIRE(*std::min_element(low.begin(), low.end()) <= 19);
  }
  CHECK(high == 500);
}

TEST_CASE("calls run through as many functions as the row's level says") {
  const auto rows = make(options_of("code_run", 2000, 10));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Program p = program_of(rows[i]);
    std::map<std::int64_t, Function> by_id;
    for (const Function& f : p.functions) by_id[f.id] = f;
    CHECK(by_id.size() == p.functions.size());
    CHECK(by_id.rbegin()->first <= 2 * static_cast<std::int64_t>(p.functions.size()) + 20);
    std::size_t depth = 1;
    std::int64_t value = p.argument;
    for (std::int64_t id = p.called;; id = by_id.at(id).callee, ++depth) {
      value += by_id.at(id).add;
      REQUIRE(by_id.at(id).add >= -12);
      REQUIRE(by_id.at(id).add <= 17);
      if (by_id.at(id).callee < 0) break;
    }
    CHECK(depth == 2 * (1 + i / 2));
    CHECK(rows[i]["answer"] == value);
    CHECK(score_infinitebench(infinitebench_task("code_run"), std::to_string(value),
                              rows[i]["answer"])
              .score == 1);
  }
}

TEST_CASE("what cannot be generated is refused") {
  CHECK_THROWS_WITH(make(options_of("code_debug", 100, 1)),
                    Catch::Contains("passkey, number_string"));
  CHECK_THROWS_WITH(make(options_of("passkey", 10, 1)), Catch::Contains("--tokens 10"));
  MakeOptions o = options_of("math_calc", 100, 1);
  o.depth = 0.5;
  CHECK_THROWS_WITH(make(o), Catch::Contains("--depth"));
}
