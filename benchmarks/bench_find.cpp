// SPDX-License-Identifier: Apache-2.0
// Does a model answer from a memory what it answers from its window? Facts of ten kinds are hidden
// in a book and asked for in the text's words and in others, by several ways of answering.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "data/jsonl.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/conversation.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/text/words.hpp"
#include "hidden_facts.hpp"
#include "run/chunks.hpp"
#include "run/fingerprint.hpp"
#include "run/prediction_file.hpp"
#include "run/retriever.hpp"
#include "scoring/contained.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

using tools::Json;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kQuestion = 128;  // tokens of one in its chat format, with its answer

/// What an answer is read from, in order of the table.
constexpr const char* kFindMethods[] = {"window", "memory", "reread",    "passages", "local",
                                        "full",   "bm25",   "retrieval", "events"};

struct FindFlags {
  tools::CommonFlags common;
  tools::ModelFlags model;
  tools::TextFlags text;
  std::filesystem::path facts, encoder, json, out, memory_dir;
  std::vector<std::string> methods{"window", "memory", "reread"};
  std::int64_t tokens = 16384, first = 0, count = 40;
  PassageOptions passages;
  bool plain = false;

  bool wants(std::string_view method) const {
    return std::find(methods.begin(), methods.end(), method) != methods.end();
  }
};

struct Asked {
  std::size_t fact = 0;
  std::string words;  ///< "same" or "other"
  std::string question;
};

struct HiddenFact {
  std::string kind, said;
  std::vector<std::vector<std::string>> answers;
  TokenRange tokens;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
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

/// Chunks of a text, and those that have most to do with a question: by an encoder, or by BM25.
class ChunkFinder {
 public:
  /// \param encoder null: by BM25
  ChunkFinder(std::string text, std::vector<suites::Chunk> chunks, const SentenceEncoder* encoder)
      : text_(std::move(text)), chunks_(std::move(chunks)), encoder_(encoder) {
    std::vector<std::string> texts;
    for (const suites::Chunk& c : chunks_) texts.push_back(text_.substr(c.begin, c.end - c.begin));
    if (encoder_) {
      vectors_ = encoder_->encode_all(texts);
      return;
    }
    for (const std::string& chunk : texts) {
      const std::vector<Word> words = words_of(chunk);
      for (const Word& w : words) ++counts_[w.stem][lengths_.size()];
      lengths_.push_back(static_cast<double>(words.size()));
      mean_length_ += lengths_.back() / static_cast<double>(texts.size());
    }
  }

  /// The best few, in the order of the text.
  std::string find(const std::string& question) const {
    std::vector<std::int64_t> best =
        encoder_ ? suites::nearest(vectors_, encoder_->encode(question), suites::kRetrieved)
                 : by_words(question);
    return suites::joined(text_, chunks_, best);
  }

 private:
  std::vector<std::int64_t> by_words(const std::string& question) const {
    constexpr double kSaturation = 1.2, kLength = 0.75;  // BM25's k1 and b
    const auto n = static_cast<double>(lengths_.size());
    std::vector<double> scores(lengths_.size(), 0.0);
    std::set<std::string> asked;
    for (const Word& w : words_of(question)) asked.insert(w.stem);
    for (const std::string& word : asked) {
      const auto at = counts_.find(word);
      if (at == counts_.end()) continue;
      const auto in = static_cast<double>(at->second.size());
      const double rarity = std::log1p((n - in + 0.5) / (in + 0.5));
      for (const auto& [chunk, count] : at->second) {
        const double f = count;
        scores[chunk] +=
            rarity * f * (kSaturation + 1) /
            (f + kSaturation * (1 - kLength + kLength * lengths_[chunk] / mean_length_));
      }
    }
    std::vector<std::int64_t> best(scores.size());
    for (std::size_t i = 0; i < best.size(); ++i) best[i] = static_cast<std::int64_t>(i);
    std::stable_sort(best.begin(), best.end(), [&](std::int64_t a, std::int64_t b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    best.resize(std::min(best.size(), static_cast<std::size_t>(suites::kRetrieved)));
    std::sort(best.begin(), best.end());
    return best;
  }

  std::string text_;
  std::vector<suites::Chunk> chunks_;
  const SentenceEncoder* encoder_;
  std::vector<float> vectors_;                                // by an encoder
  std::map<std::string, std::map<std::size_t, int>> counts_;  // of a word in chunks, by words
  std::vector<double> lengths_;
  double mean_length_ = 0;
};

/// The text and its questions, and what each way of answering needs, made when it is first asked.
class Finding {
 public:
  explicit Finding(const FindFlags& flags);

  const std::vector<Asked>& questions() const { return questions_; }
  const HiddenFact& fact(const Asked& q) const { return facts_[q.fact]; }
  std::int64_t number(const Asked& q) const {
    return flags_.first + static_cast<std::int64_t>(q.fact);
  }
  /// What was answered, whether it is right, and whether what was found holds the fact.
  Json answer(const std::string& method, const Asked& q);
  /// All that decides what is answered, the methods aside.
  Json settings() const;
  /// What was made on the way.
  Json costs() const { return costs_; }

 private:
  Engine& with_memory();
  void attach_kept();
  Sequence& local();
  Sequence& full();
  PassageFinder& passages();
  const ChunkFinder& chunks(const std::string& method);
  std::string text_of(TokenRange r) const {
    return model_->tokenizer().decode({text_.ids.begin() + r.start, text_.ids.begin() + r.end});
  }
  template <class F>
  void timed(const std::string& what, F&& f) {
    const Clock::time_point start = Clock::now();
    f();
    costs_["seconds"][what] = seconds_since(start);
  }

  const FindFlags& flags_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Model> model_;
  MemoryConfig config_;
  tools::Book book_;
  std::vector<HiddenFact> facts_;
  std::vector<Asked> questions_;
  tools::HiddenFacts text_;
  Asking asking_;
  std::optional<SentenceEncoder> encoder_;
  std::shared_ptr<const Engine::Snapshot> read_;
  std::optional<Sequence> local_, full_;
  std::shared_ptr<const Sequence::Snapshot> local_read_;
  std::optional<PassageFinder> finder_;
  std::map<std::string, ChunkFinder> chunks_;
  Json costs_{{"seconds", Json::object()}};
};

Finding::Finding(const FindFlags& flags)
    : flags_(flags),
      engine_(tools::load_engine(flags.common, flags.model)),
      model_(engine_->shared_model()),
      config_(flags.model.memory_config()),
      book_(tools::open_book(flags.text.text)),
      asking_(flags, model_) {
  const Json rows = tools::read_json(flags.facts);
  if (flags.first + flags.count > static_cast<std::int64_t>(rows.size()))
    throw ConfigError(fmt::format("--first {} --count {}: the file has {} facts", flags.first,
                                  flags.count, rows.size()));
  std::vector<tools::Fact> hidden;
  for (std::int64_t i = 0; i < flags.count; ++i) {
    const Json& row = rows[static_cast<std::size_t>(flags.first + i)];
    tools::Fact f;
    f.said = row.at("said");
    // none in the window that the text ends with: that would not be recalled
    f.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(flags.count) *
              (1 - static_cast<double>(config_.n_local + 256) / static_cast<double>(flags.tokens));
    facts_.push_back({row.at("kind"), f.said, row.at("answers"), {}});
    hidden.push_back(std::move(f));
    const auto fact = static_cast<std::size_t>(i);
    questions_.push_back({fact, "same", row.at("asked")});
    questions_.push_back({fact, "other", row.at("other")});
  }
  text_ = tools::hide_facts(book_, model_->tokenizer(), flags.tokens, std::move(hidden),
                            static_cast<std::size_t>(flags.first) * 97);
  for (std::size_t i = 0; i < facts_.size(); ++i) facts_[i].tokens = text_.facts[i].tokens;
  if (!flags.encoder.empty())
    encoder_.emplace(SentenceEncoder::open(flags.encoder, SentenceEncoder::kAllPositions));
  const std::int64_t window = model_->config().max_positions;
  if (flags.wants("full") && window > 0 && std::ssize(text_.ids) + kQuestion > window)
    throw ConfigError(fmt::format(
        "--method full: the text has {} tokens and a question up to {}, more than the {} of the "
        "model's window; leave it out",
        text_.ids.size(), kQuestion, window));
}

Engine& Finding::with_memory() {
  if (!read_) {
    if (flags_.memory_dir.empty())
      engine_->attach(config_, std::ssize(text_.ids) + 4096);
    else
      attach_kept();
    const auto known = static_cast<std::size_t>(engine_->tokens());
    tools::ProgressBar bar("reading", flags_.common.quiet);
    constexpr std::size_t kCommit = 65536;  // tokens that a run which is stopped reads again
    timed("read", [&] {
      for (std::size_t at = known; at < text_.ids.size(); at += kCommit) {
        const std::size_t n = std::min(kCommit, text_.ids.size() - at);
        engine_->read(std::span(text_.ids).subspan(at, n), [&](std::int64_t done, std::int64_t) {
          return bar.callback()(static_cast<std::int64_t>(at) + done, std::ssize(text_.ids));
        });
        if (!flags_.memory_dir.empty()) engine_->commit();
      }
    });
    costs_["events"] = engine_->n_events();
    read_ = engine_->snapshot();
  }
  engine_->restore(*read_);
  return *engine_;
}

/// The memory in --memory-dir, made there if there is none.
/// \throws ConfigError where it holds another text than the beginning of this one
void Finding::attach_kept() {
  const KeptFolder folder{.dir = flags_.memory_dir};
  const bool there = std::filesystem::exists(flags_.memory_dir / "manifest.json");
  const auto memory = std::make_shared<EpisodicMemory>(
      there ? open_memory(*model_, folder) : create_memory(*model_, folder, config_));
  const std::vector<std::int64_t> ids = memory->token_ids(0, memory->tokens());
  if (ids.size() > text_.ids.size() || !std::equal(ids.begin(), ids.end(), text_.ids.begin()))
    throw ConfigError(fmt::format("--memory-dir {}: holds another text; give an empty folder",
                                  flags_.memory_dir.string()));
  engine_->attach(memory, std::ssize(text_.ids) + 4096);
}

/// Reads as the memory does, and recalls nothing: the window that the text ends with.
Sequence& Finding::local() {
  if (!local_) {
    MemoryConfig config = config_;
    config.recall = false;
    local_.emplace(model_);
    local_->attach(config, std::ssize(text_.ids) + 4096);
    tools::ProgressBar bar("reading without recall", flags_.common.quiet);
    timed("read_local",
          [&] { Session(*local_, &model_->tokenizer()).prefill(text_.ids, bar.callback()); });
    local_read_ = local_->snapshot();
  }
  local_->restore(*local_read_);
  return *local_;
}

Sequence& Finding::full() {
  if (!full_) {
    full_.emplace(model_);
    full_->attach_full_attention(std::ssize(text_.ids) + 4096);
    tools::ProgressBar bar("reading with full attention", flags_.common.quiet);
    timed("read_full",
          [&] { Session(*full_, &model_->tokenizer()).prefill(text_.ids, bar.callback()); });
  }
  return *full_;
}

PassageFinder& Finding::passages() {
  if (!finder_) {
    Engine& engine = with_memory();
    finder_.emplace(model_);
    finder_->set_encoder(encoder_ ? &*encoder_ : nullptr);
    tools::ProgressBar bar("encoding the text", flags_.common.quiet || !encoder_);
    timed("index", [&] { finder_->read(*engine.memory(), engine.known_ids(), bar.callback()); });
    costs_["finder_bytes"] = finder_->bytes();
  }
  return *finder_;
}

const ChunkFinder& Finding::chunks(const std::string& method) {
  if (const auto at = chunks_.find(method); at != chunks_.end()) return at->second;
  std::string text;
  std::vector<std::size_t> behind{0};  // byte behind each token
  StreamDecoder decoder(model_->tokenizer());
  for (const std::int64_t id : text_.ids) {
    text += decoder.push(id);
    behind.push_back(text.size());
  }
  text += decoder.finish();
  std::vector<suites::Chunk> chunks;
  if (method == "events") {
    std::vector<std::size_t> ends;
    for (const TokenRange& e : with_memory().events().all())
      ends.push_back(behind[static_cast<std::size_t>(e.end)]);
    chunks = suites::event_chunks(text, ends, suites::kChunkWords);
  } else {
    chunks = suites::word_chunks(text, suites::kChunkWords);
  }
  const SentenceEncoder* encoder = encoder_ && method != "bm25" ? &*encoder_ : nullptr;
  const ChunkFinder* made = nullptr;
  timed("index_" + method, [&] {
    made = &chunks_.emplace(method, ChunkFinder(std::move(text), std::move(chunks), encoder))
                .first->second;
  });
  return *made;
}

Json Finding::answer(const std::string& method, const Asked& q) {
  const HiddenFact& f = fact(q);
  Json row;
  std::string given;
  const bool finds = method == "reread" || method == "passages";
  const bool chunked = method == "bm25" || method == "retrieval" || method == "events";
  // once for all questions, and no part of an answer's time
  if (finds) passages();
  if (chunked) chunks(method);
  if (method == "local") local();
  if (method == "full") full();
  if (method == "memory" || method == "reread") with_memory();
  const Clock::time_point start = Clock::now();
  if (method == "window") {
    const std::int64_t around = flags_.passages.tokens / 3;
    given = text_of({std::max<std::int64_t>(0, f.tokens.start - around),
                     std::min(std::ssize(text_.ids), f.tokens.end + around)});
  } else if (finds) {
    const std::vector<Passage> found = finder_->find(q.question, flags_.passages);
    std::int64_t place = 0;
    for (std::size_t p = 0; p < found.size() && place == 0; ++p)
      if (found[p].tokens.start <= f.tokens.start + 2 && found[p].tokens.end >= f.tokens.end - 2)
        place = static_cast<std::int64_t>(p) + 1;
    given = joined_text(found);
    row["place"] = place;
    if (!found.empty()) {  // of what the model chose
      row["gain"] = found.front().gain;
      row["lead"] = found.front().lead;
    }
    row["found"] = place > 0;
  } else if (chunked) {
    given = chunks(method).find(q.question);
    row["found"] = given.find(f.said) != std::string::npos;
  }
  std::string answer;
  if (method == "memory" || method == "reread") {
    answer = asking_.answer(*engine_, asking_.prompt(given, q.question, true));
  } else if (method == "local") {
    answer = asking_.answer(*local_, asking_.prompt("", q.question, true));
  } else if (method == "full") {
    Sequence mine = full_->fork();
    answer = asking_.answer(mine, asking_.prompt("", q.question, true));
  } else {
    Sequence sequence(model_);
    answer = asking_.answer(sequence, asking_.prompt(given, q.question, false));
  }
  row["text"] = answer;
  row["right"] = suites::holds_facts(answer, f.answers);
  row["seconds"] = seconds_since(start);
  return row;
}

Json Finding::settings() const {
  Json settings{{"program", "bench_find"},
                {"model", flags_.model.model.string()},
                {"model_fingerprint", suites::sampled_sha256(flags_.model.model)},
                {"book", book_.title},
                {"facts_sha256", suites::file_sha256(flags_.facts)},
                {"tokens", text_.ids.size()},
                {"facts", {{"first", flags_.first}, {"count", flags_.count}}},
                {"passages",
                 {{"count", flags_.passages.count},
                  {"tokens", flags_.passages.tokens},
                  {"rerank", flags_.passages.rerank}}},
                {"chat_format", !flags_.plain},
                {"encoder", encoder_ ? Json(encoder_->fingerprint()) : Json()},
                {"memory", tools::settings_json(config_)},
                {"environment", environment()}};
  if (!flags_.model.quantize.empty()) settings["quantize"] = flags_.model.quantize;
  return settings;
}

struct Counted {
  std::int64_t right = 0, asked = 0, found = 0;
  double seconds = 0;
};

/// The table on stderr, and the same as JSON.
void report(const FindFlags& flags, const std::vector<Json>& rows, Json& result) {
  std::map<std::string, std::map<std::string, Counted>> all, kinds;  // method, words
  for (const Json& row : rows) {
    const std::string method = row.at("method"), words = row.at("words");
    for (Counted* c :
         {&all[method][words], &kinds[method][row.at("kind").get<std::string>() + " " + words]}) {
      ++c->asked;
      c->right += row.at("right").get<bool>();
      c->found += row.value("found", false);
      c->seconds += row.at("seconds").get<double>();
    }
  }
  fmt::print(stderr, "{:<10} {:>12} {:>14} {:>8}  {:>12} {:>14} {:>8}  {:>7}\n", "method",
             "same words", "95 %", "ceiling", "other words", "95 %", "ceiling", "seconds");
  for (const std::string method : kFindMethods) {
    if (all.count(method) == 0) continue;
    Json of;
    std::string line = fmt::format("{:<10}", method);
    double seconds = 0;
    std::int64_t asked = 0;
    for (const char* words : {"same", "other"}) {
      const Counted& c = all[method][words];
      const auto [low, high] = interval(c.right, c.asked);
      of[words] = {{"right", c.right}, {"asked", c.asked}, {"low", low}, {"high", high}};
      const Counted ceiling = all.count("window") > 0 ? all["window"][words] : Counted{};
      // of the same questions alone
      const bool comparable = ceiling.asked == c.asked && ceiling.right > 0;
      if (comparable)
        of[words]["of_ceiling"] = static_cast<double>(c.right) / static_cast<double>(ceiling.right);
      line += fmt::format(
          " {:>12} {:>14} {:>8} ", fmt::format("{} of {}", c.right, c.asked),
          fmt::format("{:.2f} to {:.2f}", low, high),
          comparable ? fmt::format("{:.2f}", of[words]["of_ceiling"].get<double>()) : "-");
      seconds += c.seconds;
      asked += c.asked;
    }
    of["seconds"] = seconds / static_cast<double>(std::max<std::int64_t>(asked, 1));
    for (const auto& [kind, c] : kinds[method]) of["kinds"][kind] = {c.right, c.asked};
    result["methods"][method] = of;
    fmt::print(stderr, "{} {:>7.2f}\n", line, of["seconds"].get<double>());
  }
  for (const std::string method : kFindMethods)
    for (const char* words : {"same", "other"}) {
      const bool finds = method == "reread" || method == "passages" || method == "bm25" ||
                         method == "retrieval" || method == "events";
      if (!finds || all.count(method) == 0) continue;
      if (method == "passages" && all.count("reread") > 0) continue;  // the same passages
      const Counted& c = all[method][words];
      result["found"][method][words] = {c.found, c.asked};
      fmt::print(stderr, "{} hold the fact ({} words): {} of {}\n",
                 method == "reread"     ? "passages"
                 : method == "passages" ? method
                                        : "chunks of " + method,
                 words, c.found, c.asked);
    }
  if (!flags.json.empty()) tools::write_json(flags.json, result);
}

void run(const FindFlags& flags) {
  flags.common.apply_on_host();
  for (const std::string& method : flags.methods)
    if (std::find(std::begin(kFindMethods), std::end(kFindMethods), method) ==
        std::end(kFindMethods))
      throw ConfigError(
          fmt::format("--method {}: there are {}", method, fmt::join(kFindMethods, ", ")));
  Finding finding(flags);
  std::vector<Json> rows;
  std::optional<suites::PredictionFile> file;
  Json result = finding.settings();
  if (!flags.out.empty()) {
    file.emplace(flags.out, result);  // first: drops what a kill left of a last line
    if (std::filesystem::exists(flags.out))
      for (const suites::Row& row : suites::read_rows(flags.out)) rows.push_back(row.object());
  }
  tools::ProgressBar bar("asking", flags.common.quiet);
  const ProgressCallback progress = bar.callback();
  const std::vector<Asked>& questions = finding.questions();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Asked& q = questions[i];
    for (const std::string& method : flags.methods) {
      const std::string id = fmt::format("{} {} {}", method, finding.number(q), q.words);
      if (file && file->has(id)) continue;
      Json row{{"id", id},
               {"method", method},
               {"kind", finding.fact(q).kind},
               {"words", q.words},
               {"question", q.question}};
      row.update(finding.answer(method, q));
      if (file) file->append(row);
      rows.push_back(std::move(row));
    }
    progress(static_cast<std::int64_t>(i) + 1, std::ssize(questions));
  }
  result.update(finding.costs());
  result["answers"] = rows;
  report(flags, rows, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic;
  tools::CommandLine app{
      "Facts hidden in a book, asked for in the text's words and in others: what a model answers",
      "bench_find"};
  app.footer(
      "Methods:\n"
      "  window     the passage alone before the question: the most that the model can do\n"
      "  memory     the question behind the memory\n"
      "  reread     passages found for the question are read again between the two\n"
      "  passages   the same passages, without the memory\n"
      "  local      the window that the text ends with: the memory, recalling nothing\n"
      "  full       full attention over the text, where the model's window holds it\n"
      "  bm25       retrieval: the best five chunks of 300 words, by their words\n"
      "  retrieval  the same by the encoder, as the suites' rag; without one as bm25\n"
      "  events     the same with chunks of whole events, as the suites' rag-s\n\n"
      "The table gives right answers with Wilson's interval of 95 %, as shares of window's too. "
      "With\n"
      "--out each answer is a line of a file, and a second call goes on where the first stopped, "
      "or\n"
      "adds methods.\n\n"
      "Example:\n  bench_find --model M.gguf --text book.txt --facts benchmarks/find/facts.json "
      "\\\n"
      "    --tokens 16384 --count 40 --method window,memory,reread,bm25 --out rows.jsonl");
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
  app.option("--rerank", flags.passages.rerank, "Candidates that the model reads to choose them")
      .not_negative();
  app.option("--encoder", flags.encoder, "Sentence encoder that finds passages and chunks too")
      .type_name("DIR");
  app.flag("--plain", flags.plain, "Without the model's chat format");
  app.option("--memory-dir", flags.memory_dir,
             "Folder in which the memory of the text is kept: a second call reads what is missing");
  app.option("--out", flags.out, "File of answers, a line each, to which this call adds");
  app.option("--json", flags.json, "Result file, of all answers in --out");
  flags.common.add_to(app);
  return bench::run_program(app, argc, argv, [&] { bench::run(flags); });
}
