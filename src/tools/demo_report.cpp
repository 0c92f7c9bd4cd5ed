// SPDX-License-Identifier: Apache-2.0
// What the demo found, as a table and as JSON.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/strict_json.hpp"
#include "demo_result.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic::tools {
namespace {

std::string cell(const Answer& a) {
  const std::string said = excerpt_of(a.value.empty() ? a.text : a.value, 9);
  return fmt::format("{} {}", a.right ? "+" : "-", said.empty() ? "(blank)" : said);
}

/// An event's text from the fact on, which may stand at its end.
std::string excerpt(const DemoResult& r, const Tokenizer& tokenizer, const FactResult& f) {
  const TokenRange event = f.source->tokens;
  const TokenRange part{std::max(event.start, f.fact.tokens.start), event.end};
  return (part.start > event.start ? "..." : "") +
         excerpt_of(text_of(tokenizer, r.text.ids, part), 84);
}

std::string score(std::int64_t right, std::int64_t of) { return fmt::format("{}/{}", right, of); }

Json answer_json(const Answer& a) {
  return {{"text", a.text}, {"answer", a.value}, {"right", a.right}, {"seconds", a.seconds}};
}

Json range_json(TokenRange r) { return Json::array({r.start, r.end}); }

double mean_event(const DemoResult& r) {
  if (r.events.empty()) return 0;
  return static_cast<double>(r.events.back().end - r.events.front().start) /
         static_cast<double>(r.events.size());
}

}  // namespace

std::string ranks_text(const FactResult& fact, EventId event) {
  std::map<std::int64_t, std::string> layers;  // of each rank
  for (const Recalled& r : fact.holding)
    if (r.event == event) {
      std::string& list = layers[r.rank];
      list += fmt::format("{}{}", list.empty() ? "" : ", ", r.layer);
    }
  std::string out;
  for (const auto& [rank, list] : layers)
    out += fmt::format("{}rank {} in layer{} {}", out.empty() ? "" : "; ", rank,
                       list.find(',') == std::string::npos ? "" : "s", list);
  return out;
}

std::string demo_table(const DemoResult& r, const Tokenizer& tokenizer) {
  const auto n = static_cast<std::int64_t>(r.facts.size());
  const bool full = r.full_seconds.has_value();
  std::string out = fmt::format(
      "\n{} read {} tokens of {}{} with {} facts hidden in it.\n\n", r.model, r.n_tokens(), r.book,
      r.text.times_read > 1 ? fmt::format(" ({} times over)", r.text.times_read) : "", n);
  out += fmt::format("{:>3}  {:>5}  {:<24}{:<9}{:<12}{:<12}{}\n", "", "depth", "asked", "truth",
                     "memory", "no memory", "full attention");
  for (std::size_t i = 0; i < r.facts.size(); ++i) {
    const FactResult& f = r.facts[i];
    out += fmt::format("{:>3}  {:>4.0f}%  {:<24}{:<9}{:<12}{:<12}{}{}\n", i + 1, 100 * f.fact.depth,
                       f.fact.name, f.fact.value, cell(f.with_memory), cell(f.without_memory),
                       f.full ? cell(*f.full) : "", f.far ? "" : "  (near: still in the window)");
  }
  const auto with = [](const FactResult& f) -> const Answer& { return f.with_memory; };
  const auto without = [](const FactResult& f) -> const Answer& { return f.without_memory; };
  const auto whole = [](const FactResult& f) -> const Answer& { return *f.full; };
  out += fmt::format("{:>3}  {:>5}  {:<33}{:<12}{:<12}{}\n", "", "", "right (+)",
                     score(r.right(with), n), score(r.right(without), n),
                     full ? score(r.right(whole), n) : "");
  if (r.far() < n)
    out += fmt::format("{:>3}  {:>5}  {:<33}{:<12}{:<12}{}\n", "", "", "of the far ones",
                       score(r.right(with, true), r.far()), score(r.right(without, true), r.far()),
                       full ? score(r.right(whole, true), r.far()) : "");

  out += "\nEach answer was recalled from\n";
  for (std::size_t i = 0; i < r.facts.size(); ++i) {
    const FactResult& f = r.facts[i];
    if (!f.source) {
      out += fmt::format("{:>3}  {}\n", i + 1,
                         f.far ? "no event: the fact was not recalled in any layer" : "the window");
      continue;
    }
    const Recalled& s = *f.source;
    out +=
        fmt::format("{:>3}  event {} (tokens {} to {}), {}\n       \"{}\"\n", i + 1, s.event,
                    s.tokens.start, s.tokens.end, ranks_text(f, s.event), excerpt(r, tokenizer, f));
  }

  double asking = 0;
  for (const FactResult& f : r.facts) asking += f.with_memory.seconds;
  const MemoryConfig& c = r.config;
  out += fmt::format(
      "\nreading         {:.1f} s, {:.0f} tokens/s ({} threads); without recall {:.1f} s\n"
      "a question      {:.2f} s with its answer\n"
      "events          {} of {:.1f} tokens\n"
      "memory          {} of events, {} of index, {} of windows; the process {}, at most {}\n"
      "settings        n_init {}, n_local {}, n_mem {}, chunk {}, n_repr {}, blocks {}..{}, gamma "
      "{}, {}\n",
      r.reading.seconds, r.tokens_per_second(), max_threads(), r.without_seconds,
      n > 0 ? asking / static_cast<double>(n) : 0.0, r.events.size(), mean_event(r),
      bytes_text(r.bytes("store_bytes")), bytes_text(r.bytes("index_bytes")),
      bytes_text(r.bytes("window_bytes")), bytes_text(r.resident), bytes_text(r.peak_resident),
      c.n_init, c.n_local, c.n_mem, c.chunk, c.n_repr, c.min_block, c.max_block, c.gamma,
      r.memory.at("kv_dtype").get<std::string>());
  out += fmt::format("full attention  {}{}\n",
                     full ? fmt::format("{:.1f} s for all questions; ", *r.full_seconds) : "",
                     r.full_note);
  return out;
}

Json demo_json(const DemoResult& r, const Tokenizer& tokenizer) {
  const auto n = static_cast<std::int64_t>(r.facts.size());
  Json facts = Json::array();
  for (const FactResult& f : r.facts) {
    Json with = answer_json(f.with_memory);
    Json holding = Json::array();
    for (const Recalled& h : f.holding)
      holding.push_back({{"layer", h.layer}, {"rank", h.rank}, {"event", h.event}});
    with["recalled"] = holding;
    with["event"] = nullptr;
    if (f.source)
      with["event"] = {{"id", f.source->event},
                       {"start", f.source->tokens.start},
                       {"end", f.source->tokens.end},
                       {"text", text_of(tokenizer, r.text.ids, f.source->tokens)}};
    facts.push_back({{"name", f.fact.name},
                     {"kind", f.fact.kind},
                     {"truth", f.fact.value},
                     {"depth", f.fact.depth},
                     {"tokens", range_json(f.fact.tokens)},
                     {"far", f.far},
                     {"question", f.fact.question},
                     {"with_memory", with},
                     {"without_memory", answer_json(f.without_memory)},
                     {"full_attention", f.full ? answer_json(*f.full) : Json(nullptr)}});
  }
  const auto with = [](const FactResult& f) -> const Answer& { return f.with_memory; };
  const auto without = [](const FactResult& f) -> const Answer& { return f.without_memory; };
  const auto whole = [](const FactResult& f) -> const Answer& { return *f.full; };
  const bool full = r.full_seconds.has_value();
  Json bytes{{"events", r.bytes("store_bytes")}, {"events_reserved", r.bytes("host_bytes")},
             {"index", r.bytes("index_bytes")},  {"window", r.bytes("window_bytes")},
             {"resident", r.resident},           {"peak_resident", r.peak_resident}};
  if (r.memory.contains("device_bytes")) bytes["device"] = r.bytes("device_bytes");
  return {{"model", r.model},
          {"text", r.book},
          {"times_read", r.text.times_read},
          {"tokens", r.n_tokens()},
          {"seed", r.seed},
          {"threads", max_threads()},
          {"memory", parse_ordered(to_json(r.config), "settings", {})},
          {"facts", facts},
          {"totals",
           {{"facts", n},
            {"far", r.far()},
            {"with_memory", r.right(with)},
            {"with_memory_far", r.right(with, true)},
            {"without_memory", r.right(without)},
            {"without_memory_far", r.right(without, true)},
            {"full_attention", full ? Json(r.right(whole)) : Json(nullptr)}}},
          {"events", {{"count", r.events.size()}, {"mean_tokens", mean_event(r)}}},
          {"tokens_per_second", r.tokens_per_second()},
          {"seconds",
           {{"reading", r.reading.seconds},
            {"reading_without_memory", r.without_seconds},
            {"full_attention", full ? Json(*r.full_seconds) : Json(nullptr)}}},
          {"bytes", bytes},
          {"full_attention_note", r.full_note}};
}

}  // namespace episodic::tools
