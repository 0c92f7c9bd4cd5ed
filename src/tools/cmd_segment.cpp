// SPDX-License-Identifier: Apache-2.0
// `episodic segment`: the events of a text.

#include <fmt/format.h>

#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "html.hpp"
#include "reading.hpp"

namespace episodic::tools {
namespace {

struct SegmentFlags {
  CommonFlags common;
  ModelFlags model;
  TextFlags text;
  std::filesystem::path html;
  JsonFlag json;
};

/// Events of the whole text: the memory itself never closes what is still in its window, so the
/// rule of spec 4 is taken to the last token with the boundaries that were found.
EventTable events_of(const Reading& reading, const MemoryConfig& config) {
  EventTable events(config.n_init, config.min_block, config.max_block);
  events.close_up_to(static_cast<std::int64_t>(reading.boundaries.size()), [&](std::int64_t t) {
    return reading.boundaries[static_cast<std::size_t>(t)] != 0;
  });
  return events;
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
  const MemoryConfig config = flags.model.memory_config();
  if (config.segmenter == SegmenterKind::given)
    throw ConfigError(
        "segmenter = \"given\": segment finds the boundaries itself; use \"surprise\", "
        "\"fixed\" or \"random\"");
  if (config.scope == EventScope::head)
    throw ConfigError(
        "scope = \"head\": segment lists the events of the sequence, and each head has its own; "
        "use "
        "scope = \"sequence\"");
  const std::string text = flags.text.read();
  const auto tokenizer = load_model_tokenizer(flags.model.model);
  const std::vector<std::int64_t> ids = tokenizer->encode(text);
  const std::unique_ptr<Engine> engine =
      make_engine(flags.common, flags.model, config, static_cast<std::int64_t>(ids.size()));
  Session session(*engine, tokenizer.get());
  Reading reading;
  {
    ProgressBar bar("reading", flags.common.quiet);
    reading = read_recording(
        session, [&] { return engine->last_step(); }, ids, bar.callback());
  }
  const EventTable events = events_of(reading, config);
  Json json = Json::array();
  for (const TokenRange& e : events.all())
    json.push_back({{"start", e.start},
                    {"end", e.end},
                    {"text", text_of(*tokenizer, ids, e)},
                    {"surprise", reading.mean_surprise(e)}});
  if (!flags.html.empty()) write_text(flags.html, page(flags, *tokenizer, ids, reading, events));
  flags.json.write(json);
  std::string table = fmt::format("{:>10} {:>10} {:>7}  text\n", "start", "end", "nats");
  for (const Json& e : json)
    table += fmt::format("{:>10} {:>10} {:>7.2f}  {}\n", e["start"].get<std::int64_t>(),
                         e["end"].get<std::int64_t>(), e["surprise"].get<double>(),
                         on_one_line(e["text"].get_ref<const std::string&>()));
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
      "after the last boundary, are in no event.\n\n"
      "Example:\n  episodic segment --model M --text story.txt --json events.json --html "
      "events.html");
  flags->model.add_to(sub, false);
  flags->text.add_to(sub, sub, "--text", "Text file").required();
  flags->json.add_to(sub, "The events as JSON");
  sub.option("--html", flags->html, "Also a page with the text and its events");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
