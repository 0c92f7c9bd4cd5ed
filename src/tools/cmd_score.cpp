// SPDX-License-Identifier: Apache-2.0
// `episodic score`: perplexity of a text, through the memory or with full attention.

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic::tools {
namespace {

struct ScoreFlags {
  CommonFlags common;
  ModelFlags model;
  TextFlags text;
  std::filesystem::path ids_file, per_token;
  JsonFlag json;
};

void run(const ScoreFlags& flags) {
  flags.common.apply();
  const std::vector<std::int64_t> ids =
      flags.ids_file.empty() ? load_model_tokenizer(flags.model.model)->encode(flags.text.read())
                             : read_ids(flags.ids_file);
  if (ids.size() < 2)
    throw DataError(fmt::format(
        "{}: {} tokens; perplexity needs at least 2",
        (flags.ids_file.empty() ? flags.text.text : flags.ids_file).string(), ids.size()));
  const MemoryConfig config = flags.model.memory_config();
  if (!flags.model.full_attention && config.segmenter == SegmenterKind::given)
    throw ConfigError(
        "segmenter = \"given\": score has no boundaries to give, and every event would be as long "
        "as "
        "max_block; use \"surprise\" or \"fixed\"");
  const std::unique_ptr<Engine> engine =
      make_engine(flags.common, flags.model, config, static_cast<std::int64_t>(ids.size()));

  // nll[t] is of token t; the first has none and counts as 0.
  std::vector<float> nll(ids.size(), 0.0f);
  const auto start = std::chrono::steady_clock::now();
  {
    ProgressBar bar("scoring", flags.common.quiet);
    const ProgressCallback progress = bar.callback();
    const auto chunk = static_cast<std::size_t>(engine->chunk());
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const std::size_t n = std::min(chunk, ids.size() - at);
      engine->score(ids, at, n, nll);
      progress(static_cast<std::int64_t>(at + n), static_cast<std::int64_t>(ids.size()));
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  double sum = 0;
  for (const float x : nll) sum += x;
  const double mean = sum / static_cast<double>(ids.size() - 1);
  if (!flags.per_token.empty()) {
    const auto n = static_cast<std::int64_t>(ids.size());
    const std::vector<TensorToWrite> tensors{{"nll", TensorType::f32, {n}, nll.data()},
                                             {"ids", TensorType::i64, {n}, ids.data()}};
    write_safetensors(flags.per_token, tensors);
  }
  flags.json.say(fmt::format(
      "perplexity {:.3f}, {:.4f} nats a token: {} tokens, {} events, {:.1f} s\n",
      std::exp(std::min(mean, 700.0)), mean, count_text(static_cast<std::int64_t>(ids.size())),
      count_text(engine->n_events()), seconds));
  // e^mean overflows only for a model that is no language model; JSON has no infinity.
  flags.json.write({{"tokens", ids.size()},
                    {"nll", mean},
                    {"perplexity", std::exp(std::min(mean, 700.0))},
                    {"events", engine->n_events()},
                    {"seconds", seconds},
                    {"peak_resident_bytes", peak_resident_bytes()}});
}

}  // namespace

void add_score(Command& app) {
  auto flags = std::make_shared<ScoreFlags>();
  Command sub = app.subcommand("score", "Perplexity of a text");
  sub.footer(
      "nll is the mean negative log-likelihood in nats of the tokens after the first.\n\n"
      "Example:\n  episodic score --model M --text book.txt --json score.json");
  flags->model.add_to(sub);
  Command source = sub.group("text");
  flags->text.add_to(sub, source, "--text", "Text file");
  source.option("--ids", flags->ids_file, "Token ids in a JSON file");
  source.require_one_option();
  flags->json.add_to(sub);
  sub.option("--per-token", flags->per_token,
             "safetensors file for nll float32 [N], ids int64 [N]");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
