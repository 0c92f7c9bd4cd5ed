// SPDX-License-Identifier: Apache-2.0
// Pass keys hidden in a text and asked for at its end, one at a time: what a model finds through
// its memory, or with its window alone. The text up to a key is read once: each key is put behind a
// snapshot of it, and what follows is read anew.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <span>

#include "engines.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/engine.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

using Ids = std::vector<std::int64_t>;
using Clock = std::chrono::steady_clock;

struct Flags {
  tools::CommonFlags common;
  tools::ModelFlags model;
  tools::TextFlags text;
  std::int64_t tokens = 32'768, keys = 30, max_new = 12;
  double from = 0.1, to = 0.9;
  std::uint64_t seed = 1;
  bool window = false, resume = false;
  std::filesystem::path memory_dir;
  tools::JsonFlag json;
};

struct Key {
  double depth = 0;
  std::string digits;
  Ids ids;  // of the sentence that tells it
};

std::vector<Key> draw_keys(const Flags& flags, const Tokenizer& tokenizer) {
  std::mt19937_64 random(flags.seed);
  std::set<std::string> drawn;
  std::vector<Key> keys;
  for (std::int64_t i = 0; i < flags.keys; ++i) {
    Key key;
    do key.digits = std::to_string(10'000 + random() % 90'000);
    while (!drawn.insert(key.digits).second);
    const double part =
        flags.keys > 1 ? static_cast<double>(i) / static_cast<double>(flags.keys - 1) : 0.0;
    key.depth = flags.from + part * (flags.to - flags.from);
    key.ids = encode_continuation(
        tokenizer,
        fmt::format("\nThe pass key is {0}. Remember it. {0} is the pass key.\n", key.digits));
    keys.push_back(std::move(key));
  }
  return keys;
}

/// The first place at or behind `at` where a line of the text ends, so that no sentence is cut.
std::size_t line_end(const Tokenizer& tokenizer, const Ids& text, std::size_t at) {
  for (std::size_t i = at; i < std::min(text.size(), at + 200); ++i)
    if (tokenizer.decode(Ids{text[i]}).ends_with('\n')) return i + 1;
  return at;
}

/// Layers of the memory whose last recall holds an event of the key's tokens.
Json layers_with(const Engine& engine, std::int64_t first, std::int64_t last) {
  Json layers = Json::array();
  const EventTable events = engine.events();
  const auto meets = [&](EventId e) { return events[e].start < last && events[e].end > first; };
  const auto n = static_cast<std::int64_t>(engine.config().memory_layers().size());
  for (std::int64_t l = 0; l < n; ++l) {
    const LaneRecall recall = engine.recalled(l);
    if (std::any_of(recall.similarity.begin(), recall.similarity.end(), meets) ||
        std::any_of(recall.contiguity.begin(), recall.contiguity.end(), meets))
      layers.push_back(l);
  }
  return layers;
}

/// Asks an engine that has read the text with the key in it, which begins at token `first`.
Json answer(const Flags& flags, Engine& engine, std::int64_t first, const Key& key,
            Clock::time_point start) {
  const std::int64_t read = engine.tokens();
  GenerateOptions options;
  options.max_new = flags.max_new;
  options.ignore_eos = true;
  Json layers = Json::array();
  options.on_token = [&](std::int64_t, std::string_view) {
    if (layers.empty() && !flags.window)
      layers = layers_with(engine, first, first + static_cast<std::int64_t>(key.ids.size()));
    return true;
  };
  const GenerateResult said =
      engine.generate("\n\nWhat is the pass key?\n\nThe pass key is", options);
  return {{"depth", key.depth},
          {"key", key.digits},
          {"answer", said.text},
          {"right", said.text.find(key.digits) != std::string::npos},
          {"recalled_in_layers", layers},
          {"tokens", read},
          {"seconds", std::chrono::duration<double>(Clock::now() - start).count()}};
}

/// The same of an engine that has read the text up to the key's place, where it is left.
Json ask_from_snapshot(const Flags& flags, Engine& engine, const Ids& text, std::size_t place,
                       const Key& key) {
  const Clock::time_point start = Clock::now();
  const std::shared_ptr<const Engine::Snapshot> before = engine.snapshot();
  engine.read(key.ids);
  engine.read(std::span(text).subspan(place));
  Json asked = answer(flags, engine, static_cast<std::int64_t>(place), key, start);
  engine.restore(*before);
  return asked;
}

std::filesystem::path folder_of(const Flags& flags, const Key& key) {
  return flags.memory_dir / ("passkey-" + key.digits);
}

/// Of keys that were asked for, which a run may have been stopped before it did so.
void remove_folders(const Flags& flags, std::span<const Key> keys) {
  if (flags.memory_dir.empty()) return;
  for (const Key& key : keys) std::filesystem::remove_all(folder_of(flags, key));
}

/// The same with all of the text read into a memory in a folder, from where that was committed
/// last. \param places where pieces of the text end, the key's the last
Json ask_from_folder(const Flags& flags, Engine& engine, const MemoryConfig& config,
                     const Ids& text, std::span<const std::size_t> places, const Key& key) {
  const Clock::time_point start = Clock::now();
  const KeptFolder folder{.dir = folder_of(flags, key)};
  const bool there = std::filesystem::exists(folder.dir / "manifest.json");
  if (!there) std::filesystem::remove_all(folder.dir);  // stopped before the first commit
  std::filesystem::create_directories(flags.memory_dir);
  const ModelOptions options = flags.model.options();
  engine.attach(std::make_shared<EpisodicMemory>(
                    there ? open_memory(flags.model.model, folder, options)
                          : create_memory(flags.model.model, folder, config, options)),
                2 * flags.tokens);
  std::vector<std::span<const std::int64_t>> pieces;
  std::size_t begin = 0;
  for (const std::size_t place : places) {
    pieces.push_back(std::span(text).subspan(begin, place - begin));
    begin = place;
  }
  pieces.emplace_back(key.ids);
  pieces.push_back(std::span(text).subspan(begin));
  const std::int64_t resumed_at = engine.tokens();
  Ids whole;
  for (const std::span<const std::int64_t> piece : pieces)
    whole.insert(whole.end(), piece.begin(), piece.end());
  const Ids kept = engine.kept()->token_ids(0, resumed_at);
  const auto require = [&](bool same) {
    if (!same)
      throw ConfigError(
          fmt::format("--memory-dir: {} holds another text, or has other settings; "
                      "remove it, or name another folder",
                      folder.dir.string()));
  };
  require(kept.size() <= whole.size() && std::equal(kept.begin(), kept.end(), whole.begin()) &&
          to_json(engine.kept()->config()) == to_json(config));
  // Whole chunks between commits, so that steps and events are those of one reading.
  const auto most = static_cast<std::size_t>(32 * config.chunk);
  std::size_t at = 0;  // of all pieces
  for (std::span<const std::int64_t> piece : pieces)
    for (std::size_t n; !piece.empty(); piece = piece.subspan(n), at += n) {
      n = std::min(piece.size(), most);
      if (at < kept.size()) {
        require(at + n <= kept.size());  // cut where it was committed, so at the same depths
        continue;
      }
      engine.read(piece.first(n));
      engine.commit();
    }
  Json asked = answer(flags, engine, static_cast<std::int64_t>(begin), key, start);
  asked["resumed_at"] = resumed_at;
  return asked;
}

/// What a stopped run has written, to be gone on with: the same settings, whose keys are the first
/// of `keys`; null where there is no file. \throws ConfigError naming what differs
Json stopped_run(const Flags& flags, const Json& settings, const std::vector<Key>& keys) {
  if (!flags.resume) return {};
  if (!flags.json.wanted() || flags.json.on_stdout())
    throw ConfigError("--resume: --json names no file to go on with");
  if (!std::filesystem::exists(flags.json.path)) return {};
  Json there = tools::read_json(flags.json.path);
  const auto differs = [&](const std::string& what) {
    return ConfigError(fmt::format("--resume: {} has another {}; name another file with --json",
                                   flags.json.path.string(), what));
  };
  if (!there.is_object()) throw differs("form");
  for (const auto& [name, value] : settings.items())
    if (there.value(name, Json()) != value) throw differs("\"" + name + "\"");
  if (!there.value("keys", Json()).is_array() || there["keys"].size() > keys.size())
    throw differs("number of keys");
  for (std::size_t i = 0; i < there["keys"].size(); ++i)
    if (const Json& key = there["keys"][i]; !key.is_object() ||
                                            key.value("key", Json()) != keys[i].digits ||
                                            key.value("depth", Json()) != keys[i].depth)
      throw differs(fmt::format("key {} (--seed, --keys, --from, --to)", i + 1));
  return there;
}

void run(const Flags& flags) {
  flags.common.apply();
  MemoryConfig config = flags.model.memory_config();
  if (flags.window) config.recall = false;
  const std::string device = tools::device_name_of(flags.common);
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  tools::warn_of_window(flags.common, config, engine->config());
  engine->attach(config, 2 * flags.tokens);
  Ids text = engine->tokenizer().encode(flags.text.read());
  if (static_cast<std::int64_t>(text.size()) < flags.tokens)
    throw DataError(fmt::format("{}: {} tokens; --tokens asks for {}", flags.text.text.string(),
                                text.size(), flags.tokens));
  text.resize(static_cast<std::size_t>(flags.tokens));

  const Json settings{
      {"model", flags.model.model.string()},
      {"text_tokens", flags.tokens},
      {"text_checksum", fmt::format("{:016x}", checksum_of(std::span<const std::int64_t>(text)))},
      {"method", flags.window ? "window" : "memory"},
      {"memory", tools::settings_json(config)}};
  const std::vector<Key> all = draw_keys(flags, engine->tokenizer());
  Json result = stopped_run(flags, settings, all);
  if (result.is_null()) {
    result = settings;
    result["environment"] = environment(device);
    result["text"] = flags.text.text.filename().string();
    result["keys"] = Json::array();
  } else if (result["keys"].size() == all.size()) {
    remove_folders(flags, all);
    return flags.json.say(fmt::format("all {} keys were asked for before\n", all.size()));
  } else {
    result["later_environments"].push_back(environment(device));
  }
  Json keys = result["keys"];
  const std::size_t done = keys.size();
  std::int64_t right = std::count_if(keys.begin(), keys.end(),
                                     [](const Json& key) { return key.value("right", false); });
  remove_folders(flags, std::span(all).first(done));
  if (done > 0) flags.json.say(fmt::format("{} keys were asked for before\n", done));
  std::size_t read = 0;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Key& key = all[i];
    const auto at = static_cast<std::size_t>(key.depth * static_cast<double>(flags.tokens));
    const std::size_t place = std::max(read, line_end(engine->tokenizer(), text, at));
    places.push_back(place);
    // In the same pieces whether a key is asked for or was: events end where steps do.
    if (flags.memory_dir.empty()) engine->read(std::span(text).subspan(read, place - read));
    read = place;
    if (i < done) continue;
    keys.push_back(flags.memory_dir.empty()
                       ? ask_from_snapshot(flags, *engine, text, place, key)
                       : ask_from_folder(flags, *engine, config, text, places, key));
    right += keys.back()["right"].get<bool>() ? 1 : 0;
    flags.json.say(fmt::format("{:.3f}  {}  {}  {}\n", key.depth, key.digits,
                               keys.back()["right"].get<bool>() ? "right" : "wrong",
                               tools::on_one_line(keys.back()["answer"].get<std::string>())));
    result["right"] = right;
    result["asked"] = keys.size();
    result["keys"] = keys;
    if (!flags.json.on_stdout()) flags.json.write(result);  // a run that is stopped leaves its part
    if (!flags.memory_dir.empty()) {
      engine->attach(config, 2 * flags.tokens);  // lets go of the folder
      remove_folders(flags, {&key, 1});
    }
  }
  result["peak_resident_bytes"] = tools::peak_resident_bytes();
  flags.json.write(result);
  flags.json.say(fmt::format("{} of {} right\n", right, keys.size()));
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  episodic::tools::CommandLine app{"Pass keys hidden in a long text, asked for at its end",
                                   "bench_passkeys"};
  auto flags = episodic::bench::Flags{};
  flags.model.add_to(app, false);
  flags.text.add_to(app, app, "--text", "Text that the keys are hidden in").required();
  episodic::tools::add_count(app, "--tokens", flags.tokens, "Tokens of the text", 100);
  episodic::tools::add_count(app, "--keys", flags.keys, "Keys, each asked for by itself", 1);
  app.option("--from", flags.from, "Depth of the first key").fraction().shows_default();
  app.option("--to", flags.to, "Depth of the last key; the others lie between them evenly")
      .fraction()
      .shows_default();
  app.option("--seed", flags.seed, "Of the keys").shows_default();
  app.flag("--window", flags.window, "Sinks and window alone: nothing is recalled");
  const episodic::tools::Option resume = app.flag(
      "--resume", flags.resume, "Go on with what the file of --json has of a run that was stopped");
  app.option("--memory-dir", flags.memory_dir,
             "Read each key's text into a kept memory in this folder, so that a run that is "
             "stopped goes on within a text; nothing is read once for several keys then")
      .needs(resume);
  flags.json.add_to(app);
  flags.common.add_to(app);
  app.footer("Example:\n  bench_passkeys --model M --text book.txt --tokens 32K --keys 30");
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(flags); });
}
