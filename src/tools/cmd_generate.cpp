// SPDX-License-Identifier: Apache-2.0
// `episodic generate`: continues a prompt, through the memory or with full attention.

#include "chat.hpp"

#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "kept.hpp"
#include "parallel_flags.hpp"
#include "ranks.hpp"
#include "reader_flags.hpp"

namespace episodic::tools {
namespace {

struct GenerateFlags {
  CommonFlags common;
  ModelFlags model;
  std::string prompt, question;
  TextFlags prompt_file;
  std::filesystem::path ids_file;
  JsonFlag json;
  GenerationFlags generation;
  GrammarFlags grammar;
  ChatFlags chat;
  EntryFlags entries;
  ReaderFlags reader;
  EncoderFlags encoder;
  ParallelFlags parallel;
  bool no_special = false;
};

/// The prompt as text. \throws DataError if it is empty
std::string prompt_text(const GenerateFlags& flags) {
  if (!flags.prompt_file.text.empty()) return flags.prompt_file.read();
  if (flags.prompt.empty()) throw DataError("--prompt: is empty; there is nothing to go on with");
  return flags.prompt;
}

/// What is read, and the question that is a step of its own if there is one.
/// \param reply in the chat format
ChatPrompt prompt_ids(const GenerateFlags& flags, const Engine& engine,
                      std::optional<ChatAnswer>& reply) {
  if (flags.chat.chat)
    return chat_prompt(flags.chat, flags.model.model, engine.tokenizer(), prompt_text(flags),
                       flags.question, false, reply->turn());
  ChatPrompt prompt;
  prompt.text = flags.ids_file.empty()
                    ? engine.tokenizer().encode(prompt_text(flags), !flags.no_special)
                    : read_ids(flags.ids_file);
  if (!flags.question.empty())
    prompt.question = encode_continuation(engine.tokenizer(), flags.question);
  return prompt;
}

/// The same on all ranks: the first one reads.
ChatPrompt prompt_of_first(const GenerateFlags& flags, const Engine& engine,
                           std::optional<ChatAnswer>& reply) {
  Group* const group = flags.model.group.get();
  ChatPrompt prompt;
  if (is_first(group)) prompt = prompt_ids(flags, engine, reply);
  if (!group) return prompt;
  prompt.text = group->of_first(std::move(prompt.text));
  prompt.question = group->of_first(std::move(prompt.question));
  return prompt;
}

void run(GenerateFlags flags) {
  flags.parallel.join(flags.common, flags.model, &flags.json);
  refuse_with_ranks(flags.model, !flags.reader.dir.empty(), "--reader",
                    "which weights by heads that are on other ranks");
  refuse_with_ranks(flags.model, !flags.encoder.dir.empty(), "--encoder",
                    "which ranks events for the memory of one process");
  flags.common.apply();
  flags.chat.check();
  if (flags.chat.chat && !flags.ids_file.empty())
    throw ConfigError("--chat: takes a prompt of text, not --ids");
  if (flags.chat.chat && flags.no_special)
    throw ConfigError("--no-special: with --chat the model's template says what stands around");
  if (flags.entries.longest > 0 && flags.model.full_attention)
    throw ConfigError("--entries: full attention has no events; leave one of the two out");
  if (!flags.encoder.dir.empty() && flags.question.empty())
    throw ConfigError("--encoder: needs --question, which it compares the events' text with");
  GenerateOptions options = flags.generation.options(flags.chat.chat);
  const std::optional<Grammar> grammar = flags.grammar.read();
  const MemoryConfig config = flags.entries.apply(flags.model.new_memory_config());
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  if (grammar) constrain(options, grammar, engine->tokenizer());
  std::optional<ChatAnswer> reply;
  if (flags.chat.chat) {
    const ToolCallFormat format = chat_format(flags.model.model, engine->tokenizer());
    reply.emplace(format, grammar.has_value());
    options.shown_tokens = format.shown_tokens(engine->tokenizer());
  }
  const auto [prompt, question] = prompt_of_first(flags, *engine, reply);
  if (!is_first(flags.model.group.get())) reply.reset();  // which is for who sees the answer
  attach(*engine, flags.common, flags.model, config,
         static_cast<std::int64_t>(prompt.size() + question.size()) + options.max_new,
         flags.entries.starts(*engine, config, prompt));
  flags.reader.apply(*engine);
  const auto text_reader = flags.encoder.open(*engine);
  if (text_reader) text_reader->attach(*engine);

  ThoughtLine thoughts(flags.common.quiet);
  const auto show = [&](const AnswerTexts& texts) {
    thoughts.show(texts);
    flags.json.say(texts.content);
  };
  options.on_token = [&](std::int64_t, std::string_view text) {
    show(reply ? reply->push(text) : AnswerTexts{std::string(text), {}});
    return true;
  };
  GenerateResult result;
  double prefill_seconds = 0;
  {
    ProgressBar bar("reading", flags.common.quiet);
    if (question.empty()) {
      // all but the last token, which the answer starts from in a step of its own
      const auto body = std::span(prompt).first(prompt.empty() ? 0 : prompt.size() - 1);
      engine->read(body, bar.callback());
    } else {
      engine->read(prompt, bar.callback());
    }
    prefill_seconds = engine->session().counters().prefill_seconds;
  }
  if (text_reader) text_reader->ask(prompt, flags.question);
  result = question.empty()
               ? engine->generate(std::span(prompt).last(prompt.empty() ? 0 : 1), options)
               : engine->generate(question, options);
  if (reply) show(reply->finish());
  flags.json.say("\n");
  flags.generation.note_if_cut(flags.common, result);
  Json json{
      {"prompt_tokens", prompt.size() + question.size()},
      {"ids", result.ids},
      {"text", reply ? reply->texts().content : result.text},
      {"finish", name_of(result.finish)},
      {"seconds",
       {{"prefill", prefill_seconds + result.prefill_seconds}, {"decode", result.decode_seconds}}},
      {"peak_resident_bytes", peak_resident_bytes()}};
  if (reply && !reply->texts().reasoning.empty()) json["reasoning"] = reply->texts().reasoning;
  if (const Json memory = memory_json(*engine); !memory.is_null()) json["memory"] = memory;
  flags.json.write(json);
}

}  // namespace

void add_generate(Command& app) {
  auto flags = std::make_shared<GenerateFlags>();
  Command sub = app.subcommand("generate", "Continue a prompt of any length");
  sub.footer(
      "Writes the text that follows the prompt to stdout. The prompt is read in chunks, its last "
      "token\nin a step of its own; with --question the question is a step of its own, so that it "
      "alone decides\nwhat is recalled.\n\n"
      "Examples:\n"
      "  episodic generate --model M --prompt 'Once upon a time' --max-new 40\n"
      "  episodic generate --model M --prompt-file book.txt \\\n"
      "    --question $'\\n\\n\\nWhat is the pass key?\\n\\nThe pass key is' --max-new 12\n"
      "  episodic generate --model M --chat --prompt 'Who wrote Emma?'\n"
      "  episodic generate --model M --ids prompt.json --memory '{\"n_mem\": 512}' --json -\n"
      "  mpirun -n 2 episodic generate --parallel tensor --model M --prompt-file book.txt");
  flags->model.add_to(sub);
  Command source = sub.group("prompt");
  source.option("--prompt", flags->prompt, "The prompt");
  flags->prompt_file.add_to(sub, source, "--prompt-file", "The prompt in a file");
  source.option("--ids", flags->ids_file, "The prompt as token ids in a JSON file")
      .type_name("FILE");
  source.require_one_option();
  sub.option("--question", flags->question, "Text read after the prompt as a step of its own");
  flags->entries.add_to(sub);
  flags->reader.add_to(sub);
  flags->encoder.add_to(sub);
  sub.flag("--no-special", flags->no_special, "Add no BOS or other special token to the prompt");
  flags->chat.add_to(sub);
  flags->generation.add_to(sub, GenerationFlags::Otherwise::greedy);
  flags->grammar.add_to(sub);
  flags->parallel.add_to(sub);
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
