// SPDX-License-Identifier: Apache-2.0
// `episodic compare-events` from outside: what it writes, and what it says of bad input.
#include <set>
#include <sstream>

#include "support/test.hpp"
#include "tools/program.hpp"

using namespace program;

namespace compare_events_test {

const std::string kModel = quoted(std::string(EPISODIC_SOURCE_DIR) + "/models/recall-2m6");

/// A table of clauses, and its times.
void put_story(const fs::path& dir) {
  fs::create_directories(dir / "stories");
  std::string csv = "id,clause\n";
  std::istringstream book(some_book(40));
  std::string sentence;
  for (int id = 1; std::getline(book, sentence, '.'); ++id) {
    sentence.erase(0, sentence.find_first_not_of(" \n"));
    for (std::size_t at; (at = sentence.find_first_of("<>")) != std::string::npos;)
      sentence.erase(at, 1);
    if (!sentence.empty()) csv += std::to_string(id) + ",\"<A> " + sentence + ".\"\n";
  }
  put(dir / "stories" / "book.csv", csv);
  put(dir / "times.json", R"({"Book": [9000, 21000, 40000, 52000, 60000]})");
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::istringstream in(contents(file));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("compare-events writes tables, plots and JSON, twice the same") {
  const Scratch dir;
  put_story(dir.path());
  const std::string arguments = "compare-events --quiet --model " + kModel + " --stories " +
                                quoted((dir / "stories").string()) + " --human " +
                                quoted((dir / "times.json").string()) + " --draws 10 --memory " +
                                quoted(kSmallMemory) + " --out ";
  const Json json = json_of(arguments + quoted((dir / "a").string()));
  REQUIRE(json.is_object());
  const Json& story = json["stories"].at(0);
  CHECK(story["name"] == "book");
  CHECK(story["people"].size() == 4);  // the last time is the end
  CHECK(story["heads"].size() == 2 * 2 * 4 * 2);
  CHECK(story["recall"].size() == 4);
  CHECK(story["recall"].at(0)["recalled"] > 0);
  std::set<std::string> methods;
  for (const Json& s : story["segmentations"]) {
    methods.insert(s["method"]);
    CHECK(s["boundaries"].size() > 0);
    CHECK(s["people"].is_object());
    CHECK(s["raters"].is_null());
    if (s["method"] == "F" && s["count"] == "people") CHECK(s["boundaries"].size() == 4);
  }
  CHECK(methods == std::set<std::string>{"F", "FC", "FI", "FM", "G", "K", "S", "SC", "SI", "SM",
                                         "clauses", "people"});
  for (const char* name :
       {"report.md", "segmentations.csv", "layers.csv", "heads.csv", "recall.csv",
        "modularity_people.svg", "distance_surprise.svg", "density_book.svg", "heads_book_KH.svg",
        "layers_book.svg", "recall_alone.svg"}) {
    INFO(name);
    REQUIRE(fs::exists(dir / "a" / name));
    if (std::string(name).ends_with(".svg")) {
      CHECK(contents(dir / "a" / name).starts_with("<svg"));
      CHECK(contents(dir / "a" / name).find("nan") == std::string::npos);
      CHECK(contents(dir / "a" / "report.md").find(name) != std::string::npos);
    }
  }
  const std::vector<std::string> rows = lines_of(dir / "a" / "segmentations.csv");
  CHECK(rows.size() == 1 + story["segmentations"].size());
  for (const std::string& row : rows)
    CHECK(std::count(row.begin(), row.end(), ',') ==
          std::count(rows[0].begin(), rows[0].end(), ','));
  CHECK(lines_of(dir / "a" / "layers.csv").size() == 1 + 4 * story["segmentations"].size());

  REQUIRE(run_episodic(arguments + quoted((dir / "b").string()) + " --threads 1").status == 0);
  for (const char* name : {"segmentations.csv", "heads.csv", "recall.csv"})
    CHECK(contents(dir / "a" / name) == contents(dir / "b" / name));
}

TEST_CASE("compare-events without people, with full attention, cuts at surprise's number") {
  const Scratch dir;
  put(dir / "a.txt", some_book(12));
  const Json json = json_of("compare-events --quiet --full-attention --draws 5 --model " + kModel +
                            " --stories " + quoted((dir / "a.txt").string()) + " --out " +
                            quoted((dir / "out").string()));
  REQUIRE(json.is_object());
  for (const Json& s : json["stories"][0]["segmentations"]) {
    CHECK(s["count"] == "surprise");
    CHECK(s["people"].is_null());
  }
  CHECK(json["stories"][0]["recall"].empty());
  CHECK(!fs::exists(dir / "out" / "distance_surprise.svg"));
}

TEST_CASE("compare-events says in one line what it cannot use") {
  const Scratch dir;
  put_story(dir.path());
  put(dir / "short.txt", "a");
  put(dir / "ratings.csv", "id,clause,wrong\n1,x,maybe\n");
  put(dir / "book_r.csv", "id,clause,agent\n1,x,1\n");
  put(dir / "other.json", R"({"Elsewhere": [1, 2]})");
  const std::string stories = " --stories " + quoted((dir / "stories").string());
  const auto human = [&](const char* name) { return " --human " + quoted((dir / name).string()); };
  struct Bad {
    std::string arguments, says;
    int status = 1;
  };
  for (const Bad& bad : std::vector<Bad>{
           {stories + human("ratings.csv"), "'wrong'"},
           {stories + human("book_r.csv"), "judged 1 clauses"},
           {stories + human("other.json"), "no story"},
           {stories + human("none"), "none"},
           {stories + " --memory '{\"refine_layers\": 9}'", "refine_layers"},
           {" --stories " + quoted((dir / "short.txt").string()), "nothing to segment"},
           {" --stories " + quoted((dir / "none").string()), "none"},
           {stories + " --draws 1", "--draws", 2},
           {stories + " --smoothing 0", "--smoothing", 2},
           {"", "--stories", 2}}) {
    const Run run = run_episodic("compare-events --quiet --model " + kModel + bad.arguments +
                                 " --out " + quoted((dir / "out").string()));
    INFO(bad.arguments << "\n" << run.err);
    CHECK(run.status == bad.status);
    CHECK(one_line(run.err));
    CHECK(run.err.find(bad.says) != std::string::npos);
  }
  // Refused by a build without CUDA and by one whose machine has no device, each by the flag.
  const Run cuda = run_episodic("compare-events --quiet --device cuda --model " + kModel + stories +
                                " --out " + quoted((dir / "cuda").string()));
  INFO(cuda.err);
  if (cuda.status != 0) {
    CHECK(cuda.status == 1);
    CHECK(one_line(cuda.err));
    CHECK(cuda.err.find("--device cuda") != std::string::npos);
  }
  const Run help = run_episodic("compare-events --help");
  CHECK(help.status == 0);
  CHECK(help.out.find("episodic compare-events --model M") != std::string::npos);
}

}  // namespace compare_events_test
