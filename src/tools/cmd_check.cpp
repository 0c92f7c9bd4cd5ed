// SPDX-License-Identifier: Apache-2.0
// `episodic check`: does a model answer from its window, from its memory, and without the passage?

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <optional>
#include <set>

#include "base/strict_json.hpp"
#include "chat.hpp"
#include "commands.hpp"
#include "draw.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/model/memory_settings.hpp"
#include "hidden_facts.hpp"
#include "recalled.hpp"
#include "speed.hpp"

namespace episodic::tools {
namespace {

struct CheckFlags {
  CommonFlags common;
  ModelFlags model;
  std::uint64_t seed = 1;
  std::int64_t seconds = 60;
  bool plain = false;
  JsonFlag json;
};

/// A kind of fact, said in the text and asked for in two ways. {0} is a name, {1} the value.
struct Kind {
  const char* name;
  const char* said;
  const char* question;  ///< in the text's words
  const char* begun;     ///< the answer's beginning, for models that go on with a text
  const char* other;     ///< in other words
  const char* other_begun;
};

constexpr Kind kPassKey{"pass key",
                        "The pass key of {0} is {1}. Remember it. {1} is the pass key of {0}.",
                        "What is the pass key of {0}?",
                        "The pass key of {0} is",
                        "Which secret number was given to {0}?",
                        "The secret number is"};
constexpr Kind kDoorCode{"door code",
                         "The door code of {0} is {1}. Remember it. {1} is the door code of {0}.",
                         "What is the door code of {0}?",
                         "The door code of {0} is",
                         "Which digits does {0} type in to get into the house?",
                         "The digits are"};
constexpr Kind kNumber{"number",
                       "The number of {0} is {1}.",
                       "What is the number of {0}?",
                       "The number of {0} is",
                       "How many {0} were there?",
                       "In all there were"};
constexpr Kind kAnimal{"name",
                       "The donkey of {0} is called {1}.",
                       "What is the donkey of {0} called?",
                       "The donkey of {0} is called",
                       "To which name does {0}'s animal answer?",
                       "It answers to the name"};
constexpr Kind kPlace{"place",
                      "The spare key of {0} lies under the {1}.",
                      "Where does the spare key of {0} lie?",
                      "The spare key of {0} lies under the",
                      "Where has {0} hidden a second key?",
                      "It is hidden under the"};
constexpr Kind kWord{"password",
                     "The password of {0} is {1}.",
                     "What is the password of {0}?",
                     "The password of {0} is",
                     "Which word lets you in at {0}'s?",
                     "The word is"};

/// Which kinds are asked, and whether in the text's words; a check of fewer takes the first ones.
struct Asked {
  const Kind* kind;
  bool same_words;
};
constexpr std::array<Asked, 14> kAsked{{{&kPassKey, true},
                                        {&kNumber, true},
                                        {&kAnimal, true},
                                        {&kDoorCode, true},
                                        {&kPlace, false},
                                        {&kPassKey, true},
                                        {&kWord, true},
                                        {&kDoorCode, false},
                                        {&kNumber, true},
                                        {&kPassKey, true},
                                        {&kDoorCode, true},
                                        {&kAnimal, false},
                                        {&kPassKey, true},
                                        {&kDoorCode, true}}};
constexpr std::int64_t kLeastQuestions = 6;
constexpr std::int64_t kAnswerTokens = 20;
constexpr std::int64_t kPassageTokens = 110;  // with its question, roughly
constexpr std::int64_t kQuestionTokens = 30;
constexpr std::int64_t kFactTokens = 40;

struct Judged {
  std::string text;
  bool right = false;
};

struct Question {
  std::string kind, name, truth, said, question, begun;
  bool same_words = true;
  Judged window, memory, without;
  bool recalled = false;  ///< an event with a part of the fact, in any layer, for any token
  std::int64_t rank = 0;  ///< the best that it had
};

std::vector<Question> draw_questions(std::int64_t n, std::uint64_t seed) {
  Draw draw(seed);
  std::vector<std::string> names{"Alice", "Bob",   "Carol", "Emma", "Frank", "Grace",
                                 "Henry", "Irene", "Jack",  "Kate", "Leo",   "Nora"};
  std::vector<std::string> things{"candles", "guests", "muskets", "bridges"};
  std::vector<std::string> animals{"Juniper", "Biscuit", "Thunder", "Clover", "Pepper", "Marble"};
  std::vector<std::string> places{"flowerpot", "anvil",     "staircase",
                                  "bucket",    "millstone", "statue"};
  std::vector<std::string> words{"lantern", "walnut", "harbour", "copper", "feather", "thistle"};
  std::vector<Question> questions;
  std::set<std::string> taken;  // no two facts have the same number
  const auto digits = [&](int count) {
    std::string value = draw.digits(count);
    while (!taken.insert(value).second) value = draw.digits(count);
    return value;
  };
  for (std::int64_t i = 0; i < n; ++i) {
    const Asked& asked = kAsked[static_cast<std::size_t>(i)];
    const Kind& kind = *asked.kind;
    Question q;
    q.kind = kind.name;
    q.same_words = asked.same_words;
    q.name = draw.take(&kind == &kNumber ? things : names);
    q.truth = &kind == &kAnimal   ? draw.take(animals)
              : &kind == &kPlace  ? draw.take(places)
              : &kind == &kWord   ? draw.take(words)
              : &kind == &kNumber ? digits(6)
                                  : digits(5);
    const auto fill = [&](const char* form) {
      return fmt::format(fmt::runtime(form), q.name, q.truth);
    };
    q.said = fill(kind.said);
    q.question = fill(asked.same_words ? kind.question : kind.other);
    q.begun = fill(asked.same_words ? kind.begun : kind.other_begun);
    questions.push_back(std::move(q));
  }
  return questions;
}

/// Lower case; marks and spaces between digits are no part of a number ("70,649").
std::string plain(const std::string& text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = (text[i] == ',' || text[i] == ' ') && i > 0 && i + 1 < text.size() &&
                         digit(text[i - 1]) && digit(text[i + 1]);
    if (!between) out += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
  }
  return out;
}

/// How a question is put to the model: in its chat format, or as a text that it goes on with.
class Asking {
 public:
  Asking(const CheckFlags& flags, Engine& engine) : flags_(flags), engine_(engine) {
    chat_.chat = !flags.plain && has_template();
  }
  bool chat() const { return chat_.chat; }

  /// The question behind what was read; `end` closes the text's last sentence.
  std::vector<std::int64_t> behind_text(const Question& q, const std::string& end) const {
    if (chat())
      return joined(
          chat_prompt(chat_, flags_.model.model, engine_.tokenizer(), "", q.question, true));
    return encode_continuation(engine_.tokenizer(), end + completion(q));
  }
  /// A passage with the question, from the beginning.
  std::vector<std::int64_t> with_passage(const Question& q, const std::string& passage) const {
    if (chat())
      return joined(chat_prompt(chat_, flags_.model.model, engine_.tokenizer(), passage + "\n\n",
                                q.question, false));
    return engine_.tokenizer().encode(passage + completion(q));
  }

  /// \param at_token called before each token of the answer is fed back
  Judged answer(std::span<const std::int64_t> prompt, const Question& q,
                const std::function<void()>& at_token = {}) const {
    GenerateOptions options;
    options.max_new = kAnswerTokens;
    const std::string truth = plain(q.truth);
    Judged judged;
    options.on_token = [&](std::int64_t, std::string_view piece) {
      if (at_token) at_token();
      judged.text += piece;
      // On until the value is there and cannot become a longer one, or the sentence is over.
      const std::string so_far = plain(judged.text);
      const std::size_t at = so_far.find(truth);
      const bool there = at != std::string::npos && at + truth.size() < so_far.size();
      const std::size_t first = judged.text.find_first_not_of(" \n");
      const bool over =
          first != std::string::npos && (judged.text.find('\n', first) != std::string::npos ||
                                         judged.text.find(". ", first) != std::string::npos);
      return !there && !over;
    };
    engine_.generate(prompt, options);
    judged.right = contains(plain(judged.text), truth);
    return judged;
  }

 private:
  static std::string completion(const Question& q) {
    return fmt::format("\n\n\n{}\n\n{}", q.question, q.begun);
  }
  static std::vector<std::int64_t> joined(ChatPrompt prompt) {
    prompt.text.insert(prompt.text.end(), prompt.question.begin(), prompt.question.end());
    return std::move(prompt.text);
  }
  /// The value, and no longer number around it.
  static bool contains(const std::string& text, const std::string& value) {
    const auto word = [&](std::size_t i) {
      return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
    };
    for (std::size_t at = text.find(value); at != std::string::npos; at = text.find(value, at + 1))
      if ((at == 0 || !word(at - 1)) && !word(at + value.size())) return true;
    return false;
  }
  bool has_template() const {
    try {
      load_model_chat_template(flags_.model.model, engine_.tokenizer());
      return true;
    } catch (const FileError&) {
      return false;  // none, or one that is not supported: the model goes on with a text
    }
  }

  const CheckFlags& flags_;
  Engine& engine_;
  ChatFlags chat_;
};

/// How much fits into the time.
struct Size {
  std::int64_t questions = 0, tokens = 0;
  MemoryConfig config;
  std::int64_t full_n_local = 0;  ///< of the settings, before the window was shortened for the time
};

Size size_for(const CheckFlags& flags, const ModelConfig& model, const Speed& speed,
              MemoryConfig config) {
  const bool chosen = flags.model.memory.empty() && !brings_memory_settings(flags.model.model);
  // A third of the time is kept for what was reckoned too low.
  const double seconds = 0.66 * static_cast<double>(flags.seconds);
  const double of_question =
      static_cast<double>(2 * kPassageTokens + kQuestionTokens) / speed.reading +
      3.0 * static_cast<double>(kAnswerTokens) / speed.writing;
  Size size;
  size.full_n_local = config.n_local;
  size.questions = std::clamp(static_cast<std::int64_t>(seconds / 2 / of_question), kLeastQuestions,
                              static_cast<std::int64_t>(kAsked.size()));
  const double left = seconds - static_cast<double>(size.questions) * of_question;
  // Beyond the window at least twice what is recalled of it, so that recall has to choose.
  const auto least = [&] {
    return config.n_init + config.n_local + config.chunk +
           std::max<std::int64_t>(2 * config.n_mem, 2 * size.questions * kFactTokens);
  };
  constexpr std::int64_t kSmallest = 256, kMost = 16384;
  while (chosen && config.n_local > kSmallest &&
         reading_seconds(speed, speed.reading, model, config, least()) > left) {
    config.n_local /= 2;
    config.n_mem = std::min(config.n_mem, config.n_local);
    config.chunk = std::min(config.chunk, config.n_local);
    config.n_init = std::min(config.n_init, config.n_local / 16);
  }
  size.config = config;
  size.tokens = least();
  while (2 * size.tokens <= kMost &&
         reading_seconds(speed, speed.reading, model, config, 2 * size.tokens) <= left)
    size.tokens *= 2;
  return size;
}

struct CheckResult {
  std::string model;
  bool chat = false;
  Size size;
  Speed speed;
  std::vector<Question> questions;
  double seconds = 0;

  std::int64_t count(Judged Question::*answer, std::optional<bool> same_words = {}) const {
    return std::count_if(questions.begin(), questions.end(), [&](const Question& q) {
      return (q.*answer).right && (!same_words || q.same_words == *same_words);
    });
  }
  std::int64_t asked(bool same_words) const {
    return std::count_if(questions.begin(), questions.end(),
                         [&](const Question& q) { return q.same_words == same_words; });
  }
  double share(Judged Question::*answer) const {
    return static_cast<double>(count(answer)) / static_cast<double>(questions.size());
  }
};

/// One sentence on what came out.
std::string verdict_of(const CheckResult& r) {
  const double window = r.share(&Question::window), memory = r.share(&Question::memory),
               without = r.share(&Question::without);
  if (without > 0.34)
    return "this model gives the answers without the passage: the check says nothing about it";
  if (window < 0.5 && memory < 0.5)
    return fmt::format(
        "this model is too weak for questions about a text: with the passage in its window it "
        "answers {:.0f} % of them, and a memory can give it no more",
        100 * window);
  std::int64_t missed = 0, recalled = 0;
  for (const Question& q : r.questions)
    if (q.window.right && !q.memory.right) ++missed, recalled += q.recalled ? 1 : 0;
  const std::string why =
      missed == 0 ? std::string()
                  : fmt::format(
                        " (of the {} that it answers from its window alone, the passage was "
                        "recalled for {})",
                        missed, recalled);
  if (memory >= 0.8 * window) return "this model answers from its memory as from its window" + why;
  if (memory >= 0.4 * window)
    return "this model answers from its memory, but less often than from its window" + why;
  return "this model answers from its window but not from its memory" + why;
}

Json judged_json(const Judged& j) { return {{"text", j.text}, {"right", j.right}}; }

Json check_json(const CheckResult& r) {
  Json rows = Json::array();
  for (const Question& q : r.questions) {
    Json memory = judged_json(q.memory);
    memory["recalled"] = q.recalled;
    memory["rank"] = q.recalled ? Json(q.rank) : Json(nullptr);
    rows.push_back({{"kind", q.kind},
                    {"words", q.same_words ? "same" : "other"},
                    {"said", q.said},
                    {"question", q.question},
                    {"truth", q.truth},
                    {"window", judged_json(q.window)},
                    {"memory", memory},
                    {"without", judged_json(q.without)}});
  }
  const auto counts = [&](std::optional<bool> same, std::int64_t of) {
    return Json{{"questions", of},
                {"window", r.count(&Question::window, same)},
                {"memory", r.count(&Question::memory, same)},
                {"without", r.count(&Question::without, same)}};
  };
  const auto n = static_cast<std::int64_t>(r.questions.size());
  return {{"model", r.model},
          {"window", r.share(&Question::window)},
          {"memory", r.share(&Question::memory)},
          {"without", r.share(&Question::without)},
          {"verdict", verdict_of(r)},
          {"counts", counts({}, n)},
          {"same_words", counts(true, r.asked(true))},
          {"other_words", counts(false, r.asked(false))},
          {"chat", r.chat},
          {"tokens", r.size.tokens},
          {"settings", parse_ordered(to_json(r.size.config), "settings", {})},
          {"shortened", r.size.config.n_local < r.size.full_n_local},
          {"tokens_per_second", {{"reading", r.speed.reading}, {"writing", r.speed.writing}}},
          {"seconds", r.seconds},
          {"questions", rows}};
}

std::string check_table(const CheckResult& r) {
  std::string out = fmt::format(
      "{} read {} tokens of plain English with {} facts in it, and was asked for each{}.\n\n"
      "  {:<10}{:<7}{:<11}{:<21}{:<32}{}\n",
      r.model, count_text(r.size.tokens), r.questions.size(), r.chat ? " in its chat format" : "",
      "asked", "words", "truth", "window", "memory", "without");
  const auto cell = [](const Judged& j) {
    return fmt::format("{} {}", j.right ? "+" : "-", j.right ? "" : excerpt_of(j.text, 17));
  };
  for (const Question& q : r.questions) {
    const std::string from =
        q.recalled ? fmt::format(" (rank {})", q.rank) : std::string(" (not recalled)");
    out +=
        fmt::format("  {:<10}{:<7}{:<11}{:<21}{:<32}{}\n", q.kind, q.same_words ? "same" : "other",
                    q.truth, cell(q.window), cell(q.memory) + from, cell(q.without));
  }
  const auto line = [&](const char* what, std::optional<bool> same, std::int64_t of) {
    if (of == 0) return;
    const auto part = [&](Judged Question::*a) {
      return fmt::format("{}/{}", r.count(a, same), of);
    };
    out += fmt::format("  {:<28}{:<21}{:<32}{}\n", what, part(&Question::window),
                       part(&Question::memory), part(&Question::without));
  };
  out += "\n";
  line("right (+)", {}, static_cast<std::int64_t>(r.questions.size()));
  line("asked in the text's words", true, r.asked(true));
  line("asked in other words", false, r.asked(false));
  out += fmt::format("\n{}\n", verdict_of(r));
  const MemoryConfig& c = r.size.config;
  if (c.n_local < r.size.full_n_local)
    out += fmt::format(
        "(with a window of {} instead of {} tokens, and as short a text, for the time: --seconds "
        "gives it more)\n",
        c.n_local, r.size.full_n_local);
  out += fmt::format(
      "n_local {}, n_mem {}, kv_dtype {}; it read {:.0f} and wrote {:.0f} tokens/s; {:.0f} s in "
      "all\n",
      c.n_local, c.n_mem, name_of(c.kv_dtype), r.speed.reading, r.speed.writing, r.seconds);
  return out;
}

void ask_from_memory(const CheckFlags& flags, Engine& engine, const Asking& asking,
                     CheckResult& result) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const MemoryConfig& config = result.size.config;
  std::vector<Fact> facts;
  const auto n = static_cast<double>(result.questions.size());
  // All of them before the window, and what is still pending before it.
  const double reach =
      0.95 * (1 - static_cast<double>(config.n_local + config.chunk + config.max_block) /
                      static_cast<double>(result.size.tokens));
  for (std::size_t i = 0; i < result.questions.size(); ++i) {
    Fact fact;
    fact.said = result.questions[i].said;
    fact.value = result.questions[i].truth;
    fact.depth = std::max(0.02, reach) * (static_cast<double>(i) + 0.5) / n;
    facts.push_back(std::move(fact));
  }
  const HiddenFacts text = hide_facts(plain_book(result.size.tokens / 6 + 64, flags.seed),
                                      tokenizer, result.size.tokens, std::move(facts));
  result.size.tokens = static_cast<std::int64_t>(text.ids.size());
  engine.attach(config, result.size.tokens + 8 * kQuestionTokens + kAnswerTokens);
  {
    ProgressBar bar("reading", flags.common.quiet);
    engine.read(text.ids, bar.callback());
  }
  const std::shared_ptr<const Engine::Snapshot> end_of_text = engine.snapshot();
  for (std::size_t i = 0; i < result.questions.size(); ++i) {
    Question& q = result.questions[i];
    engine.restore(*end_of_text);
    RecallNotes notes(engine, nullptr);
    q.memory = asking.answer(asking.behind_text(q, text.end), q, [&] { notes.note(); });
    const TokenRange fact = text.facts[i].tokens;
    for (const RecalledEvent& e : notes.ranked())
      if (e.tokens.start < fact.end && fact.start < e.tokens.end) {
        q.rank = q.recalled ? std::min(q.rank, e.rank) : e.rank;
        q.recalled = true;
      }
  }
}

/// A short passage around the fact; the same without it.
void ask_from_window(const CheckFlags& flags, Engine& engine, const Asking& asking,
                     CheckResult& result) {
  const MemoryConfig& config = result.size.config;
  const Book book =
      plain_book(4 * static_cast<std::int64_t>(result.questions.size()) + 4, flags.seed + 1);
  for (std::size_t i = 0; i < result.questions.size(); ++i) {
    Question& q = result.questions[i];
    const auto piece = [&](std::size_t k) { return book.pieces[4 * i + k]; };
    const std::string before = piece(0) + " " + piece(1), after = piece(2) + " " + piece(3);
    const auto ask = [&](const std::string& passage) {
      const std::vector<std::int64_t> prompt = asking.with_passage(q, passage);
      engine.attach(config, static_cast<std::int64_t>(prompt.size()) + kAnswerTokens);
      return asking.answer(prompt, q);
    };
    q.window = ask(before + " " + q.said + " " + after);
    q.without = ask(before + " " + after);
  }
}

void run(const CheckFlags& flags) {
  flags.common.apply();
  const auto start = std::chrono::steady_clock::now();
  const MemoryConfig config = flags.model.new_memory_config();
  if (config.segmenter == SegmenterKind::given)
    throw ConfigError(
        "segmenter = \"given\": the check has no boundaries to give; use \"surprise\"");
  if (!config.recall)
    throw ConfigError("recall = false: there is no memory to check; leave it out");
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  warn_of_window(flags.common, config, engine->config());
  const Asking asking(flags, *engine);
  CheckResult result;
  result.model = std::filesystem::weakly_canonical(flags.model.model).filename().string();
  result.chat = asking.chat();
  result.speed = measure_speed(*engine, config, 0.08 * static_cast<double>(flags.seconds), true);
  result.size = size_for(flags, engine->config(), result.speed, config);
  result.questions = draw_questions(result.size.questions, flags.seed);
  ask_from_memory(flags, *engine, asking, result);
  ask_from_window(flags, *engine, asking, result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  flags.json.say(check_table(result));
  flags.json.write(check_json(result));
}

}  // namespace

void add_check(Command& app) {
  auto flags = std::make_shared<CheckFlags>();
  Command sub = app.subcommand("check", "Does a model answer from its memory? In about a minute");
  sub.footer(
      "Reads plain English with facts hidden in it (pass keys, numbers, names, places, passwords), "
      "and asks for\neach: from the memory, the text far out of the window; with a short passage "
      "that "
      "says it in the window;\nand with that passage without it. Some questions use the text's "
      "words, "
      "some others. The chat format is\nused where the model has one. An answer is right that "
      "holds "
      "the value. Text and questions are as many\nas the time allows on this machine. JSON: "
      "\"window\", \"memory\", \"without\", shares of right answers in\n0..1, and all answers "
      "(keys: "
      "docs/programs.md).\n\n"
      "Example:\n  episodic check --model models/recall-2m6");
  flags->model.add_to(sub, false);
  add_count(sub, "--seconds", flags->seconds, "About how long it may take", 5);
  sub.option("--seed", flags->seed, "Draws names, values and text").shows_default();
  sub.flag("--plain", flags->plain, "Questions as a text to go on with, no chat format");
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
