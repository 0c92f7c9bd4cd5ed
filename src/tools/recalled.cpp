// SPDX-License-Identifier: Apache-2.0
#include "recalled.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace episodic::tools {
namespace {

/// What all of them received together; 0 where it is not known.
double attention_of(const std::vector<RecalledEvent>& events) {
  double total = 0;
  for (const RecalledEvent& e : events) total += e.attention;
  return total;
}

}  // namespace

std::string event_text(const std::function<std::vector<std::int64_t>(TokenRange)>& ids_of,
                       const Tokenizer& tokenizer, TokenRange event) {
  const std::int64_t first = std::max<std::int64_t>(0, event.start - 1);
  return event_text(tokenizer, ids_of({first, event.end}), first, event);
}

std::string event_text(const EpisodicMemory& memory, const Tokenizer& tokenizer, TokenRange event) {
  return event_text([&](TokenRange r) { return memory.token_ids(r.start, r.size()); }, tokenizer,
                    event);
}

Json recalled_json(const std::vector<RecalledEvent>& events, const EpisodicMemory& memory,
                   const Tokenizer& tokenizer) {
  return recalled_json(events, memory,
                       [&](TokenRange event) { return event_text(memory, tokenizer, event); });
}

Json recalled_json(const std::vector<RecalledEvent>& events, const SequenceMemory& memory,
                   const EventText& text) {
  Json all = Json::array();
  const double total = attention_of(events);
  for (const RecalledEvent& e : events) {
    Json one{{"event", e.event},       {"start", e.tokens.start}, {"end", e.tokens.end},
             {"text", text(e.tokens)}, {"layers", e.layers},      {"rank", e.rank}};
    if (total > 0) one["attention"] = e.attention / total;
    if (memory.config().scope == EventScope::head)
      one["kv_head"] = e.scope % memory.shape().n_kv_heads;
    all.push_back(std::move(one));
  }
  return all;
}

Json passages_json(std::span<const Passage> passages) {
  Json all = Json::array();
  for (const Passage& p : passages)
    all.push_back({{"start", p.tokens.start},
                   {"end", p.tokens.end},
                   {"text", p.text},
                   {"score", p.score},
                   {"gain", p.gain},
                   {"lead", p.lead}});
  return all;
}

std::string layers_text(const std::vector<std::int64_t>& layers, std::int64_t of) {
  if (of > 1 && static_cast<std::int64_t>(layers.size()) == of)
    return fmt::format("all {} layers", of);
  constexpr std::size_t kNamed = 4;
  if (layers.size() > kNamed)
    return of > 0 ? fmt::format("{} of {} layers", layers.size(), of)
                  : fmt::format("{} layers", layers.size());
  return fmt::format("layer{} {}", layers.size() == 1 ? "" : "s", fmt::join(layers, ", "));
}

std::string recalled_table(const std::vector<RecalledEvent>& events, const EpisodicMemory& memory,
                           const Tokenizer& tokenizer) {
  return recalled_table(events, memory,
                        [&](TokenRange event) { return event_text(memory, tokenizer, event); });
}

std::string recalled_table(const std::vector<RecalledEvent>& events, const SequenceMemory& memory,
                           const EventText& text) {
  const double total = attention_of(events);
  std::vector<RecalledLine> lines;
  for (const RecalledEvent& e : events)
    lines.push_back({total > 0 ? e.attention / total : -1, e.rank, e.event, e.tokens,
                     layers_text(e.layers, memory.shape().n_layers), text(e.tokens)});
  return recalled_table(lines);
}

std::string recalled_table(const std::vector<RecalledLine>& lines) {
  constexpr std::size_t kShown = 12, kText = 80;
  if (lines.empty()) return "nothing was recalled: all that was read is in the window\n";
  std::string out = fmt::format("{:>9}  {:>4}  {:>7}  {:>13}  {:<15}  {}\n", "attention", "rank",
                                "event", "tokens", "recalled in", "text");
  for (std::size_t i = 0; i < std::min(kShown, lines.size()); ++i) {
    const RecalledLine& e = lines[i];
    out +=
        fmt::format("{:>9}  {:>4}  {:>7}  {:>13}  {:<15}  {}\n",
                    e.attention >= 0 ? fmt::format("{:.1f}%", 100 * e.attention) : std::string("-"),
                    e.rank, e.event, fmt::format("{}:{}", e.tokens.start, e.tokens.end), e.layers,
                    excerpt_of(e.text, kText));
  }
  if (lines.size() > kShown)
    out += fmt::format("and {} more; --json lists all\n", lines.size() - kShown);
  return out;
}

std::string excerpt_of(const std::string& text, std::size_t most) {
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  const std::size_t first = out.find_first_not_of(' '), last = out.find_last_not_of(' ');
  if (first == std::string::npos) return {};
  out = out.substr(first, last - first + 1);
  if (out.size() <= most) return out;
  std::size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;
  return out.substr(0, end) + "...";
}

}  // namespace episodic::tools
