// SPDX-License-Identifier: Apache-2.0
// `episodic generate`: continues a prompt, through the memory or with full attention.

#include <fmt/format.h>

#include <cstdio>

#include "commands.hpp"
#include "engine.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/session.hpp"

namespace episodic::tools {
namespace {

struct GenerateFlags {
  CommonFlags common;
  ModelFlags model;
  std::string prompt, question;
  std::filesystem::path prompt_file, ids_file, json;
  GenerateOptions options;
  bool chat = false, stream = false, no_special = false;
};

void run(GenerateFlags& flags) {
  flags.common.apply();
  if (flags.chat)
    throw NotBuiltError(
        "--chat: chat templates are not built yet; write the template into the prompt");
  // With --ids a tokenizer is welcome but not needed: a model directory may have none.
  std::unique_ptr<Tokenizer> tokenizer;
  const bool from_ids = !flags.ids_file.empty();
  if (!from_ids || std::filesystem::exists(flags.model.model / "tokenizer.json"))
    tokenizer = load_tokenizer(flags.model.model);
  std::vector<std::int64_t> prompt, question;
  if (from_ids)
    prompt = read_ids(flags.ids_file);
  else
    prompt = tokenizer->encode(
        flags.prompt_file.empty() ? flags.prompt : read_text(flags.prompt_file), !flags.no_special);
  if (!flags.question.empty()) {
    if (!tokenizer)
      throw FileError(
          fmt::format("{}: --question needs a tokenizer.json there", flags.model.model.string()));
    question = tokenizer->encode(flags.question, false);
  }

  const std::unique_ptr<Engine> engine = make_engine(
      flags.common, flags.model, flags.model.memory_config(),
      static_cast<std::int64_t>(prompt.size() + question.size()) + flags.options.max_new);
  Session session(engine->model(), tokenizer.get());
  if (flags.stream)
    flags.options.on_token = [](std::int64_t, std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stderr);
      return true;
    };
  GenerateResult result;
  double prefill_seconds = 0;
  {
    ProgressBar bar("reading", flags.common.quiet || flags.stream);
    if (question.empty()) {
      result = session.generate(prompt, flags.options, bar.callback());
    } else {
      session.prefill(prompt, bar.callback());
      prefill_seconds = session.counters().prefill_seconds;
      result = session.generate(question, flags.options);
    }
  }
  if (flags.stream) std::fputc('\n', stderr);
  Json json{
      {"prompt_tokens", prompt.size() + question.size()},
      {"ids", result.ids},
      {"text", result.text},
      {"finish", name_of(result.finish)},
      {"seconds",
       {{"prefill", prefill_seconds + result.prefill_seconds}, {"decode", result.decode_seconds}}},
      {"peak_resident_bytes", peak_resident_bytes()}};
  if (const Json memory = engine->memory_json(); !memory.is_null()) json["memory"] = memory;
  write_json(flags.json, json);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  GenerateOptions& o = flags->options;
  CLI::App* sub = app.add_subcommand("generate", "Continue a prompt of any length");
  sub->footer(
      "The prompt is read in chunks, its last token in a step of its own; with --question the "
      "question\n"
      "is a step of its own, so that it alone decides what is recalled.\n\n"
      "Examples:\n"
      "  episodic generate --model M --prompt 'Once upon a time' --max-new 40\n"
      "  episodic generate --model M --prompt-file book.txt \\\n"
      "    --question $'\\n\\n\\nWhat is the pass key?\\n\\nThe pass key is' --max-new 12\n"
      "  episodic generate --model M --ids prompt.json --memory '{\"n_local\": 512}' --json "
      "out.json");
  flags->model.add_to(*sub);
  auto* source = sub->add_option_group("prompt");
  source->add_option("--prompt", flags->prompt, "The prompt");
  source->add_option("--prompt-file", flags->prompt_file, "The prompt in a file; - is stdin");
  source->add_option("--ids", flags->ids_file, "The prompt as token ids in a JSON file");
  source->require_option(1);
  sub->add_option("--question", flags->question, "Text read after the prompt as a step of its own");
  sub->add_flag("--no-special", flags->no_special,
                "Add no BOS or other special token to the prompt");
  sub->add_option("--max-new", o.max_new, "Most tokens to generate")->check(CLI::NonNegativeNumber);
  sub->add_option("--temperature", o.sampling.temperature, "0 is greedy");
  sub->add_option("--top-p", o.sampling.top_p,
                  "Keep the most likely tokens up to this probability");
  sub->add_option("--top-k", o.sampling.top_k, "Keep the k most likely tokens (0: all)");
  sub->add_option("--repetition-penalty", o.sampling.repetition_penalty, "1 is none");
  sub->add_option("--seed", o.sampling.seed, "Seed of the sampling");
  sub->add_option("--stop", o.stop, "Text that ends the generation (may be given several times)");
  sub->add_flag("--ignore-eos", o.ignore_eos, "Do not stop at the model's end-of-sequence tokens");
  sub->add_flag("--stream", flags->stream, "Also write the text to stderr as it comes");
  sub->add_flag("--chat", flags->chat, "Not built yet");
  sub->add_option("--json", flags->json, "Result file (default: stdout)");
  flags->common.add_to(*sub);
  sub->callback([flags] { run(*flags); });
}

}  // namespace episodic::tools
