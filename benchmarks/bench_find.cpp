// SPDX-License-Identifier: Apache-2.0
// Does a model answer from a memory what it answers from its window? Facts of ten kinds are hidden
// in a book and asked for in the text's words and in others, by several ways of answering.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>

#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/conversation.hpp"
#include "episodic/session/passages.hpp"
#include "hidden_facts.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

using tools::Json;
using Clock = std::chrono::steady_clock;

struct FindFlags {
  tools::CommonFlags common;
  tools::ModelFlags model;
  tools::TextFlags text;
  std::filesystem::path facts, encoder, json;
  std::vector<std::string> methods{"window", "memory", "reread"};
  std::int64_t tokens = 16384, first = 0, count = 40;
  PassageOptions passages;
  bool plain = false;
};

struct Asked {
  std::size_t fact = 0;
  std::string words;  ///< "same" or "other"
  std::string question;
};

struct HiddenFact {
  std::string kind;
  std::vector<std::vector<std::string>> answers;
  TokenRange tokens;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Whether a form stands in the text as whole words.
bool holds(const std::string& text, const std::string& form) {
  const auto word = [&](std::size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  for (std::size_t at = text.find(form); at != std::string::npos; at = text.find(form, at + 1))
    if ((at == 0 || !word(at - 1)) && !word(at + form.size())) return true;
  return false;
}

/// One form of every list; commas and spaces between digits are no part of a number.
bool is_right(const std::string& answer, const std::vector<std::vector<std::string>>& lists) {
  std::string text;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const auto digit = [&](std::size_t k) {
      return k < answer.size() && std::isdigit(static_cast<unsigned char>(answer[k])) != 0;
    };
    if ((answer[i] == ',' || answer[i] == ' ') && i > 0 && digit(i - 1) && digit(i + 1)) continue;
    text += answer[i];
  }
  text = lower(text);
  return std::all_of(lists.begin(), lists.end(), [&](const std::vector<std::string>& forms) {
    return std::any_of(forms.begin(), forms.end(),
                       [&](const std::string& form) { return holds(text, lower(form)); });
  });
}

/// Wilson's interval of 95 % for `right` of `n`.
std::pair<double, double> interval(std::int64_t right, std::int64_t n) {
  if (n == 0) return {0, 1};
  const double z = 1.96, m = static_cast<double>(n), p = static_cast<double>(right) / m;
  const double middle = (p + z * z / (2 * m)) / (1 + z * z / m);
  const double half = z / (1 + z * z / m) * std::sqrt(p * (1 - p) / m + z * z / (4 * m * m));
  return {middle - half, middle + half};
}

class Asking {
 public:
  Asking(const FindFlags& flags, std::shared_ptr<const Model> model)
      : flags_(flags), model_(std::move(model)) {}

  /// \param goes_on behind what a sequence has read
  ChatPrompt prompt(const std::string& text, const std::string& question, bool goes_on) const {
    const Tokenizer& tokenizer = model_->tokenizer();
    const std::string before = text.empty() ? "" : text + "\n\n";
    if (!flags_.plain)
      return Conversation(model_->chat_template(), tokenizer, {.goes_on = goes_on})
          .ask(before, question);
    const std::string whole = fmt::format("\n\n{}Question: {}\nAnswer:", before, question);
    return {{}, goes_on ? encode_continuation(tokenizer, whole) : tokenizer.encode(whole)};
  }

  std::string answer(Sequence& sequence, const ChatPrompt& prompt) const {
    Session session(sequence, &model_->tokenizer());
    session.prefill(prompt.text);
    // the question in steps of its own; its last token too, from which the answer starts
    session.prefill(std::span(prompt.question).first(prompt.question.size() - 1));
    GenerateOptions options;
    options.max_new = 32;
    if (flags_.plain) options.stop = {"\n"};
    return session.generate(std::span(prompt.question).last(1), options).text;
  }

 private:
  const FindFlags& flags_;
  std::shared_ptr<const Model> model_;
};

void run(const FindFlags& flags) {
  flags.common.apply_on_host();
  const Json rows = tools::read_json(flags.facts);
  if (flags.first + flags.count > static_cast<std::int64_t>(rows.size()))
    throw ConfigError(fmt::format("--first {} --count {}: the file has {} facts", flags.first,
                                  flags.count, rows.size()));
  const std::unique_ptr<Engine> engine = tools::load_engine(flags.common, flags.model);
  const std::shared_ptr<const Model> model = engine->shared_model();
  const MemoryConfig config = flags.model.memory_config();
  const tools::Book book = tools::open_book(flags.text.text);

  std::vector<tools::Fact> hidden;
  std::vector<HiddenFact> facts;
  std::vector<Asked> questions;
  for (std::int64_t i = 0; i < flags.count; ++i) {
    const Json& row = rows[static_cast<std::size_t>(flags.first + i)];
    tools::Fact f;
    f.said = row.at("said");
    // none in the window that the text ends with: that would not be recalled
    f.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(flags.count) *
              (1 - static_cast<double>(config.n_local + 256) / static_cast<double>(flags.tokens));
    hidden.push_back(std::move(f));
    facts.push_back({row.at("kind"), row.at("answers"), {}});
    const auto fact = static_cast<std::size_t>(i);
    questions.push_back({fact, "same", row.at("asked")});
    questions.push_back({fact, "other", row.at("other")});
  }
  const tools::HiddenFacts text =
      tools::hide_facts(book, model->tokenizer(), flags.tokens, std::move(hidden),
                        static_cast<std::size_t>(flags.first) * 97);
  for (std::size_t i = 0; i < facts.size(); ++i) facts[i].tokens = text.facts[i].tokens;

  const Asking asking(flags, model);
  engine->attach(config, std::ssize(text.ids) + 4096);
  const auto wanted = [&](const char* method) {
    return std::find(flags.methods.begin(), flags.methods.end(), method) != flags.methods.end();
  };
  Clock::time_point start = Clock::now();
  {
    tools::ProgressBar bar("reading", flags.common.quiet);
    engine->read(text.ids, bar.callback());
  }
  const double read_seconds = seconds_since(start);
  const auto snapshot = engine->snapshot();
  PassageFinder finder(model);
  std::optional<SentenceEncoder> encoder;
  if (!flags.encoder.empty()) {
    encoder.emplace(SentenceEncoder::open(flags.encoder, SentenceEncoder::kAllPositions));
    finder.set_encoder(&*encoder);
  }
  double index_seconds = 0;
  if (wanted("reread") || wanted("passages")) {
    start = Clock::now();
    finder.read(*engine->memory(), engine->known_ids());
    index_seconds = seconds_since(start);
  }
  const auto text_of = [&](TokenRange r) {
    return model->tokenizer().decode({text.ids.begin() + r.start, text.ids.begin() + r.end});
  };

  std::map<std::string, double> seconds;
  std::map<std::string, std::map<std::string, std::pair<std::int64_t, std::int64_t>>> right;
  std::map<std::string, std::map<std::string, std::pair<std::int64_t, std::int64_t>>> by_kind;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> found;  // passages hold the fact
  Json answers = Json::array();
  tools::ProgressBar bar("asking", flags.common.quiet);
  const ProgressCallback progress = bar.callback();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Asked& q = questions[i];
    const HiddenFact& fact = facts[q.fact];
    Json row{{"kind", fact.kind}, {"words", q.words}, {"question", q.question}};
    std::vector<Passage> passages;
    double find_seconds = 0;
    if (wanted("reread") || wanted("passages")) {
      start = Clock::now();
      passages = finder.find(q.question, flags.passages);
      find_seconds = seconds_since(start);
      std::int64_t place = 0;
      for (std::size_t p = 0; p < passages.size() && place == 0; ++p)
        if (passages[p].tokens.start <= fact.tokens.start + 2 &&
            passages[p].tokens.end >= fact.tokens.end - 2)
          place = static_cast<std::int64_t>(p) + 1;
      row["place"] = place;
      found[q.words].first += place > 0;
      found[q.words].second += 1;
    }
    for (const std::string& method : flags.methods) {
      start = Clock::now();
      std::string answer;
      if (method == "window" || method == "passages") {
        const std::int64_t around = flags.passages.tokens / 3;
        const std::string given =
            method == "window" ? text_of({std::max<std::int64_t>(0, fact.tokens.start - around),
                                          std::min(std::ssize(text.ids), fact.tokens.end + around)})
                               : joined_text(passages);
        Sequence sequence(model);
        answer = asking.answer(sequence, asking.prompt(given, q.question, false));
      } else {
        engine->restore(*snapshot);
        answer = asking.answer(
            *engine, asking.prompt(method == "reread" ? joined_text(passages) : std::string(),
                                   q.question, true));
      }
      seconds[method] += seconds_since(start);
      if (method == "reread" || method == "passages") seconds[method] += find_seconds;
      const bool good = is_right(answer, fact.answers);
      row[method] = {{"text", answer}, {"right", good}};
      for (auto* counted : {&right[method][q.words], &by_kind[method][fact.kind + " " + q.words]}) {
        counted->first += good;
        counted->second += 1;
      }
    }
    answers.push_back(std::move(row));
    progress(static_cast<std::int64_t>(i) + 1, std::ssize(questions));
  }

  Json result{{"program", "bench_find"},
              {"environment", environment()},
              {"model", flags.model.model.string()},
              {"book", book.title},
              {"tokens", text.ids.size()},
              {"events", engine->n_events()},
              {"facts", {{"first", flags.first}, {"count", flags.count}}},
              {"passages", {{"count", flags.passages.count}, {"tokens", flags.passages.tokens}}},
              {"encoder", flags.encoder.string()},
              {"memory", tools::settings_json(config)},
              {"seconds", {{"read", read_seconds}, {"index", index_seconds}}},
              {"finder_bytes", finder.bytes()}};
  fmt::print(stderr, "{:<10} {:>12} {:>16} {:>12} {:>16} {:>10}\n", "method", "same words", "95 %",
             "other words", "95 %", "seconds");
  for (const std::string& method : flags.methods) {
    Json of;
    std::string line = fmt::format("{:<10}", method);
    for (const char* words : {"same", "other"}) {
      const auto [good, n] = right[method][words];
      const auto [low, high] = interval(good, n);
      of[words] = {{"right", good}, {"asked", n}, {"low", low}, {"high", high}};
      line += fmt::format(" {:>12} {:>16}", fmt::format("{} of {}", good, n),
                          fmt::format("{:.2f} to {:.2f}", low, high));
    }
    of["seconds"] = seconds[method] / static_cast<double>(questions.size());
    for (const auto& [kind, counted] : by_kind[method])
      of["kinds"][kind] = {counted.first, counted.second};
    result["methods"][method] = of;
    fmt::print(stderr, "{} {:>10.2f}\n", line, of["seconds"].get<double>());
  }
  for (const auto& [words, counted] : found) {
    result["found"][words] = {counted.first, counted.second};
    fmt::print(stderr, "passages hold the fact ({} words): {} of {}\n", words, counted.first,
               counted.second);
  }
  result["answers"] = std::move(answers);
  if (!flags.json.empty()) tools::write_json(flags.json, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic;
  tools::CommandLine app{
      "Facts hidden in a book, asked for in the text's words and in others: what a model answers",
      "bench_find"};
  app.footer(
      "Methods: window (the passage alone before the question: the most that the model can do),\n"
      "memory (the question behind the memory), reread (passages found for the question are read\n"
      "again between the two), passages (the same passages, without the memory).\n\n"
      "Example:\n  bench_find --model M.gguf --text book.txt --facts benchmarks/find/facts.json "
      "\\\n"
      "    --tokens 16384 --count 40 --json out.json");
  bench::FindFlags flags;
  flags.model.add_to(app, false);
  app.option("--text", flags.text.text, "The book").required();
  app.option("--facts", flags.facts, "Facts (find/make_facts.py)").required();
  app.option("--method", flags.methods, "Ways of answering").separated_by(',');
  app.option("--tokens", flags.tokens, "Tokens of the text").positive();
  app.option("--first", flags.first, "First fact of the file").not_negative();
  app.option("--count", flags.count, "Facts that are hidden").positive();
  app.option("--passages", flags.passages.count, "Passages that are read again").positive();
  app.option("--passage-tokens", flags.passages.tokens, "Tokens of each").positive();
  app.option("--encoder", flags.encoder, "Sentence encoder that finds passages too")
      .type_name("DIR");
  app.flag("--plain", flags.plain, "Without the model's chat format");
  app.option("--json", flags.json, "Result file");
  flags.common.add_to(app);
  return bench::run_program(app, argc, argv, [&] { bench::run(flags); });
}
