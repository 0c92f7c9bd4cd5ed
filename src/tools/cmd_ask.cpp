// SPDX-License-Identifier: Apache-2.0
// `episodic ask`: a question to a kept memory.

#include <fmt/format.h>

#include "commands.hpp"
#include "engine.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct AskFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir, json;
  std::string prompt;
  GenerateOptions options;
  bool keep = false;
};

void run(const AskFlags& flags) {
  flags.common.apply();
  const auto tokenizer = load_tokenizer(flags.model.model);
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model.model);
  const auto memory = std::make_shared<EpisodicMemory>(
      open_kept(flags.model, flags.dir, flags.keep ? OpenMode::write : OpenMode::read));
  const std::vector<std::int64_t> prompt = tokenizer->encode(flags.prompt, memory->tokens() == 0);
  engine->remember(
      memory, memory->tokens() + static_cast<std::int64_t>(prompt.size()) + flags.options.max_new);
  Session session(engine->model(), tokenizer.get());
  const GenerateResult result = session.generate(prompt, flags.options);
  if (flags.keep) {
    engine->save();
    memory->commit();
  }
  write_json(flags.json,
             {{"prompt_tokens", prompt.size()},
              {"ids", result.ids},
              {"text", result.text},
              {"finish", name_of(result.finish)},
              {"seconds", {{"prefill", result.prefill_seconds}, {"decode", result.decode_seconds}}},
              {"memory", engine->memory_json()},
              {"peak_resident_bytes", peak_resident_bytes()}});
}

}  // namespace

void add_ask(CLI::App& app) {
  auto flags = std::make_shared<AskFlags>();
  CLI::App* sub = app.add_subcommand("ask", "Answer from a kept memory");
  sub->footer(
      "The memory stays as it is, unless --keep adds question and answer to it. Several may ask at "
      "once,\nalso while one ingests.\n\n"
      "Example:\n  episodic ask --model M --memory-dir book.mem \\\n"
      "    --prompt $'\\n\\n\\nWhat is the pass key?\\n\\nThe pass key is' --max-new 12");
  flags->model.add_to(*sub, false);
  sub->add_option("--memory-dir", flags->dir, "Folder of the memory")->required();
  sub->add_option("--prompt", flags->prompt, "The question")->required();
  sub->add_option("--max-new", flags->options.max_new, "Most tokens to generate")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--temperature", flags->options.sampling.temperature, "0 is greedy");
  sub->add_option("--top-p", flags->options.sampling.top_p,
                  "Keep the most likely tokens up to this probability");
  sub->add_option("--seed", flags->options.sampling.seed, "Seed of the sampling");
  sub->add_option("--stop", flags->options.stop, "Text that ends the answer");
  sub->add_flag("--keep", flags->keep, "Commit question and answer to the memory");
  sub->add_option("--json", flags->json, "Result file (default: stdout)");
  flags->common.add_to(*sub);
  sub->callback([flags] { run(*flags); });
}

}  // namespace episodic::tools
