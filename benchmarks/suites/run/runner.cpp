// SPDX-License-Identifier: Apache-2.0
#include "run/runner.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <unordered_map>

#include "data/prompts.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/presets.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/session.hpp"
#include "kept.hpp"
#include "support/environment.hpp"

namespace episodic::suites {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// -- methods and presets --

constexpr const char* kMethods[] = {"episodic", "full", "window", "truncate"};

struct Named {
  const char *name, *why;
};
constexpr Named kMissingMethods[] = {{"rag", "it takes a text encoder, and none is built"},
                                     {"rag-s", "it takes a text encoder, and none is built"}};

void check_method(const std::string& method) {
  for (const Named& m : kMissingMethods)
    if (method == m.name)
      throw NotBuiltError(
          fmt::format("--method {}: not built yet ({}); there are {}", method, m.why, methods()));
  if (std::find(std::begin(kMethods), std::end(kMethods), method) == std::end(kMethods))
    throw ConfigError(fmt::format("--method {}: there are {}", method, methods()));
}

bool uses_memory(const std::string& method) { return method == "episodic" || method == "window"; }

MemoryConfig memory_of(const RunOptions& options) {
  MemoryConfig config = options.model.memory_config();
  if (!options.preset.empty()) apply_preset(config, options.preset);
  if (options.method == "window") config.recall = false;
  config.validate();
  return config;
}

bool has_chat_format(const std::filesystem::path& model) {
  if (std::filesystem::exists(model / "chat_template.jinja")) return true;
  const std::filesystem::path config = model / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return false;
  const Json json = tools::read_json(config);
  return json.contains("chat_template") && !json["chat_template"].is_null();
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

/// A prompt's tokens, and where its question begins.
struct PromptIds {
  std::vector<std::int64_t> ids;
  std::size_t question = 0;
};

struct Answer {
  std::vector<std::int64_t> ids;
  FinishReason finish = FinishReason::length;
  double seconds = 0;
};

class Answerer {
 public:
  Answerer(const RunOptions& options, const MemoryConfig& config, const Template& prompt)
      : options_(options),
        config_(config),
        prompt_(prompt),
        max_new_(max_new_of(options.suite, options.task, options.limits)),
        tokenizer_(load_model_tokenizer(options.model.model)),
        engine_(tools::load_engine(options.common, options.model)),
        session_(*engine_, tokenizer_.get()) {}

  /// \param shared whether the next example may have the same context
  Json answer(const Example& example, std::int64_t index, bool shared) {
    const PromptIds prompt = encode(example);
    const auto n = static_cast<std::int64_t>(prompt.ids.size());
    check_window(example, n);
    const std::vector<std::int64_t> document(
        prompt.ids.begin(), prompt.ids.begin() + static_cast<std::ptrdiff_t>(prompt.question));
    double read_seconds = 0;
    std::int64_t read_tokens = n - static_cast<std::int64_t>(document.size());
    if (read_ && document == document_) {
      engine_->restore(*read_);
    } else {
      read_ = nullptr;
      // Room for any question about this document.
      begin(n + max_new_ + (shared ? kQuestionRoom : 0));
      const Clock::time_point start = Clock::now();
      session_.prefill(document);
      read_seconds = seconds_since(start);
      read_tokens = n;
      document_ = document;
      if (shared && uses_memory(options_.method)) read_ = engine_->snapshot();
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
             {"read_tokens", read_tokens},
             {"new_tokens", answer.ids.size()},
             {"finish", name_of(answer.finish)},
             {"seconds", {{"read", read_seconds}, {"answer", answer.seconds}}},
             {"peak_resident_bytes", tools::peak_resident_bytes()}};
    if (uses_memory(options_.method)) row["memory"] = tools::memory_json(*engine_);
    return row;
  }

 private:
  static constexpr std::int64_t kQuestionRoom = 4096;

  PromptIds encode(const Example& example) const {
    const Prompt prompt = prompt_.fill(slots_of(options_.suite, example, options_.task));
    PromptIds out;
    out.ids = tokenizer_->encode(prompt.text(), true);
    if (options_.method == "truncate") truncate(out.ids);
    if (out.ids.empty())
      throw DataError(
          fmt::format("{}: the prompt of id {} is empty", options_.data.string(), example.id));
    out.question = out.ids.size() - 1;
    if (options_.question_step && options_.method != "truncate") {
      // The tokens at the prompt's end that are the question's: its first ones may have grown
      // together with the context's last.
      const std::vector<std::int64_t> question = tokenizer_->encode(prompt.question, false);
      std::size_t same = 0;
      while (same < question.size() && same < out.ids.size() &&
             question[question.size() - 1 - same] == out.ids[out.ids.size() - 1 - same])
        ++same;
      if (same > 0) out.question = out.ids.size() - same;
    }
    return out;
  }

  /// As LongBench does: the first and last halves of the window's tokens, as text, read again.
  void truncate(std::vector<std::int64_t>& ids) const {
    const std::int64_t window =
        options_.max_length > 0 ? options_.max_length : engine_->config().max_positions - max_new_;
    if (window < 2)
      throw ConfigError(
          "--max-length: must be given, and at least 2, for a model that does not say "
          "how long its window is");
    if (static_cast<std::int64_t>(ids.size()) <= window) return;
    const std::ptrdiff_t half = window / 2;
    const std::string head = tokenizer_->decode({ids.begin(), ids.begin() + half}, true);
    const std::string tail = tokenizer_->decode({ids.end() - half, ids.end()}, true);
    ids = tokenizer_->encode(head + tail, true);
  }

  /// \throws DataError for a prompt that full attention was not made for
  void check_window(const Example& example, std::int64_t n) const {
    const std::int64_t window = engine_->config().max_positions;
    if (options_.method != "full" || options_.beyond_window || window <= 0 ||
        n + max_new_ <= window)
      return;
    throw DataError(fmt::format(
        "--method full: the prompt of id {} has {} tokens, with {} to generate more than "
        "the {} of the model's window; take --method episodic or truncate, or "
        "--beyond-window to read it all the same",
        example.id, n, max_new_, window));
  }

  void begin(std::int64_t max_tokens) {
    if (uses_memory(options_.method))
      engine_->attach(config_, max_tokens);
    else
      engine_->attach_full_attention(max_tokens);
  }

  Answer generate(std::span<const std::int64_t> question) {
    const Clock::time_point start = Clock::now();
    GenerateOptions options;
    options.max_new = max_new_;
    Answer answer;
    std::vector<std::int64_t> next(question.begin(), question.end());
    if (ends_with_line(options_.suite, options_.task) && max_new_ > 0) {
      options.stop_tokens = engine_->config().eos_tokens;
      options.stop_tokens.push_back(tokenizer_->encode("\n", false).back());
      // At least one token: the first is the likeliest that does not end the text.
      session_.prefill(std::span(question).first(question.size() - 1));
      engine_->step(question.last(1));
      next = {first_token(engine_->config().eos_tokens)};
      answer.ids = next;
      --options.max_new;
    }
    const GenerateResult result = session_.generate(next, options);
    answer.ids.insert(answer.ids.end(), result.ids.begin(), result.ids.end());
    answer.finish = result.finish;
    answer.seconds = seconds_since(start);
    return answer;
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
  const Template& prompt_;
  std::int64_t max_new_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  Session session_;
  std::vector<std::int64_t> document_;
  std::shared_ptr<const Engine::Snapshot> read_;  ///< the state after document_
};

/// All that decides what comes out, and where it was computed.
Json settings_of(const RunOptions& options, const MemoryConfig& config, const Template& prompt,
                 std::int64_t examples) {
  const std::string published = prompt.published_as(options.task);
  Json json{{"suite", name_of(options.suite)},
            {"task", options.task},
            {"data", options.data.filename().string()},
            {"examples", examples},
            {"model", std::filesystem::weakly_canonical(options.model.model).filename().string()},
            {"method", options.method},
            {"preset", options.preset.empty() ? Json() : Json(options.preset)},
            {"memory", uses_memory(options.method) ? Json::parse(to_json(config)) : Json()},
            {"prompt",
             {{"source", options.prompts.empty() ? "own wording"
                         : published.empty()     ? "the file's own"
                                                 : published},
              {"sha256", prompt.sha256()},
              {"official", published.starts_with("official")},
              {"chat_format", false}}},
            {"limits", options.limits == Limits::official ? "official" : "em-llm"},
            {"max_new", max_new_of(options.suite, options.task, options.limits)},
            {"question_step", options.question_step}};
  if (options.method == "truncate") json["max_length"] = options.max_length;
  if (!options.model.lora.empty()) json["lora"] = options.model.lora;
  if (!options.model.quantize.empty()) json["quantize"] = options.model.quantize;
  json["environment"] = bench::environment();
  return json;
}

/// Indices of the examples with the same context side by side, each group where its first stands.
std::vector<std::size_t> by_context(const std::vector<Example>& examples) {
  std::unordered_map<std::string_view, std::size_t> group;
  std::vector<std::pair<std::size_t, std::size_t>> order;
  for (std::size_t i = 0; i < examples.size(); ++i)
    order.emplace_back(group.try_emplace(examples[i].context, i).first->second, i);
  std::sort(order.begin(), order.end());
  std::vector<std::size_t> indices;
  for (const auto& [first, i] : order) indices.push_back(i);
  return indices;
}

}  // namespace

std::string methods() {
  std::string text;
  for (const std::string method : kMethods) text += (text.empty() ? "" : ", ") + method;
  return text;
}

Json run_task(const RunOptions& options) {
  check_task(options.suite, options.task);
  check_method(options.method);
  options.common.apply();
  MemoryConfig config;
  if (uses_memory(options.method)) config = memory_of(options);
  if (!options.raw && in_chat_format(options.suite, options.task) &&
      has_chat_format(options.model.model))
    throw NotBuiltError(
        fmt::format("{}: the suite puts this task's prompts into the model's chat "
                    "format, which is not built yet; take --raw to do without",
                    options.model.model.string()));
  const Template prompt = options.prompts.empty()
                              ? own_template(options.task)
                              : load_template(options.prompts, options.prompt_family, options.task);
  std::vector<Example> examples = read_examples(options.suite, options.data, options.task);
  if (options.limit > 0 && options.limit < static_cast<std::int64_t>(examples.size()))
    examples.resize(static_cast<std::size_t>(options.limit));

  const std::filesystem::path out = options.shard.file(options.out);
  PredictionFile file(
      out, settings_of(options, config, prompt, static_cast<std::int64_t>(examples.size())));
  std::vector<std::size_t> todo;
  std::int64_t there = 0;
  for (const std::size_t i : by_context(examples)) {
    if (static_cast<std::int64_t>(i) % options.shard.of != options.shard.part) continue;
    if (file.has(examples[i].id))
      ++there;
    else
      todo.push_back(i);
  }
  if (!todo.empty()) {
    Answerer answerer(options, config, prompt);
    Progress progress(options.task, static_cast<std::int64_t>(todo.size()), options.common.quiet);
    for (std::size_t k = 0; k < todo.size(); ++k) {
      const Example& e = examples[todo[k]];
      const bool shared = k + 1 < todo.size() && examples[todo[k + 1]].context == e.context;
      file.append(answerer.answer(e, static_cast<std::int64_t>(todo[k]), shared));
      progress.done_one();
    }
  }
  return {{"done", todo.size()}, {"skipped", there}, {"out", out.string()}};
}

}  // namespace episodic::suites
