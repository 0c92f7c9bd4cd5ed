// SPDX-License-Identifier: Apache-2.0
// `episodic compare-events`: what the two event papers measure of segmentations, on stories that
// people marked events in.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "analysis/stories.hpp"
#include "commands.hpp"
#include "compare_events.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/host_only.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "reading.hpp"

namespace episodic::tools {
namespace {

struct CompareFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path stories, human, out;
  analysis::CompareOptions options;
  JsonFlag json;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A model that reads one story after another, each from the empty sequence.
class StoryReader {
 public:
  StoryReader(const CompareFlags& flags, const MemoryConfig& config)
      : flags_(flags),
        config_(config),
        engine_(load_engine(flags.common, flags.model)),
        tokenizer_(engine_->tokenizer()) {
    const ModelConfig& c = engine_->config();
    require_attention_in_all_layers(c, "compare-events");
    require_no_host_only_part(c, "compare-events");
    for (const LayerSpec& layer : c.layers)
      if (layer.n_kv_heads != c.n_kv_heads || layer.head_dim != c.head_dim)
        throw ConfigError(
            fmt::format("{}: its layers have heads of different number or size; compare-events "
                        "needs alike ones",
                        flags.model.model.string()));
    if (!flags.model.full_attention) warn_of_window(flags.common, config, c);
  }

  const ModelConfig& config() const { return engine_->config(); }

  /// The story's tokens, surprise and keys, and with a memory what its layers recalled.
  analysis::StoryMaterial read(const analysis::Story& story, ComparedStory& compared) {
    const auto start = std::chrono::steady_clock::now();
    analysis::StoryMaterial material;
    material.name = story.name;
    const std::vector<std::int64_t> ids = tokenizer_.encode(story.text);
    const auto n = static_cast<std::int64_t>(ids.size());
    material.text = {ids.front() == tokenizer_.bos() ? 1 : 0,
                     ids.back() == tokenizer_.eos() ? n - 1 : n};
    if (material.text.size() < 4)
      throw DataError(fmt::format("{}: {} tokens; there is nothing to segment", story.name, n));

    analysis::RecordedKeys& keys = material.keys;
    keys.n_tokens = n;
    keys.n_layers = config().n_layers;
    keys.n_kv_heads = config().n_kv_heads;
    keys.head_dim = config().head_dim;
    keys.layers.resize(static_cast<std::size_t>(keys.n_layers));
    material.surprise.assign(ids.size(), 0.0f);
    for (std::vector<float>& layer : keys.layers)
      layer.reserve(static_cast<std::size_t>(n * keys.row()));
    if (flags_.model.full_attention)
      engine_->attach_full_attention(n);
    else
      engine_->attach(config_, n);
    engine_->set_keys_hook([&keys](std::int64_t layer, std::span<const float> of_step) {
      std::vector<float>& to = keys.layers[static_cast<std::size_t>(layer)];
      to.insert(to.end(), of_step.begin(), of_step.end());
    });
    // Heads with events of their own have none in common that layers could share.
    if (engine_->has_memory() && config_.scope == EventScope::sequence) {
      compared.recall_layers = config().memory_layers();
      compared.recall.emplace(compared.recall_layers.size());
    }
    ProgressBar bar("reading " + story.name, flags_.common.quiet);
    const ProgressCallback progress = bar.callback();
    // Stories are short: more steps say more of what each layer recalls.
    const std::int64_t step = std::min<std::int64_t>({config_.chunk, engine_->chunk(), 256});
    for (std::int64_t first = 0; first < n; first += step) {
      const std::int64_t count = std::min(step, n - first);
      engine_->score(ids, static_cast<std::size_t>(first), static_cast<std::size_t>(count),
                     material.surprise);
      if (compared.recall) compared.recall->add(recalled());
      progress(first + count, n);
    }
    engine_->set_keys_hook({});
    mark(story, ids, material);
    compared.seconds_reading = seconds_since(start);
    return material;
  }

  /// Where each token of the text ends, in bytes of the story.
  std::vector<std::size_t> token_ends(const analysis::Story& story,
                                      std::span<const std::int64_t> ids, TokenRange text) const {
    std::vector<std::size_t> ends;
    std::string decoded;
    for (const std::string& piece : texts_of(tokenizer_, ids, text)) {
      decoded += piece;
      ends.push_back(decoded.size());
    }
    // Some decoders put a space first or drop one, some vocabularies lack a character: what is left
    // is spread over the text.
    if (decoded != story.text && !decoded.empty()) {
      const double scale =
          static_cast<double>(story.text.size()) / static_cast<double>(decoded.size());
      for (std::size_t& end : ends)
        end = static_cast<std::size_t>(static_cast<double>(end) * scale + 0.5);
    }
    return ends;
  }

  void set_marks(const analysis::HumanMarks* marks) { marks_ = marks; }

 private:
  /// Of each layer that the memory serves, all its lanes together, in the last step.
  std::vector<std::vector<std::int64_t>> recalled() const {
    std::vector<std::vector<std::int64_t>> lists;
    const std::int64_t lanes = config_.recall_groups;
    for (std::int64_t l = 0; l < engine_->memory()->shape().n_layers; ++l) {
      std::set<std::int64_t> events;
      for (std::int64_t p = 0; p < lanes; ++p) {
        const LaneRecall lane = engine_->recalled(l * lanes + p);
        events.insert(lane.similarity.begin(), lane.similarity.end());
        events.insert(lane.contiguity.begin(), lane.contiguity.end());
      }
      lists.emplace_back(events.begin(), events.end());
    }
    return lists;
  }

  /// Marks of people, as tokens of the story.
  void mark(const analysis::Story& story, std::span<const std::int64_t> ids,
            analysis::StoryMaterial& material) const {
    const TokenRange text = material.text;
    const std::vector<std::size_t> ends = token_ends(story, ids, text);
    const auto token = [&](std::size_t byte) {
      return text.start + analysis::token_at(ends, byte);
    };
    const auto inside = [&](std::int64_t t, const analysis::Boundaries& list) {
      return t > (list.empty() ? text.start : list.back()) && t < text.end;
    };
    for (const std::size_t byte : story.clauses)
      if (const std::int64_t t = token(byte); inside(t, material.clauses))
        material.clauses.push_back(t);
    if (!marks_) return;
    // The last time is when the recording ends, which is no boundary.
    for (std::size_t i = 0; i + 1 < marks_->times_ms.size(); ++i) {
      const std::int64_t t =
          token(analysis::word_at(story, marks_->times_ms[i], marks_->times_ms.back()));
      if (inside(t, material.people)) material.people.push_back(t);
    }
    if (marks_->changes.empty()) return;
    if (story.clauses.empty() && !material.people.empty()) return;  // a text: its times will do
    if (marks_->changes.size() != story.clauses.size())
      throw DataError(fmt::format(
          "{}: raters judged {} clauses, but the story has {}; give the table of clauses that "
          "they were given",
          story.name, marks_->changes.size(), story.clauses.size()));
    for (std::size_t i = 0; i < story.clauses.size(); ++i)
      if (const std::int64_t t = token(story.clauses[i]);
          marks_->changes[i] > 0 && inside(t, material.rated)) {
        material.rated.push_back(t);
        material.rated_changes.push_back(marks_->changes[i]);
      }
  }

  const CompareFlags& flags_;
  MemoryConfig config_;
  std::unique_ptr<Engine> engine_;
  const Tokenizer& tokenizer_;
  const analysis::HumanMarks* marks_ = nullptr;
};

/// The marks of a story, whatever the case of its name.
const analysis::HumanMarks* marks_of(const std::string& story,
                                     const std::map<std::string, analysis::HumanMarks>& marks) {
  std::string name = story;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const auto found = marks.find(name);
  return found == marks.end() ? nullptr : &found->second;
}

void run(CompareFlags flags) {
  flags.common.apply();
  const MemoryConfig config = flags.model.memory_config();
  const std::vector<analysis::Story> stories = analysis::read_stories(flags.stories);
  std::map<std::string, analysis::HumanMarks> marks;
  if (!flags.human.empty()) {
    marks = analysis::read_human_marks(flags.human);
    if (std::none_of(stories.begin(), stories.end(),
                     [&](const auto& s) { return marks_of(s.name, marks) != nullptr; }))
      throw ConfigError(fmt::format(
          "--human {}: no story of {} is marked there; the names must be the same, as in "
          "pieman.csv and \"Pieman\"",
          flags.human.string(), flags.stories.string()));
  }
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error)
    throw FileError(
        fmt::format("--out {}: cannot be made ({})", flags.out.string(), error.message()));

  StoryReader reader(flags, config);
  flags.options.config = config;
  const std::vector<std::int64_t> served = reader.config().memory_layers();
  if (config.refine_layers >= static_cast<std::int64_t>(served.size()))
    throw ConfigError(fmt::format("refine_layers = {}: the memory serves {} layers; lower it",
                                  config.refine_layers, served.size()));
  flags.options.first_layer = served[static_cast<std::size_t>(config.refine_layers)];

  std::vector<ComparedStory> compared;
  for (const analysis::Story& story : stories) {
    ComparedStory& c = compared.emplace_back();
    reader.set_marks(marks_of(story.name, marks));
    const analysis::StoryMaterial material = reader.read(story, c);
    const auto start = std::chrono::steady_clock::now();
    ProgressBar bar("comparing " + story.name, flags.common.quiet);
    const ProgressCallback progress = bar.callback();
    c.result = analysis::compare(material, flags.options, progress);
    c.seconds_comparing = seconds_since(start);
  }
  const ComparisonSettings settings{flags.model.model.filename().string(),
                                    flags.model.full_attention ? "full" : "episodic",
                                    to_json(config), flags.options};
  for (const auto& [name, text] : comparison_files(compared, settings))
    write_text(flags.out / name, text);
  flags.json.write(comparison_json(compared, settings));
  flags.json.say(comparison_summary(compared) +
                 fmt::format("\nTables and plots: {}\n", (flags.out / "report.md").string()));
}

}  // namespace

void add_compare_events(Command& app) {
  auto flags = std::make_shared<CompareFlags>();
  Command sub = app.subcommand(
      "compare-events", "Segmentations of stories, by their keys and beside people's boundaries");
  sub.footer(
      "Reads every story and cuts it by surprise (S; refined SM, SC, SI), at equal steps (F; FM, "
      "FC, FI),\nby its keys over the sequence (K similarity, G gaussian) and per head (KH, GH), "
      "at as many events as\npeople marked and as surprise finds with gamma. Each is measured by "
      "modularity, conductance and\nintra/inter similarity of its keys and by its distance to what "
      "people marked, beside random\nboundaries of the same number. OUT gets report.md, tables "
      "(CSV) and plots (SVG).\n\nSTORIES: a folder of tables (columns id, clause) or texts, or one "
      "file. HUMAN: JSON of lists of times\nin milliseconds, a table of ratings "
      "(STORY_WHO.csv), or a folder with both.\n\n"
      "Examples:\n"
      "  episodic compare-events --model M --stories stories --human bounds_ms.json --out report\n"
      "  episodic compare-events --model M --full-attention --stories data --human data --out "
      "report --draws 200\n"
      "  episodic compare-events --model M --stories novel.txt --out report");
  flags->model.add_to(sub);
  sub.option("--stories", flags->stories, "Folder of stories, or one").type_name("PATH").required();
  sub.option("--human", flags->human, "What people marked in them: times, ratings, or a folder")
      .type_name("PATH");
  sub.option("--out", flags->out, "Folder for the report").type_name("DIR").required();
  analysis::CompareOptions& o = flags->options;
  sub.option("--smoothing", o.deviation, "Deviation that boundaries are smoothed by, tokens")
      .positive()
      .shows_default();
  add_count(sub, "--tolerance", o.tolerance, "Tokens between boundaries that count as the same");
  add_count(sub, "--draws", o.draws, "Random segmentations that each is compared with", 2);
  add_count(sub, "--min-count", o.min_count,
            "Keys of an event before K and G judge one; 0: 1 and 4");
  sub.option("--var-floor", o.var_floor, "Least variance of a channel, for G")
      .positive()
      .shows_default();
  sub.option("--seed", o.seed, "Of the random segmentations").shows_default();
  flags->json.add_to(sub, "Everything measured, boundaries included, as JSON");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
