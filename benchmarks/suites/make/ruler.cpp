// SPDX-License-Identifier: Apache-2.0
#include "make/ruler.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <set>
#include <utility>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"
#include "make/generate.hpp"
#include "make/words.hpp"

namespace episodic::suites {
namespace {

constexpr std::string_view kOneNeedle = "What is the special magic ";
constexpr std::string_view kSeveral = "What are all the special magic ";

constexpr RulerTask kRulerTasks[] = {
    {"niah_single_1", 128, false, kOneNeedle, kSeveral},
    {"niah_single_2", 128, false, kOneNeedle, kSeveral},
    {"niah_single_3", 128, false, kOneNeedle, kSeveral},
    {"niah_multikey_1", 128, false, kOneNeedle, kSeveral},
    {"niah_multikey_2", 128, false, kOneNeedle, kSeveral},
    {"niah_multikey_3", 128, false, kOneNeedle, kSeveral},
    {"niah_multivalue", 128, false, kOneNeedle, kSeveral},
    {"niah_multiquery", 128, false, kOneNeedle, kSeveral},
    {"vt", 30, false, "Question: Find all variables", ""},
    {"cwe", 120, false, "Question: What are the 10 most common words", ""},
    {"fwe", 50, false, "Question: Do not provide any explanation.", ""},
    {"qa_1", 32, true, "Answer the question based on the given documents.", ""},
    {"qa_2", 32, true, "Answer the question based on the given documents.", ""},
};

/// The example tasks of short lists begin below this length, as in the published program.
constexpr std::int64_t kShort = 4096;

/// A task whose row is its texts, which the length is counted of.
class RulerMaker : public RowMaker {
 public:
  explicit RulerMaker(const MakeOptions& options)
      : RowMaker(options), max_new_(ruler_task(options.task).max_new) {}
  std::int64_t length_of(const Json& row, const TokenCounter& count) const override {
    std::string text;
    for (const char* part : {"head", "context", "question", "answer_prefix"})
      text += row.at(part).get_ref<const std::string&>();
    return count(text) + max_new_;
  }

 protected:
  static Json row_of(std::string head, std::string context, std::string question,
                     std::string answer_prefix, std::vector<std::string> outputs) {
    return {{"id", 0},
            {"head", std::move(head)},
            {"context", std::move(context)},
            {"question", std::move(question)},
            {"answer_prefix", std::move(answer_prefix)},
            {"outputs", std::move(outputs)},
            {"depth", nullptr}};
  }

 private:
  std::int64_t max_new_;
};

// -- needles --

enum class Hay : std::uint8_t { noise, essay, needles };
enum class Kind : std::uint8_t { words, numbers, uuids };

struct NeedleTask {
  std::string_view name;
  Hay hay;
  Kind key, value;
  std::int64_t keys, values, queries;
};

constexpr NeedleTask kNeedleTasks[] = {
    {"niah_single_1", Hay::noise, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_single_2", Hay::essay, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_single_3", Hay::essay, Kind::words, Kind::uuids, 1, 1, 1},
    {"niah_multikey_1", Hay::essay, Kind::words, Kind::numbers, 4, 1, 1},
    {"niah_multikey_2", Hay::needles, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_multikey_3", Hay::needles, Kind::uuids, Kind::uuids, 1, 1, 1},
    {"niah_multivalue", Hay::essay, Kind::words, Kind::numbers, 1, 4, 1},
    {"niah_multiquery", Hay::essay, Kind::words, Kind::numbers, 4, 1, 4},
};

const char* plural(Kind kind) { return kind == Kind::numbers ? "numbers" : "uuids"; }
const char* singular(Kind kind) { return kind == Kind::numbers ? "number" : "uuid"; }

/// Keys and values of one row, no two alike.
class Names {
 public:
  explicit Names(Draw& draw) : draw_(draw) {}
  std::string next(Kind kind) {
    while (true)
      if (std::string name = drawn(kind); used_.insert(name).second) return name;
  }

 private:
  std::string drawn(Kind kind) {
    if (kind == Kind::uuids) return random_uuid(draw_);
    if (kind == Kind::numbers) return std::to_string(draw_.between(1'000'000, 9'999'999));
    return word_key(draw_.between(0, word_keys() - 1));
  }
  Draw& draw_;
  std::set<std::string> used_;
};

class NeedleMaker final : public RulerMaker {
 public:
  NeedleMaker(const MakeOptions& options, const NeedleTask& task)
      : RulerMaker(options), task_(task) {
    if (task.hay == Hay::essay) sentences_ = sentences_of(options.haystack_file);
  }
  std::int64_t smallest() const override { return std::max(kDepths / 10, needles()); }
  std::int64_t largest() const override {
    // of word keys half at most, so that drawing different ones ends
    return task_.hay == Hay::needles && task_.key == Kind::words ? word_keys() / 2
                                                                 : RowMaker::largest();
  }
  /// Where one needle alone is asked for, its place can be chosen.
  bool has_depth() const override { return task_.values == 1 && task_.queries == 1; }

  Json row(Draw& draw, std::int64_t units, std::int64_t) const override {
    const std::int64_t start =
        task_.hay == Hay::essay ? draw.between(0, std::ssize(sentences_) - 1) : 0;
    Names names(draw);
    std::vector<std::string> keys, needles;
    std::vector<std::vector<std::string>> values;
    for (std::int64_t k = 0; k < task_.keys; ++k) {
      keys.push_back(names.next(task_.key));
      values.emplace_back();
      for (std::int64_t v = 0; v < task_.values; ++v) {
        values.back().push_back(names.next(task_.value));
        needles.push_back(needle(keys.back(), values.back().back()));
      }
    }
    std::vector<std::string> asked, outputs;
    const std::vector<std::int64_t> chosen = draw.sample(task_.keys, task_.queries);
    for (const std::int64_t k : chosen) {
      asked.push_back(keys[static_cast<std::size_t>(k)]);
      for (const std::string& value : values[static_cast<std::size_t>(k)]) outputs.push_back(value);
    }
    // one of 40 depths from 0 to 1 each, as published
    std::vector<double> depths;
    for (const std::int64_t d : draw.sample(kDepths, std::ssize(needles)))
      depths.push_back(static_cast<double>(d) / (kDepths - 1));
    const auto first = static_cast<std::size_t>(chosen.front() * task_.values);
    if (options_.depth >= 0) depths[first] = options_.depth;
    std::vector<std::pair<std::int64_t, std::string>> placed;
    for (std::size_t i = 0; i < needles.size(); ++i)
      placed.emplace_back(std::llround(depths[i] * static_cast<double>(units)), needles[i]);
    std::stable_sort(placed.begin(), placed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });

    const char* between = task_.hay == Hay::essay ? " " : "\n";
    std::string context;
    const auto add = [&](const std::string& text) {
      if (!context.empty()) context += between;
      context += text;
    };
    auto next = placed.begin();
    for (std::int64_t i = 0; i <= units; ++i) {
      for (; next != placed.end() && next->first <= i; ++next) add(next->second);
      if (i == units) break;
      if (task_.hay == Hay::noise)
        add(noise_);
      else if (task_.hay == Hay::essay)
        add(sentences_[static_cast<std::size_t>((start + i) % std::ssize(sentences_))]);
      else {
        const std::string key = names.next(task_.key);
        add(needle(key, names.next(task_.value)));
      }
    }

    std::string query = asked.front();
    if (asked.size() > 1)
      query =
          fmt::format("{}, and {}", fmt::join(asked.begin(), asked.end() - 1, ", "), asked.back());
    const bool one = outputs.size() == 1;
    const char* kind = one ? singular(task_.value) : plural(task_.value);
    Json row =
        row_of(fmt::format(
                   "{} special magic {} {} hidden within the following text. Make sure to memorize "
                   "it. I will quiz you about the {} afterwards.\n",
                   one ? "A" : "Some", kind, one ? "is" : "are", kind),
               std::move(context),
               fmt::format("\n{}{} for {} mentioned in the provided text?",
                           one ? kOneNeedle : kSeveral, kind, query),
               fmt::format(" The special magic {} for {} mentioned in the provided text {}", kind,
                           query, one ? "is" : "are"),
               std::move(outputs));
    if (has_depth()) row["depth"] = depths[first];
    return row;
  }

 private:
  static constexpr std::int64_t kDepths = 40;

  std::int64_t needles() const { return task_.keys * task_.values; }
  std::string needle(const std::string& key, const std::string& value) const {
    return fmt::format("One of the special magic {} for {} is: {}.", plural(task_.value), key,
                       value);
  }

  const NeedleTask& task_;
  std::vector<std::string> sentences_;
  /// The five sentences without their line's end.
  std::string noise_ = [] {
    std::string line = Haystack::noise().lines.front();
    line.pop_back();
    return line;
  }();
};

// -- tracing and counting --

std::string random_letters(Draw& draw, char first, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text.push_back(static_cast<char>(first + draw.between(0, 25)));
  return text;
}

class VariableMaker final : public RulerMaker {
 public:
  using RulerMaker::RulerMaker;
  std::int64_t smallest() const override { return kVariables; }
  bool has_depth() const override { return false; }

  Json row(Draw& draw, std::int64_t lines, std::int64_t) const override {
    // an example with short names first, solved
    const Parts shown = parts(draw, kVariables, 3);
    Parts asked = parts(draw, lines, 5);
    return row_of(fmt::format("{}{}{}{}{}\n\n{}", kHead, shown.context, shown.question,
                              shown.prefix, fmt::join(shown.names, " "), kHead),
                  std::move(asked.context), std::move(asked.question), std::move(asked.prefix),
                  std::move(asked.names));
  }

 private:
  static constexpr std::int64_t kVariables = 5;  // one chain of four hops
  static constexpr const char* kHead =
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";

  struct Parts {
    std::string context, question, prefix;
    std::vector<std::string> names;
  };

  static Parts parts(Draw& draw, std::int64_t lines, int letters) {
    Parts p;
    while (std::ssize(p.names) < kVariables)
      if (std::string name = random_letters(draw, 'A', letters);
          std::find(p.names.begin(), p.names.end(), name) == p.names.end())
        p.names.push_back(std::move(name));
    const std::int64_t value = draw.between(10000, 99999);
    std::vector<std::int64_t> at = draw.sample(lines, kVariables);
    std::sort(at.begin(), at.end());
    std::size_t said = 0;
    for (std::int64_t i = 0; i < lines; ++i) {
      if (said < at.size() && at[said] == i) {
        p.context += said == 0 ? fmt::format("VAR {} = {}\n", p.names[0], value)
                               : fmt::format("VAR {} = VAR {}\n", p.names[said], p.names[said - 1]);
        ++said;
      }
      p.context += Haystack::noise().lines.front();
    }
    p.context.pop_back();
    p.question = fmt::format(
        "\nQuestion: Find all variables that are assigned the value {} in the text above.", value);
    p.prefix = fmt::format(
        " Answer: According to the chain(s) of variable assignment in the text above, {} variables "
        "are assigned the value {}, they are: ",
        kVariables, value);
    return p;
  }
};

class CommonWordsMaker final : public RulerMaker {
 public:
  explicit CommonWordsMaker(const MakeOptions& options) : RulerMaker(options) {
    std::set<std::string> words;
    for (const std::string& sentence : sentences_of(options.haystack_file)) {
      std::string word;
      for (const char c : sentence + " ") {
        const char small = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
        if (small >= 'a' && small <= 'z') {
          word.push_back(small);
          continue;
        }
        if (word.size() >= 3 && word.size() <= 12) words.insert(word);
        word.clear();
      }
    }
    words_.assign(words.begin(), words.end());
    if (std::ssize(words_) < 4 * kCommon)
      throw ConfigError(
          fmt::format("--haystack {}: has {} different words, and the task cwe takes at least {}; "
                      "name a longer "
                      "text",
                      options.haystack_file.string(), words_.size(), 4 * kCommon));
  }
  std::int64_t smallest() const override { return kCommon + 1; }
  std::int64_t largest() const override { return std::ssize(words_); }
  bool has_depth() const override { return false; }

  Json row(Draw& draw, std::int64_t different, std::int64_t) const override {
    const bool brief = options_.tokens < kShort;
    auto [example, shown] = brief ? list(draw, 2 * kCommon, 3, 1) : list(draw, 4 * kCommon, 10, 3);
    auto [context, common] = brief ? list(draw, different, 6, 1) : list(draw, different, 30, 3);
    std::string solved;
    for (std::size_t i = 0; i < shown.size(); ++i)
      solved += fmt::format(" {}. {}", i + 1, shown[i]);
    return row_of(fmt::format("{}{}{}{}{}\n{}", kHead, example, kQuestion, kPrefix, solved, kHead),
                  std::move(context), kQuestion, kPrefix, std::move(common));
  }

 private:
  static constexpr std::int64_t kCommon = 10;
  static constexpr const char* kHead =
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n";
  static constexpr const char* kQuestion =
      "\nQuestion: What are the 10 most common words in the above list?";
  static constexpr const char* kPrefix =
      " Answer: The top 10 words that appear most often in the list are:";

  /// A numbered list, and its common words.
  std::pair<std::string, std::vector<std::string>> list(Draw& draw, std::int64_t different,
                                                        int often, int seldom) const {
    std::vector<std::string> common, all;
    for (const std::int64_t i : draw.sample(std::ssize(words_), different)) {
      const std::string& word = words_[static_cast<std::size_t>(i)];
      const bool is_common = std::ssize(common) < kCommon;
      if (is_common) common.push_back(word);
      all.insert(all.end(), static_cast<std::size_t>(is_common ? often : seldom), word);
    }
    draw.shuffle(all);
    std::string text;
    for (std::size_t i = 0; i < all.size(); ++i)
      text += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, all[i]);
    return {text, common};
  }

  std::vector<std::string> words_;
};

class FrequentWordsMaker final : public RulerMaker {
 public:
  using RulerMaker::RulerMaker;
  std::int64_t smallest() const override { return 60; }  // the third is more frequent than the next
  bool has_depth() const override { return false; }

  Json row(Draw& draw, std::int64_t words, std::int64_t) const override {
    const std::int64_t vocabulary = std::max<std::int64_t>(options_.tokens / 50, 8);
    std::vector<std::string> coded{"..."};  // the most frequent one is noise
    std::set<std::string> used;
    while (std::ssize(coded) < vocabulary)
      if (std::string word = random_letters(draw, 'a', 6); used.insert(word).second)
        coded.push_back(std::move(word));
    // frequencies of a zeta distribution with alpha 2
    constexpr double kZeta = std::numbers::pi * std::numbers::pi / 6;
    std::vector<std::string> all;
    for (std::size_t i = 0; i < coded.size(); ++i) {
      const auto rank = static_cast<double>(i + 1);
      all.insert(all.end(),
                 static_cast<std::size_t>(static_cast<double>(words) / (rank * rank) / kZeta),
                 coded[i]);
    }
    draw.shuffle(all);
    return row_of(
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. ",
        fmt::format("{}", fmt::join(all, " ")),
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text?",
        " Answer: According to the coded text above, the three most frequently appeared words are:",
        {coded[1], coded[2], coded[3]});
  }
};

// -- questions of published files --

struct Question {
  std::string asked;
  std::vector<std::string> answers;
  std::vector<std::size_t> own, near;  ///< documents with the answer; others of its article
};

struct Questions {
  std::vector<std::string> documents;
  std::vector<Question> all;
};

/// Documents by their text, each once.
class Documents {
 public:
  std::size_t add(std::string text) {
    const auto [found, added] = places_.try_emplace(std::move(text), all_.size());
    if (added) all_.push_back(found->first);
    return found->second;
  }
  std::vector<std::string> all() && { return std::move(all_); }

 private:
  std::map<std::string, std::size_t> places_;
  std::vector<std::string> all_;
};

Questions read_squad(const std::filesystem::path& file) {
  const Json json = tools::read_json(file);
  const Field root(json, file.string()), articles = root.at("data");
  Questions questions;
  Documents documents;
  for (std::size_t a = 0; a < articles.size(); ++a) {
    const Field paragraphs = articles.at(a).at("paragraphs");
    std::vector<std::size_t> places;
    for (std::size_t p = 0; p < paragraphs.size(); ++p)
      places.push_back(documents.add(paragraphs.at(p).at("context").text()));
    for (std::size_t p = 0; p < paragraphs.size(); ++p) {
      const Field asked = paragraphs.at(p).at("qas");
      for (std::size_t q = 0; q < asked.size(); ++q) {
        const Field one = asked.at(q), answers = one.at("answers");
        if (one.has("is_impossible") && one.at("is_impossible").json() == true) continue;
        Question question{one.at("question").text(), {}, {places[p]}, {}};
        for (std::size_t i = 0; i < answers.size(); ++i)
          question.answers.push_back(answers.at(i).at("text").text());
        if (question.answers.empty()) answers.fail("must hold an answer");
        for (const std::size_t place : places)
          if (place != places[p]) question.near.push_back(place);
        questions.all.push_back(std::move(question));
      }
    }
  }
  questions.documents = std::move(documents).all();
  return questions;
}

Questions read_hotpotqa(const std::filesystem::path& file) {
  Questions questions;
  Documents documents;
  for (const Row& row : read_rows(file)) {
    Question question{row.text("question"), {row.text("answer")}, {}, {}};
    const Field context = row.field().at("context");
    for (std::size_t i = 0; i < context.size(); ++i) {
      const Field sentences = context.at(i).at(std::size_t{1});
      std::string text = context.at(i).at(std::size_t{0}).text() + "\n";
      for (std::size_t s = 0; s < sentences.size(); ++s) text += sentences.at(s).text();
      question.own.push_back(documents.add(std::move(text)));
    }
    if (question.own.empty()) context.fail("must hold a document");
    questions.all.push_back(std::move(question));
  }
  questions.documents = std::move(documents).all();
  return questions;
}

class QuestionMaker final : public RulerMaker {
 public:
  explicit QuestionMaker(const MakeOptions& options) : RulerMaker(options) {
    const bool squad = options.task == "qa_1";
    if (options.source.empty())
      throw ConfigError(fmt::format("--source: the task {} takes its questions from {}",
                                    options.task,
                                    squad ? "a file of SQuAD, such as dev-v2.0.json"
                                          : "a file of HotpotQA, hotpot_dev_distractor_v1.json"));
    questions_ = squad ? read_squad(options.source) : read_hotpotqa(options.source);
    if (std::ssize(questions_.all) < options.count)
      throw ConfigError(fmt::format("--count {}: {} has {} questions with an answer", options.count,
                                    options.source.string(), questions_.all.size()));
    for (std::int64_t i = 0; i < options.count; ++i)
      smallest_ = std::max(smallest_, std::ssize(questions_.all[static_cast<std::size_t>(i)].own));
  }
  std::int64_t smallest() const override { return smallest_; }
  std::int64_t largest() const override { return std::ssize(questions_.documents); }
  bool has_depth() const override { return false; }

  Json row(Draw& draw, std::int64_t n, std::int64_t index) const override {
    const Question& question = questions_.all[static_cast<std::size_t>(index)];
    std::vector<std::size_t> chosen = question.own;
    const auto fill_from = [&](std::vector<std::size_t> others) {
      draw.shuffle(others);
      for (const std::size_t d : others) {
        if (std::ssize(chosen) >= n) break;
        chosen.push_back(d);
      }
    };
    fill_from(question.near);
    if (std::ssize(chosen) < n) {
      const std::set<std::size_t> there(chosen.begin(), chosen.end());
      std::vector<std::size_t> others;
      for (std::size_t d = 0; d < questions_.documents.size(); ++d)
        if (!there.contains(d)) others.push_back(d);
      fill_from(std::move(others));
    }
    draw.shuffle(chosen);
    std::string context;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      context += fmt::format("{}Document {}:\n{}", i == 0 ? "" : "\n\n", i + 1,
                             questions_.documents[chosen[i]]);
    return row_of(fmt::format("{}\n\nThe following are given documents.\n\n", kInstruction),
                  std::move(context),
                  fmt::format("\n\n{}\n\nQuestion: {}", kInstruction, question.asked),
                  " Answer:", question.answers);
  }

 private:
  static constexpr const char* kInstruction =
      "Answer the question based on the given documents. Only give me the answer and do not output "
      "any other words.";
  Questions questions_;
  std::int64_t smallest_ = 1;
};

std::unique_ptr<RulerMaker> maker_of(const MakeOptions& options) {
  for (const NeedleTask& task : kNeedleTasks)
    if (task.name == options.task) return std::make_unique<NeedleMaker>(options, task);
  if (options.task == "vt") return std::make_unique<VariableMaker>(options);
  if (options.task == "cwe") return std::make_unique<CommonWordsMaker>(options);
  if (options.task == "fwe") return std::make_unique<FrequentWordsMaker>(options);
  return std::make_unique<QuestionMaker>(options);
}

constexpr auto kRulerNames = [] {
  std::array<std::string_view, std::size(kRulerTasks)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kRulerTasks[i].name;
  return names;
}();

}  // namespace

std::span<const RulerTask> ruler_tasks() { return kRulerTasks; }
std::span<const std::string_view> ruler_names() { return kRulerNames; }

const RulerTask& ruler_task(std::string_view name) {
  for (const RulerTask& task : kRulerTasks)
    if (task.name == name) return task;
  throw ConfigError(
      fmt::format("--task {}: RULER has {}", printable(name), fmt::join(kRulerNames, ", ")));
}

void make_ruler_rows(const MakeOptions& options, const TokenCounter& count, const RowSink& emit) {
  ruler_task(options.task);
  make_rows(*maker_of(options), options, count, [&](Json row) {
    row["length"] = row["tokens"];
    emit(std::move(row));
  });
}

}  // namespace episodic::suites
