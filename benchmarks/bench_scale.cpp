// SPDX-License-Identifier: Apache-2.0
// How far a kept memory goes: rate, resident memory, bytes per tier and answers at growing lengths.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "episodic/base/error.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/patch.hpp"
#include "hidden_facts.hpp"
#include "kept.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using tools::Json;

struct ScaleFlags {
  tools::CommonFlags common;
  tools::ModelFlags model;
  std::vector<std::int64_t> tokens{10'000, 100'000, 1'000'000};
  std::int64_t count = 10, commit_every = 65536;
  std::uint64_t seed = 1;
  fs::path dir, text, json;
  bool keep = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What a folder takes from the file system.
std::int64_t bytes_in(const fs::path& dir) {
  std::int64_t sum = 0;
  for (const auto& entry : fs::directory_iterator(dir))
    sum += static_cast<std::int64_t>(entry.file_size());
  return sum;
}

/// What the parts of the work took between two moments.
Json seconds_of(const MemoryCounters::Seconds& to, const MemoryCounters::Seconds& from = {}) {
  return {{"recall", to.recall - from.recall}, {"attend", to.attend - from.attend},
          {"append", to.append - from.append}, {"refine", to.refine - from.refine},
          {"close", to.close - from.close},    {"store", to.store - from.store}};
}

Json run_length(const ScaleFlags& flags, std::int64_t tokens, const tools::Book& book,
                const Tokenizer& tokenizer, Decoder& model) {
  const fs::path dir = flags.dir / fmt::format("scale-{}", tokens);
  if (fs::exists(dir))
    throw FileError(
        fmt::format("{}: is there already; remove it or name another --dir", dir.string()));
  // Pass keys only: one fact in four is of another kind.
  std::vector<tools::Fact> facts = tools::draw_facts(2 * flags.count, flags.seed);
  std::erase_if(facts, [](const tools::Fact& f) { return f.kind != "pass key"; });
  facts.resize(std::min(facts.size(), static_cast<std::size_t>(flags.count)));
  for (std::size_t i = 0; i < facts.size(); ++i)
    facts[i].depth = (static_cast<double>(i) + 0.5) / static_cast<double>(facts.size());
  const tools::HiddenFacts text = tools::hide_facts(book, tokenizer, tokens, std::move(facts));

  KeepOptions keep;
  keep.dir = dir;
  keep.identity = identity_of(flags.model.model, flags.model.options());
  const MemoryShape shape = memory_shape(model.config());
  auto memory = std::make_shared<EpisodicMemory>(
      EpisodicMemory::create(keep, flags.model.memory_config(), shape));
  patch(model, memory);
  Session session(model, &tokenizer);
  Json parts = Json::array();
  std::int64_t resident = 0, host = 0, from = 0;
  double commit_seconds = 0;
  const Clock::time_point start = Clock::now();
  Clock::time_point part_start = start;
  MemoryCounters::Seconds part_seconds;
  {
    tools::ProgressBar bar(fmt::format("reading {}", tokens), flags.common.quiet);
    const ProgressCallback draw = bar.callback();
    const auto sampled = [&](std::int64_t done, std::int64_t total) {
      resident = std::max(resident, tools::resident_bytes());
      host = std::max(host, memory->counters().store.bytes_reserved);
      return draw(done, total);
    };
    Clock::time_point last = start;
    tools::read_and_commit(session, text.ids, {flags.commit_every, 0}, sampled, [&] {
      memory->commit();
      // A part is about a tenth of the text, and at least a tenth of a million tokens.
      const std::int64_t now = memory->tokens();
      const bool end = now == static_cast<std::int64_t>(text.ids.size());
      if (end || now - from >= std::max<std::int64_t>(100'000, tokens / 10)) {
        const MemoryCounters::Seconds spent = memory->counters().seconds;
        parts.push_back(
            {{"tokens", now},
             {"tokens_per_second", static_cast<double>(now - from) / seconds_since(part_start)},
             {"seconds", seconds_of(spent, part_seconds)}});
        from = now;
        part_seconds = spent;
        part_start = Clock::now();
      }
      last = Clock::now();
    });
    commit_seconds = seconds_since(last);
  }
  const double seconds = seconds_since(start);
  const MemoryCounters c = memory->counters();
  const std::int64_t n_tokens = memory->tokens();
  unpatch(model);
  memory.reset();

  // The answers come from the memory as the next process finds it.
  const Clock::time_point opening = Clock::now();
  memory = std::make_shared<EpisodicMemory>(tools::open_kept(flags.model, dir, OpenMode::read));
  const double open_seconds = seconds_since(opening);
  patch(model, memory);
  Session asking(model, &tokenizer);
  const auto snapshot = memory->snapshot();
  Json answers = Json::array();
  std::int64_t right = 0;
  double answer_seconds = 0;
  for (const tools::Fact& fact : text.facts) {
    memory->restore(*snapshot);
    const tools::Answer answer = tools::ask_for(fact, asking, tokenizer);
    right += answer.right;
    answer_seconds += answer.seconds;
    answers.push_back({{"depth", fact.depth},
                       {"name", fact.name},
                       {"value", fact.value},
                       {"answer", answer.text},
                       {"right", answer.right}});
    resident = std::max(resident, tools::resident_bytes());
  }
  unpatch(model);
  Json row{{"tokens", n_tokens},
           {"events", c.events},
           {"times_the_book", text.times_read},
           {"tokens_per_second", static_cast<double>(n_tokens) / seconds},
           {"first_part_tokens_per_second", parts.front()["tokens_per_second"]},
           {"last_part_tokens_per_second", parts.back()["tokens_per_second"]},
           {"parts", parts},
           {"seconds_after_last_commit", commit_seconds},
           {"resident_bytes", resident},
           {"host_event_bytes", host},
           {"host_representative_bytes", c.index_bytes},
           {"window_bytes", c.window_bytes},
           {"disk_bytes", bytes_in(dir)},
           {"read_bytes", c.store.read_bytes},
           {"written_bytes", c.store.written_bytes},
           {"open_seconds", open_seconds},
           {"seconds_per_answer", answer_seconds / static_cast<double>(text.facts.size())},
           {"right", right},
           {"asked", text.facts.size()},
           {"seconds", seconds_of(c.seconds)},
           {"answers", answers}};
  fmt::print(
      stderr,
      "{} tokens: {:.0f} tokens/s (first part {:.0f}, last part {:.0f}), {:.0f} MB resident, "
      "{:.0f} MB on disk, opens in {:.2f} s, {} of {} right\n",
      n_tokens, row["tokens_per_second"].get<double>(),
      row["first_part_tokens_per_second"].get<double>(),
      row["last_part_tokens_per_second"].get<double>(), 1e-6 * static_cast<double>(resident),
      1e-6 * row["disk_bytes"].get<double>(), open_seconds, right, text.facts.size());
  memory.reset();
  if (!flags.keep) fs::remove_all(dir);
  return row;
}

void run(const ScaleFlags& flags) {
  flags.common.apply_on_host();
  const tools::Book book = tools::open_book(flags.text);
  const auto tokenizer = load_tokenizer(flags.model.model);
  Decoder model = Decoder::load(open_model(flags.model.model, flags.model.options()));
  Json result{{"program", "bench_scale"},
              {"environment", environment()},
              {"model", flags.model.model.string()},
              {"book", book.title},
              {"memory", tools::settings_json(flags.model.memory_config())},
              {"commit_every", flags.commit_every},
              {"seed", flags.seed},
              {"resident_bytes_before", tools::resident_bytes()}};
  result["rows"] = Json::array();
  for (const std::int64_t tokens : flags.tokens) {
    result["rows"].push_back(run_length(flags, tokens, book, *tokenizer, model));
    if (!flags.json.empty())
      tools::write_json(flags.json, result);  // a long run leaves what it has
  }
  tools::write_json(flags.json, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic;
  tools::CommandLine app{"How far a kept memory goes: rate, memory, bytes per tier, answers",
                         "bench_scale"};
  app.footer(
      "For each length a book with facts hidden at COUNT depths is read into a kept memory, which "
      "is then\nopened again and asked for them.\n\n"
      "Example:\n  bench_scale --model models/recall-2m6 --dir /var/tmp --tokens 10000,1000000 "
      "--json out.json");
  bench::ScaleFlags flags;
  flags.model.add_to(app, false);
  app.option("--tokens", flags.tokens, "Lengths, separated by commas").separated_by(',').positive();
  app.option("--dir", flags.dir, "Folder for the memories").required();
  app.option("--count", flags.count, "Facts, at equal distances").positive();
  app.option("--commit-every", flags.commit_every, "Tokens from one commit to the next").positive();
  app.option("--seed", flags.seed, "Seed of names and values");
  app.option("--text", flags.text, "Another book");
  app.flag("--keep", flags.keep, "Leave the memories there");
  app.option("--json", flags.json, "Result file (default: stdout)");
  flags.common.add_to(app);
  return bench::run_program(app, argc, argv, [&] { bench::run(flags); });
}
