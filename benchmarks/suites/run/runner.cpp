// SPDX-License-Identifier: Apache-2.0
#include "run/runner.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <unordered_map>

#include "data/prompts.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/presets.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/session/session.hpp"
#include "episodic/session/stop.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/timeline/event_table.hpp"
#include "kept.hpp"
#include "reading.hpp"
#include "run/fingerprint.hpp"
#include "run/prompt_writer.hpp"
#include "run/retriever.hpp"
#include "suite_table.hpp"
#include "support/environment.hpp"

namespace episodic::suites {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// -- methods and presets --

constexpr const char* kMethods[] = {"episodic", "reread", "full", "window",
                                    "truncate", "rag",    "rag-s"};

bool retrieves(const std::string& method) { return method == "rag" || method == "rag-s"; }

void check_method(const RunOptions& options) {
  if (!is_method(options.method))
    throw ConfigError(fmt::format("--method {}: there are {}", options.method, methods()));
  if (retrieves(options.method) && options.encoder.empty())
    throw ConfigError(fmt::format(
        "--method {}: needs a sentence encoder, --encoder DIR; scripts/sentence_encoder "
        "fetches one",
        options.method));
  const bool recalls = options.method == "episodic" || options.method == "reread";
  if (!recalls && !retrieves(options.method) && !options.encoder.empty())
    throw ConfigError(fmt::format("--encoder: says nothing to --method {}", options.method));
  if (!recalls && options.entries.longest > 0)
    throw ConfigError(fmt::format(
        "--entries: --method {} recalls no events; use --method episodic, or leave it out",
        options.method));
  if (!recalls && !options.reader.dir.empty())
    throw ConfigError(fmt::format(
        "--reader: --method {} recalls no events; use --method episodic, or leave it out",
        options.method));
}

/// Whether the answer comes from a memory.
bool uses_memory(const std::string& method) {
  return method == "episodic" || method == "reread" || method == "window";
}
/// rag-s answers without one, but has it find the events.
bool has_memory_settings(const std::string& method) {
  return uses_memory(method) || method == "rag-s";
}

/// \throws ConfigError where the memory's events are not those of one sequence, with rag-s found by
/// itself
void check_segments(const std::string& method, const MemoryConfig& config) {
  if (method == "rag-s" && config.segmenter == SegmenterKind::given)
    throw ConfigError("--method rag-s: segmenter = \"given\" finds no boundaries itself");
  if (config.scope == EventScope::head)
    throw ConfigError(
        fmt::format("--method {}: scope = \"head\" gives each head events of its own; use scope = "
                    "\"sequence\"",
                    method));
}

MemoryConfig memory_of(const RunOptions& options) {
  MemoryConfig config = options.model.memory_config();
  if (!options.preset.empty()) apply_preset(config, options.preset);
  if (options.method == "window") config.recall = false;
  config = options.entries.apply(std::move(config));
  config.validate();
  if (options.method == "rag-s" || options.method == "reread")
    check_segments(options.method, config);
  return config;
}

// -- chat formats --

bool has_chat_format(const std::filesystem::path& model) {
  if (is_model_file(model)) return GgufFile(model).string("tokenizer.chat_template").has_value();
  if (std::filesystem::exists(model / "chat_template.jinja")) return true;
  const std::filesystem::path config = model / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return false;
  const Json json = tools::read_json(config);
  return json.contains("chat_template") && !json["chat_template"].is_null();
}

/// Whether the suite puts the task's prompts into the chat format that the model has.
bool in_model_format(const RunOptions& options) {
  return !options.raw && in_chat_format(options.suite, options.task) &&
         has_chat_format(options.model.model);
}

std::optional<ChatTemplate> load_chat_format(const RunOptions& options,
                                             const Tokenizer& tokenizer) {
  if (!in_model_format(options)) return std::nullopt;
  return load_model_chat_template(options.model.model, tokenizer);
}

// -- progress --

/// Examples done and time left: on a terminal one line that changes, else a line now and then.
class Progress {
 public:
  Progress(std::string task, std::int64_t total, bool quiet)
      : task_(std::move(task)), total_(total), quiet_(quiet), tty_(::isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_ && tty_) std::fputc('\n', stderr);
  }
  void done_one() {
    ++done_;
    const double passed = seconds_since(start_);
    if (quiet_ || (!tty_ && done_ < total_ && passed - last_ < kEvery)) return;
    last_ = passed;
    shown_ = true;
    const double left = passed / static_cast<double>(done_) * static_cast<double>(total_ - done_);
    const std::string line = fmt::format("{}{}: {}/{} examples, {} left{}", tty_ ? "\r" : "", task_,
                                         done_, total_, duration(left), tty_ ? "      " : "\n");
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
  }

 private:
  static constexpr double kEvery = 30;  // seconds between lines in a log
  static std::string duration(double seconds) {
    const auto s = static_cast<std::int64_t>(std::llround(seconds));
    if (s < 60) return fmt::format("{} s", s);
    if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
    return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  }

  std::string task_;
  std::int64_t total_, done_ = 0;
  bool quiet_, tty_, shown_ = false;
  Clock::time_point start_ = Clock::now();
  double last_ = -std::numeric_limits<double>::infinity();
};

// -- answering --

struct Answer {
  std::vector<std::int64_t> ids;
  FinishReason finish = FinishReason::length;
  double seconds = 0;
};

class Answerer {
 public:
  /// \param encoder null without --encoder
  Answerer(const RunOptions& options, const MemoryConfig& config, const Template& prompt,
           const SentenceEncoder* encoder)
      : options_(options),
        config_(config),
        max_new_(max_new_of(options.suite, options.task, options.limits)),
        tokenizer_(load_model_tokenizer(options.model.model)),
        engine_(tools::load_engine(options.common, options.model)),
        session_(*engine_, tokenizer_.get()),
        chat_(load_chat_format(options, *tokenizer_)),
        writer_(prompt, *tokenizer_, format()) {
    if (encoder && retrieves(options.method))
      retriever_.emplace(*encoder, cutter());
    else if (encoder && options.method == "reread")
      passage_encoder_ = encoder;
    else if (encoder)
      text_reader_.emplace(*encoder, *tokenizer_);
  }

  /// \param shared whether the next example may have the same context
  Json answer(const Example& example, std::int64_t index, bool shared) {
    Example asked = example;
    Json retrieval;
    double retrieve_seconds = 0;
    if (retriever_) {
      const Clock::time_point start = Clock::now();
      const Retriever::Found found = retriever_->find(example.context, writer_.query(example));
      retrieve_seconds = seconds_since(start);
      retrieval = {{"chunks", found.chunks}, {"chosen", found.chosen}};
      asked.context = found.context;
      read_ = nullptr;  // finding events takes the model
      document_.clear();
    }
    const PromptIds prompt = writer_.write(asked);
    const auto n = static_cast<std::int64_t>(prompt.ids.size());
    if (n == 0)
      throw DataError(
          fmt::format("{}: the prompt of id {} is empty", options_.data.string(), example.id));
    check_window(example, n);
    const std::vector<std::int64_t> document(
        prompt.ids.begin(), prompt.ids.begin() + static_cast<std::ptrdiff_t>(prompt.question));
    double read_seconds = 0;
    std::int64_t read_tokens = n - static_cast<std::int64_t>(document.size());
    if (read_ && document == document_) {
      engine_->restore(*read_);
    } else {
      read_ = nullptr;
      // Room for any question about this document, and for what is read again.
      const bool more = shared || options_.method == "reread";
      begin(document, n + max_new_ + (more ? kQuestionRoom : 0));
      const Clock::time_point start = Clock::now();
      session_.prefill(document);
      read_seconds = seconds_since(start);
      read_tokens = n;
      document_ = document;
      if (shared && uses_memory(options_.method)) read_ = engine_->snapshot();
    }
    if (text_reader_) {
      const Clock::time_point start = Clock::now();
      text_reader_->ask(document, writer_.query(example));
      retrieve_seconds = seconds_since(start);
    }
    Json passages = Json::array();
    if (options_.method == "reread") {
      const Clock::time_point start = Clock::now();
      passages = read_again(document, writer_.query(example));
      retrieve_seconds = seconds_since(start);
    }
    const Answer answer = generate(std::span(prompt.ids).subspan(prompt.question));
    Json row{{"id", example.id},
             {"index", index},
             {"pred", tokenizer_->decode(answer.ids, true)},
             {"answers", example.gold},
             {"all_classes", example.all_classes},
             {"length", example.length},
             {"depth", example.depth},
             {"tokens", example.tokens},
             {"method", options_.method},
             {"prompt_tokens", n},
             {"bos_tokens", leading_bos(prompt.ids)},
             {"read_tokens", read_tokens},
             {"new_tokens", answer.ids.size()},
             {"finish", name_of(answer.finish)},
             {"seconds", {{"read", read_seconds}, {"answer", answer.seconds}}},
             {"peak_resident_bytes", tools::peak_resident_bytes()}};
    if (!example.details.is_null()) row["details"] = example.details;
    if (retriever_) row["retrieval"] = retrieval;
    if (options_.method == "reread") row["passages"] = std::move(passages);
    if (retriever_ || text_reader_ || options_.method == "reread")
      row["seconds"]["retrieve"] = retrieve_seconds;
    if (uses_memory(options_.method)) row["memory"] = tools::memory_json(*engine_);
    return row;
  }

 private:
  static constexpr std::int64_t kQuestionRoom = 4096;

  /// Finds the passages of the document that the question asks for and reads them before it.
  /// \return their tokens and scores
  Json read_again(std::span<const std::int64_t> document, const std::string& question) {
    Json list = Json::array();
    if (question.empty()) return list;  // a summary asks for no place
    if (!finder_) {
      finder_.emplace(engine_->shared_model());
      finder_->set_encoder(passage_encoder_);
    }
    finder_->read(*engine_->memory(), document);
    const std::vector<Passage> passages = finder_->find(question, options_.passages);
    if (passages.empty()) return list;
    session_.prefill(encode_continuation(*tokenizer_, "\n\n" + joined_text(passages) + "\n\n"));
    for (const Passage& p : passages)
      list.push_back({{"start", p.tokens.start}, {"end", p.tokens.end}, {"score", p.score}});
    return list;
  }

  PromptFormat format() const {
    PromptFormat format{.suite = options_.suite,
                        .task = options_.task,
                        .question_step = options_.question_step,
                        .chat = chat_ ? &*chat_ : nullptr};
    if (options_.method != "truncate") return format;
    const std::int64_t window = engine_->config().max_positions;
    format.keep_tokens = options_.max_length > 0 ? options_.max_length : window - max_new_;
    if (format.keep_tokens >= 2) return format;
    if (options_.max_length > 0) throw ConfigError("--max-length: must be at least 2");
    if (window <= 0)
      throw ConfigError(
          "--max-length: must be given for a model that does not say how long its window is");
    throw ConfigError(fmt::format(
        "--method truncate: the model's window has {} tokens and {} are to be generated, "
        "which leaves none for the prompt; name --max-length, or another method",
        window, max_new_));
  }

  Retriever::Cutter cutter() {
    if (options_.method == "rag-s")
      return [this](const std::string& context) { return cut_by_events(context); };
    return [](const std::string& context) {
      return Retriever::Cut{context, word_chunks(context, kChunkWords)};
    };
  }

  /// The events that the memory cuts the context into, to its last token as `episodic segment`
  /// does. The text is the tokens', so that both count alike.
  Retriever::Cut cut_by_events(const std::string& context) {
    const std::vector<std::int64_t> ids = tokenizer_->encode(context, true);
    const auto n = static_cast<std::int64_t>(ids.size());
    engine_->attach(config_, n);
    const tools::Reading reading =
        tools::read_recording(session_, [&] { return engine_->last_step(); }, ids, {});
    EventTable events(config_.n_init, config_.min_block, config_.max_block);
    events.close_up_to(
        n, [&](std::int64_t t) { return reading.boundaries[static_cast<std::size_t>(t)] != 0; });
    Retriever::Cut cut;
    std::vector<std::size_t> ends, behind{0};  // bytes behind an event, and behind each token
    for (const std::string& token : tools::texts_of(*tokenizer_, ids, {0, n})) {
      cut.text += token;
      behind.push_back(cut.text.size());
    }
    // the first tokens, in no event, are a piece of their own
    if (events.size() > 0) ends.push_back(behind[static_cast<std::size_t>(events[0].start)]);
    for (const TokenRange& e : events.all())
      ends.push_back(behind[static_cast<std::size_t>(e.end)]);
    cut.chunks = event_chunks(cut.text, ends, kChunkWords);
    return cut;
  }

  /// \throws DataError for a prompt that full attention was not made for
  void check_window(const Example& example, std::int64_t n) const {
    const std::int64_t window = engine_->config().max_positions;
    const bool fully = options_.method == "full" || retrieves(options_.method);
    if (!fully || options_.beyond_window || window <= 0 || n + max_new_ <= window) return;
    throw DataError(
        fmt::format("--method {}: the prompt of id {} has {} tokens, with {} to generate more than "
                    "the {} of the model's window; take --method episodic or truncate, or "
                    "--beyond-window to read it all the same",
                    options_.method, example.id, n, max_new_, window));
  }

  /// \param document that will be read before the question
  void begin(std::span<const std::int64_t> document, std::int64_t max_tokens) {
    if (!uses_memory(options_.method)) return engine_->attach_full_attention(max_tokens);
    engine_->attach(config_, max_tokens, options_.entries.starts(*engine_, config_, document));
    options_.reader.apply(*engine_);
    if (text_reader_) text_reader_->attach(*engine_);
  }

  Answer generate(std::span<const std::int64_t> question) {
    const Clock::time_point start = Clock::now();
    GenerateOptions options;
    options.max_new = max_new_;
    Answer answer;
    std::vector<std::int64_t> next(question.begin(), question.end());
    if (ends_with_line(options_.suite, options_.task) && max_new_ > 0) {
      const std::vector<std::int64_t> ends = end_tokens(engine_->config(), tokenizer_.get());
      options.stop_tokens = ends;
      options.stop_tokens.push_back(tokenizer_->encode("\n", false).back());
      // At least one token: the first is the likeliest that does not end the text.
      session_.prefill(std::span(question).first(question.size() - 1));
      engine_->step(question.last(1));
      next = {first_token(ends)};
      answer.ids = next;
      --options.max_new;
    }
    const GenerateResult result = session_.generate(next, options);
    answer.ids.insert(answer.ids.end(), result.ids.begin(), result.ids.end());
    answer.finish = result.finish;
    answer.seconds = seconds_since(start);
    return answer;
  }

  /// Two where a chat format begins with one and the tokenizer adds another.
  std::int64_t leading_bos(const std::vector<std::int64_t>& ids) const {
    const auto other = std::find_if(ids.begin(), ids.end(),
                                    [&](std::int64_t id) { return id != tokenizer_->bos(); });
    return other - ids.begin();
  }

  std::int64_t first_token(const std::vector<std::int64_t>& forbidden) {
    const std::span<const float> logits = engine_->logits();
    std::vector<float> allowed(logits.begin(), logits.end());
    for (const std::int64_t id : forbidden)
      allowed[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    return Sampler(SamplingOptions{}).sample(allowed, {});
  }

  const RunOptions& options_;
  MemoryConfig config_;
  std::int64_t max_new_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  Session session_;
  std::optional<ChatTemplate> chat_;
  PromptWriter writer_;
  std::optional<Retriever> retriever_;
  std::optional<tools::TextReader> text_reader_;
  std::optional<PassageFinder> finder_;               // of method reread
  const SentenceEncoder* passage_encoder_ = nullptr;  // its encoder
  std::vector<std::int64_t> document_;
  std::shared_ptr<const Engine::Snapshot> read_;  ///< the state after document_
};

/// All that decides what comes out, and where it was computed.
Json settings_of(const RunOptions& options, const MemoryConfig& config, const Template& prompt,
                 const SentenceEncoder* encoder, std::int64_t examples) {
  const std::string published = prompt.published_as(options.task);
  const std::string source = options.prompts.empty()
                                 ? built_in_prompt(options.suite, options.task).source
                             : published.empty() ? "the file's own"
                                                 : published;
  Json json{{"suite", name_of(options.suite)},
            {"task", options.task},
            {"data", options.data.filename().string()},
            {"data_sha256", options.data == "-" ? Json() : Json(file_sha256(options.data))},
            {"examples", examples},
            {"model", std::filesystem::weakly_canonical(options.model.model).filename().string()},
            {"model_fingerprint", sampled_sha256(options.model.model)},
            {"method", options.method},
            {"preset", options.preset.empty() ? Json() : Json(options.preset)},
            {"memory", has_memory_settings(options.method) ? tools::settings_json(config) : Json()},
            {"prompt",
             {{"source", source},
              {"sha256", prompt.sha256()},
              {"official", source.starts_with("official")},
              {"chat_format", in_model_format(options)}}},
            {"limits", options.limits == Limits::official ? "official" : "em-llm"},
            {"max_new", max_new_of(options.suite, options.task, options.limits)},
            {"question_step", options.question_step}};
  if (options.entries.longest > 0) json["entries"] = options.entries.longest;
  if (!options.reader.dir.empty())
    json["reader"] = std::filesystem::weakly_canonical(options.reader.dir).string();
  if (options.method == "truncate") json["max_length"] = options.max_length;
  if (encoder)
    json["retrieval"] = {
        {"encoder", std::filesystem::weakly_canonical(options.encoder).filename().string()},
        {"fingerprint", encoder->fingerprint()},
        {"max_tokens", encoder->max_tokens()}};
  if (options.method == "reread")
    json["reread"] = {{"passages", options.passages.count},
                      {"tokens", options.passages.tokens},
                      {"rerank", options.passages.rerank}};
  if (retrieves(options.method)) {
    json["retrieval"]["chunk_words"] = kChunkWords;
    json["retrieval"]["top"] = kRetrieved;
  }
  if (!options.model.lora.empty()) {
    json["lora"] = options.model.lora;
    for (const LoraChoice& adapter : options.model.options().lora)
      json["lora_fingerprints"].push_back(sampled_sha256(adapter.dir));
  }
  if (!options.model.quantize.empty()) json["quantize"] = options.model.quantize;
  json["environment"] = bench::environment(tools::device_name_of(options.common));
  if (retrieves(options.method)) json["environment"]["search"] = search_name();
  return json;
}

/// Indices of a shard's examples: those with the same context side by side, each such group where
/// its first stands. Groups are dealt out, not examples: a document is read in one shard alone.
std::vector<std::size_t> dealt(const std::vector<Example>& examples, const Shard& shard) {
  std::unordered_map<std::string_view, std::size_t> groups;
  std::vector<std::pair<std::size_t, std::size_t>> order;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    const std::size_t group = groups.try_emplace(examples[i].context, groups.size()).first->second;
    if (static_cast<std::int64_t>(group) % shard.of == shard.part) order.emplace_back(group, i);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::size_t> indices;
  for (const auto& [group, i] : order) indices.push_back(i);
  return indices;
}

}  // namespace

bool is_method(const std::string& name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

std::string methods() {
  std::string text;
  for (const std::string method : kMethods) text += (text.empty() ? "" : ", ") + method;
  return text;
}

Json run_task(const RunOptions& options) {
  check_task(options.suite, options.task);
  check_method(options);
  if (options.limits == Limits::em_llm && row_of(options.suite).em_llm_columns == nullptr)
    throw ConfigError(fmt::format("--limits em-llm: EM-LLM's program does not run {}; leave it out",
                                  name_of(options.suite)));
  options.common.apply();
  MemoryConfig config;
  if (has_memory_settings(options.method)) config = memory_of(options);
  std::optional<SentenceEncoder> encoder;
  // a chunk of words may be longer than the texts that encoders are cut at by default
  if (!options.encoder.empty())
    encoder = SentenceEncoder::open(options.encoder, SentenceEncoder::kAllPositions);
  const Template prompt =
      options.prompts.empty()
          ? Template(built_in_prompt(options.suite, options.task).text, "built-in prompt")
          : load_template(options.prompts, options.prompt_family, options.task);
  std::vector<Example> examples = read_examples(options.suite, options.data, options.task);
  if (options.limit > 0 && options.limit < static_cast<std::int64_t>(examples.size()))
    examples.resize(static_cast<std::size_t>(options.limit));

  const std::filesystem::path out = options.shard.file(options.out);
  PredictionFile file(out, settings_of(options, config, prompt, encoder ? &*encoder : nullptr,
                                       static_cast<std::int64_t>(examples.size())));
  std::vector<std::size_t> todo;
  std::int64_t there = 0, cut = 0;
  for (const std::size_t i : dealt(examples, options.shard)) {
    if (file.has(examples[i].id))
      ++there;
    else
      todo.push_back(i);
  }
  if (!todo.empty()) {
    Answerer answerer(options, config, prompt, encoder ? &*encoder : nullptr);
    Progress progress(options.task, static_cast<std::int64_t>(todo.size()), options.common.quiet);
    for (std::size_t k = 0; k < todo.size(); ++k) {
      const Example& e = examples[todo[k]];
      const bool shared = k + 1 < todo.size() && examples[todo[k + 1]].context == e.context;
      const Json row = answerer.answer(e, static_cast<std::int64_t>(todo[k]), shared);
      if (row["finish"] == name_of(FinishReason::length)) ++cut;
      file.append(row);
      progress.done_one();
    }
  }
  return {{"done", todo.size()},
          {"skipped", there},
          {"out", out.string()},
          {"cut", cut},
          {"max_new", max_new_of(options.suite, options.task, options.limits)}};
}

}  // namespace episodic::suites
