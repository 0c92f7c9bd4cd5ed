// SPDX-License-Identifier: Apache-2.0
// Regular expressions as Oniguruma reads them (make_pattern_vectors.py): the same spans, or a
// refusal that names the construct, its byte and a remedy.
#include <fmt/format.h>

#include <set>
#include <string>

#include "episodic/base/error.hpp"
#include "support/sampled.hpp"
#include "support/test.hpp"
#include "text/pattern.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;
using text::Pattern;
using text::Span;

namespace pattern_vectors_test {

const Json& pattern_vectors() {
  static const Json v = Json::parse(
      read_file(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors/patterns.json"));
  return v;
}

std::string spans_of(const Pattern& pattern, const std::string& text) {
  std::vector<Span> spans;
  pattern.split(text, spans);
  std::string out;
  for (const Span& s : spans)
    out += fmt::format("{}{}{}", out.empty() ? "" : " ", s.match ? 'm' : 'g', s.end - s.begin);
  return out;
}

/// Compares a list of rows. \return expressions that Oniguruma takes and we refuse
std::set<std::string> check_rows(const Json& rows) {
  std::set<std::string> refused;
  for (const Json& row : rows) {
    const auto expression = row[0].get<std::string>();
    INFO("expression: " << expression);
    try {
      const Pattern pattern = Pattern::regex(expression);
      if (row[1].is_null()) continue;  // Oniguruma takes less than we do
      for (const Json& c : row[1]) {
        const auto text = c[0].get<std::string>();
        INFO("text: '" << text << "'");
        CHECK(spans_of(pattern, text) == c[1].get<std::string>());
      }
    } catch (const DataError& e) {  // gave up
      FAIL_CHECK(e.what());
    } catch (const Error& e) {
      const std::string said = e.what();
      INFO(said);
      CHECK(said.find(" at byte ") != std::string::npos);
      CHECK(said.find("; ") != std::string::npos);
      if (!row[1].is_null()) refused.insert(expression);
    }
  }
  return refused;
}

TEST_CASE("regular expressions: every construct is Oniguruma's, or refused by name") {
  // What Oniguruma takes and we do not; all else of the matrix is the same.
  const std::set<std::string> expected = {"[a-&&b]",
                                          "[a-[b]]",
                                          "[\\x{41-43}]",
                                          "\\p{InCJKUnifiedIdeographs}",
                                          "\\p{In_Basic_Latin}",
                                          "\\X",
                                          "\\y",
                                          "\\Y",
                                          "(?=a\\K)b",
                                          "(?i)(?<=[\u00df])a",
                                          "(?i)(a)\\1",
                                          "(?L)a",
                                          "(*FAIL)a",
                                          "(?<n>a)(?<n>b)\\k<n>",
                                          "(?<n>a)\\k<n+0>",
                                          "(?<n>.)\\g<n>\\k<n>",
                                          "(?<=a+)d",
                                          "(?<=(?:a|bc))d",
                                          "(?<=a(?:b|cd))e",
                                          "(?<=\\R)a",
                                          "(?<=.{1,3})b",
                                          "(?~abc)",
                                          "(a)?(?(1)b|c)",
                                          "(?{x})",
                                          "(?C)a",
                                          "\\x{110000}",
                                          "\\x{d800}",
                                          "\\x{}",
                                          "\\x",
                                          "\\xg",
                                          "\\xc3\\xa9",
                                          "[\\x80-\\xff]",
                                          "\\o{}",
                                          "\\400",
                                          "\\M-a"};
  const std::set<std::string> refused = check_rows(pattern_vectors()["matrix"]);
  for (const std::string& r : refused) {
    INFO(r);
    CHECK(expected.contains(r));
  }
  CHECK(refused.size() == expected.size());
}

TEST_CASE("regular expressions of known tokenizers cut as Oniguruma does") {
  CHECK(check_rows(pattern_vectors()["known"]).empty());
}

TEST_CASE("random regular expressions are Oniguruma's, or refused by name") {
  const Json& rows = pattern_vectors()["random"];
  REQUIRE(rows.size() >= 300);
  Json some = Json::array();
  for (const std::size_t i :
       episodic_test::sampled_range<std::size_t>(0, rows.size(), rows.size() / 3))
    some.push_back(rows[i]);
  const std::set<std::string> refused = check_rows(some);
  std::string list;
  for (const std::string& r : refused) list += r + "\n";
  INFO(list);
  CHECK(refused.size() < some.size() / 20);
}

}  // namespace pattern_vectors_test
