// SPDX-License-Identifier: Apache-2.0
// `episodic edit`: forgetting, pinning, rewinding, compacting.

#include <fmt/format.h>

#include "commands.hpp"
#include "engine.hpp"
#include "episodic/base/error.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct EditFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir, json;
  std::vector<std::string> forget_tokens;
  std::vector<std::int64_t> forget_events, pin, unpin;
  std::int64_t rewind = -1;
  bool compact = false;
};

/// Opens the newest state before the token and reads again what lies between.
std::shared_ptr<EpisodicMemory> rewound(const EditFlags& flags) {
  if (flags.model.model.empty()) throw ConfigError("--rewind reads tokens again and needs --model");
  std::vector<std::int64_t> ids;
  bool from_start = true;
  {
    const EpisodicMemory now = open_kept(flags.model, flags.dir, OpenMode::read);
    if (flags.rewind > now.tokens())
      throw ConfigError(
          fmt::format("--rewind {}: the memory has only {} tokens", flags.rewind, now.tokens()));
    ids = now.token_ids(0, flags.rewind);
    if (now.committed_tokens() <= flags.rewind) from_start = false;
    for (const auto& s : now.manifest().checkpoints)
      if (s.tokens <= flags.rewind) from_start = false;
  }
  auto memory = std::make_shared<EpisodicMemory>(
      open_kept(flags.model, flags.dir, OpenMode::write, from_start ? -1 : flags.rewind));
  if (from_start) memory->reset();
  const std::span<const std::int64_t> again =
      std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(memory->tokens()));
  for (const std::int64_t id : again)
    if (id < 0)
      throw DataError(fmt::format(
          "--rewind {}: tokens after {} were forgotten and cannot be read again; rewind to a token "
          "before them",
          flags.rewind, memory->tokens()));
  if (again.empty()) return memory;
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model.model);
  engine->remember(memory, flags.rewind);
  Session session(engine->model());
  ProgressBar bar("reading again", flags.common.quiet);
  session.prefill(again, bar.callback());
  engine->save();
  return memory;
}

void run(const EditFlags& flags) {
  flags.common.apply();
  if (flags.forget_tokens.empty() && flags.forget_events.empty() && flags.pin.empty() &&
      flags.unpin.empty() && flags.rewind < 0 && !flags.compact)
    throw ConfigError("edit: nothing to do; see episodic edit --help");
  const std::shared_ptr<EpisodicMemory> memory =
      flags.rewind >= 0 ? rewound(flags)
                        : std::make_shared<EpisodicMemory>(open_kept(flags.dir, OpenMode::write));
  for (const std::int64_t e : flags.unpin) memory->pin(e, false);
  for (const std::string& range : flags.forget_tokens)
    memory->forget(parse_range(range, "--forget-tokens"));
  for (const std::int64_t e : flags.forget_events) memory->forget(e);
  for (const std::int64_t e : flags.pin) memory->pin(e);
  if (flags.compact)
    memory->compact();
  else
    memory->commit();
  write_json(flags.json, {{"tokens", memory->tokens()},
                          {"events", memory->events().size()},
                          {"forgotten", memory->forgotten().size()},
                          {"disk_bytes", memory->counters().store.disk_bytes}});
}

}  // namespace

void add_edit(CLI::App& app) {
  auto flags = std::make_shared<EditFlags>();
  CLI::App* sub = app.add_subcommand("edit", "Forget, pin or rewind in a kept memory");
  sub->footer(
      "All that one call asks for is committed at once, in the order: rewind, unpin, forget, pin,\n"
      "compact. Forgotten events are never recalled again; --compact removes their bytes from the\n"
      "folder. A pinned event is the last to leave host memory and cannot be forgotten. --rewind\n"
      "needs --model: it starts from the newest earlier state and reads again from there.\n\n"
      "Examples:\n"
      "  episodic edit book.mem --forget-tokens 2000:2500 --compact\n"
      "  episodic edit book.mem --pin 17 --pin 18\n"
      "  episodic edit book.mem --rewind 100000 --model M");
  sub->add_option("dir", flags->dir, "Folder of the memory")->required();
  sub->add_option("--forget-tokens", flags->forget_tokens,
                  "A:B, all events with a token in [A, B) (may be given several times)");
  sub->add_option("--forget-event", flags->forget_events, "Number of an event");
  sub->add_option("--pin", flags->pin, "Number of an event");
  sub->add_option("--unpin", flags->unpin, "Number of an event");
  sub->add_option("--rewind", flags->rewind, "Back to the state after this many tokens")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--model", flags->model.model, "Model directory, for --rewind");
  sub->add_flag("--compact", flags->compact, "Give back what forgotten events take");
  sub->add_option("--json", flags->json, "Result file (default: stdout)");
  flags->common.add_to(*sub);
  sub->callback([flags] { run(*flags); });
}

}  // namespace episodic::tools
