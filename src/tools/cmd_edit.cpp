// SPDX-License-Identifier: Apache-2.0
// `episodic edit`: forgetting, pinning, rewinding, compacting.

#include <fmt/format.h>

#include <algorithm>

#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct EditFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir;
  JsonFlag json;
  std::vector<std::string> forget_tokens;
  std::vector<std::int64_t> forget_events, pin, unpin;
  std::int64_t rewind = -1;
  bool compact = false;
  double sweep_hours = -1;
};

/// Back to an earlier token: what lies between it and the newest state before is read again.
std::shared_ptr<EpisodicMemory> rewound(const EditFlags& flags) {
  if (flags.model.model.empty()) throw ConfigError("--rewind reads tokens again and needs --model");
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  const auto memory =
      std::make_shared<EpisodicMemory>(open_kept(flags.model, flags.dir, OpenMode::write));
  if (flags.rewind > memory->tokens())
    throw ConfigError(
        fmt::format("--rewind {}: the memory has only {} tokens", flags.rewind, memory->tokens()));
  engine->attach(memory, std::max<std::int64_t>(1, memory->tokens()));
  ProgressBar bar("reading again", flags.common.quiet);
  engine->rewind(flags.rewind, bar.callback());
  engine->save();
  return memory;
}

/// Gives back what no memory of a tier names any more.
Json swept(const EditFlags& flags) {
  constexpr double kHour = 3600;
  const SweepReport report = sweep_tier(flags.dir, kHour * flags.sweep_hours);
  flags.json.say(fmt::format("{}: {} blocks that none of its {} memories names were removed\n",
                             flags.dir.string(), count_text(report.removed),
                             count_text(report.memories)));
  return {{"memories", report.memories}, {"removed_blocks", report.removed}};
}

void run(const EditFlags& flags) {
  flags.common.apply();
  require_memory_dir(flags.dir);
  const bool sweeps = flags.sweep_hours >= 0;
  if (flags.forget_tokens.empty() && flags.forget_events.empty() && flags.pin.empty() &&
      flags.unpin.empty() && flags.rewind < 0 && !flags.compact) {
    if (sweeps) return flags.json.write({{"swept", swept(flags)}});
    throw ConfigError("edit: nothing to do; see episodic edit --help");
  }
  const std::shared_ptr<EpisodicMemory> memory =
      flags.rewind >= 0 ? rewound(flags)
                        : std::make_shared<EpisodicMemory>(open_kept(flags.dir, OpenMode::write));
  for (const std::int64_t e : flags.unpin) memory->pin(e, false);
  for (const std::string& range : flags.forget_tokens)
    memory->forget(parse_range(range, "--forget-tokens"));
  for (const std::int64_t e : flags.forget_events) memory->forget(e);
  for (const std::int64_t e : flags.pin) memory->pin(e);
  const std::size_t states = memory->manifest().checkpoints.size();
  if (flags.compact)
    memory->compact();
  else
    memory->commit();
  if (flags.compact && memory->manifest().checkpoints.size() < states)
    fmt::print(stderr,
               "episodic: --compact dropped {} earlier states, which held what was forgotten; a "
               "later --rewind to before token {} reads from the start\n",
               states - memory->manifest().checkpoints.size(), memory->tokens());
  const auto forgotten = static_cast<std::int64_t>(memory->forgotten().size());
  const std::int64_t disk = memory->counters().store.disk_bytes;
  flags.json.say(fmt::format("{}: {} tokens in {} events, {} of them forgotten; {} on disk\n",
                             flags.dir.string(), count_text(memory->tokens()),
                             count_text(memory->events().size()), count_text(forgotten),
                             bytes_text(disk)));
  Json json{{"tokens", memory->tokens()},
            {"events", memory->events().size()},
            {"forgotten", forgotten},
            {"disk_bytes", disk}};
  if (sweeps) json["swept"] = swept(flags);
  flags.json.write(json);
}

}  // namespace

void add_edit(Command& app) {
  auto flags = std::make_shared<EditFlags>();
  Command sub = app.subcommand("edit", "Forget, pin or rewind in a kept memory");
  sub.footer(
      "All that one call asks for is committed at once, in the order: rewind, unpin, forget, pin,\n"
      "compact. Forgotten events are never recalled again; --compact removes their bytes from the\n"
      "folder, with the earlier states that --rewind starts from. A pinned event is the last to "
      "leave host memory and cannot be forgotten. --rewind\n"
      "needs --model: it starts from the newest earlier state and reads again from there.\n\n"
      "Examples:\n"
      "  episodic edit book.mem --forget-tokens 2000:2500 --compact\n"
      "  episodic edit book.mem --pin 17 --pin 18\n"
      "  episodic edit book.mem --rewind 100000 --model M");
  sub.option("dir", flags->dir, "Folder of the memory").required();
  sub.option("--forget-tokens", flags->forget_tokens,
             "A:B, all events with a token in [A, B) (may be given several times)");
  sub.option("--forget-event", flags->forget_events, "Number of an event");
  sub.option("--pin", flags->pin, "Number of an event");
  sub.option("--unpin", flags->unpin, "Number of an event");
  add_count(sub, "--rewind", flags->rewind, "Back to the state after this many tokens");
  sub.option("--model", flags->model.model, "Model directory, for --rewind");
  sub.flag("--compact", flags->compact, "Give back what forgotten events take");
  sub.option("--sweep", flags->sweep_hours,
             "On a tier: remove blocks that no memory names and nobody used for so many hours")
      .not_negative();
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
