// SPDX-License-Identifier: Apache-2.0
// Stories and what people marked: files as they come, and files that are wrong.
#include "analysis/stories.hpp"

#include <fstream>

#include "csv.hpp"
#include "episodic/base/error.hpp"
#include "support/shared.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::analysis;
using episodic::tools::parse_csv;
using Rows = std::vector<std::vector<std::string>>;

namespace stories_test {

std::filesystem::path put(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST_CASE("CSV has quotation marks, commas and line feeds in fields") {
  CHECK(parse_csv("\xEF\xBB\xBF"
                  "a,b\r\n1,\"x, \"\"y\"\"\nz\"\r\n\r\n,\"\"",
                  "t") == Rows{{"a", "b"}, {"1", "x, \"y\"\nz"}, {"", ""}});
  CHECK_THROWS_WITH(parse_csv("a,b\n1,2,3\n", "t.csv"),
                    Catch::Contains("t.csv") && Catch::Contains("row 1 has 3"));
  CHECK_THROWS_WITH(parse_csv("a,b\n1,\"2\n", "t.csv"), Catch::Contains("quotation"));
  CHECK_THROWS_AS(parse_csv("a,b\n", "t.csv"), FileError);
  CHECK_THROWS_AS(parse_csv("", "t.csv"), FileError);
}

TEST_CASE("a story is what was heard, with the place of each clause") {
  const TempDir dir;
  const Story s = read_story(
      put(dir / "tale.csv", "id,clause\n1,\"<GUY> Well, well.\"\n2,So <X> it is.\n3,The end.\n"));
  CHECK(s.name == "tale");
  CHECK(s.text == "Well, well. So  it is. The end.");
  CHECK(s.clauses == std::vector<std::size_t>{0, 12, 23});
  CHECK(read_story(put(dir / "story_other.txt", "  All of it. \n")).text == "All of it.");
  CHECK(read_story(dir / "story_other.txt").name == "other");
  CHECK(read_stories(dir.path()).size() == 2);
  put(dir / "other.csv", "id,clause\n1,Again.\n");
  CHECK_THROWS_WITH(read_stories(dir.path()), Catch::Contains("other"));
  CHECK_THROWS_WITH(read_story(put(dir / "bad.csv", "id,text\n1,x\n")),
                    Catch::Contains("bad.csv") && Catch::Contains("'clause'"));
  CHECK_THROWS_AS(read_story(put(dir / "bad.csv", "id,clause\n1,<GUY\n")), FileError);
  CHECK_THROWS_AS(read_story(put(dir / "bad.csv", "id,clause\n1,<GUY>\n")), FileError);
  CHECK_THROWS_AS(read_stories(dir / "none"), FileError);
}

TEST_CASE("times become words: evenly over the letters, or between known onsets") {
  const TempDir dir;
  const Story even = read_story(put(dir / "a.txt", "one two three four"));
  CHECK(word_at(even, 0, 1000) == 0);
  CHECK(word_at(even, 1000, 1000) == 14);
  CHECK(word_at(even, 250, 1000) == 4);
  CHECK(word_at(even, 5000, 1000) == 14);
  const Story known =
      read_story(put(dir / "b.csv", "id,clause,onset_ms\n1,one two,0\n2,three four,900\n"));
  CHECK(word_at(known, 800, 1000) == 8);  // evenly it would be the last word
  CHECK(word_at(known, 400, 1000) == 4);
  CHECK(word_at(known, 1000, 1000) == 14);
  CHECK_THROWS_AS(read_story(put(dir / "c.csv", "id,clause,onset_ms\n1,a,5\n2,b,4\n")), FileError);

  const std::vector<std::size_t> ends{3, 7, 13};
  CHECK(token_at(ends, 0) == 0);
  CHECK(token_at(ends, 3) == 1);  // a token ends before the byte: the next one holds it
  CHECK(token_at(ends, 6) == 1);
  CHECK(token_at(ends, 13) == 3);
}

TEST_CASE("marks of people: times, ratings of several raters, or a folder of both") {
  const TempDir dir;
  put(dir / "times.json", R"({"Tale": [100, 250.5, 900]})");
  put(dir / "tale_a.csv", "id,clause,agent,place\n1,x,0,0\n2,y,1,1\n");
  put(dir / "tale_b.csv", "\xEF\xBB\xBFid,clause,agent,place\n1,x,0,0\n2,y,1,0\n");
  const auto marks = read_human_marks(dir.path());
  REQUIRE(marks.count("tale") == 1);
  CHECK(marks.at("tale").times_ms == std::vector<double>{100, 250.5, 900});
  CHECK(marks.at("tale").raters == 2);
  CHECK(marks.at("tale").changes == std::vector<double>{0, 1.5});
  CHECK(read_human_marks(dir / "times.json").at("tale").changes.empty());
}

TEST_CASE("marks with wrong columns or values are named by file, row and column") {
  const TempDir dir;
  struct Bad {
    const char *name, *text, *says;
  };
  for (const Bad& bad :
       std::initializer_list<Bad>{{"a.csv", "id,text,agent\n1,x,0\n", "'clause'"},
                                  {"a.csv", "number,clause,agent\n1,x,0\n", "'id'"},
                                  {"a.csv", "id,clause\n1,x\n", "no column beside"},
                                  {"a.csv", "id,clause,agent\n1,x,2\n", "'agent'"},
                                  {"a.csv", "id,clause,agent\n1,x,yes\n", "no number"},
                                  {"a.csv", "id,clause,agent\n1,x,\n", "no number"},
                                  {"a.csv", "id,clause,agent\n1,x,nan\n", "no number"},
                                  {"a.csv", "id,clause,agent\n1,x\n", "row 1 has 2"},
                                  {"a.json", "[1, 2]", "JSON object"},
                                  {"a.json", R"({"Tale": 3})", "no list"},
                                  {"a.json", R"({"Tale": [5, 4]})", "in order"},
                                  {"a.json", R"({"Tale": ["x"]})", "no time"},
                                  {"a.json", "{", "a.json"}}) {
    const auto file = put(dir / bad.name, bad.text);
    INFO(bad.text);
    CHECK_THROWS_WITH(read_human_marks(file), Catch::Contains(bad.says));
    CHECK_THROWS_WITH(read_human_marks(file), Catch::Contains(bad.name));
  }
  put(dir / "tale_a.csv", "id,clause,agent\n1,x,0\n");
  put(dir / "tale_b.csv", "id,clause,agent\n1,x,0\n2,y,0\n");
  std::filesystem::remove(dir / "a.csv");
  std::filesystem::remove(dir / "a.json");
  CHECK_THROWS_WITH(read_human_marks(dir.path()), Catch::Contains("2 clauses"));
  CHECK_THROWS_AS(read_human_marks(dir / "none"), FileError);
}

TEST_CASE("the podcast stories are read whole") {
  const auto shared = shared_dir();
  if (!shared) EPISODIC_SKIP("../shared is not there");
  const auto data = *shared / "data" / "human_events";
  const std::vector<Story> stories = read_stories(data);
  REQUIRE(stories.size() == 2);
  CHECK((stories[0].name == "pieman" && stories[0].clauses.size() == 95));
  CHECK((stories[1].name == "tunnel" && stories[1].clauses.size() == 488));
  for (const Story& s : stories) {
    const Story clean = read_story(data / "stories_clean" / ("story_" + s.name + ".txt"));
    CHECK(s.text == clean.text);
  }
  const auto marks = read_human_marks(data);
  CHECK(marks.at("pieman").times_ms.size() == 18);
  CHECK(marks.at("pieman").raters == 1);
  CHECK(marks.at("tunnel").raters == 2);
  CHECK(marks.at("tunnel").changes.size() == 488);
  CHECK(marks.at("monkey").changes.empty());
}

}  // namespace stories_test
