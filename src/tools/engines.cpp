// SPDX-License-Identifier: Apache-2.0
#include "engines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/model/activations.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/stop.hpp"
#include "episodic/text/sentences.hpp"
#include "ranks.hpp"

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

/// Says once that rounding may be too much for a small model of four bits.
void note_rounding(const CommonFlags& common, const ModelFlags& flags) {
  constexpr std::int64_t kSmall = 500'000'000;
  static bool said = false;
  if (said || common.quiet || activations() == cpu::Activations::exact) return;
  const OpenModel model = open_model(flags.model);
  std::int64_t all = 0, four_bits = 0;
  for (const StoredTensor* tensor : model.tensors->tensors()) {
    const std::int64_t n = tensor->elements();
    const bool rounded = flags.quantize == "q4_0" && tensor->shape.size() > 1;
    all += n;
    if (rounded || tensor->type == TensorType::q4_0 || tensor->type == TensorType::q4_1)
      four_bits += n;
  }
  if (all >= kSmall || 2 * four_bits < all) return;
  said = true;
  fmt::print(stderr,
             "episodic: a small model with weights of 4 bits, whose activations are rounded to 8; "
             "if it writes nonsense, give --activations exact\n");
}

}  // namespace

std::unique_ptr<Engine> load_float32_engine(const CommonFlags& common,
                                            const std::filesystem::path& model) {
  return load_engine(common, model, {}, DType::float32);
}

std::unique_ptr<Engine> load_engine(const CommonFlags& common, const ModelFlags& flags) {
  std::unique_ptr<Engine> engine = load_engine(common, flags.model, flags.options(), std::nullopt);
  const bool may_be_four_bits = is_model_file(flags.model) || flags.quantize == "q4_0";
  if (may_be_four_bits && std::string_view(engine->device()) == "cpu") note_rounding(common, flags);
  return engine;
}

void attach(Engine& engine, const CommonFlags& common, const ModelFlags& flags,
            const MemoryConfig& config, std::int64_t max_tokens, std::vector<std::int64_t> given) {
  if (flags.full_attention) return engine.attach_full_attention(max_tokens);
  require_same_on_ranks(flags.group.get(), to_json(config), "the memory's settings");
  warn_of_window(common, config, engine.config());
  naming_origin(flags.settings_origin(),
                [&] { engine.attach(config, max_tokens, std::move(given)); });
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
  require_same_on_ranks(flags.group.get(), to_json(config), "the memory's settings");
  warn_of_window(common, config, model);
  plan_for_device(common, flags, config, std::max<std::int64_t>(1, max_tokens));
  return naming_origin(flags.settings_origin(), [&] {
    return std::make_shared<EpisodicMemory>(
        create_memory(flags.model, folder, config, flags.options(), std::move(given)));
  });
}

std::unique_ptr<Engine> make_engine(const CommonFlags& common, const ModelFlags& flags,
                                    const MemoryConfig& config, std::int64_t max_tokens) {
  std::unique_ptr<Engine> engine = load_engine(common, flags);
  attach(*engine, common, flags, config, max_tokens);
  return engine;
}

void GenerationFlags::add_to(Command& app, Otherwise otherwise) {
  const bool as_model = otherwise == Otherwise::model;
  const auto help = [&](const char* what, const char* greedily) {
    return fmt::format("{} (default: {})", what, as_model ? "as the model's files say" : greedily);
  };
  const auto take = [this](const std::string& text) {
    try {
      max_new = parse_count(text, "--max-new");
    } catch (const ConfigError& e) {
      throw UsageError(e.what());
    }
    if (*max_new < 0) throw UsageError("--max-new: " + text + " is too little, at least 0");
  };
  app.option_read_by(
         "--max-new", take,
         fmt::format("Most tokens of an answer (default: {}to the end of the turn, {} at "
                     "most)",
                     as_model ? "" : "128; with --chat ", kLongestAnswer))
      .type_name("N");
  app.option("--temperature", temperature, help("0 is greedy", "0"));
  app.option("--top-p", top_p, help("Keep the most likely tokens up to this probability", "1"));
  app.option("--top-k", top_k, help("Keep the k most likely tokens; 0: all", "0"));
  app.option("--min-p", min_p,
             help("Keep tokens of at least this share of the likeliest one's probability", "0"));
  app.option("--repetition-penalty", repetition_penalty,
             help("Against all tokens of the context; 1 is none", "1"));
  app.option("--presence-penalty", presence_penalty,
             "Against tokens that this answer has, -2 to 2; 0 is none");
  app.option("--frequency-penalty", frequency_penalty,
             "The same, once for each time that it has them");
  app.option("--seed", seed,
             fmt::format("Seed of the sampling (default: {})", as_model ? "drawn" : "0"));
  app.option("--stop", stop, "Text that ends the generation (may be given several times)");
  app.flag("--ignore-eos", ignore_eos, "Do not stop at the model's end-of-sequence tokens");
}

GenerateOptions GenerationFlags::over(GenerateOptions o) const {
  o.max_new = max_new.value_or(o.max_new);
  o.sampling.temperature = temperature.value_or(o.sampling.temperature);
  o.sampling.top_p = top_p.value_or(o.sampling.top_p);
  o.sampling.top_k = top_k.value_or(o.sampling.top_k);
  o.sampling.min_p = min_p.value_or(o.sampling.min_p);
  o.sampling.repetition_penalty = repetition_penalty.value_or(o.sampling.repetition_penalty);
  o.sampling.presence_penalty = presence_penalty.value_or(o.sampling.presence_penalty);
  o.sampling.frequency_penalty = frequency_penalty.value_or(o.sampling.frequency_penalty);
  o.sampling.seed = seed.value_or(o.sampling.seed);
  o.stop = stop;
  o.ignore_eos = ignore_eos;
  o.sampling.validate();  // before a book is read
  return o;
}

GenerateOptions GenerationFlags::options(bool chat) const {
  GenerateOptions o;
  if (chat) o.max_new = kLongestAnswer;
  return over(o);
}

GenerateOptions GenerationFlags::options(const GenerationDefaults& defaults) const {
  GenerateOptions o;
  o.max_new = kLongestAnswer;
  o.sampling.temperature = defaults.temperature;
  o.sampling.top_k = defaults.top_k;
  o.sampling.top_p = defaults.top_p;
  o.sampling.min_p = defaults.min_p;
  o.sampling.repetition_penalty = defaults.repetition_penalty;
  return over(o);
}

void GenerationFlags::note_if_cut(const CommonFlags& common, const GenerateResult& result) const {
  if (max_new || common.quiet || result.finish != FinishReason::length) return;
  fmt::print(stderr, "episodic: cut at {} tokens; --max-new allows more\n", result.ids.size());
}

void GrammarFlags::add_to(Command& app) {
  const Option gbnf = app.option("--grammar", grammar,
                                 "Hold the answer to a grammar in GBNF (docs/constrained.md)");
  gbnf.type_name("FILE");
  app.option("--json-schema", json_schema, "Hold the answer to a JSON schema")
      .type_name("FILE")
      .excludes(gbnf);
}

std::optional<Grammar> GrammarFlags::read() const {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const auto in_file = [](const std::filesystem::path& file, Grammar (*parse)(std::string_view)) {
    try {
      return parse(read_text(file, kMost));
    } catch (const ConfigError& e) {
      throw ConfigError(fmt::format("{}: {}", file.string(), e.what()));
    }
  };
  if (!grammar.empty()) return in_file(grammar, grammar_of_gbnf);
  if (!json_schema.empty()) return in_file(json_schema, grammar_of_json_schema);
  return std::nullopt;
}

void constrain(GenerateOptions& options, const std::optional<Grammar>& grammar,
               const Tokenizer& tokenizer) {
  if (grammar)
    options.grammar = std::make_shared<const TokenGrammar>(
        *grammar, std::make_shared<const TokenTrie>(tokenizer));
}

std::string sampling_text(const SamplingOptions& o) {
  const SamplingOptions off;
  std::string text = o.temperature == 0 ? "greedy" : fmt::format("temperature {}", o.temperature);
  if (o.temperature != 0) {
    if (o.top_k != off.top_k) text += fmt::format(", top_k {}", o.top_k);
    if (o.top_p != off.top_p) text += fmt::format(", top_p {}", o.top_p);
    if (o.min_p != off.min_p) text += fmt::format(", min_p {}", o.min_p);
  }
  if (o.repetition_penalty != off.repetition_penalty)
    text += fmt::format(", repetition_penalty {}", o.repetition_penalty);
  if (o.presence_penalty != off.presence_penalty)
    text += fmt::format(", presence_penalty {}", o.presence_penalty);
  if (o.frequency_penalty != off.frequency_penalty)
    text += fmt::format(", frequency_penalty {}", o.frequency_penalty);
  return text;
}

}  // namespace episodic::tools
