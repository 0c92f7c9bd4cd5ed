// SPDX-License-Identifier: Apache-2.0
#include "make/needles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic::suites {
namespace {

constexpr std::string_view kNeedleTaskNames[] = {"same_words", "other_words", "no_shared_word"};

/// Beginnings of the words that say something.
std::set<std::string> telling_words(std::string_view text) {
  static const std::set<std::string> kSmall = {
      "a",     "an",    "the",   "of",   "to",    "in",    "on",    "at",    "by",     "for",
      "from",  "with",  "and",   "or",   "is",    "was",   "are",   "were",  "be",     "been",
      "has",   "had",   "have",  "did",  "do",    "does",  "what",  "which", "who",    "whom",
      "whose", "where", "when",  "why",  "how",   "as",    "it",    "its",   "that",   "this",
      "these", "those", "into",  "onto", "up",    "out",   "off",   "over",  "under",  "before",
      "after", "not",   "no",    "one",  "than",  "then",  "there", "their", "his",    "her",
      "he",    "she",   "they",  "them", "him",   "i",     "you",   "your",  "my",     "we",
      "our",   "us",    "so",    "if",   "but",   "about", "would", "could", "should", "can",
      "must",  "will",  "shall", "may",  "might", "s"};
  std::set<std::string> words;
  std::string word;
  for (const char c : std::string(text) + " ") {
    const char small = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    const bool part = (small >= 'a' && small <= 'z') || (small >= '0' && small <= '9');
    if (part) {
      word.push_back(small);
      continue;
    }
    if (!word.empty() && !kSmall.contains(word)) words.insert(word.substr(0, 5));
    word.clear();
  }
  return words;
}

struct FactRow {
  std::string kind, said, question;
  Json answers;
};

std::vector<FactRow> read_facts(const MakeOptions& options) {
  if (options.source.empty())
    throw ConfigError(
        "--source: needles are made from a file of facts, benchmarks/find/facts.json");
  const bool same = options.task == "same_words";
  std::vector<FactRow> facts;
  for (const Row& row : read_rows(options.source)) {
    FactRow fact{row.text("kind"), row.text("said"), row.text(same ? "asked" : "other"),
                 row.list("answers")};
    const Field answers = row.field().at("answers");
    for (std::size_t i = 0; i < answers.size(); ++i)
      for (std::size_t k = 0; k < answers.at(i).size(); ++k) answers.at(i).at(k).text();
    if (options.task != "no_shared_word" || !share_a_word(fact.said, fact.question))
      facts.push_back(std::move(fact));
  }
  if (std::ssize(facts) < options.count)
    throw ConfigError(fmt::format("--count {}: {} has {} facts for the task {}", options.count,
                                  options.source.string(), facts.size(), options.task));
  return facts;
}

class FactMaker final : public RowMaker {
 public:
  explicit FactMaker(const MakeOptions& options)
      : RowMaker(options),
        facts_(read_facts(options)),
        sentences_(sentences_of(options.haystack_file)) {
    Draw(options.seed).shuffle(facts_);
  }
  std::int64_t smallest() const override { return 1; }

  Json row(Draw& draw, std::int64_t sentences, std::int64_t index) const override {
    const FactRow& fact = facts_[static_cast<std::size_t>(index)];
    const std::int64_t start = draw.between(0, std::ssize(sentences_) - 1);
    const double depth = options_.depth >= 0 ? options_.depth
                                             : (static_cast<double>(index) + 0.5) /
                                                   static_cast<double>(options_.count);
    const std::int64_t before = std::llround(depth * static_cast<double>(sentences));
    std::string context;
    for (std::int64_t i = 0; i <= sentences; ++i) {
      if (i == before) context += fact.said + " ";
      if (i < sentences)
        context += sentences_[static_cast<std::size_t>((start + i) % std::ssize(sentences_))] + " ";
    }
    context.pop_back();
    return {{"id", 0},
            {"kind", fact.kind},
            {"said", fact.said},
            {"context", std::move(context)},
            {"question", fact.question},
            {"answers", fact.answers},
            {"depth", depth}};
  }

 private:
  std::vector<FactRow> facts_;
  std::vector<std::string> sentences_;
};

}  // namespace

std::span<const std::string_view> needle_tasks() { return kNeedleTaskNames; }

bool share_a_word(std::string_view a, std::string_view b) {
  const std::set<std::string> of_a = telling_words(a), of_b = telling_words(b);
  return std::any_of(of_a.begin(), of_a.end(),
                     [&](const std::string& word) { return of_b.contains(word); });
}

void make_needle_rows(const MakeOptions& options, const TokenCounter& count, const RowSink& emit) {
  make_rows(FactMaker(options), options, count, emit);
}

}  // namespace episodic::suites
