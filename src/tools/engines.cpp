// SPDX-License-Identifier: Apache-2.0
#include "engines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/stop.hpp"
#include "episodic/text/sentences.hpp"

namespace episodic::tools {

namespace {

std::unique_ptr<Engine> load_engine(const CommonFlags& common, const std::filesystem::path& model,
                                    ModelOptions changes, std::optional<DType> device_dtype) {
  require_model_dir(model);
  changes.log = model_log(common);
  std::unique_ptr<Engine> engine = load_engine_on_device(common, model, changes, device_dtype);
  if (!engine) engine = episodic::load_engine(model, changes);
  const std::string warning = end_tokens_warning(engine->config(), engine->session().tokenizer());
  if (!warning.empty() && !common.quiet) fmt::print(stderr, "episodic: warning: {}\n", warning);
  return engine;
}

}  // namespace

std::unique_ptr<Engine> load_float32_engine(const CommonFlags& common,
                                            const std::filesystem::path& model) {
  return load_engine(common, model, {}, DType::float32);
}

std::unique_ptr<Engine> load_engine(const CommonFlags& common, const ModelFlags& flags) {
  return load_engine(common, flags.model, flags.options(), std::nullopt);
}

void attach(Engine& engine, const CommonFlags& common, const ModelFlags& flags,
            const MemoryConfig& config, std::int64_t max_tokens, std::vector<std::int64_t> given) {
  if (flags.full_attention) return engine.attach_full_attention(max_tokens);
  warn_of_window(common, config, engine.config());
  engine.attach(config, max_tokens, std::move(given));
}

void EntryFlags::add_to(Command& app) {
  add_count(app, "--entries", longest,
            "Events are entries of whole sentences with at most so many tokens (EpMAN: 256); 0: as "
            "the memory's segmenter cuts");
}

MemoryConfig EntryFlags::apply(MemoryConfig config) const {
  if (longest == 0) return config;
  if (config.scope == EventScope::head)
    throw ConfigError(
        "--entries: cuts the text, and with scope \"head\" each head cuts its own keys; leave "
        "one of the two out");
  config.segmenter = SegmenterKind::given;
  config.refine = Refinement::none;
  config.min_block = 1;  // an entry is what it is, however short
  config.max_block = std::max(config.max_block, longest);
  return config;
}

std::vector<std::int64_t> EntryFlags::starts(const Engine& engine, const MemoryConfig& config,
                                             std::span<const std::int64_t> ids) const {
  if (longest == 0) return {};
  return entry_starts(engine.tokenizer(), ids, longest, config.n_init);
}

std::shared_ptr<EpisodicMemory> create_kept(const CommonFlags& common, const ModelFlags& flags,
                                            const ModelConfig& model, const MemoryConfig& config,
                                            const KeptFolder& folder, std::int64_t max_tokens,
                                            std::vector<std::int64_t> given) {
  warn_of_window(common, config, model);
  plan_for_device(common, flags, config, std::max<std::int64_t>(1, max_tokens));
  return std::make_shared<EpisodicMemory>(
      create_memory(flags.model, folder, config, flags.options(), std::move(given)));
}

std::unique_ptr<Engine> make_engine(const CommonFlags& common, const ModelFlags& flags,
                                    const MemoryConfig& config, std::int64_t max_tokens) {
  std::unique_ptr<Engine> engine = load_engine(common, flags);
  attach(*engine, common, flags, config, max_tokens);
  return engine;
}

void add_generation(Command& app, GenerateOptions& o) {
  add_count(app, "--max-new", o.max_new, "Most tokens to generate");
  app.option("--temperature", o.sampling.temperature, "0 is greedy").shows_default();
  app.option("--top-p", o.sampling.top_p, "Keep the most likely tokens up to this probability")
      .shows_default();
  app.option("--top-k", o.sampling.top_k, "Keep the k most likely tokens (0: all)").shows_default();
  app.option("--repetition-penalty", o.sampling.repetition_penalty,
             "Against all tokens of the context; 1 is none")
      .shows_default();
  app.option("--seed", o.sampling.seed, "Seed of the sampling").shows_default();
  app.option("--stop", o.stop, "Text that ends the generation (may be given several times)");
  app.flag("--ignore-eos", o.ignore_eos, "Do not stop at the model's end-of-sequence tokens");
}

}  // namespace episodic::tools
