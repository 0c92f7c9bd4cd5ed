// SPDX-License-Identifier: Apache-2.0
// `episodic inspect`: what is in a kept memory.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/strict_json.hpp"
#include "commands.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/retention/memoria.hpp"
#include "html.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct InspectFlags {
  CommonFlags common;
  std::filesystem::path dir, html, model;
  JsonFlag json;
  bool no_events = false;
  std::int64_t layer = 0, head = 0;

  /// Whose events the page shows.
  std::int64_t scope_of(const EpisodicMemory& memory) const {
    if (memory.scopes() == 1) {
      if (layer == 0 && head == 0) return 0;
      throw ConfigError(fmt::format(
          "--layer {} --head {}: the memory has the sequence's events, no head has its own (scope "
          "\"sequence\"); leave them out",
          layer, head));
    }
    const MemoryShape& s = memory.shape();
    if (layer < 0 || layer >= s.n_layers || head < 0 || head >= s.n_kv_heads)
      throw ConfigError(fmt::format("--layer {} --head {}: the memory has {} layers of {} heads",
                                    layer, head, s.n_layers, s.n_kv_heads));
    return layer * s.n_kv_heads + head;
  }
};

std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

/// Text of each event, empty where its tokens are unknown. Decoded with the token before it, so
/// that what tokenizers put between tokens comes out.
std::vector<std::string> texts(const EpisodicMemory& memory, const Tokenizer& tokenizer,
                               std::int64_t scope) {
  const std::vector<std::int64_t> ids = memory.token_ids(0, memory.tokens());
  std::vector<std::string> out;
  for (const TokenRange& e : memory.events(scope).all()) {
    const bool known = std::all_of(ids.begin() + e.start, ids.begin() + e.end,
                                   [](std::int64_t id) { return id >= 0; });
    const bool before = known && e.start > 0 && ids[static_cast<std::size_t>(e.start - 1)] >= 0;
    out.push_back(!known   ? std::string()
                  : before ? text_of(tokenizer, ids, e)
                           : tokenizer.decode({ids.begin() + e.start, ids.begin() + e.end}));
  }
  return out;
}

/// Where the sequence's events lie, or those of one key/value head (scope `head`).
struct Scope {
  const EpisodicMemory& memory;
  std::int64_t number = 0;
  const DiskStore* store = memory.disk_store();  ///< null where nothing of it is stored

  Scope(const EpisodicMemory& of, std::int64_t n) : memory(of), number(n) {
    const std::int64_t heads = of.scopes() > 1 ? of.shape().n_kv_heads : 1;
    if (of.scopes() > 1 && !recalls(of.config(), n / heads)) store = nullptr;
  }
  const EventTable& events() const { return memory.events(number); }
  EventId stored(EventId e) const { return memory.stored_event(e, number); }
  bool forgotten(EventId e) const {
    const auto& gone = memory.forgotten(number);
    return std::binary_search(gone.begin(), gone.end(), e);
  }
  /// Of one event, all lanes that hold it.
  std::int64_t bytes(EventId e) const {
    StoreShape shape = store_shape(memory.config(), memory.shape());
    const std::int64_t lanes = memory.scopes() > 1 ? 1 : shape.n_lanes;
    return lanes * block_bytes(shape, events()[e].size());
  }
};

Json event_json(const Scope& scope, EventId e, const std::vector<std::string>& text) {
  const TokenRange& range = scope.events()[e];
  Json j{{"event", e}, {"start", range.start}, {"end", range.end}};
  if (scope.memory.scopes() > 1) {
    j["layer"] = scope.number / scope.memory.shape().n_kv_heads;
    j["kv_head"] = scope.number % scope.memory.shape().n_kv_heads;
  }
  if (scope.forgotten(e)) {
    j["tier"] = "forgotten";
  } else if (scope.store) {
    const EventId stored = scope.stored(e);
    j["tier"] = scope.store->tier(stored);
    j["bytes"] = scope.bytes(e);
    j["recalls"] = scope.store->recalls(stored);
    j["last_recall"] = scope.store->last_recall(stored);
    j["pinned"] = scope.store->pinned(stored);
  }
  if (const Memoria* graph = scope.memory.retention())  // an event begins to age at its chunk's end
    j["lifespan"] = e < graph->total() || scope.forgotten(e) ? graph->lifespan(e)
                                                             : graph->config().initial_lifespan;
  if (!text.empty()) j["text"] = text[static_cast<std::size_t>(e)];
  return j;
}

/// How many events are forgotten or pinned among [first, last].
struct Marks {
  std::int64_t forgotten = 0, pinned = 0;
};

Marks marks_of(const Scope& scope, EventId first, EventId last) {
  Marks m;
  for (EventId e = first; e <= last; ++e) {
    if (scope.forgotten(e))
      ++m.forgotten;
    else if (scope.store && scope.store->pinned(scope.stored(e)))
      ++m.pinned;
  }
  return m;
}

/// What the map shows without a colour.
std::string open_text(const EpisodicMemory& memory, const EventTable& events) {
  const std::int64_t tokens = memory.tokens(), sinks = std::min(memory.config().n_init, tokens);
  const std::int64_t end = std::clamp<std::int64_t>(events.pending_start(), sinks, tokens);
  std::string out = "<p class=\"soft\">In no event are ";
  if (sinks > 0)
    out += fmt::format("the first {} tokens, which attention always reads, and ", sinks);
  return out +
         fmt::format(
             "tokens {} to {}: the window of {} tokens, and before it what waits for the end of "
             "its event. Attention reads these as they are; they become events when they have "
             "left the window.</p>\n",
             end, tokens, memory.config().n_local);
}

/// The timeline: neighbouring events drawn together, the warmer the more often they were recalled.
std::string page(const InspectFlags& flags, const EpisodicMemory& memory, const Json& json,
                 const std::vector<std::string>& text) {
  const Scope scope(memory, flags.scope_of(memory));
  const EventTable& events = scope.events();
  const DiskStore* store = scope.store;
  constexpr std::int64_t kMostBlocks = 4000;
  const std::int64_t group =
      std::max<std::int64_t>(1, (events.size() + kMostBlocks - 1) / kMostBlocks);
  std::vector<EventBlock> blocks;
  std::vector<MapMark> marks;
  std::int64_t pinned = 0;
  for (EventId e = 0; e < events.size(); e += group) {
    const EventId last = std::min(events.size(), e + group) - 1;
    double recalls = 0;
    for (EventId i = e; i <= last && store; ++i)
      recalls += static_cast<double>(store->recalls(scope.stored(i)));
    const double mean = recalls / static_cast<double>(last - e + 1);
    const Marks m = marks_of(scope, e, last);
    pinned += m.pinned;
    EventBlock block;
    block.tokens = {events[e].start, events[last].end};
    block.first = e;
    block.last = last;
    block.surprise = std::log2(1 + mean);
    block.grey = m.forgotten == last - e + 1;
    block.note = fmt::format("{:.1f} recalls{}{}", mean,
                             m.forgotten ? fmt::format(", {} forgotten", m.forgotten) : "",
                             m.pinned ? fmt::format(", {} pinned", m.pinned) : "");
    blocks.push_back(block);
    if (m.pinned > 0) marks.push_back({block.tokens, "", block.note});
  }
  std::string body = fmt::format(
      "<h1>The memory in {}</h1>\n<p class=\"soft\">Made with {}. The text from left to right, "
      "line by line; the number on the left is the line's first token.{}</p>\n",
      escape_html(flags.dir.filename().string()), escape_html(memory.manifest().identity.model),
      memory.scopes() > 1
          ? fmt::format(
                " Each key/value head has events of its own; these are head {} of layer {}'s.",
                scope.number % memory.shape().n_kv_heads, scope.number / memory.shape().n_kv_heads)
          : "");
  body += "<div class=\"cards\">\n";
  const auto card = [&](const char* name, const std::string& value) {
    body += fmt::format("<div class=\"card\"><b>{}</b>{}</div>\n", value, name);
  };
  card("tokens", count_text(memory.tokens()));
  card("events", count_text(events.size()));
  card("forgotten", count_text(static_cast<std::int64_t>(memory.forgotten(scope.number).size())));
  card("pinned", count_text(pinned));
  card("commits", count_text(memory.manifest().generation));
  card("on disk", bytes_text(json["bytes"]["total"].get<std::int64_t>()));
  body += "</div>\n<p class=\"soft\">Recalls of an event, over all layers and steps:";
  for (int i = 0; i < 9; ++i)
    body += fmt::format(" <i class=\"s{0}\">&nbsp;{1}{2}&nbsp;</i>", i, (1 << i) - 1,
                        i == 8 ? "+" : "");
  body +=
      " <i class=\"gone\">&nbsp;forgotten&nbsp;</i> <i "
      "class=\"pinned\">&nbsp;pinned&nbsp;</i> <i class=\"open\">&nbsp;in no event&nbsp;</i>. What "
      "was read long ago has had more time to be recalled.</p>\n";
  body += open_text(memory, events);
  body += event_map(blocks, memory.tokens(), marks);
  body += "<h2>Bytes</h2>\n<div class=\"wide\"><table>\n";
  for (const auto& [key, value] : json["bytes"].items())
    body += fmt::format("<tr><td>{}</td><td class=\"n\">{}</td></tr>\n", escape_html(key),
                        bytes_text(value.get<std::int64_t>()));
  body += fmt::format(
      "</table></div>\n<h2>Most recalled</h2>\n<div class=\"wide\"><table>\n<tr><th>event</th>"
      "<th>tokens</th><th>recalls</th><th></th>{}</tr>\n",
      text.empty() ? "" : "<th>text</th>");
  std::vector<EventId> order;
  for (EventId e = 0; e < events.size() && store; ++e)
    if (!scope.forgotten(e)) order.push_back(e);
  const std::size_t most = std::min<std::size_t>(50, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end(),
                    [&](EventId a, EventId b) {
                      const auto of_a = store->recalls(scope.stored(a));
                      const auto of_b = store->recalls(scope.stored(b));
                      return of_a != of_b ? of_a > of_b : a < b;
                    });
  for (std::size_t i = 0; i < most; ++i) {
    const EventId e = order[i];
    body += fmt::format(
        "<tr><td class=\"n\">{}</td><td>{} to {}</td><td class=\"n\">{}</td><td>{}</td>{}</tr>\n",
        e, events[e].start, events[e].end, store->recalls(scope.stored(e)),
        store->pinned(scope.stored(e)) ? "pinned" : "",
        text.empty() ? std::string()
                     : fmt::format("<td class=\"text\">{}</td>",
                                   escape_html(text[static_cast<std::size_t>(e)])));
  }
  return html_page("Memory in " + flags.dir.filename().string(), body + "</table></div>\n");
}

std::string states_text(const MemoryManifest& m) {
  std::string out;
  for (const auto& s : m.checkpoints) out += fmt::format(" {}", count_text(s.tokens));
  return out.empty() ? " none" : out;
}

void run(const InspectFlags& flags) {
  flags.common.apply();
  const EpisodicMemory memory = open_kept(flags.dir, OpenMode::read);
  flags.scope_of(memory);  // one that the memory does not have is refused, whatever is shown
  const MemoryManifest& m = memory.manifest();
  Json bytes{{"state", m.state.bytes}, {"checkpoints", 0}};
  for (const auto& s : m.checkpoints)
    bytes["checkpoints"] = bytes["checkpoints"].get<std::int64_t>() + s.bytes;
  std::int64_t total = m.state.bytes + bytes["checkpoints"].get<std::int64_t>();
  for (const auto& [key, prefix] :
       {std::pair{"segments", "kv-"}, {"vectors", "vectors-"}, {"tokens", "tokens-"}}) {
    std::int64_t sum = 0;
    for (const auto& f : m.files) sum += f.name.starts_with(prefix) ? f.bytes : 0;
    bytes[key] = sum;
    total += sum;
  }
  bytes["total"] = total;
  const MemoryCounters c = memory.counters();
  std::int64_t n_events = 0, n_forgotten = 0;
  for (std::int64_t scope = 0; scope < memory.scopes(); ++scope) {
    n_events += memory.events(scope).size();
    n_forgotten += static_cast<std::int64_t>(memory.forgotten(scope).size());
  }
  Json json{{"dir", flags.dir.string()},
            {"id", hex(m.id)},
            {"parent", m.parent ? Json(hex(m.parent)) : Json(nullptr)},
            {"commit", m.generation},
            {"model",
             {{"name", m.identity.model},
              {"weights", m.identity.weights},
              {"tokenizer", m.identity.tokenizer}}},
            {"config", parse_ordered(to_json(m.config), "settings", {})},
            {"tokens", memory.tokens()},
            {"n_events", n_events},
            {"forgotten", n_forgotten},
            {"recalled_events", c.recalled_events},
            {"bytes", bytes},
            {"host_bytes",
             {{"representatives", c.index_bytes},
              {"windows", c.window_bytes},
              {"events", c.store.bytes_reserved}}}};
  json["checkpoints"] = Json::array();
  for (const auto& s : m.checkpoints)
    json["checkpoints"].push_back({{"tokens", s.tokens}, {"events", s.events}, {"bytes", s.bytes}});
  std::vector<std::string> text;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!flags.model.empty() && (flags.json.wanted() || !flags.html.empty()))
    tokenizer = load_model_tokenizer(flags.model);
  if (memory.scopes() > 1) json["scopes"] = memory.scopes();
  if (!flags.no_events && flags.json.wanted()) {
    json["events"] = Json::array();
    for (std::int64_t number = 0; number < memory.scopes(); ++number) {
      if (tokenizer) text = texts(memory, *tokenizer, number);
      const Scope scope(memory, number);
      for (EventId e = 0; e < scope.events().size(); ++e)
        json["events"].push_back(event_json(scope, e, text));
    }
  }
  if (tokenizer && !flags.html.empty()) text = texts(memory, *tokenizer, flags.scope_of(memory));
  flags.json.say(fmt::format(
      "{}: {} tokens in {} events ({} forgotten), made with {}\n"
      "  disk    {:>10}  events {}, representatives {}, tokens {}, states {}\n"
      "  memory  {:>10}  representatives {}, windows {}, events {}\n"
      "  commit {}; earlier states to rewind to, at tokens:{}\n",
      flags.dir.string(), count_text(memory.tokens()), count_text(n_events), n_forgotten,
      m.identity.model, bytes_text(total), bytes_text(bytes["segments"].get<std::int64_t>()),
      bytes_text(bytes["vectors"].get<std::int64_t>()),
      bytes_text(bytes["tokens"].get<std::int64_t>()),
      bytes_text(bytes["state"].get<std::int64_t>() + bytes["checkpoints"].get<std::int64_t>()),
      bytes_text(c.index_bytes + c.window_bytes + c.store.bytes_reserved),
      bytes_text(c.index_bytes), bytes_text(c.window_bytes), bytes_text(c.store.bytes_reserved),
      m.generation, states_text(m)));
  if (!flags.html.empty()) write_text(flags.html, page(flags, memory, json, text));
  flags.json.write(json);
}

}  // namespace

void add_inspect(Command& app) {
  auto flags = std::make_shared<InspectFlags>();
  Command sub = app.subcommand("inspect", "What is in a kept memory");
  sub.footer(
      "JSON: settings, bytes and the list of events with tier, recalls and the step of the last "
      "recall.\nWith --model also the text of each event.\n\n"
      "Example:\n  episodic inspect book.mem --json book.json --html book.html --model M");
  sub.option("dir", flags->dir, "Folder of the memory").required();
  flags->json.add_to(sub, "All of it as JSON");
  sub.option("--html", flags->html, "Also a page with the timeline");
  sub.option("--model", flags->model, "Model directory whose tokenizer shows the texts");
  sub.option("--layer", flags->layer,
             "Whose events the page shows where each head has its own (scope \"head\")");
  sub.option("--head", flags->head, "Key/value head of that layer");
  sub.flag("--no-events", flags->no_events, "Leave the list of events out of the JSON");
  flags->common.add_to(sub, false);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
