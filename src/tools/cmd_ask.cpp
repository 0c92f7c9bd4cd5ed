// SPDX-License-Identifier: Apache-2.0
// `episodic ask`: a question to a kept memory.

#include <fmt/format.h>

#include <chrono>

#include "chat.hpp"
#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/passages.hpp"
#include "kept.hpp"
#include "parallel_flags.hpp"
#include "ranks.hpp"
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
  ParallelFlags parallel;
  GenerationFlags generation;
  GrammarFlags grammar;
  bool keep = false, recall = false, passages_only = false;
  std::optional<std::int64_t> reread;
  std::int64_t passage_tokens = PassageOptions().tokens, rerank = 0;

  /// What is read again. In the chat format it is the default: models answer much more so
  /// (docs/finding.md). Where it cannot be done, nobody asked for it.
  PassageOptions passages(const MemoryConfig& memory) const {
    if (reread)
      return {
          .count = *reread, .tokens = passage_tokens, .rerank = rerank, .window = passages_only};
    const bool can = !keep && memory.scope == EventScope::sequence && !model.group;
    return can && (passages_only || chat.chat) ? PassageOptions::finds()
                                               : PassageOptions{.count = 0};
  }
};

/// \param options as `AskFlags::passages` says \param memory that is kept
FoundPassages find_passages(const AskFlags& flags, const PassageOptions& options,
                            const std::shared_ptr<const Model>& model, EpisodicMemory& memory) {
  if (options.count == 0) return {};
  PassageFinder finder(model);
  finder.set_vectors(flags.encoder.vectors());
  finder.keep_vectors(VectorFolder::of(memory));
  ProgressBar bar("encoding the text", flags.common.quiet || flags.encoder.dir.empty());
  finder.read(memory, memory.token_ids(0, memory.tokens()), bar.callback());
  ProgressBar choosing("choosing passages", flags.common.quiet || options.rerank == 0);
  const PassageUse use = flags.passages_only ? PassageUse::alone
                         : flags.reread      ? PassageUse::behind_memory
                                             : PassageUse::where_sure;
  return finder.find_for(use, flags.prompt, options, choosing.callback());
}

/// What is read for an answer; the question in steps of its own, so that it alone decides what is
/// recalled.
struct AskPrompt {
  std::vector<std::int64_t> text, question;
};

/// \param passages that are read again before the question; may be empty
/// \param goes_on behind the memory; else a text begins here \param reply in the chat format
AskPrompt ask_prompt(const AskFlags& flags, const Tokenizer& tokenizer,
                     std::span<const Passage> passages, bool goes_on,
                     std::optional<ChatAnswer>& reply) {
  std::string before = joined_text(passages);
  if (!before.empty()) before += "\n\n";
  AskPrompt prompt;
  if (flags.chat.chat) {
    ChatPrompt chat = chat_prompt(flags.chat, flags.model.model, tokenizer, before, flags.prompt,
                                  goes_on, reply->turn());
    prompt = {std::move(chat.text), std::move(chat.question)};
  } else {
    if (!goes_on)
      prompt.text = tokenizer.encode(before);
    else if (!before.empty())
      prompt.text = encode_continuation(tokenizer, "\n\n" + before);
    prompt.question = encode_continuation(tokenizer, flags.prompt);
  }
  if (prompt.question.empty()) std::swap(prompt.text, prompt.question);
  if (prompt.question.empty()) throw DataError("--prompt: holds no token; ask something");
  return prompt;
}

std::string passages_table(std::span<const Passage> passages) {
  constexpr std::size_t kText = 100;
  if (passages.empty()) return "nothing was read again: all that was read is in the window\n";
  std::string out = fmt::format("{:>5}  {:>15}  {}\n", "score", "tokens", "text");
  for (const Passage& p : passages)
    out +=
        fmt::format("{:>5.2f}  {:>15}  {}\n", p.score,
                    fmt::format("{}:{}", p.tokens.start, p.tokens.end), excerpt_of(p.text, kText));
  return out;
}

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

void run(AskFlags flags) {
  flags.parallel.join(flags.common, flags.model, &flags.json);
  Group* const group = flags.model.group.get();
  refuse_with_ranks(flags.model, flags.reread.value_or(0) > 0, "--reread",
                    "which looks for passages in the memory of one process");
  refuse_with_ranks(flags.model, !flags.encoder.dir.empty(), "--encoder",
                    "which ranks events for the memory of one process");
  refuse_with_ranks(flags.model, flags.recall, "--recall",
                    "which shows the attention of all heads");
  if (group) flags.dir = folder_of_rank(flags.dir, group->rank(), group->size());
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
  const PassageOptions reread = flags.passages(memory->config());
  if (flags.passages_only && reread.count == 0)
    throw ConfigError(
        "--passages-only: there are none to read; leave out --reread 0, ranks and memories whose "
        "heads have events of their own (scope: head) have none");
  const auto search = std::chrono::steady_clock::now();
  const auto [passages, alone] = find_passages(flags, reread, engine->shared_model(), *memory);
  const double find_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - search).count();
  std::optional<ChatAnswer> reply;
  if (flags.chat.chat) {
    const ToolCallFormat format = chat_format(flags.model.model, tokenizer);
    reply.emplace(format, options.grammar != nullptr);
    options.shown_tokens = format.shown_tokens(tokenizer);
  }
  AskPrompt prompt;
  if (is_first(group)) prompt = ask_prompt(flags, tokenizer, passages, !alone, reply);
  if (group) {
    prompt.text = group->of_first(std::move(prompt.text));
    prompt.question = group->of_first(std::move(prompt.question));
  }
  if (!is_first(group)) reply.reset();  // which is for who sees the answer
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.text.size() + prompt.question.size());
  if (alone)
    engine->attach_full_attention(prompt_tokens + options.max_new);
  else
    engine->attach(memory, memory->tokens() + prompt_tokens + options.max_new);
  // it finds the passages, or the events that are recalled
  if (const auto reader = reread.count > 0 ? nullptr : flags.encoder.open(*engine)) {
    reader->attach(*engine);
    reader->ask(memory->token_ids(0, memory->tokens()), flags.prompt);
  }
  const bool host = engine->memory() == memory.get();
  const bool recalls = flags.recall && !alone;
  RecallNotes notes(*engine, recalls && host ? memory.get() : nullptr);
  const auto note = [&] {
    if (recalls) notes.note();
    return true;
  };
  const auto last = std::span(prompt.question).last(1);
  {
    // all but the last token, which the answer starts from in a step of its own
    const bool short_one = prompt_tokens <= memory->config().chunk;
    ProgressBar bar("reading the question", flags.common.quiet || short_one);
    const ProgressCallback progress = bar.callback();
    const auto before = static_cast<std::int64_t>(prompt.text.size());
    engine->read(prompt.text,
                 [&](std::int64_t done, std::int64_t) { return progress(done, prompt_tokens); });
    engine->read(std::span(prompt.question).first(prompt.question.size() - 1),
                 [&](std::int64_t done, std::int64_t) {
                   return progress(before + done, prompt_tokens) && note();
                 });
  }
  const double read_seconds = engine->session().counters().prefill_seconds;
  ThoughtLine thoughts(flags.common.quiet);
  const auto show = [&](const AnswerTexts& texts) {
    thoughts.show(texts);
    flags.json.say(texts.content);
  };
  options.on_token = [&](std::int64_t, std::string_view text) {
    show(reply ? reply->push(text) : AnswerTexts{std::string(text), {}});
    return note();  // of the step before this token, which is not fed back yet
  };
  options.feed_last = flags.keep;  // what is committed holds the whole answer
  const GenerateResult result = engine->generate(last, options);
  if (reply) show(reply->finish());
  if (result.ids.empty()) note();
  flags.json.say("\n");
  flags.generation.note_if_cut(flags.common, result);
  if (flags.keep) engine->commit();
  const double prefill_seconds = read_seconds + result.prefill_seconds;
  Json json{{"prompt_tokens", prompt_tokens},
            {"ids", result.ids},
            {"text", reply ? reply->texts().content : result.text},
            {"finish", name_of(result.finish)},
            {"seconds", {{"prefill", prefill_seconds}, {"decode", result.decode_seconds}}},
            {"memory", memory_json(*engine)},
            {"peak_resident_bytes", peak_resident_bytes()}};
  if (reply && !reply->texts().reasoning.empty()) json["reasoning"] = reply->texts().reasoning;
  if (reread.count > 0) {
    json["seconds"]["find"] = find_seconds;
    json["passages"] = passages_json(passages);
    json["passages_only"] = alone;
    if (const auto vectors = flags.encoder.vectors())
      json["encoder"] = {{"encoded", vectors->counters().encoded},
                         {"reused", vectors->counters().reused}};
    if (flags.recall)
      flags.json.say("\nRead again before the question:\n" + passages_table(passages));
  }
  if (recalls) {
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
      "where it is not,\nthe memory has not found it. With --reread and --encoder the encoder "
      "reads "
      "the text at the\nfirst question; its vectors then stay in the memory's folder, in a file "
      "that "
      "is only a cache.\n\n"
      "Example:\n  episodic ask --model M --memory-dir book.mem \\\n"
      "    --prompt $'\\n\\n\\nWhat is the pass key?\\n\\nThe pass key is' --max-new 12\n"
      "  episodic ask --model M --memory-dir book.mem --chat --prompt 'Who closed it?' --reread 3");
  flags->model.add_to(sub, false);
  sub.option("--memory-dir", flags->dir, "Folder of the memory").required();
  sub.option("--prompt", flags->prompt, "The question").required();
  flags->encoder.add_to(sub, "Passages to read again are found, or without them events recalled,");
  flags->chat.add_to(sub);
  flags->generation.add_to(sub, GenerationFlags::Otherwise::greedy);
  flags->grammar.add_to(sub);
  flags->parallel.add_to(sub);
  const Option reread =
      sub.option("--reread", flags->reread,
                 "Passages of the memory that are found for the question and read again before it")
          .not_negative()
          .shows_default("with --chat 3, alone where the model is sure of them; else 0");
  sub.option("--passage-tokens", flags->passage_tokens, "Tokens of each, to sentence ends")
      .positive()
      .shows_default()
      .needs(reread);
  sub.option("--rerank", flags->rerank,
             "Candidates that the model reads, each with the question, to choose the passages")
      .not_negative()
      .shows_default()
      .needs(reread);
  const Option keep =
      sub.flag("--keep", flags->keep, "Commit question and answer to the memory").excludes(reread);
  sub.flag(
         "--passages-only", flags->passages_only,
         "Answer from the passages alone: neither the window nor recalled events are attended to. "
         "Without --reread: 3 of 32 tokens, which the model chooses of 8")
      .excludes(keep);
  sub.flag(
      "--recall", flags->recall,
      "Also list the events that were recalled for it, with their text: what the answer is from");
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
