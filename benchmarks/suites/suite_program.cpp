// SPDX-License-Identifier: Apache-2.0
#include "suite_program.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>

#include "common.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/presets.hpp"
#include "run/runner.hpp"
#include "run/score_file.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace {

/// Text for people on stdout, JSON to FILE; with `-` the JSON alone.
void report(const std::filesystem::path& json_file, const Json& json, const std::string& text) {
  if (json_file == "-") return tools::write_json({}, json);
  if (!json_file.empty()) tools::write_json(json_file, json);
  std::fputs(text.c_str(), stdout);
}

void add_json(tools::Command& app, std::filesystem::path& file) {
  app.option("--json", file, "Result as JSON; - is stdout");
}

struct ScoreFlags {
  ScoreOptions options;
  std::filesystem::path json;
  std::string scorer = "official", code_sim = "difflib";
  tools::CommonFlags common;
};

struct RunFlags {
  RunOptions options;
  std::vector<std::string> methods;  ///< several, each with a file of its own
  std::filesystem::path json;
  std::string limits = "official", shard = "auto";
  bool last_token = false;
};

std::string run_text(const Json& done) {
  std::string text =
      fmt::format("{} answered, {} were there: {}\n", done["done"].get<std::int64_t>(),
                  done["skipped"].get<std::int64_t>(), done["out"].get<std::string>());
  if (const auto cut = done["cut"].get<std::int64_t>(); cut > 0)
    text += fmt::format(
        "  {} of {} were cut at the task's limit of {} tokens; `score` says which had no answer\n",
        cut, done["done"].get<std::int64_t>(), done["max_new"].get<std::int64_t>());
  return text;
}

/// preds-window.jsonl of preds.jsonl
std::filesystem::path file_of(const std::filesystem::path& out, const std::string& method) {
  return out.parent_path() /
         fmt::format("{}-{}{}", out.stem().string(), method, out.extension().string());
}

/// One method, or a preset of the memory's, with what `score` says of it. A method that does not
/// go with the data leaves the others alone.
Json run_methods(const RunFlags& flags) {
  for (const std::string& method : flags.methods)
    if (MemoryConfig unused; !is_method(method)) apply_preset(unused, method);  // is refused now
  Json all = Json::object();
  std::string failed;
  for (const std::string& method : flags.methods) {
    RunOptions run = flags.options;
    run.out = file_of(run.out, method);
    run.method = is_method(method) ? method : "episodic";
    if (!is_method(method)) run.preset = method;
    ScoreOptions score;
    score.suite = run.suite;
    score.task = run.task;
    score.preds = run.out;
    try {
      const Json done = run_task(run);
      const Json result = score_file(score);
      tools::write_json(run.out.string() + ".score.json", result);
      all[method] = {
          {"score", result["score"]}, {"count", result["count"]}, {"cut", result["cut"]}};
      all[method].update(
          {{"done", done["done"]}, {"skipped", done["skipped"]}, {"out", done["out"]}});
      if (flags.json != "-")
        std::fputs(fmt::format("{:<12} {}", method, score_text(result)).c_str(), stdout);
    } catch (const Error& e) {
      all[method] = {{"refused", e.what()}};
      failed += fmt::format("{}{}: {}", failed.empty() ? "" : "; ", method, e.what());
    }
  }
  if (!flags.json.empty()) tools::write_json(flags.json == "-" ? "" : flags.json, all);
  if (!failed.empty()) throw DataError(failed);
  return all;
}

}  // namespace

void add_run(tools::Command& app, Suite suite) {
  auto flags = std::make_shared<RunFlags>();
  RunOptions& o = flags->options;
  o.suite = suite;
  const SuiteRow& row = row_of(suite);
  const std::string name = row.name;
  tools::Command sub = app.subcommand("run", "Let a model answer a task's examples");
  sub.footer(fmt::format(
      "One line of OUT an example, on the disk before the next one is begun; a second call goes on "
      "where the\nfirst stopped. Greedy. Examples with the same context are asked from one reading "
      "of it.\n\nExample:\n  {} run --model M --task {} --data {}.jsonl \\\n    --method episodic "
      "--out preds.jsonl",
      name,
      row.needs_prompts ? fmt::format("{} --prompts dataset2prompt.json", row.example_task)
                        : std::string(row.example_task),
      row.example_task));
  o.model.add_to(sub, false);
  sub.option("--task", o.task, "Name of the task").required();
  sub.option("--data", o.data, "The task's file, as released or as made here").required();
  sub.option("--out", o.out, "File of predictions").required();
  sub.option("--prompts", o.prompts,
             "Official prompts, a JSON file (default: our own wording, for generated tasks)");
  sub.option("--prompt-family", o.prompt_family,
             "Which of a file with several families: gpt4, yarn-mistral, ...");
  const tools::Option method =
      sub.option("--method", o.method, fmt::format("How the prompt is read: {}", methods()));
  sub.option("--methods", flags->methods,
             "Several by commas, presets among them, each with a file of its own (OUT-METHOD) and "
             "scored: the table in one call")
      .separated_by(',')
      .excludes(method);
  sub.option(
      "--encoder", o.encoder,
      "The sentence encoder's directory (scripts/sentence_encoder fetches one) of methods rag "
      "and rag-s; with episodic it chooses the events by their text");
  sub.option("--passages", o.passages.count, "Passages that method reread reads again").positive();
  sub.option("--passage-tokens", o.passages.tokens, "Tokens of each, to sentence ends").positive();
  sub.option("--rerank", o.passages.rerank,
             "Candidates that the model reads, each with the question, to choose those passages")
      .not_negative();
  sub.option(
      "--preset", o.preset,
      fmt::format("A paper's system, which changes the memory's settings: {}", preset_names()));
  o.entries.add_to(sub);
  o.reader.add_to(sub);
  sub.option("--limits", flags->limits, "Whose number of generated tokens")
      .one_of({"official", "em-llm"});
  sub.option("--limit", o.limit, "Only the first so many examples (0: all)").not_negative();
  sub.option("--max-length", o.max_length,
             "Tokens of the prompt that method truncate keeps (0: the model's window)")
      .not_negative();
  sub.flag("--last-token", flags->last_token,
           "Only the prompt's last token is a step of its own, as in EM-LLM's program, not the "
           "question");
  sub.flag("--beyond-window", o.beyond_window,
           "Methods full, rag and rag-s: read prompts longer than the model's window all the same");
  sub.flag("--raw", o.raw, "No chat format, for a model that has one");
  sub.option("--shard", flags->shard,
             "PART/PARTS of the examples, as 0/4; auto: what MPI or SLURM started");
  add_json(sub, flags->json);
  o.common.add_to(sub);
  sub.action([flags] {
    RunOptions& options = flags->options;
    options.limits = flags->limits == "official" ? Limits::official : Limits::em_llm;
    options.shard = Shard::parse(flags->shard);
    options.question_step = !flags->last_token;
    if (!flags->methods.empty()) {
      if (options.shard.of > 1)
        throw ConfigError("--methods: each shard would score its part alone; take --method");
      run_methods(*flags);
      return;
    }
    const Json done = run_task(options);
    report(flags->json, done, run_text(done));
  });
}

void add_score(tools::Command& app, Suite suite) {
  auto flags = std::make_shared<ScoreFlags>();
  ScoreOptions& o = flags->options;
  o.suite = suite;
  const SuiteRow& row = row_of(suite);
  const std::string name = row.name;
  tools::Command sub = app.subcommand("score", "Score a file of predictions");
  sub.footer(
      fmt::format("Takes our own files and those of the published programs.\n\nExample:\n  "
                  "{} score --task {} --preds preds.jsonl --json score.json",
                  name, row.example_task));
  sub.option("--task", o.task, "Name of the task").required();
  sub.option("--preds", o.preds, "File of predictions").required();
  sub.option("--data", o.data,
             "The task's file: golds are taken from it, and missing ids reported");
  sub.option("--scorer", flags->scorer, "official, or the EM-LLM authors' variant")
      .one_of({"official", "em-llm"});
  if (row.scores_by_length)
    sub.flag("--by-length", o.by_length, "LongBench-E: scores by length of the text");
  if (row.compares_code)
    sub.option("--code-sim", flags->code_sim, "Code similarity of lcc and repobench-p")
        .one_of({"difflib", "levenshtein"});
  if (row.drops_first_number)
    sub.flag("--drop-first-number", o.drop_first_number,
             "math_calc: as the official program does for a model called gpt4");
  add_json(sub, flags->json);
  flags->common.add_to(sub, false);
  sub.action([flags] {
    ScoreOptions& options = flags->options;
    options.scorer = flags->scorer == "official" ? Scorer::official : Scorer::em_llm;
    options.code_similarity =
        flags->code_sim == "difflib" ? CodeSimilarity::difflib : CodeSimilarity::levenshtein;
    const Json result = score_file(options);
    report(flags->json, result, score_text(result));
  });
}

void add_average(tools::Command& app, Suite suite) {
  struct Flags {
    std::vector<std::filesystem::path> files;
    std::filesystem::path json;
    tools::CommonFlags common;
  };
  auto flags = std::make_shared<Flags>();
  tools::Command sub = app.subcommand("average", "The published averages over several tasks");
  sub.footer(fmt::format("Example:\n  {} average qasper.json hotpotqa.json", name_of(suite)));
  sub.option("scores", flags->files, "Result files of `score --json`").required();
  add_json(sub, flags->json);
  flags->common.add_to(sub, false);
  sub.action([flags] {
    std::vector<Json> results;
    for (const auto& file : flags->files) results.push_back(tools::read_json(file));
    const Json json = averages_of(results);
    report(flags->json, json, json.dump(1) + "\n");
  });
}

void add_merge(tools::Command& app, Suite suite) {
  struct Flags {
    std::vector<std::filesystem::path> shards;
    std::filesystem::path out, json;
    tools::CommonFlags common;
  };
  auto flags = std::make_shared<Flags>();
  tools::Command sub = app.subcommand("merge", "One file of several shards' predictions");
  sub.footer(
      fmt::format("Example:\n  {} merge --out preds.jsonl preds.*-of-4.jsonl", name_of(suite)));
  sub.option("shards", flags->shards, "Files that `run --shard` wrote").required();
  sub.option("--out", flags->out, "File of predictions").required();
  add_json(sub, flags->json);
  flags->common.add_to(sub, false);
  sub.action([flags] {
    const Json found = merge_predictions(flags->shards, flags->out);
    report(flags->json, found,
           fmt::format("{} predictions, {} doubled, {} missing: {}\n",
                       found["rows"].get<std::int64_t>(), found["doubled"].size(),
                       found["missing"].get<std::int64_t>(), flags->out.string()));
  });
}

int run_suite_program(tools::CommandLine& app, int argc, char** argv) {
  tools::limit_spinning(argv);
  const std::string name = app.name();
  try {
    app.parse(argc, argv);
  } catch (const tools::UsageError& e) {
    return app.refuse(e);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory; take shorter contexts, or a memory with less\n",
                 name.c_str());
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), tools::on_one_line(e).c_str());
    return 1;
  }
  return tools::finished(name.c_str());
}

}  // namespace episodic::suites
