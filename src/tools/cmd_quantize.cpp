// SPDX-License-Identifier: Apache-2.0
// `episodic quantize`: a model with its weights rounded to blocks, as one file.

#include <fmt/format.h>

#include "commands.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/session/engine.hpp"

namespace episodic::tools {
namespace {

struct QuantizeFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path out;
  JsonFlag json;
  bool replace = false;
};

std::int64_t bytes_of(const TensorSource& tensors) {
  std::int64_t bytes = 0;
  for (const StoredTensor* t : tensors.tensors()) bytes += t->bytes;
  return bytes;
}

void run(const QuantizeFlags& flags) {
  flags.common.apply();
  require_model_dir(flags.model.model);
  if (flags.out.extension() != ".gguf")
    throw ConfigError(fmt::format(
        "--out {}: name a file that ends in .gguf; safetensors files cannot hold such weights",
        flags.out.string()));
  ModelOptions options = flags.model.options();
  options.merge_lora = true;
  options.log = model_log(flags.common);
  const OpenModel model = open_model(flags.model.model, options);
  {
    ProgressBar bar("writing", flags.common.quiet);
    write_gguf(model, flags.out, flags.replace, bar.callback());
  }
  const std::int64_t before = bytes_of(*model.stored), after = bytes_of(*model.tensors);
  flags.json.say(fmt::format("{}: {} of weights, {} before\n", flags.out.string(),
                             bytes_text(after), bytes_text(before)));
  flags.json.write({{"file", flags.out.string()},
                    {"type", flags.model.quantize},
                    {"weight_bytes", after},
                    {"stored_weight_bytes", before},
                    {"file_bytes", std::filesystem::file_size(flags.out)}});
}

}  // namespace

void add_quantize(Command& app) {
  auto flags = std::make_shared<QuantizeFlags>();
  Command sub = app.subcommand("quantize", "Write a model with its weights in 8 or 4 bits");
  sub.footer(
      "Writes one GGUF file with weights, configuration and tokenizer, which every --model takes. "
      "Weights are\nrounded as ggml rounds them; embedding and head to 8 bits for either type. "
      "Adapters are merged first.\nThe file appears whole or not at all.\n\n"
      "Example:\n  episodic quantize --model M --type q8_0 --out m-q8_0.gguf");
  sub.option("--model", flags->model.model, "Model directory in Hugging Face layout").required();
  sub.option("--type", flags->model.quantize, "q8_0 or q4_0").required().one_of({"q8_0", "q4_0"});
  sub.option("--out", flags->out, "The file to write").required().type_name("FILE.gguf");
  sub.option("--lora", flags->model.lora,
             "Adapter to merge, with a factor behind a colon (may be given several times)")
      .type_name("DIR[:SCALE]")
      .one_value_each();
  sub.flag("--replace", flags->replace, "Replace the file if it is there already");
  flags->json.add_to(sub);
  flags->common.add_to(sub, false);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
