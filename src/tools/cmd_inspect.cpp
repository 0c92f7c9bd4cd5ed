// SPDX-License-Identifier: Apache-2.0
// `episodic inspect`: what is in a kept memory.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/strict_json.hpp"
#include "commands.hpp"
#include "episodic/base/error.hpp"
#include "html.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct InspectFlags {
  CommonFlags common;
  std::filesystem::path dir, json, html, model;
  bool no_events = false;
};

std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

/// Text of each event, empty where its tokens are unknown. Decoded with the token before it, so
/// that what tokenizers put between tokens comes out.
std::vector<std::string> texts(const EpisodicMemory& memory, const Tokenizer& tokenizer) {
  const std::vector<std::int64_t> ids = memory.token_ids(0, memory.tokens());
  std::vector<std::string> out;
  for (const TokenRange& e : memory.events().all()) {
    const bool known = std::all_of(ids.begin() + e.start, ids.begin() + e.end,
                                   [](std::int64_t id) { return id >= 0; });
    const bool before = known && e.start > 0 && ids[static_cast<std::size_t>(e.start - 1)] >= 0;
    out.push_back(!known   ? std::string()
                  : before ? text_of(tokenizer, ids, e)
                           : tokenizer.decode({ids.begin() + e.start, ids.begin() + e.end}));
  }
  return out;
}

Json event_json(const EpisodicMemory& memory, EventId e, const std::vector<std::string>& text) {
  const TokenRange& range = memory.events()[e];
  const DiskStore* store = memory.disk_store();
  const bool forgotten =
      std::binary_search(memory.forgotten().begin(), memory.forgotten().end(), e);
  Json j{{"event", e}, {"start", range.start}, {"end", range.end}};
  if (forgotten) {
    j["tier"] = "forgotten";
  } else if (store) {
    const MemoryShape& s = memory.shape();
    const StoreShape shape{1, s.n_kv_heads, s.head_dim, memory.config().kv_dtype};
    const MemoryConfig& c = memory.config();
    const std::int64_t layers =
        c.recall_layers ? static_cast<std::int64_t>(c.recall_layers->size()) : s.n_layers;
    j["tier"] = store->tier(e);
    j["bytes"] = layers * block_bytes(shape, range.size());
    j["recalls"] = store->recalls(e);
    j["last_recall"] = store->last_recall(e);
    j["pinned"] = store->pinned(e);
  }
  if (!text.empty()) j["text"] = text[static_cast<std::size_t>(e)];
  return j;
}

/// The timeline: neighbouring events drawn together, the warmer the oftener they were recalled.
std::string page(const InspectFlags& flags, const EpisodicMemory& memory, const Json& json) {
  const EventTable& events = memory.events();
  const DiskStore* store = memory.disk_store();
  constexpr std::int64_t kMostBlocks = 4000;
  const std::int64_t group = (events.size() + kMostBlocks - 1) / kMostBlocks;
  std::vector<EventBlock> blocks;
  for (EventId e = 0; e < events.size(); e += group) {
    const EventId last = std::min(events.size(), e + group) - 1;
    double recalls = 0;
    for (EventId i = e; i <= last && store; ++i) recalls += static_cast<double>(store->recalls(i));
    blocks.push_back({{events[e].start, events[last].end},
                      e,
                      last,
                      std::log2(1 + recalls / static_cast<double>(last - e + 1))});
  }
  std::string body = fmt::format(
      "<h1>The memory in {}</h1>\n<p class=\"soft\">{} tokens, {} events, made with {}; commit {}. "
      "The text from left to right, line by line; colours: how often an event was recalled (in "
      "powers of two).</p>\n",
      escape_html(flags.dir.filename().string()), memory.tokens(), events.size(),
      escape_html(memory.manifest().identity.model), memory.manifest().generation);
  body += event_map(blocks, memory.tokens(), {});
  body += "<h2>Bytes</h2>\n<table>\n";
  for (const auto& [key, value] : json["bytes"].items())
    body += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_html(key), value.dump());
  body +=
      "</table>\n<h2>Most recalled</h2>\n<table>\n<tr><th>event</th><th>tokens</th>"
      "<th>recalls</th><th>text</th></tr>\n";
  std::vector<EventId> order;
  for (EventId e = 0; e < events.size() && store; ++e)
    if (!std::binary_search(memory.forgotten().begin(), memory.forgotten().end(), e))
      order.push_back(e);
  const std::size_t most = std::min<std::size_t>(50, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end(),
                    [&](EventId a, EventId b) {
                      return store->recalls(a) != store->recalls(b)
                                 ? store->recalls(a) > store->recalls(b)
                                 : a < b;
                    });
  for (std::size_t i = 0; i < most; ++i) {
    const EventId e = order[i];
    const Json* text = nullptr;
    if (json.contains("events") && json["events"][static_cast<std::size_t>(e)].contains("text"))
      text = &json["events"][static_cast<std::size_t>(e)]["text"];
    body += fmt::format("<tr><td>{}</td><td>{} to {}</td><td>{}</td><td>{}</td></tr>\n", e,
                        events[e].start, events[e].end, store->recalls(e),
                        text ? escape_html(text->get_ref<const std::string&>()) : "");
  }
  return html_page("Memory in " + flags.dir.filename().string(), body + "</table>\n");
}

void run(const InspectFlags& flags) {
  flags.common.apply();
  const EpisodicMemory memory = open_kept(flags.dir, OpenMode::read);
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
            {"n_events", memory.events().size()},
            {"forgotten", memory.forgotten().size()},
            {"recalled_events", c.recalled_events},
            {"bytes", bytes},
            {"host_bytes",
             {{"representatives", c.index_bytes},
              {"windows", c.window_bytes},
              {"events", c.store.bytes_reserved}}}};
  json["checkpoints"] = Json::array();
  for (const auto& s : m.checkpoints)
    json["checkpoints"].push_back({{"tokens", s.tokens}, {"events", s.events}, {"bytes", s.bytes}});
  if (!flags.no_events) {
    std::vector<std::string> text;
    if (!flags.model.empty()) text = texts(memory, *load_tokenizer(flags.model));
    json["events"] = Json::array();
    for (EventId e = 0; e < memory.events().size(); ++e)
      json["events"].push_back(event_json(memory, e, text));
  }
  fmt::print(
      stderr,
      "{}: {} tokens in {} events ({} forgotten), made with {}; {:.1f} MB on disk, {:.1f} MB "
      "of representatives in memory; commit {}\n",
      flags.dir.string(), memory.tokens(), memory.events().size(), memory.forgotten().size(),
      m.identity.model, 1e-6 * static_cast<double>(total),
      1e-6 * static_cast<double>(c.index_bytes), m.generation);
  if (!flags.html.empty()) write_text(flags.html, page(flags, memory, json));
  write_json(flags.json, json);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* sub = app.add_subcommand("inspect", "What is in a kept memory");
  sub->footer(
      "JSON: settings, bytes and the list of events with tier, recalls and the step of the last "
      "recall.\nWith --model also the text of each event.\n\n"
      "Example:\n  episodic inspect book.mem --json book.json --html book.html --model M");
  sub->add_option("dir", flags->dir, "Folder of the memory")->required();
  sub->add_option("--json", flags->json, "Result file (default: stdout)");
  sub->add_option("--html", flags->html, "Also a page with the timeline");
  sub->add_option("--model", flags->model, "Model directory whose tokenizer shows the texts");
  sub->add_flag("--no-events", flags->no_events, "Leave out the list of events");
  flags->common.add_to(*sub, false);
  sub->callback([flags] { run(*flags); });
}

}  // namespace episodic::tools
