// SPDX-License-Identifier: Apache-2.0
// `episodic demo`: a book with facts hidden in it, asked for with the memory and without.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "commands.hpp"
#include "common.hpp"
#include "demo_result.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/session.hpp"
#include "hidden_facts.hpp"
#include "kept.hpp"
#include "reading.hpp"
#include "recalled.hpp"

namespace episodic::tools {
namespace {

/// Above this length full attention is left out unless asked for: it reads the text again for every
/// question, having nothing to come back to, and its cost grows with the square.
constexpr std::int64_t kFullTokens = 8192;
struct DemoFlags {
  CommonFlags common;
  ModelFlags model;
  std::int64_t tokens = 100000, facts = 10;
  std::uint64_t seed = 1;
  std::filesystem::path text, html;
  JsonFlag json;
  bool full = false;
};

/// Which events the last step recalled, and which of them hold the fact.
void note_recalls(Engine& engine, std::span<const std::int64_t> ids, const Tokenizer& tokenizer,
                  FactResult& result) {
  const TokenRange fact = result.fact.tokens;
  const std::vector<std::vector<Recalled>> lanes = recalled_by_lane(engine);
  for (const std::vector<Recalled>& list : lanes)
    for (const Recalled& r : list)
      if (r.tokens.start < fact.end && fact.start < r.tokens.end) result.holding.push_back(r);
  const auto holds_value = [&](const Recalled& r) {
    const TokenRange part{std::max(r.tokens.start, fact.start), std::min(r.tokens.end, fact.end)};
    return text_of(tokenizer, ids, part).find(result.fact.value) != std::string::npos;
  };
  std::optional<bool> source_holds;
  for (const Recalled& r : result.holding) {
    const bool holds = holds_value(r);
    if (!result.source || holds > *source_holds ||
        (holds == *source_holds && r.rank < result.source->rank)) {
      result.source = r;
      source_holds = holds;
    }
  }
  // With nothing of the fact recalled, the last layer's list shows what came instead.
  result.best = result.source ? lanes[static_cast<std::size_t>(result.source->lane)] : lanes.back();
}

/// Reads the text once, then asks for every fact from the same point.
void with_memory(const DemoFlags& flags, Engine& engine, const Tokenizer& tokenizer,
                 DemoResult& result) {
  engine.attach(result.config, tokens_to_ask(result.text, tokenizer));
  Session session(engine, &tokenizer);
  {
    ProgressBar bar("reading with the memory   ", flags.common.quiet);
    result.reading = read_recording(
        session, [&] { return engine.last_step(); }, result.text.ids, bar.callback());
  }
  const EventTable events = engine.events();
  result.events = events.all();
  result.memory = memory_json(engine);
  result.resident = resident_bytes();
  const std::shared_ptr<const Engine::Snapshot> end_of_text = engine.snapshot();
  for (const Fact& fact : result.text.facts) {
    FactResult f;
    f.fact = fact;
    f.far = fact.tokens.end <= events.pending_start();
    engine.restore(*end_of_text);
    f.with_memory = ask_for(fact, session, tokenizer,
                            [&] { note_recalls(engine, result.text.ids, tokenizer, f); });
    result.facts.push_back(std::move(f));
  }
}

/// The same text, window and model, but nothing is recalled.
void without_memory(const DemoFlags& flags, Engine& engine, const Tokenizer& tokenizer,
                    DemoResult& result) {
  MemoryConfig config = result.config;
  config.recall = false;
  engine.attach(config, tokens_to_ask(result.text, tokenizer));
  Session session(engine, &tokenizer);
  {
    ProgressBar bar("reading without the memory", flags.common.quiet);
    session.prefill(result.text.ids, bar.callback());
  }
  result.without_seconds = session.counters().prefill_seconds;
  const std::shared_ptr<const Engine::Snapshot> end_of_text = engine.snapshot();
  for (FactResult& f : result.facts) {
    engine.restore(*end_of_text);
    f.without_memory = ask_for(f.fact, session, tokenizer);
  }
}

/// Every token before every other, as the model was made. Says in full_note what was not done.
void full_attention(const DemoFlags& flags, Engine& engine, const Tokenizer& tokenizer,
                    DemoResult& result) {
  const ModelConfig& m = engine.config();
  const std::int64_t n = result.n_tokens();
  const std::int64_t bytes =
      n * 2 * m.n_layers * m.n_kv_heads * m.head_dim * static_cast<std::int64_t>(sizeof(float));
  const std::string trained =
      m.max_positions > 0
          ? fmt::format("the model was trained on windows of {} tokens", m.max_positions)
          : std::string("the model does not say how long its window was");
  const std::int64_t machine =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  const bool fits = bytes < machine / 2;
  if (!fits || (n > kFullTokens && !flags.full)) {
    result.full_note = fits ? fmt::format("not run (--full): {} for {} tokens, and {}",
                                          bytes_text(bytes), n, trained)
                            : fmt::format("does not fit: {} for {} tokens", bytes_text(bytes), n);
    return;
  }
  result.full_note = n > m.max_positions && m.max_positions > 0
                         ? fmt::format("{}; this text has {}", trained, n)
                         : trained;
  const std::int64_t max_tokens = tokens_to_ask(result.text, tokenizer);
  Session session(engine, &tokenizer);
  ProgressBar bar("reading with full attention", flags.common.quiet);
  const ProgressCallback progress = bar.callback();
  const auto start = std::chrono::steady_clock::now();
  const auto questions = static_cast<std::int64_t>(result.facts.size());
  for (std::int64_t i = 0; i < questions; ++i) {
    FactResult& f = result.facts[static_cast<std::size_t>(i)];
    engine.attach_full_attention(max_tokens);
    session.prefill(result.text.ids, [&](std::int64_t done, std::int64_t) {
      return progress(i * n + done, questions * n);
    });
    f.full = ask_for(f.fact, session, tokenizer);
  }
  result.full_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(DemoFlags& flags) {
  flags.common.apply();
  if (flags.model.model.empty()) flags.model.model = shipped_model();
  DemoResult result;
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  const Tokenizer& tokenizer = engine->tokenizer();
  result.model = std::filesystem::weakly_canonical(flags.model.model).filename().string();
  result.seed = flags.seed;
  result.config = flags.model.new_memory_config();
  if (result.config.segmenter == SegmenterKind::given)
    throw ConfigError(
        "segmenter = \"given\": the demo has no boundaries to give; use \"surprise\"");
  const Book book = open_book(flags.text);
  result.book = book.title;
  result.text = hide_facts(book, tokenizer, flags.tokens, draw_facts(flags.facts, flags.seed));

  with_memory(flags, *engine, tokenizer, result);
  without_memory(flags, *engine, tokenizer, result);
  full_attention(flags, *engine, tokenizer, result);
  result.peak_resident = peak_resident_bytes();

  flags.json.say(demo_table(result, tokenizer));
  flags.json.write(demo_json(result, tokenizer));
  if (!flags.html.empty()) {
    write_text(flags.html, demo_page(result, tokenizer));
    if (!flags.common.quiet) fmt::print(stderr, "page: {}\n", flags.html.string());
  }
}

}  // namespace

void add_demo(Command& app) {
  auto flags = std::make_shared<DemoFlags>();
  Command sub = app.subcommand("demo", "Hide facts in a book, read it, ask for them");
  sub.footer(
      "Reads the King James Bible (Debian package bible-kjv) or --text FILE with facts hidden in "
      "it,\n"
      "and asks for each: with the memory, without it (same window, no recall), and with full "
      "attention\n"
      "where that is cheap (up to 8192 tokens, or with --full). Every question starts from the "
      "same\n"
      "point. Exit code 0 means that it ran; the answers are in the table and in the JSON\n"
      "(keys: docs/programs.md).\n\n"
      "And a real model? --model takes any that is supported; 8,000 tokens take a model of half a "
      "billion\nweights some minutes on two cores (plan says how long). `episodic check` asks it "
      "in "
      "more ways, in a minute.\n\n"
      "Examples:\n"
      "  episodic demo --html demo.html\n"
      "  episodic demo --model qwen2.5-0.5b-instruct-q4_k_m.gguf --tokens 8K\n"
      "  episodic demo --tokens 1M --text book.txt --json demo.json");
  add_count(sub, "--tokens", flags->tokens, "Tokens to read", 1);
  add_count(sub, "--facts", flags->facts, "Facts to hide", 1);
  sub.option("--text", flags->text, "Text file to read instead of the Bible; - is stdin");
  sub.option("--seed", flags->seed, "Draws names and values").shows_default();
  sub.option("--model", flags->model.model,
             "Model directory, or a GGUF file (default: the shipped model)");
  sub.option("--memory", flags->model.memory,
             "Changes to the memory's settings: a JSON file or inline JSON");
  sub.flag("--full", flags->full, "Ask with full attention, whatever it costs");
  flags->json.add_to(sub, "Everything as JSON");
  sub.option("--html", flags->html, "A page that shows events and recalls");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
