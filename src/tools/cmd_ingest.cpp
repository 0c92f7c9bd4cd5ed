// SPDX-License-Identifier: Apache-2.0
// `episodic ingest`: a text into a kept memory.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "kept.hpp"
#include "parallel_flags.hpp"
#include "ranks.hpp"
#include "reader_flags.hpp"

namespace episodic::tools {
namespace {

struct IngestFlags {
  CommonFlags common;
  ModelFlags model;
  TextFlags text;
  std::filesystem::path ids_file, dir;
  CommitPace pace;
  int checkpoints = 4;
  EntryFlags entries;
  EncoderFlags encoder;
  ParallelFlags parallel;
  bool resume = false, append = false, json = false;
};

std::string text_name(const IngestFlags& flags) {
  return (flags.text.text.empty() ? flags.ids_file : flags.text.text).string();
}

/// Checks that what the memory has read is how the text begins.
void check_same_text(const EpisodicMemory& memory, std::span<const std::int64_t> ids,
                     const IngestFlags& flags) {
  const std::string text = text_name(flags);
  const std::int64_t read = memory.tokens();
  if (read > static_cast<std::int64_t>(ids.size()))
    throw ConfigError(fmt::format(
        "{}: has {} tokens, but the memory in {} has read {}: it is not the text it was made from; "
        "use --append to read it in addition",
        text, ids.size(), flags.dir.string(), read));
  constexpr std::int64_t kBlock = 1 << 20;
  for (std::int64_t at = 0; at < read; at += kBlock) {
    const std::vector<std::int64_t> seen = memory.token_ids(at, std::min(kBlock, read - at));
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (seen[i] >= 0 && seen[i] != ids[static_cast<std::size_t>(at) + i])
        throw ConfigError(fmt::format(
            "{}: differs at token {} from what the memory in {} has read; use --append to read it "
            "in addition, or another folder",
            text, at + static_cast<std::int64_t>(i), flags.dir.string()));
  }
}

/// The memory that is in the folder; null if there is none.
std::shared_ptr<EpisodicMemory> opened(const IngestFlags& flags) {
  if (!same_on_ranks(flags.model.group.get(), holds_memory(flags.dir),
                     flags.dir.string() + ": holds a memory"))
    return nullptr;
  if (!flags.resume && !flags.append)
    throw ConfigError(fmt::format(
        "{}: holds a memory already; --resume goes on with the text it was made from, --append "
        "reads another one into it",
        flags.dir.string()));
  return std::make_shared<EpisodicMemory>(open_kept(flags.model, flags.dir, OpenMode::write));
}

void check_encoder(const IngestFlags& flags, const MemoryConfig& config) {
  if (!flags.encoder.dir.empty() && config.scope == EventScope::head)
    throw ConfigError(
        "--encoder: scope = \"head\" gives each head events of its own, which have no text; leave "
        "one of the two out");
}

void run(IngestFlags flags) {
  flags.parallel.join(flags.common, flags.model);
  refuse_with_ranks(flags.model, !flags.encoder.dir.empty(), "--encoder",
                    "which reads the text of one process's memory");
  Group* const group = flags.model.group.get();
  if (group) flags.dir = folder_of_rank(flags.dir, group->rank(), group->size());
  flags.common.apply();
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  const std::shared_ptr<WindowVectors> vectors = flags.encoder.vectors();
  std::shared_ptr<EpisodicMemory> memory = opened(flags);
  if (memory) check_encoder(flags, memory->config());
  const bool first = !memory || memory->tokens() == 0;
  const std::vector<std::int64_t> all = from_first(group, [&] {
    if (flags.text.text.empty()) return read_ids(flags.ids_file);
    if (first || !flags.append) return engine->tokenizer().encode(flags.text.read());
    return encode_continuation(engine->tokenizer(), flags.text.read());
  });
  std::span<const std::int64_t> ids(all);
  if (!memory) {
    const MemoryConfig config = flags.entries.apply(flags.model.new_memory_config());
    check_encoder(flags, config);
    memory = create_kept(flags.common, flags.model, engine->config(), config,
                         {.dir = flags.dir, .checkpoints = flags.checkpoints},
                         static_cast<std::int64_t>(ids.size()),
                         flags.entries.starts(*engine, config, ids));
  } else if (flags.entries.longest > 0 &&
             memory->given_boundaries() != flags.entries.starts(*engine, memory->config(), ids)) {
    throw ConfigError(fmt::format(
        "--entries: the memory in {} was cut otherwise when it was made, which stays; leave it out",
        flags.dir.string()));
  }
  if (!flags.append) {
    check_same_text(*memory, ids, flags);
    ids = ids.subspan(static_cast<std::size_t>(memory->tokens()));
  }
  // after a commit: what lies in the folder is of that
  const auto encode = [&](const ProgressCallback& progress) {
    if (vectors) vectors->keep(*memory, engine->tokenizer(), progress);
  };
  const auto report = [&] {
    if (!flags.json) return;
    const Json line{{"committed_tokens", memory->committed_tokens()},
                    {"events", memory->counters().events},
                    {"rss_bytes", resident_bytes()}};
    const std::string text = line.dump() + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  if (ids.empty()) {
    ProgressBar bar("encoding the text", flags.common.quiet || !vectors);
    encode(bar.callback());
    report();
  } else {
    const std::int64_t end = memory->tokens() + static_cast<std::int64_t>(ids.size());
    engine->attach(memory, end);
    Session& session = engine->session();
    ReadingNote{text_name(flags), end}.leave(flags.dir);
    ProgressBar bar("reading", flags.common.quiet);
    const auto commit = [&] {
      engine->commit();
      encode({});
      report();
    };
    read_and_commit(session, ids, flags.pace, bar.callback(), commit, group);
  }
  ReadingNote::remove(flags.dir);
  if (!flags.json)
    fmt::print("{}: {} tokens in {} events, {} on disk\n", flags.dir.string(),
               count_text(memory->tokens()), count_text(memory->counters().events),
               bytes_text(memory->counters().store.disk_bytes));
}

}  // namespace

void add_ingest(Command& app) {
  auto flags = std::make_shared<IngestFlags>();
  Command sub = app.subcommand("ingest", "Read a text into a memory that is kept in a folder");
  sub.footer(
      "Commits at least once a minute. After a commit no crash loses what was read until then, "
      "and\n"
      "ask finds it; --resume goes on from there and gives the same memory, to the bit, as a "
      "reading\n"
      "that was never cut off. With --json a line {\"committed_tokens\", \"events\", "
      "\"rss_bytes\"}\n"
      "follows each commit on stdout. On --resume, --memory may change device_bytes, host_bytes,\n"
      "repr_bytes and disk_bytes only. With --encoder it also computes the vectors by which\n"
      "`ask --encoder` finds passages, and leaves them in the folder, in a file that is only a "
      "cache.\n\n"
      "Examples:\n"
      "  episodic ingest --model M --text book.txt --memory-dir book.mem\n"
      "  episodic ingest --model M --text book.txt --memory-dir book.mem --resume --json");
  flags->model.add_to(sub, false);
  Command source = sub.group("text");
  flags->text.add_to(sub, source, "--text", "Text file");
  source.option("--ids", flags->ids_file, "Token ids in a JSON file");
  source.require_one_option();
  sub.option("--memory-dir", flags->dir, "Folder of the memory; made if it is not there")
      .required();
  flags->entries.add_to(sub);
  flags->parallel.add_to(sub);
  flags->encoder.add_to(sub, "Passages can later be found at once");
  const Option resume = sub.flag("--resume", flags->resume,
                                 "Go on with the same text after the last commit, if there is one");
  sub.flag("--append", flags->append, "Read the text after what the memory has read already")
      .excludes(resume);
  add_count(sub, "--commit-every", flags->pace.tokens, "Most tokens from one commit to the next",
            1);
  sub.option("--commit-seconds", flags->pace.seconds,
             "Most seconds from one commit to the next, to the end of a step; 0: by tokens alone")
      .not_negative()
      .shows_default();
  sub.option("--checkpoints", flags->checkpoints,
             "Earlier states to keep, from which edit --rewind starts")
      .between(0, 1000)
      .shows_default();
  sub.flag("--json", flags->json, "A line of JSON on stdout after each commit");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
