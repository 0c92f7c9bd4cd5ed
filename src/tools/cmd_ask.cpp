// SPDX-License-Identifier: Apache-2.0
// `episodic ask`: a question to a kept memory.

#include <fmt/format.h>

#include "chat.hpp"
#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "kept.hpp"
#include "reader_flags.hpp"

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
  bool keep = false;
};

void run(const AskFlags& flags) {
  flags.common.apply();
  flags.chat.check();
  if (flags.prompt.empty()) throw DataError("--prompt: is empty; ask something");
  GenerateOptions options = flags.generation.options(flags.chat.chat);
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  const Tokenizer& tokenizer = engine->tokenizer();
  const auto memory = std::make_shared<EpisodicMemory>(
      open_kept(flags.model, flags.dir, flags.keep ? OpenMode::write : OpenMode::read));
  const bool goes_on = memory->tokens() > 0;
  const std::vector<std::int64_t> prompt =
      flags.chat.chat
          ? chat_prompt(flags.chat, flags.model.model, tokenizer, flags.prompt, "", goes_on).text
      : goes_on ? encode_continuation(tokenizer, flags.prompt)
                : tokenizer.encode(flags.prompt);
  engine->attach(memory,
                 memory->tokens() + static_cast<std::int64_t>(prompt.size()) + options.max_new);
  if (const auto reader = flags.encoder.open(*engine)) {
    reader->attach(*engine);
    reader->ask(memory->token_ids(0, memory->tokens()), flags.prompt);
  }
  options.on_token = [&](std::int64_t, std::string_view text) {
    flags.json.say(std::string(text));
    return true;
  };
  options.feed_last = flags.keep;  // what is committed holds the whole answer
  const GenerateResult result = engine->generate(prompt, options);
  flags.json.say("\n");
  flags.generation.note_if_cut(flags.common, result);
  if (flags.keep) engine->commit();
  flags.json.write(
      {{"prompt_tokens", prompt.size()},
       {"ids", result.ids},
       {"text", result.text},
       {"finish", name_of(result.finish)},
       {"seconds", {{"prefill", result.prefill_seconds}, {"decode", result.decode_seconds}}},
       {"memory", memory_json(*engine)},
       {"peak_resident_bytes", peak_resident_bytes()}});
}

}  // namespace

void add_ask(Command& app) {
  auto flags = std::make_shared<AskFlags>();
  Command sub = app.subcommand("ask", "Answer from a kept memory");
  sub.footer(
      "Writes the answer to stdout. The memory stays as it is, unless --keep adds question and "
      "answer to it. Several may ask at "
      "once,\nalso while one ingests.\n\n"
      "Example:\n  episodic ask --model M --memory-dir book.mem \\\n"
      "    --prompt $'\\n\\n\\nWhat is the pass key?\\n\\nThe pass key is' --max-new 12");
  flags->model.add_to(sub, false);
  sub.option("--memory-dir", flags->dir, "Folder of the memory").required();
  sub.option("--prompt", flags->prompt, "The question").required();
  flags->encoder.add_to(sub);
  flags->chat.add_to(sub);
  flags->generation.add_to(sub, GenerationFlags::Otherwise::greedy);
  sub.flag("--keep", flags->keep, "Commit question and answer to the memory");
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
