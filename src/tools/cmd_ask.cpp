// SPDX-License-Identifier: Apache-2.0
// `episodic ask`: a question to a kept memory.

#include <fmt/format.h>

#include "chat.hpp"
#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "kept.hpp"
#include "reader_flags.hpp"
#include "recalled.hpp"

namespace episodic::tools {
namespace {

struct AskFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir;
  JsonFlag json;
  std::string prompt;
  ChatFlags chat;
  EncoderFlags encoder;
  GenerationFlags generation;
  GrammarFlags grammar;
  bool keep = false, recall = false;
};

/// Says how much there is where it is not all. \throws DataError where there is nothing to ask
void check_finished(const AskFlags& flags, const EpisodicMemory& memory) {
  const std::string unfinished = unfinished_text(flags.dir, memory.tokens(), flags.keep);
  if (memory.tokens() == 0)
    throw DataError(unfinished.empty()
                        ? fmt::format("{}: the memory is empty; read a text into it with "
                                      "`episodic ingest --memory-dir {} --text FILE --resume`",
                                      flags.dir.string(), flags.dir.string())
                        : unfinished + "; ask again after its first commit");
  if (!unfinished.empty() && !flags.common.quiet)
    fmt::print(stderr, "episodic: note: {}\n", unfinished);
}

void run(const AskFlags& flags) {
  flags.common.apply();
  flags.chat.check();
  if (flags.prompt.empty()) throw DataError("--prompt: is empty; ask something");
  GenerateOptions options = flags.generation.options(flags.chat.chat);
  const std::optional<Grammar> grammar = flags.grammar.read();
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  const Tokenizer& tokenizer = engine->tokenizer();
  constrain(options, grammar, tokenizer);
  const auto memory = std::make_shared<EpisodicMemory>(
      open_kept(flags.model, flags.dir, flags.keep ? OpenMode::write : OpenMode::read));
  check_finished(flags, *memory);
  const std::vector<std::int64_t> prompt =
      flags.chat.chat
          ? chat_prompt(flags.chat, flags.model.model, tokenizer, flags.prompt, "", true).text
          : encode_continuation(tokenizer, flags.prompt);
  if (prompt.empty()) throw DataError("--prompt: holds no token; ask something");
  engine->attach(memory,
                 memory->tokens() + static_cast<std::int64_t>(prompt.size()) + options.max_new);
  if (const auto reader = flags.encoder.open(*engine)) {
    reader->attach(*engine);
    reader->ask(memory->token_ids(0, memory->tokens()), flags.prompt);
  }
  const bool host = engine->memory() == memory.get();
  RecallNotes notes(*engine, flags.recall && host ? memory.get() : nullptr);
  const auto note = [&] {
    if (flags.recall) notes.note();
    return true;
  };
  const auto last = std::span(prompt).last(1);
  {
    // all but the last token, which the answer starts from in a step of its own
    const bool short_one = static_cast<std::int64_t>(prompt.size()) <= memory->config().chunk;
    ProgressBar bar("reading the question", flags.common.quiet || short_one);
    const ProgressCallback progress = bar.callback();
    engine->read(
        std::span(prompt).first(prompt.size() - 1),
        [&](std::int64_t done, std::int64_t total) { return progress(done, total) && note(); });
  }
  const double read_seconds = engine->session().counters().prefill_seconds;
  options.on_token = [&](std::int64_t, std::string_view text) {
    flags.json.say(std::string(text));
    return note();  // of the step before this token, which is not fed back yet
  };
  options.feed_last = flags.keep;  // what is committed holds the whole answer
  const GenerateResult result = engine->generate(last, options);
  if (result.ids.empty()) note();
  flags.json.say("\n");
  flags.generation.note_if_cut(flags.common, result);
  if (flags.keep) engine->commit();
  const double prefill_seconds = read_seconds + result.prefill_seconds;
  Json json{{"prompt_tokens", prompt.size()},
            {"ids", result.ids},
            {"text", result.text},
            {"finish", name_of(result.finish)},
            {"seconds", {{"prefill", prefill_seconds}, {"decode", result.decode_seconds}}},
            {"memory", memory_json(*engine)},
            {"peak_resident_bytes", peak_resident_bytes()}};
  if (flags.recall) {
    const std::vector<RecalledEvent> events = notes.ranked();
    json["recalled"] = recalled_json(events, *memory, tokenizer);
    flags.json.say("\nRecalled for the question and the answer:\n" +
                   recalled_table(events, *memory, tokenizer));
  }
  flags.json.write(json);
}

}  // namespace

void add_ask(Command& app) {
  auto flags = std::make_shared<AskFlags>();
  Command sub = app.subcommand("ask", "Answer from a kept memory");
  sub.footer(
      "Writes the answer to stdout. The memory stays as it is, unless --keep adds question and "
      "answer to it. Several may ask at "
      "once,\nalso while one ingests. With --recall the events that the question and the answer "
      "recalled "
      "follow,\nthe best first: where the right passage is among them, the model has not used it; "
      "where it is not,\nthe memory has not found it.\n\n"
      "Example:\n  episodic ask --model M --memory-dir book.mem \\\n"
      "    --prompt $'\\n\\n\\nWhat is the pass key?\\n\\nThe pass key is' --max-new 12");
  flags->model.add_to(sub, false);
  sub.option("--memory-dir", flags->dir, "Folder of the memory").required();
  sub.option("--prompt", flags->prompt, "The question").required();
  flags->encoder.add_to(sub);
  flags->chat.add_to(sub);
  flags->generation.add_to(sub, GenerationFlags::Otherwise::greedy);
  flags->grammar.add_to(sub);
  sub.flag("--keep", flags->keep, "Commit question and answer to the memory");
  sub.flag(
      "--recall", flags->recall,
      "Also list the events that were recalled for it, with their text: what the answer is from");
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
