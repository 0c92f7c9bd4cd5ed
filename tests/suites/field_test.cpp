// SPDX-License-Identifier: Apache-2.0
// The suites that the field cites now: what is generated holds its answers at the places and
// lengths that were asked for, and files as users have them are read or refused by name.
#include "support/test.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "data/examples.hpp"
#include "data/prompts.hpp"
#include "data/suite.hpp"
#include "episodic/base/error.hpp"
#include "make/babilong.hpp"
#include "make/needles.hpp"
#include "make/ruler.hpp"
#include "run/score_file.hpp"
#include "scoring/contained.hpp"
#include "suite_table.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;
using namespace episodic::suites;

// Files of this room are compiled together, and others have helpers of the same names.
namespace field_suites {
namespace {

/// A token a word: lengths can be checked by hand.
std::int64_t words(const std::string& text) {
  std::istringstream in(text);
  std::int64_t n = 0;
  for (std::string w; in >> w;) ++n;
  return n;
}

/// 900 sentences of ten to fourteen words, no two alike.
std::string book() {
  static const char* const kWho[] = {"gardener", "teacher", "sailor", "miller", "baker", "weaver"};
  static const char* const kWhat[] = {
      "walked slowly along the muddy river", "mended the wooden fence behind the barn",
      "waited an hour for the evening train", "counted sheep beside the broken mill",
      "sang quietly under the old chestnut tree"};
  std::string text;
  for (int i = 0; i < 900; ++i) {
    std::string name;
    for (int k = i + 27; k > 0; k /= 26) name.push_back(static_cast<char>('a' + k % 26));
    text += std::string("The ") + kWho[i % 6] + " called " + name + "ton " + kWhat[i % 5] +
            (i % 3 ? "" : " in late summer") + ". ";
  }
  return text;
}

struct Made {
  TempDir dir;
  MakeOptions options;
  std::vector<Json> rows;
  std::vector<Example> examples;  ///< read back from a file of the rows
};

/// Rows of a suite, and what its reader makes of them.
void make(Made& made, Suite suite, const std::string& task, std::int64_t tokens,
          std::int64_t count) {
  made.options.task = task;
  made.options.tokens = tokens;
  made.options.count = count;
  if (made.options.haystack_file.empty())
    made.options.haystack_file = made.dir.write("book.txt", book());
  made.rows.clear();
  std::string text;
  row_of(suite).make(made.options, words, [&](Json row) {
    text += to_line(row) + "\n";
    made.rows.push_back(std::move(row));
  });
  made.examples = read_examples(suite, made.dir.write("rows.jsonl", text), task);
}

std::string text(const Json& row, const char* field) { return row.at(field).get<std::string>(); }

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string whole(const Json& row) {
  return text(row, "head") + text(row, "context") + text(row, "question") +
         text(row, "answer_prefix");
}

std::vector<std::string> all_matches(const std::string& text, const char* pattern, int group = 1) {
  const std::regex re(pattern);
  std::vector<std::string> all;
  for (std::sregex_iterator it(text.begin(), text.end(), re), end; it != end; ++it)
    all.push_back((*it)[static_cast<std::size_t>(group)]);
  return all;
}

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

constexpr const char* kSquad = R"({"version": "v2.0", "data": [
  {"title": "Rivers", "paragraphs": [
    {"context": "The Aar is a river of Bern.", "qas": [
      {"id": "1", "question": "Of which town is the Aar?", "is_impossible": false,
       "answers": [{"text": "Bern", "answer_start": 22}, {"text": "of Bern", "answer_start": 19}]},
      {"id": "2", "question": "Where is no river?", "is_impossible": true, "answers": []}]},
    {"context": "The Inn flows east of the Alps.", "qas": [
      {"id": "3", "question": "Which way flows the Inn?",
       "answers": [{"text": "east", "answer_start": 14}]}]}]},
  {"title": "Hills", "paragraphs": [
    {"context": "The Gurten is a hill.", "qas": []},
    {"context": "The Uetliberg is another hill.", "qas": []}]}]})";

constexpr const char* kHotpot = R"([
 {"_id": "a", "question": "Who wrote it?", "answer": "Ann Lee", "type": "bridge",
  "supporting_facts": [["Book", 0]],
  "context": [["Book", ["It is a book.", " Ann Lee wrote it."]], ["Tree", ["A plant."]]]},
 {"_id": "b", "question": "Is it tall?", "answer": "yes",
  "context": [["Tower", ["It is tall."]], ["Tree", ["A plant."]]]}])";

}  // namespace

TEST_CASE(
    "RULER: every task is made to its length with its answers in the text, the same each time") {
  for (const RulerTask& task : ruler_tasks()) {
    const std::string name(task.name);
    INFO(name);
    if (name.starts_with("qa_")) continue;  // from files, below
    Made made;
    make(made, Suite::ruler, name, 5000, 3);
    REQUIRE(made.rows.size() == 3);
    std::set<std::string> contexts;
    for (std::size_t i = 0; i < made.rows.size(); ++i) {
      const Json& row = made.rows[i];
      const std::int64_t length = words(whole(row)) + task.max_new;
      CHECK(row["length"] == length);
      CHECK(length <= 5000);
      CHECK(length > 4700);  // a unit less than there is room for, of fwe some
      for (const Json& answer : row["outputs"])
        CHECK(text(row, "context").find(answer.get<std::string>()) != std::string::npos);
      contexts.insert(text(row, "context"));
      // the published rule takes the answers, and the question is read back whole
      const Example& e = made.examples[i];
      CHECK(e.gold == row["outputs"]);
      const Template prompt(built_in_prompt(Suite::ruler, name).text, "here");
      CHECK(prompt.fill(slots_of(Suite::ruler, e, name)).text() + e.reply_start == whole(row));
      CHECK(prompt.fill(slots_of(Suite::ruler, e, name)).question == text(row, "question"));
      CHECK(text(row, "question").ends_with(e.input));
    }
    CHECK(contexts.size() == 3);
    const std::vector<Json> before = made.rows;
    make(made, Suite::ruler, name, 5000, 3);
    CHECK(made.rows == before);
    ++made.options.seed;
    make(made, Suite::ruler, name, 5000, 3);
    CHECK(made.rows != before);
  }
}

TEST_CASE("RULER: needles are said and asked for as its description has them") {
  struct Kind {
    const char *task, *said, *question;
    std::size_t needles, answers, said_of_asked;
  };
  const char* const number = R"(One of the special magic numbers for (\S+) is: \d{7}\.)";
  const char* const uuid = R"(One of the special magic uuids for (\S+) is: [0-9a-f-]{36}\.)";
  for (const Kind& kind :
       {Kind{"niah_single_1", number, "\nWhat is the special magic number for ", 1, 1, 1},
        Kind{"niah_single_2", number, "\nWhat is the special magic number for ", 1, 1, 1},
        Kind{"niah_single_3", uuid, "\nWhat is the special magic uuid for ", 1, 1, 1},
        Kind{"niah_multikey_1", number, "\nWhat is the special magic number for ", 4, 1, 1},
        Kind{"niah_multikey_2", number, "\nWhat is the special magic number for ", 0, 1, 1},
        Kind{"niah_multikey_3", uuid, "\nWhat is the special magic uuid for ", 0, 1, 1},
        Kind{"niah_multivalue", number, "\nWhat are all the special magic numbers for ", 4, 4, 4},
        Kind{"niah_multiquery", number, "\nWhat are all the special magic numbers for ", 4, 4,
             1}}) {
    INFO(kind.task);
    Made made;
    make(made, Suite::ruler, kind.task, 1500, 2);
    for (const Json& row : made.rows) {
      const std::vector<std::string> keys = all_matches(text(row, "context"), kind.said);
      if (kind.needles > 0)
        CHECK(keys.size() == kind.needles);
      else
        CHECK(keys.size() > 50);  // the text is nothing but needles
      CHECK(row["outputs"].size() == kind.answers);
      const std::string question = text(row, "question");
      CHECK(question.starts_with(kind.question));
      std::size_t asked = 0;
      for (const std::string& key : keys)
        asked += times(question, " " + key + " ") + times(question, " " + key + ",");
      CHECK(asked == std::max(kind.said_of_asked, kind.answers));
      // every answer stands behind a key that is asked for
      for (const Json& answer : row["outputs"]) {
        const std::regex said("for (\\S+) is: " + answer.get<std::string>());
        std::smatch found;
        const std::string context = text(row, "context");
        REQUIRE(std::regex_search(context, found, said));
        CHECK(question.find(found[1].str()) != std::string::npos);
      }
      const bool one = kind.answers == 1;
      CHECK(text(row, "head").starts_with(one ? "A special magic " : "Some special magic "));
      CHECK(text(row, "answer_prefix").ends_with(one ? "provided text is" : "provided text are"));
    }
  }
}

TEST_CASE("RULER: one needle lies at the depth that was asked for") {
  Made made;
  for (const char* task : {"niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2"})
    for (const double depth : {0.0, 0.25, 0.9, 1.0}) {
      INFO(task << " " << depth);
      made.options.depth = depth;
      make(made, Suite::ruler, task, 3000, 2);
      for (const Json& row : made.rows) {
        const std::string context = text(row, "context");
        const std::size_t at = context.find(row["outputs"][0].get<std::string>());
        CHECK(static_cast<double>(at) / static_cast<double>(context.size()) ==
              Approx(depth).margin(0.04));
        CHECK(row["depth"] == depth);
      }
    }
  for (const char* task : {"niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"})
    CHECK(refused([&] { make(made, Suite::ruler, task, 3000, 1); }).find("--depth: the task") == 0);
}

TEST_CASE("RULER: variables, common and frequent words are what they are said to be") {
  Made made;
  make(made, Suite::ruler, "vt", 2000, 2);
  for (const Json& row : made.rows) {
    // the chain as the text tells it, one after the other
    const std::string context = text(row, "context");
    const auto first = all_matches(context, R"(VAR ([A-Z]{5}) = \d{5})");
    REQUIRE(first.size() == 1);
    std::vector<std::string> chain = first;
    const auto to = all_matches(context, R"(VAR ([A-Z]{5}) = VAR ([A-Z]{5}))"),
               from = all_matches(context, R"(VAR ([A-Z]{5}) = VAR ([A-Z]{5}))", 2);
    for (std::size_t i = 0; i < to.size(); ++i) {
      CHECK(from[i] == chain.back());
      chain.push_back(to[i]);
    }
    CHECK(row["outputs"].get<std::vector<std::string>>() == chain);
    CHECK(chain.size() == 5);
    // an example is solved before, with names of its own
    CHECK(times(text(row, "head"), "Memorize and track") == 2);
    CHECK(all_matches(text(row, "head"), R"(VAR ([A-Z]{3}) = )").size() == 5);
  }
  for (const std::int64_t tokens : {3000, 6000}) {
    make(made, Suite::ruler, "cwe", tokens, 2);
    for (const Json& row : made.rows) {
      std::map<std::string, int> counts;
      for (const std::string& word : all_matches(text(row, "context"), R"(\d+\. ([a-z]+))"))
        ++counts[word];
      std::set<std::string> often;
      for (const auto& [word, n] : counts) {
        const bool common = n == (tokens < 4096 ? 6 : 30);
        CHECK((common || n == (tokens < 4096 ? 1 : 3)));
        if (common) often.insert(word);
      }
      CHECK(often == row["outputs"].get<std::set<std::string>>());
      CHECK(often.size() == 10);
    }
  }
  make(made, Suite::ruler, "fwe", 3000, 2);
  for (const Json& row : made.rows) {
    std::map<std::string, int> counts;
    for (const std::string& word : all_matches(text(row, "context"), R"((\S+))")) ++counts[word];
    std::vector<std::pair<int, std::string>> ranked;
    for (const auto& [word, n] : counts) ranked.emplace_back(-n, word);
    std::sort(ranked.begin(), ranked.end());
    CHECK(ranked[0].second == "...");
    for (std::size_t i = 0; i < 3; ++i) CHECK(ranked[i + 1].second == row["outputs"][i]);
    CHECK(ranked[3].first < ranked[4].first);
  }
}

TEST_CASE("RULER: questions of SQuAD and HotpotQA stand among their documents") {
  Made made;
  made.options.source = made.dir.write("squad.json", kSquad);
  make(made, Suite::ruler, "qa_1", 140, 2);
  CHECK(made.rows[0]["outputs"] == Json{"Bern", "of Bern"});
  CHECK(made.rows[1]["outputs"] == Json{"east"});  // the impossible one is left out
  for (const Json& row : made.rows) {
    CHECK(row["length"].get<int>() <= 140);
    CHECK(text(row, "context").find(row["outputs"][0].get<std::string>()) != std::string::npos);
    CHECK(times(text(row, "context"), "Document 1:") == 1);
    // the other paragraph of the article comes before those of others
    CHECK(times(text(row, "context"), "The Inn") == 1);
  }
  CHECK(made.examples[1].input == "Question: Which way flows the Inn?");
  make(made, Suite::ruler, "qa_1", 4000, 1);
  CHECK(times(text(made.rows[0], "context"), "Document ") == 4);  // all that there are
  CHECK(refused([&] { make(made, Suite::ruler, "qa_1", 4000, 3); }).find("has 2 questions") !=
        std::string::npos);
  made.options.source = made.dir.write("hotpot.json", kHotpot);
  make(made, Suite::ruler, "qa_2", 400, 2);
  CHECK(made.rows[0]["outputs"] == Json{"Ann Lee"});
  CHECK(text(made.rows[0], "context").find(":\nBook\nIt is a book. Ann Lee wrote it.") !=
        std::string::npos);
  CHECK(times(text(made.rows[0], "context"), "A plant.") == 1);
  made.options.source.clear();
  for (const char* task : {"qa_1", "qa_2"})
    CHECK(refused([&] { make(made, Suite::ruler, task, 400, 1); }).find("--source: the task") == 0);

  struct Bad {
    const char *task, *text, *says;
  };
  for (
      const Bad& bad :
      {Bad{"qa_1", "{}", "\"data\" is missing"},
       {"qa_1", R"({"data": 3})", "\"data\" must be a list"},
       {"qa_1", R"({"data": [{"paragraphs": [{"context": 1}]}]})",
        "\"data[0].paragraphs[0].context\" must be a string"},
       {"qa_1", R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q"}]}]}]})",
        "\"data[0].paragraphs[0].qas[0].answers\" is missing"},
       {"qa_1",
        R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}]})",
        "answers\" must hold an answer"},
       {"qa_1", R"({"data": [{"par)", "not valid JSON"},
       {"qa_2", R"([{"question": "q", "answer": "a", "context": [["t"]]}])",
        "entry 1: \"context[0]\" has no entry 1"},
       {"qa_2", R"([{"question": "q", "answer": "a", "context": []}])", "must hold a document"},
       {"qa_2", R"([{"question": "q", "answer": 1, "context": []}])", "\"answer\" must be"},
       {"qa_2", R"([{"question": "q")", "ends too early after entry 0"}}) {
    INFO(bad.text);
    made.options.source = made.dir.write("source.json", bad.text);
    const std::string said = refused([&] { make(made, Suite::ruler, bad.task, 400, 1); });
    CAPTURE(said);
    CHECK(said.find("source.json") != std::string::npos);
    CHECK(said.find(bad.says) != std::string::npos);
  }
}

TEST_CASE("RULER: rows of the published program are cut where the question begins") {
  const TempDir dir;
  const auto read = [&](const char* task, const std::string& input, const std::string& more = "") {
    Json row{{"index", 0}, {"input", input}, {"outputs", {"x"}}, {"length", 99}};
    if (!more.empty()) row["answer_prefix"] = more;
    return read_examples(Suite::ruler, dir.write("rows.jsonl", row.dump() + "\n"), task).at(0);
  };
  const std::string head = "A special magic number is hidden.\nsome text\n";
  const std::string question = "What is the special magic number for a-b mentioned in the text?";
  const Example e = read("niah_single_1", head + question, " It is");
  CHECK(e.context + e.slots.at("question") == head + question);
  CHECK(e.slots.at("question") == "\n" + question);
  CHECK(e.input == question);
  CHECK(e.reply_start == " It is");
  CHECK(e.tokens == 99);
  // the example before the question asks the same
  const std::string cwe = "1. a\nQuestion: What are the 10 most common words in the above list?";
  const Example two = read("cwe", cwe + " Answer: a\n" + cwe);
  CHECK(two.context == cwe + " Answer: a\n1. a");
  CHECK(read("niah_multiquery", "t\nWhat are all the special magic numbers for a and b?").context ==
        "t");
  CHECK(refused([&] { read("vt", "nothing is asked"); }).find("rows.jsonl:1: \"input\" does not") !=
        std::string::npos);
  const auto bad = [&](const std::string& text) {
    return refused(
        [&] { read_examples(Suite::ruler, dir.write("rows.jsonl", text), "niah_single_1"); });
  };
  CHECK(bad("{\"index\": 0}").find("rows.jsonl:1: the field \"input\" is missing") !=
        std::string::npos);
  CHECK(bad(R"({"context": "c", "head": 1})").find("\"head\" must be a string") !=
        std::string::npos);
  CHECK(bad(R"({"input": "What is the special magic x")").find("not valid JSON") !=
        std::string::npos);
  CHECK(bad(R"({"input": "a What is the special magic x", "outputs": []})").find("\"outputs\"") !=
        std::string::npos);
}

TEST_CASE("RULER: scores are those of its program, rounded to two digits") {
  const TempDir dir;
  dir.write("p.jsonl",
            R"({"index": 0, "pred": "1234567 and 7654321", "outputs": ["1234567", "7654321"]})"
            "\n"
            R"({"index": 1, "pred": "only 1234567", "outputs": ["1234567", "7654321"]})"
            "\n"
            R"({"index": 2, "pred": "none", "outputs": ["1", "2", "3"]})"
            "\n");
  ScoreOptions options;
  options.suite = Suite::ruler;
  options.preds = dir / "p.jsonl";
  options.task = "niah_multivalue";
  CHECK(score_file(options)["score"] == 50);
  options.task = "qa_1";
  CHECK(score_file(options)["score"] == 66.67);
  CHECK(score_file(options)["examples"][1]["id"] == "1");
  const Json both = averages_of({Json{{"suite", "ruler"}, {"task", "vt"}, {"score", 10}},
                                 Json{{"suite", "ruler"}, {"task", "cwe"}, {"score", 20}}});
  CHECK(both["average"] == Approx(15));
  CHECK(both["missing"].size() == 11);
}

TEST_CASE("BABILong: stories of every kind have one answer, which their facts give") {
  Draw draw(7);
  std::map<std::string, std::set<std::string>> answers;
  for (const std::string_view task : babilong_names())
    for (int i = 0; i < 200; ++i) {
      const Story story = draw_story(task, draw);
      INFO(task << ": " << story.question << " " << story.answer);
      answers[std::string(task)].insert(story.answer);
      CHECK(babilong_right(story.answer, story.answer, story.question, babilong_labels(task)));
      std::string place, last, thing;
      std::vector<std::string> way;
      std::smatch m;
      if (task == "qa1") {
        // the last place of the one who is asked for
        REQUIRE(std::regex_match(story.question, m, std::regex(R"(Where is (\w+)\?)")));
        const std::regex went("^" + m[1].str() + R"( .* to the (\w+)\.$)");
        for (const std::string& fact : story.facts)
          if (std::smatch f; std::regex_match(fact, f, went)) last = f[1];
        CHECK(last == story.answer);
      }
      if (task == "qa2" || task == "qa3") {
        // followed by hand: who has it, and where that one is
        const bool before = task == "qa3";
        REQUIRE(std::regex_match(story.question, m,
                                 std::regex(before ? R"(Where was the (\w+) before the (\w+)\?)"
                                                   : R"(Where is the (\w+)\?)")));
        thing = m[1];
        std::map<std::string, std::string> at;
        std::string holder;
        const auto seen = [&](const std::string& where) {
          if (way.empty() || way.back() != where) way.push_back(where);
        };
        for (const std::string& fact : story.facts) {
          std::smatch f;
          if (std::regex_match(fact, f, std::regex(R"((\w+) .* to the (\w+)\.)"))) {
            at[f[1]] = f[2];
            if (holder == f[1]) seen(f[2]);
          } else if (std::regex_match(fact, f, std::regex(R"((\w+) .* the (\w+) there\.)"))) {
            if (f[2] == thing) holder = f[1], seen(at[f[1]]);
          } else if (fact.ends_with("the " + thing + ".")) {
            holder.clear();
          }
        }
        REQUIRE(way.size() >= (before ? 2u : 1u));
        if (before) {
          CHECK(way.back() == m[2].str());
          CHECK(way[way.size() - 2] == story.answer);
        } else {
          CHECK(way.back() == story.answer);
        }
      }
      if (task == "qa4") {
        CHECK(story.facts.size() == 2);
        std::string said;
        for (const std::string& fact : story.facts) said += fact;
        CHECK(said.find(story.answer) != std::string::npos);
        CHECK(story.question.find(story.answer) == std::string::npos);
      }
      if (task == "qa5") {
        std::set<std::string> found;
        for (const std::string& fact : story.facts) {
          std::smatch f, q;
          if (!std::regex_match(fact, f,
                                std::regex(R"((\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.)")))
            continue;
          const std::string giver = f[1], what = f[2], to = f[3];
          if (std::regex_match(story.question, q,
                               std::regex(R"(Who did (\w+) give the (\w+) to\?)"))) {
            if (q[1] == giver && q[2] == what) found.insert(to);
          } else if (std::regex_match(story.question, q,
                                      std::regex(R"(What did (\w+) give to (\w+)\?)"))) {
            if (q[1] == giver && q[2] == to) found.insert(what);
          } else if (std::regex_match(story.question, q,
                                      std::regex(R"(Who gave the (\w+) to (\w+)\?)"))) {
            if (q[1] == what && q[2] == to) found.insert(giver);
          } else if (std::regex_match(story.question, q, std::regex(R"(Who gave the (\w+)\?)"))) {
            if (q[1] == what) found.insert(giver);
          } else if (std::regex_match(story.question, q,
                                      std::regex(R"(Who received the (\w+)\?)"))) {
            if (q[1] == what) found.insert(to);
          }
        }
        CHECK(found == std::set<std::string>{story.answer});
      }
    }
  for (const auto& [task, of] : answers) {
    INFO(task);
    CHECK(of.size() == babilong_labels(task).size());  // none is left out, of 200
  }
}

TEST_CASE("BABILong: facts lie in order between a book's sentences, at the length asked for") {
  for (const std::string_view name : babilong_names()) {
    const std::string task(name);
    INFO(task);
    Made made;
    make(made, Suite::babilong, task, 2000, 3);
    for (const Json& row : made.rows) {
      CHECK(row["tokens"] == words(text(row, "input")));
      CHECK(row["tokens"].get<int>() <= 2000);
      CHECK(row["tokens"].get<int>() > 1980);
    }
    const std::vector<Json> before = made.rows;
    make(made, Suite::babilong, task, 2000, 3);
    CHECK(made.rows == before);
    CHECK(made.examples[1].input == text(before[1], "question"));
    CHECK(made.examples[1].gold == before[1]["target"]);
  }
}

TEST_CASE("BABILong: stories of bAbI's files are spread in their order") {
  Made made;
  made.options.source = made.dir.write("qa1.txt",
                                       "1 Mary moved to the bathroom.\n"
                                       "2 John went to the hallway.\n"
                                       "3 Where is Mary? \tbathroom\t1\n"
                                       "4 Mary went to the office.\n"
                                       "5 Where is Mary?\toffice\t4\r\n"
                                       "1 John went to the garden.\n"
                                       "2 Where is John?\tgarden\t1\n");
  const std::vector<Story> stories = read_babi(made.options.source, "qa1");
  REQUIRE(stories.size() == 3);
  CHECK(stories[0].facts.size() == 2);
  CHECK(stories[1].facts == std::vector<std::string>{"Mary moved to the bathroom.",
                                                     "John went to the hallway.",
                                                     "Mary went to the office."});
  CHECK(stories[2].facts == std::vector<std::string>{"John went to the garden."});
  CHECK(stories[1].question == "Where is Mary?");
  make(made, Suite::babilong, "qa1", 500, 3);
  const std::string input = text(made.rows[1], "input");
  std::size_t at = 0;
  for (const std::string& fact : stories[1].facts) {
    const std::size_t found = input.find(fact, at);
    REQUIRE(found != std::string::npos);
    at = found + 1;
  }
  CHECK(made.rows[1]["target"] == "office");
  CHECK(refused([&] { make(made, Suite::babilong, "qa1", 500, 4); }).find("has 3 questions") !=
        std::string::npos);
  struct Bad {
    const char *text, *says;
  };
  for (const Bad& bad :
       {Bad{"Mary moved.\n", "babi.txt:1: must begin with its number"},
        {"1\n", "babi.txt:1: must begin"},
        {"0 Mary moved.\n", "babi.txt:1: must begin"},
        {"99999999999999999999 a\n", "babi.txt:1: must begin"},
        {"1 Mary moved.\n2 Where?\tattic\t1\n", "babi.txt:2: the answer \"attic\""},
        {"1 Where?\tgarden\t1\n", "babi.txt:1: asks before"},
        {"1 Mary moved.\n", "holds no question"},
        {"", "holds no question"}}) {
    INFO(bad.text);
    const auto file = made.dir.write("babi.txt", bad.text);
    CHECK(refused([&] { read_babi(file, "qa1"); }).find(bad.says) != std::string::npos);
  }
}

TEST_CASE("BABILong: its released rows are read, and scored with the question's own words aside") {
  const TempDir dir;
  const auto file = dir.write(
      "qa3.json",
      R"([{"input": "t", "question": "Where was the milk before the garden?", "target": "office"},
          {"input": "u", "question": "Where was the milk before the office?", "target": "garden"}])");
  const std::vector<Example> examples = read_examples(Suite::babilong, file, "qa3");
  REQUIRE(examples.size() == 2);
  CHECK(examples[1].id == "1");
  CHECK(examples[1].details["question"] == "Where was the milk before the office?");
  dir.write("p.jsonl", R"({"id": 0, "pred": "before the garden: the office"})"
                       "\n"
                       R"({"id": 1, "pred": "garden and kitchen"})"
                       "\n");
  ScoreOptions options;
  options.suite = Suite::babilong;
  options.task = "qa3";
  options.preds = dir / "p.jsonl";
  options.data = file;
  CHECK(score_file(options)["per_example"] == Json{1, 0});
  // without the data a row must say what was asked
  options.data.clear();
  dir.write("p.jsonl", R"({"id": 0, "pred": "office", "answer": "office"})");
  CHECK(refused([&] { score_file(options); }).find("the score takes the \"question\"") !=
        std::string::npos);
  struct Bad {
    const char *text, *says;
  };
  for (const Bad& bad :
       {Bad{R"([{"input": "t", "question": "q", "target": "attic"}])",
            "entry 1: \"target\" is \"attic\""},
        {R"([{"input": "t", "question": "q"}])", "entry 1: the field \"target\" is missing"},
        {R"([{"input": "t", "question": "q", "target": "office"}, 3])",
         "entry 2: not a JSON object"},
        {R"([{"input": "t", "question": "q", "target": "office"},)",
         "ends too early after entry 1"},
        {R"([{"input": "t", "question": "q", "target": "office"})", "ends too early after entry 1"},
        {R"([{"input": "t", "quest)", "ends too early after entry 0"},
        {R"([{"input": "t" "x": 1}])", "entry 1: not valid JSON"},
        {R"([{"input": "t", "input": "u"}])", "'input' stands twice"},
        {R"([{"input": "t", "question": "q", "target": "office"} {}])", "there is no comma"},
        {R"([{"input": "t", "question": "q", "target": "office"}] x)", "something behind the list"},
        {R"([{"input": ["t"], "question": "q", "target": "office"}])",
         "\"input\" must be a string"}}) {
    INFO(bad.text);
    const auto path = dir.write("bad.json", bad.text);
    const std::string said = refused([&] { read_examples(Suite::babilong, path, "qa3"); });
    CAPTURE(said);
    CHECK(said.find("bad.json") != std::string::npos);
    CHECK(said.find(bad.says) != std::string::npos);
  }
  CHECK(refused([] { check_task(Suite::babilong, "qa6"); }).find("qa1, qa2, qa3, qa4, qa5") !=
        std::string::npos);
}

TEST_CASE("needles: a fact lies at its depth and is asked for in the words of the task") {
  CHECK(share_a_word("The bakers of Thornbury", "Who baked it?") == false);
  CHECK(share_a_word("The bakers of Thornbury", "A bakery"));
  CHECK(share_a_word("Ursula's dog", "What of Ursula?"));
  CHECK_FALSE(share_a_word("The chess club meets above the tannery.",
                           "Over which business do people play the board game?"));
  Made made;
  made.options.source = EPISODIC_SOURCE_DIR "/benchmarks/find/facts.json";
  std::map<std::string, std::set<std::string>> said;
  for (const std::string_view task : needle_tasks()) {
    INFO(task);
    make(made, Suite::needles, std::string(task), 1200, 20);
    for (std::size_t i = 0; i < 20; ++i) {
      const Json& row = made.rows[i];
      const std::string context = text(row, "context");
      CHECK(row["tokens"].get<int>() <= 1200);
      CHECK(row["tokens"].get<int>() > 1180);
      CHECK(times(context, text(row, "said")) == 1);
      CHECK(static_cast<double>(context.find(text(row, "said"))) /
                static_cast<double>(context.size()) ==
            Approx((static_cast<double>(i) + 0.5) / 20).margin(0.04));
      if (task == "no_shared_word")
        CHECK_FALSE(share_a_word(text(row, "said"), text(row, "question")));
      said[std::string(task)].insert(text(row, "said"));
      const Example& e = made.examples[i];
      CHECK(e.gold == row["answers"]);
      CHECK(e.input == text(row, "question"));
      // what is said answers it
      std::vector<std::vector<std::string>> lists = row["answers"];
      CHECK(holds_facts(text(row, "said"), lists));
    }
    CHECK(said[std::string(task)].size() == 20);
  }
  CHECK(said["same_words"] == said["other_words"]);  // the same facts by one seed
  CHECK(refused([&] {
          make(made, Suite::needles, "no_shared_word", 1200, 21);
        }).find("has 20 facts for the task no_shared_word") != std::string::npos);
  made.options.depth = 0.75;
  make(made, Suite::needles, "other_words", 1200, 1);
  CHECK(made.rows[0]["depth"] == 0.75);
  made.options.source.clear();
  CHECK(refused([&] { make(made, Suite::needles, "other_words", 1200, 1); }).find("--source") == 0);
  made.options.source =
      made.dir.write("facts.json", R"([{"kind": "k", "said": "s", "asked": "a", "other": "o",
                                        "answers": ["x"]}])");
  CHECK(refused([&] {
          make(made, Suite::needles, "other_words", 1200, 1);
        }).find("facts.json: entry 1: \"answers[0]\" must be a list") != std::string::npos);
}

TEST_CASE("needles: scores are whole words of one form of each list, by kind too") {
  const TempDir dir;
  const auto data = dir.write(
      "rows.jsonl",
      R"({"id": 0, "kind": "dates", "context": "c", "question": "q", "answers": [["14"], ["May"]]})"
      "\n"
      R"({"id": 1, "kind": "keys", "context": "c", "question": "q", "answers": [["84047"]]})"
      "\n");
  dir.write("p.jsonl", R"({"id": 0, "pred": "14 May"})"
                       "\n"
                       R"({"id": 1, "pred": "84048"})"
                       "\n");
  ScoreOptions options;
  options.suite = Suite::needles;
  options.task = "other_words";
  options.preds = dir / "p.jsonl";
  options.data = data;
  const Json result = score_file(options);
  CHECK(result["score"] == 50);
  CHECK(result["by_kind"]["dates"] == Json{{"score", 100}, {"count", 1}});
  options.data.clear();
  dir.write("p.jsonl", R"({"id": 0, "pred": "14 May", "answers": ["14"]})");
  CHECK(refused([&] {
          score_file(options);
        }).find("p.jsonl: id 0: \"answers[0]\" must be a list") != std::string::npos);
}

namespace {

Json v2_row(const char* id, const char* answer) {
  return {{"_id", id},           {"domain", "Single-Document QA"},
          {"sub_domain", "x"},   {"difficulty", "easy"},
          {"length", "short"},   {"question", " Which? "},
          {"choice_A", "one"},   {"choice_B", " two\n"},
          {"choice_C", "three"}, {"choice_D", "four"},
          {"answer", answer},    {"context", "\n The {text} $Q$.\n"}};
}

}  // namespace

TEST_CASE("LongBench v2: its file is read and asked as published") {
  const TempDir dir;
  Json hard = v2_row("b", "D");
  hard["difficulty"] = "hard";
  hard["length"] = "long";
  const auto file = dir.write("data.json", Json::array({v2_row("a", "B"), hard}).dump(2));
  const std::vector<Example> examples = read_examples(Suite::longbench_v2, file, "longbench_v2");
  REQUIRE(examples.size() == 2);
  const Template prompt(built_in_prompt(Suite::longbench_v2, "longbench_v2").text, "here");
  CHECK(prompt.fill(slots_of(Suite::longbench_v2, examples[0], "longbench_v2")).text() ==
        "Please read the following text and answer the question below.\n\n<text>\nThe {text} $Q$.\n"
        "</text>\n\nWhat is the correct answer to this question: Which?\nChoices:\n(A) one\n(B) "
        "two\n(C) three\n(D) four\n\nFormat your response as follows: \"The correct answer is "
        "(insert answer here)\".");
  // our rows, and those of the published program, whose "pred" is the letter it read
  dir.write("p.jsonl", R"({"_id": "a", "response": "The correct answer is (B).", "pred": "B"})"
                       "\n"
                       R"({"id": "b", "pred": "I think D."})"
                       "\n");
  ScoreOptions options;
  options.suite = Suite::longbench_v2;
  options.task = "longbench_v2";
  options.preds = dir / "p.jsonl";
  options.data = file;
  const Json result = score_file(options);
  CHECK(result["score"] == 50);
  CHECK(result["without_choice"] == 1);
  CHECK(result["by_difficulty"]["easy"]["score"] == 100);
  CHECK(result["by_difficulty"]["hard"]["score"] == 0);
  CHECK(result["by_length_group"]["long"]["count"] == 1);
  // all of a published row, without the data
  dir.write("p.jsonl",
            R"({"_id": "a", "response": "The correct answer is C", "pred": null, "answer": "C", )"
            R"("difficulty": "hard", "length": "medium", "judge": false})");
  options.data.clear();
  const Json alone = score_file(options);
  CHECK(alone["score"] == 100);
  CHECK(alone["by_length_group"]["medium"]["score"] == 100);
  struct Bad {
    const char* field;
    Json value;
    const char* says;
  };
  for (const Bad& bad : {Bad{"answer", "E", "entry 1: \"answer\" is \"E\""},
                         {"answer", 1, "\"answer\" must be"},
                         {"choice_C", nullptr, "\"choice_C\" must be a string"},
                         {"context", Json::array(), "\"context\" must be a string"},
                         {"difficulty", 2, "\"difficulty\" must be a string"},
                         {"_id", Json::object(), "\"_id\" must be"}}) {
    Json row = v2_row("a", "B");
    row[bad.field] = bad.value;
    const auto path = dir.write("bad.json", Json::array({row}).dump());
    const std::string said =
        refused([&] { read_examples(Suite::longbench_v2, path, "longbench_v2"); });
    CAPTURE(said);
    CHECK(said.find("bad.json: entry 1") != std::string::npos);
    CHECK(said.find(bad.says) != std::string::npos);
    row.erase(bad.field);
    dir.write("bad.json", Json::array({v2_row("0", "A"), row}).dump());
    // without an id in one row, not in all
    CHECK(refused([&] {
            read_examples(Suite::longbench_v2, path, "longbench_v2");
          }).find(std::string("entry 2: the field \"") + bad.field + "\" is missing") !=
          std::string::npos);
  }
  const std::string deep = "[{\"_id\": " + std::string(300'000, '[');
  CHECK(refused([&] {
          read_examples(Suite::longbench_v2, dir.write("bad.json", deep), "longbench_v2");
        }).find("ends too early") != std::string::npos);
  CHECK(refused([&] {
          read_examples(Suite::longbench_v2,
                        dir.write("bad.json", deep + std::string(300'000, ']') + "}]"),
                        "longbench_v2");
        }).find("nested more") != std::string::npos);
}

namespace {

Json chat(const char* user, const char* assistant) {
  return Json::array({{{"role", "user"}, {"content", user}, {"has_answer", true}},
                      {{"role", "assistant"}, {"content", assistant}}});
}

Json memory_row(const char* id) {
  return {
      {"question_id", id},
      {"question_type", "single-session-user"},
      {"question", "Which colour has my bike?"},
      {"answer", "dark red"},
      {"question_date", "2023/05/30 (Tue) 23:40"},
      {"haystack_dates", {"2023/05/21 (Sun) 09:00", "2023/05/20 (Sat) 02:21"}},
      {"haystack_session_ids", {"s2", "s1"}},
      {"haystack_sessions", {chat("It rains. ", "Yes."), chat("My bike is dark red.", "Nice.")}},
      {"answer_session_ids", {"s1"}}};
}

}  // namespace

TEST_CASE("LongMemEval: sessions are read by their dates, answers by words or by a choice") {
  const TempDir dir;
  Json number = memory_row("n");
  number["answer"] = 7;
  Json absent = memory_row("x_abs");
  absent["question_type"] = "multi-session";
  const auto file =
      dir.write("longmemeval_s.json", Json::array({memory_row("a"), number, absent}).dump());
  const std::vector<Example> examples = read_examples(Suite::longmemeval, file, "longmemeval");
  REQUIRE(examples.size() == 3);
  CHECK(
      examples[0].context ==
      "\n### Session 1:\nSession Date: 2023/05/20 (Sat) 02:21\nSession Content:\n\n\nuser: My bike "
      "is dark red.\n\nassistant: Nice.\n\n### Session 2:\nSession Date: 2023/05/21 (Sun) "
      "09:00\nSession Content:\n\n\nuser: It rains.\n\nassistant: Yes.\n");
  CHECK(examples[0].slots.at("question_date") == "2023/05/30 (Tue) 23:40");
  CHECK(examples[1].gold == "7");
  dir.write("p.jsonl", R"({"question_id": "a", "hypothesis": "It is Dark Red, you said."})"
                       "\n"
                       R"({"question_id": "n", "hypothesis": "17"})"
                       "\n"
                       R"({"question_id": "x_abs", "hypothesis": "You did not mention it."})"
                       "\n");
  ScoreOptions options;
  options.suite = Suite::longmemeval;
  options.task = "longmemeval";
  options.preds = dir / "p.jsonl";
  options.data = file;
  const Json result = score_file(options);
  CHECK(result["per_example"] == Json{1, 0, 1});
  CHECK(result["by_type"]["multi-session"]["score"] == 100);
  CHECK(result["judged_by"].get<std::string>().find("published judge is a model") !=
        std::string::npos);

  Json choice = memory_row("c");
  choice["choices"] = {"blue", "dark red", "green"};
  choice["correct_choice_index"] = 1;
  choice["haystack_session_datetimes"] = choice["haystack_dates"];
  choice.erase("haystack_dates");
  choice.erase("question_date");
  const auto rows = dir.write("mc.jsonl", choice.dump() + "\n");
  const Example e = read_examples(Suite::longmemeval, rows, "longmemeval_choice").at(0);
  CHECK(e.gold == "B");
  CHECK(e.slots.at("choices") == "(A) blue\n(B) dark red\n(C) green\n");
  options.task = "longmemeval_choice";
  options.data = rows;
  dir.write("p.jsonl", R"x({"id": "c", "pred": "The correct answer is (B)"})x");
  CHECK(score_file(options)["score"] == 100);
  dir.write("p.jsonl", R"x({"id": "c", "pred": "The correct answer is (D)"})x");
  CHECK(score_file(options)["score"] == 0);

  struct Bad {
    const char* at;  ///< what is replaced
    Json value;      ///< null: it is taken away
    const char* says;
  };
  const std::vector<Bad> all{
      {"/haystack_sessions/1/0/content", 3, "\"haystack_sessions[1][0].content\" must be a string"},
      {"/haystack_sessions/0", "x", "\"haystack_sessions[0]\" must be a list"},
      {"/haystack_sessions/0/1/role", nullptr, "\"haystack_sessions[0][1].role\" is missing"},
      {"/haystack_sessions/0/1", 1, "\"haystack_sessions[0][1]\" must be an object"},
      {"/haystack_sessions", nullptr, "\"haystack_sessions\" is missing"},
      {"/haystack_session_datetimes", nullptr, "\"haystack_dates\" is missing"},
      {"/haystack_session_datetimes", Json::array(), "has 0 entries beside 2 sessions"},
      {"/choices", Json::array({"one"}), "\"choices\" must hold 2 to 26"},
      {"/correct_choice_index", 3, "is 3, expected 0 to 2"},
      {"/correct_choice_index", -1, "is -1, expected 0 to 2"},
      {"/correct_choice_index", "1", "must be an integer"},
      {"/question", nullptr, "the field \"question\" is missing"},
      {"/question_type", false, "\"question_type\" must be a string"}};
  for (const Bad& bad : all) {
    Json row = choice;
    const Json::json_pointer at(bad.at);
    if (bad.value.is_null())
      row[at.parent_pointer()].erase(at.back());
    else
      row[at] = bad.value;
    const auto path = dir.write("bad.json", Json::array({row}).dump());
    const std::string line =
        refused([&] { read_examples(Suite::longmemeval, path, "longmemeval_choice"); });
    INFO(bad.says << "\n" << line);
    CHECK(line.find("bad.json: entry 1: ") != std::string::npos);
    CHECK(line.find(bad.says) != std::string::npos);
  }
  Json row = choice;
  row["answer"] = nullptr;
  const auto path = dir.write("bad.json", Json::array({row}).dump());
  CHECK(refused([&] {
          read_examples(Suite::longmemeval, path, "longmemeval");
        }).find("\"answer\" must be") != std::string::npos);
}

TEST_CASE(
    "a suite whose example needs no file of prompts has one, and its help names its program") {
  for (const SuiteRow* row : suite_table()) {
    INFO(row->name);
    if (!row->needs_prompts) {
      CHECK(row->built_in_prompt(row->example_task).text.find("{context}") != std::string::npos);
      CHECK_FALSE(row->built_in_prompt(row->example_task).source.empty());
    }
    if (row->make == nullptr) continue;
    MakeOptions options;
    options.task = "none of these";
    CHECK(refused([&] {
            row->make(options, words, [](const Json&) {});
          }).find("--task none of these: ") == 0);
    CHECK(std::string(row->make_help).find(std::string(row->name) + " make") != std::string::npos);
  }
}

}  // namespace field_suites
