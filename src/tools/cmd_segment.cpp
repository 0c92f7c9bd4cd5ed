// SPDX-License-Identifier: Apache-2.0
// `episodic segment`: the events of a text.

#include <fmt/format.h>

#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/host_memory.hpp"
#include "episodic/model/open_model.hpp"
#include "html.hpp"
#include "reading.hpp"

namespace episodic::tools {
namespace {

struct SegmentFlags {
  CommonFlags common;
  ModelFlags model;
  TextFlags text;
  EntryFlags entries;
  std::filesystem::path html;
  JsonFlag json;
};

/// Events of the whole text: the memory itself never closes what is still in its window, so the
/// closing rule is taken to the last token with the boundaries that were found.
EventTable events_of(std::span<const std::uint8_t> boundaries, const MemoryConfig& config) {
  EventTable events(config.n_init, config.min_block, config.max_block);
  events.close_up_to(static_cast<std::int64_t>(boundaries.size()),
                     [&](std::int64_t t) { return boundaries[static_cast<std::size_t>(t)] != 0; });
  return events;
}

/// A text as it was read, and whose boundaries there are: the sequence's, or each head's.
struct Segments {
  Reading reading;
  std::vector<std::vector<std::uint8_t>> boundaries;  // of scope 0, which `reading` has, none
  std::int64_t heads = 0;                             // of a layer; 0: the sequence's alone

  std::span<const std::uint8_t> of(std::size_t scope) const {
    return scope == 0 ? reading.boundaries : boundaries[scope];
  }
};

Segments read(Engine& engine, const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
              const SegmentFlags& flags) {
  Segments segments;
  segments.boundaries.resize(1);
  if (const auto* memory = dynamic_cast<const HostMemory*>(engine.memory());
      memory != nullptr && memory->scopes() > 1) {
    segments.boundaries.resize(static_cast<std::size_t>(memory->scopes()));
    segments.heads = memory->shape().n_kv_heads;
  }
  Session session(engine, &tokenizer);
  ProgressBar bar("reading", flags.common.quiet);
  segments.reading = read_recording(
      session,
      [&] {
        for (std::size_t s = 1; s < segments.boundaries.size(); ++s) {
          const StepRecord step = engine.last_step(static_cast<std::int64_t>(s));
          segments.boundaries[s].insert(segments.boundaries[s].end(), step.final_boundaries.begin(),
                                        step.final_boundaries.end());
        }
        return engine.last_step();
      },
      ids, bar.callback());
  return segments;
}

/// One map for each head: which of them cut where.
std::string page_of_heads(const SegmentFlags& flags, const Segments& segments,
                          const MemoryConfig& config) {
  const auto n = static_cast<std::int64_t>(segments.reading.surprise.size());
  const std::string name = flags.text.text.filename().string();
  std::string body = fmt::format(
      "<h1>Events of {}</h1>\n<p class=\"soft\">{} tokens, {:.2f} nats a token. Each key/value "
      "head of each layer has events of its own; a map for each.</p>\n",
      escape_html(name), n, n > 1 ? segments.reading.mean_surprise({1, n}) : 0.0);
  body += surprise_legend();
  constexpr std::int64_t kMostBlocks = 1000;
  for (std::size_t s = 0; s < segments.boundaries.size(); ++s) {
    const EventTable events = events_of(segments.of(s), config);
    body += fmt::format("<h2>Layer {}, head {}: {} events</h2>\n",
                        static_cast<std::int64_t>(s) / segments.heads,
                        static_cast<std::int64_t>(s) % segments.heads, events.size());
    body += event_map(event_blocks(events.all(), segments.reading, kMostBlocks), n, {});
  }
  return html_page("Events of " + name, body);
}

std::string page(const SegmentFlags& flags, const Tokenizer& tokenizer,
                 std::span<const std::int64_t> ids, const Reading& reading,
                 const EventTable& events) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const std::string name = flags.text.text.filename().string();
  std::string body = fmt::format(
      "<h1>Events of {}</h1>\n<p class=\"soft\">{} tokens, {} events, {:.2f} nats a token. A bar "
      "on the "
      "left opens an event; grey: the sinks at the start, which are in no event, and the end, "
      "which no "
      "boundary has closed yet.</p>\n",
      escape_html(name), n, events.size(), n > 1 ? reading.mean_surprise({1, n}) : 0.0);
  body += surprise_legend();
  constexpr std::int64_t kMostBlocks = 8000;
  body += event_map(event_blocks(events.all(), reading, kMostBlocks), n, {});
  body += "<h2>Text</h2>\n<div class=\"text\">";
  const auto grey = [&](TokenRange range) {
    if (range.size() > 0)
      body += fmt::format("<span class=\"grey\">{}</span>",
                          escape_html(text_of(tokenizer, ids, range)));
  };
  grey({0, std::min(n, events.pending_start() - events.tokens())});
  for (std::int64_t e = 0; e < events.size(); ++e)
    body += fmt::format(
        "<span class=\"event\" title=\"event {}: tokens {} to {}, {:.2f} nats\">{}</span>", e,
        events[e].start, events[e].end, reading.mean_surprise(events[e]),
        coloured_tokens(tokenizer, ids, reading, events[e]));
  if (events.pending_start() < n) grey({events.pending_start(), n});
  return html_page("Events of " + name, body + "</div>\n");
}

void run(const SegmentFlags& flags) {
  flags.common.apply();
  const MemoryConfig config = flags.entries.apply(flags.model.memory_config());
  if (config.segmenter == SegmenterKind::given && flags.entries.longest == 0)
    throw ConfigError(
        "segmenter = \"given\": segment finds the boundaries itself; use \"surprise\", "
        "\"fixed\" or \"random\", or --entries for whole sentences");
  const std::string text = flags.text.read();
  const auto tokenizer = load_model_tokenizer(flags.model.model);
  const std::vector<std::int64_t> ids = tokenizer->encode(text);
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  attach(*engine, flags.common, flags.model, config, static_cast<std::int64_t>(ids.size()),
         flags.entries.starts(*engine, config, ids));
  const Segments segments = read(*engine, *tokenizer, ids, flags);
  const bool by_head = segments.heads > 0;
  Json json = Json::array();
  std::string table = by_head ? fmt::format("{:>5} {:>4} ", "layer", "head") : "";
  table += fmt::format("{:>10} {:>10} {:>7}  text\n", "start", "end", "nats");
  for (std::size_t s = 0; s < segments.boundaries.size(); ++s) {
    const auto scope = static_cast<std::int64_t>(s);
    const EventTable events = events_of(segments.of(s), config);
    for (const TokenRange& e : events.all()) {
      const std::string said = text_of(*tokenizer, ids, e);
      const double nats = segments.reading.mean_surprise(e);
      Json row{{"start", e.start}, {"end", e.end}, {"text", said}, {"surprise", nats}};
      if (by_head) {
        row["layer"] = scope / segments.heads;
        row["kv_head"] = scope % segments.heads;
        table += fmt::format("{:>5} {:>4} ", scope / segments.heads, scope % segments.heads);
      }
      json.push_back(std::move(row));
      table += fmt::format("{:>10} {:>10} {:>7.2f}  {}\n", e.start, e.end, nats, on_one_line(said));
    }
  }
  if (!flags.html.empty())
    write_text(flags.html, by_head ? page_of_heads(flags, segments, config)
                                   : page(flags, *tokenizer, ids, segments.reading,
                                          events_of(segments.of(0), config)));
  flags.json.write(json);
  flags.json.say(table);
}

}  // namespace

void add_segment(Command& app) {
  auto flags = std::make_shared<SegmentFlags>();
  Command sub = app.subcommand("segment", "Cut a text into events");
  sub.footer(
      "Writes one event a line. JSON: a list of {\"start\", \"end\", \"text\", \"surprise\"}: "
      "tokens [start, end), surprise "
      "the mean\n"
      "in nats. The events lie end to end from token n_init on. Unlike a memory, which closes only "
      "what\n"
      "has left its window, this goes on to the end of the text by the same rule; the last "
      "tokens,\n"
      "after the last boundary, are in no event. With scope \"head\" each key/value head of each "
      "layer has\nevents of its own: each row then has \"layer\" and \"kv_head\" too.\n\n"
      "Example:\n  episodic segment --model M --text story.txt --json events.json --html "
      "events.html");
  flags->model.add_to(sub, false);
  flags->text.add_to(sub, sub, "--text", "Text file").required();
  flags->entries.add_to(sub);
  flags->json.add_to(sub, "The events as JSON");
  sub.option("--html", flags->html, "Also a page with the text and its events");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
