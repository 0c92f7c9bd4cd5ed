// SPDX-License-Identifier: Apache-2.0
// Does a model answer from its memory? Facts are hidden in a real book and asked for, with the
// memory and without, over all depths.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/model/patch.hpp"
#include "hidden_facts.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

using tools::Answer;
using tools::Fact;

struct RecallFlags {
  tools::CommonFlags common;
  tools::ModelFlags model;
  std::string task = "named";
  std::int64_t tokens = 100000, count = 20;
  std::uint64_t seed = 1;
  std::filesystem::path text, json;
  bool no_recall = false;
};

constexpr std::array kPeople = {
    "Alice",  "Bob",  "Carol", "David", "Emma",  "Frank", "Grace", "Henry", "Irene", "Jack",
    "Kate",   "Leo",  "Mary",  "Nora",  "Oscar", "Paul",  "Rosa",  "Sam",   "Tom",   "Vera",
    "Walter", "Anna", "Peter", "Boris", "Helen", "Ivan",  "Olga",  "Marie", "Lucy",  "Simon"};
constexpr std::array kThings = {
    "apples",   "bottles",  "candles",  "doors",  "engines", "flowers", "gardens",
    "houses",   "islands",  "journals", "keys",   "lamps",   "mirrors", "nails",
    "oranges",  "pictures", "quarrels", "roads",  "ships",   "tables",  "umbrellas",
    "villages", "windows",  "letters",  "stones", "horses",  "chairs",  "rivers",
    "towers",   "soldiers", "boxes",    "rings",  "trees",   "boats",   "coins"};

/// Draws that are the same with every standard library.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  template <std::size_t N>
  std::string take(const std::array<const char*, N>& from, std::vector<bool>& used) {
    used.resize(N);
    std::size_t i = below(N);
    while (used[i]) i = (i + 1) % N;
    used[i] = true;
    return from[i];
  }
  std::string digits(int n) {
    std::string out;
    while (static_cast<int>(out.size()) < n) out += static_cast<char>('0' + below(10));
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

/// The contexts of a run: one fact each for `passkey`, all facts in one for the other tasks.
std::vector<std::vector<Fact>> contexts(const RecallFlags& flags) {
  Draw draw(flags.seed);
  const std::int64_t most = flags.task == "named" ? kPeople.size() : kThings.size();
  if (flags.task != "passkey" && flags.count > most)
    throw ConfigError(
        fmt::format("--count = {}: task {} has {} different names", flags.count, flags.task, most));
  std::vector<Fact> facts;
  std::vector<bool> used;
  for (std::int64_t i = 0; i < flags.count; ++i) {
    Fact f;
    f.kind = flags.task == "numbers" ? "number" : "pass key";
    f.name = flags.task == "passkey" ? "pass key"
             : flags.task == "named" ? "pass key of " + draw.take(kPeople, used)
                                     : "number of " + draw.take(kThings, used);
    f.value = draw.digits(flags.task == "numbers" ? 6 : 5);
    f.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(flags.count);
    facts.push_back(std::move(f));
  }
  if (flags.task != "passkey") return {facts};
  std::vector<std::vector<Fact>> all;
  for (Fact& f : facts) all.push_back({std::move(f)});
  return all;
}

void run(RecallFlags& flags) {
  flags.common.apply_on_host();
  MemoryConfig config = flags.model.memory_config();
  if (flags.no_recall) config.recall = false;
  const tools::Book book = tools::open_book(flags.text);
  const auto tokenizer = load_tokenizer(flags.model.model);
  Decoder model = Decoder::load(open_model(flags.model.model, flags.model.options()));
  const auto memory = patch(model, config);
  Session session(model, tokenizer.get());
  Json result{{"program", "bench_recall"},
              {"environment", environment()},
              {"model", flags.model.model.string()},
              {"task", flags.task},
              {"book", book.title},
              {"memory", tools::settings_json(config)},
              {"seed", flags.seed}};
  Json answers = Json::array();
  std::int64_t right = 0, asked = 0, tokens = 0;
  Draw place(flags.seed + 1000);
  for (std::vector<Fact>& facts : contexts(flags)) {
    const tools::HiddenFacts text = tools::hide_facts(
        book, *tokenizer, flags.tokens, std::move(facts), place.below(book.pieces.size()));
    memory->reset();
    {
      tools::ProgressBar bar(fmt::format("{} {}/{}", flags.task, asked + 1, flags.count),
                             flags.common.quiet);
      session.prefill(text.ids, bar.callback());
    }
    tokens += static_cast<std::int64_t>(text.ids.size());
    const auto snapshot = memory->snapshot();
    for (const Fact& fact : text.facts) {
      memory->restore(*snapshot);
      const Answer answer = tools::ask_for(fact, session, *tokenizer);
      right += answer.right;
      ++asked;
      answers.push_back({{"name", fact.name},
                         {"value", fact.value},
                         {"depth", fact.depth},
                         {"answer", answer.text},
                         {"right", answer.right}});
      if (!answer.right)
        fmt::print(stderr, "  missed {} at {:.0f}%: {} read as \"{}\"\n", fact.name,
                   100 * fact.depth, fact.value, answer.text);
    }
  }
  const MemoryCounters c = memory->counters();
  result["tokens_per_context"] = flags.tokens;
  result["right"] = right;
  result["asked"] = asked;
  result["tokens_per_second"] = static_cast<double>(tokens) / session.counters().prefill_seconds;
  result["events"] = c.events;
  result["store_bytes"] = c.store.bytes_used;
  result["index_bytes"] = c.index_bytes;
  result["peak_resident_bytes"] = tools::peak_resident_bytes();
  if (c.index_quality.checked > 0) result["index_recall"] = c.index_quality.recall();
  result["answers"] = answers;
  fmt::print(stderr,
             "{} at {} tokens{}: {} of {} right, {:.0f} tokens/s, {:.0f} MB resident at most\n",
             flags.task, flags.tokens, flags.no_recall ? " without recall" : "", right, asked,
             result["tokens_per_second"].get<double>(),
             1e-6 * static_cast<double>(tools::peak_resident_bytes()));
  tools::write_json(flags.json, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic;
  tools::CommandLine app{
      "Facts hidden in a book and asked for: how many a model answers from its memory",
      "bench_recall"};
  app.footer(
      "Tasks: passkey (one fact a context, COUNT contexts), named (COUNT pass keys of people in "
      "one\n"
      "context), numbers (COUNT \"number of X\" in one context). The book is the King James Bible "
      "of\n"
      "the Debian package bible-kjv, or --text.\n\n"
      "Example:\n  bench_recall --model models/recall-2m6 --task numbers --tokens 100000 --json "
      "out.json");
  bench::RecallFlags flags;
  flags.model.add_to(app, false);
  app.option("--task", flags.task).one_of({"passkey", "named", "numbers"});
  app.option("--tokens", flags.tokens, "Tokens of a context").positive();
  app.option("--count", flags.count, "Facts").positive();
  app.option("--seed", flags.seed, "Seed of names, values and the place in the book");
  app.option("--text", flags.text, "Another book");
  app.flag("--no-recall", flags.no_recall, "The same window, nothing recalled");
  app.option("--json", flags.json, "Result file (default: stdout)");
  flags.common.add_to(app);
  return bench::run_program(app, argc, argv, [&] { bench::run(flags); });
}
