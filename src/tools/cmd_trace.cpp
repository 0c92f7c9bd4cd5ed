// SPDX-License-Identifier: Apache-2.0
// `episodic trace`: runs one golden case and writes everything the memory decided.

#include <fmt/format.h>

#include <algorithm>

#include "commands.hpp"
#include "common.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/safetensors.hpp"
#include "trace_papers.hpp"

namespace episodic::tools {
namespace {

struct TraceFlags {
  CommonFlags common;
  std::filesystem::path model, case_file, out;
};

/// Everything that expected.safetensors and expected.json hold, gathered step by step.
class Recorder {
 public:
  Recorder(const ModelConfig& model, std::int64_t n_tokens, std::vector<std::int64_t> rows)
      : n_layers_(model.n_layers),
        n_heads_(model.n_heads),
        width_(model.n_heads * model.head_dim),
        vocab_(model.vocab_size),
        n_tokens_(n_tokens),
        rows_(std::move(rows)),
        relevance_(static_cast<std::size_t>(n_layers_ * n_tokens * n_heads_), 0.0f) {}

  /// \param logits [n, vocab] of the step
  void step(const Engine& engine, const MemoryConfig& config, std::span<const float> logits) {
    const StepRecord s = engine.last_step();
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(surprise_, s.surprise);
    append(threshold_, s.threshold);
    append(raw_, s.raw_boundaries);
    append(final_, s.final_boundaries);
    for (std::int64_t i = 0; i < s.n; ++i)
      if (rows_.empty() || std::binary_search(rows_.begin(), rows_.end(), s.first + i))
        append(logits_, logits.subspan(static_cast<std::size_t>(i * vocab_),
                                       static_cast<std::size_t>(vocab_)));
    // A token's r changes only while it is in the window of some query of this step.
    const std::int64_t from = std::max<std::int64_t>(0, s.first - config.n_local);
    Json similarity = Json::array(), contiguity = Json::array();
    for (std::int64_t l = 0; l < n_layers_; ++l) {
      const std::vector<float> r = engine.relevance(l, from, s.first + s.n - from);
      std::copy(r.begin(), r.end(), relevance_.begin() + (l * n_tokens_ + from) * n_heads_);
      const LaneRecall lists = engine.recalled(l);
      similarity.push_back(lists.similarity);
      contiguity.push_back(lists.contiguity);
    }
    chunks_.push_back({{"start", s.first},
                       {"end", s.first + s.n},
                       {"events", s.events_before},
                       {"similarity", similarity},
                       {"contiguity", contiguity}});
  }

  void write(const Engine& engine, const MemoryConfig& config,
             const std::filesystem::path& out) const {
    const EventTable events = engine.events();
    std::vector<float> representatives;
    for (std::int64_t l = 0; l < n_layers_; ++l)
      for (EventId e = 0; e < events.size(); ++e) {
        // Layers that do not recall have no representatives: zeros are written for them.
        const std::vector<float> r =
            recalls(config, l) ? engine.representative(l, e)
                               : std::vector<float>(static_cast<std::size_t>(width_), 0.0f);
        representatives.insert(representatives.end(), r.begin(), r.end());
      }
    const std::int64_t n = n_tokens_, rows = static_cast<std::int64_t>(logits_.size()) / vocab_;
    const TensorType f32 = TensorType::f32, u8 = TensorType::u8;
    const std::vector<TensorToWrite> tensors{
        {"logits", f32, {rows, vocab_}, logits_.data()},
        {"surprise", f32, {n}, surprise_.data()},
        {"threshold", f32, {n}, threshold_.data()},
        {"raw_boundaries", u8, {n}, raw_.data()},
        {"final_boundaries", u8, {n}, final_.data()},
        {"representatives", f32, {n_layers_, events.size(), width_}, representatives.data()},
        {"relevance", f32, {n_layers_, n, n_heads_}, relevance_.data()}};
    write_safetensors(out / "trace.safetensors", tensors);
    Json ranges = Json::array();
    for (const TokenRange& r : events.all()) ranges.push_back({r.start, r.end});
    write_json(
        out / "trace.json",
        {{"events", ranges}, {"pending_start", events.pending_start()}, {"chunks", chunks_}});
  }

 private:
  std::int64_t n_layers_, n_heads_, width_, vocab_, n_tokens_;
  std::vector<std::int64_t> rows_;  // sorted; empty: all
  std::vector<float> logits_, surprise_, threshold_, relevance_;
  std::vector<std::uint8_t> raw_, final_;
  Json chunks_ = Json::array();
};

template <class T>
T field(const Json& json, const std::filesystem::path& file, const char* key) {
  try {
    return json.at(key).get<T>();
  } catch (const Json::exception& e) {
    throw FileError(fmt::format("{}: key \"{}\" is missing or of the wrong type ({})",
                                file.string(), key, e.what()));
  }
}

void run(const TraceFlags& flags) {
  flags.common.apply();
  const Json test = read_json(flags.case_file);
  const auto kind = field<std::string>(test, flags.case_file, "kind");
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error)
    throw FileError(fmt::format("{}: cannot be created ({})", flags.out.string(), error.message()));
  if (kind != "em") {
    std::unique_ptr<TraceParts> parts = trace_parts_of_device(flags.common);
    if (!parts) parts = trace_parts_of_host();
    if (trace_without_model(kind, test, flags.case_file, flags.out, *parts)) return;
    throw FileError(fmt::format("{}: kind \"{}\" is not known; known are: em, hem, epman, memoria",
                                flags.case_file.string(), kind));
  }
  if (flags.model.empty())
    throw ConfigError("--model: a case of kind \"em\" needs a model directory");
  const MemoryConfig config =
      parse_memory_config(field<Json>(test, flags.case_file, "memory").dump());
  const auto tokens = field<std::vector<std::int64_t>>(test, flags.case_file, "tokens");
  const auto decode = field<std::int64_t>(test, flags.case_file, "decode");
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (decode < 0 || decode > n)
    throw FileError(
        fmt::format("{}: decode = {}, must be in [0, {}]", flags.case_file.string(), decode, n));
  std::vector<std::int64_t> given, rows;
  if (config.segmenter == SegmenterKind::given)
    given = field<std::vector<std::int64_t>>(test, flags.case_file, "boundaries");
  if (test.contains("logit_rows") && test["logit_rows"].is_array()) {
    rows = test["logit_rows"].get<std::vector<std::int64_t>>();
    std::sort(rows.begin(), rows.end());
  }
  const std::unique_ptr<Engine> engine = load_float32_engine(flags.common, flags.model);
  engine->attach(config, n, std::move(given));
  const ModelConfig& model = engine->config();
  Recorder recorder(model, n, std::move(rows));
  std::vector<float> logits;
  for (std::int64_t at = 0; at < n;) {
    const std::int64_t step = at < n - decode ? std::min(config.chunk, n - decode - at) : 1;
    logits.resize(static_cast<std::size_t>(step * model.vocab_size));
    engine->step(
        std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(step)),
        logits);
    recorder.step(*engine, config, logits);
    at += step;
  }
  recorder.write(*engine, config, flags.out);
}

}  // namespace

void add_trace(Command& app) {
  auto flags = std::make_shared<TraceFlags>();
  Command sub = app.subcommand("trace", "Run one golden case and write every decision");
  sub.footer(
      "Cases of kind em are runs of a model; hem (boundaries from keys), epman (reweighted "
      "attention) and memoria (association and forgetting) come without one, with "
      "inputs.safetensors beside case.json. Weights are widened to float32, which all is computed "
      "in. With --device cuda all of them are computed by the device's kernels, but Memoria's "
      "association graph: which engrams it recalls and forgets is decided on the host, as in a "
      "memory on a device.\n\n"
      "Example:\n  episodic trace --model M --case case.json --out /tmp/trace");
  sub.option("--model", flags->model, "Model directory (cases of kind em)");
  sub.option("--case", flags->case_file, "case.json").required();
  sub.option("--out", flags->out, "Folder for trace.safetensors and trace.json").required();
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
