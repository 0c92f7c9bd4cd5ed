// SPDX-License-Identifier: Apache-2.0
#include "recalled.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reading.hpp"

namespace episodic::tools {
namespace {

/// What all of them received together; 0 where it is not known.
double attention_of(const std::vector<RecalledEvent>& events) {
  double total = 0;
  for (const RecalledEvent& e : events) total += e.attention;
  return total;
}

std::int64_t lanes_of(const Engine& engine) {
  const SequenceMemory& memory = *engine.memory();
  return memory.shape().n_layers * memory.config().lanes_per_layer(memory.shape().n_kv_heads);
}

/// Whose events a lane recalls.
std::int64_t scope_of(const Engine& engine, std::int64_t lane) {
  return engine.memory()->config().scope == EventScope::head ? lane : 0;
}

}  // namespace

std::vector<std::vector<Recalled>> recalled_by_lane(const Engine& engine) {
  if (!engine.has_memory()) engine.recalled(0);  // says why there is nothing
  const SequenceMemory& memory = *engine.memory();
  const std::int64_t lanes = lanes_of(engine);
  const std::int64_t of_layer = lanes / memory.shape().n_layers;
  std::vector<LaneRecall> lists;
  for (std::int64_t lane = 0; lane < lanes; ++lane) lists.push_back(engine.recalled(lane));
  std::vector<std::vector<Recalled>> all(lists.size());
  const EventTable* events = nullptr;  // a reference into the memory: the table may be long
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const LaneRecall& of = lists[static_cast<std::size_t>(lane)];
    if (lane == 0 || scope_of(engine, lane) > 0) events = &memory.events(scope_of(engine, lane));
    std::vector<Recalled>& list = all[static_cast<std::size_t>(lane)];
    for (const std::vector<EventId>* part : {&of.similarity, &of.contiguity})
      for (const EventId e : *part)
        list.push_back(
            {lane, lane / of_layer, static_cast<std::int64_t>(list.size()) + 1, e, (*events)[e]});
  }
  return all;
}

RecallNotes::RecallNotes(const Engine& engine, const std::shared_ptr<EpisodicMemory>& memory)
    : engine_(engine), memory_(memory) {
  if (!memory_) return;
  const std::int64_t lanes = lanes_of(engine_) / memory_->shape().n_layers;
  memory_->set_attention_hook([this, lanes](const AttendedEvents& attended) {
    const std::int64_t scope = scope_of(engine_, attended.layer * lanes + attended.group);
    for (std::size_t i = 0; i < attended.events.size(); ++i)
      events_[{scope, attended.events[i]}].attention += attended.mass[i];
  });
}

RecallNotes::~RecallNotes() {
  if (memory_) memory_->set_attention_hook({});
}

void RecallNotes::note() {
  const std::vector<std::vector<Recalled>> lanes = recalled_by_lane(engine_);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    for (const Recalled& r : lanes[lane]) {
      const std::int64_t scope = scope_of(engine_, static_cast<std::int64_t>(lane));
      RecalledEvent& e = events_[{scope, r.event}];
      e.event = r.event;
      e.scope = scope;
      e.tokens = r.tokens;
      e.rank = e.layers.empty() ? r.rank : std::min(e.rank, r.rank);
      e.weight += 1.0 / static_cast<double>(r.rank);
      const auto at = std::lower_bound(e.layers.begin(), e.layers.end(), r.layer);
      if (at == e.layers.end() || *at != r.layer) e.layers.insert(at, r.layer);
    }
}

std::vector<RecalledEvent> RecallNotes::ranked() const {
  std::vector<RecalledEvent> all;
  for (const auto& [key, event] : events_)
    if (event.rank > 0) all.push_back(event);
  std::stable_sort(all.begin(), all.end(), [](const RecalledEvent& a, const RecalledEvent& b) {
    return a.attention != b.attention ? a.attention > b.attention : a.weight > b.weight;
  });
  return all;
}

std::string event_text(const std::function<std::vector<std::int64_t>(TokenRange)>& ids_of,
                       const Tokenizer& tokenizer, TokenRange event) {
  // With the token before it, by which tokenizers tell whether a space comes first.
  const std::int64_t first = std::max<std::int64_t>(0, event.start - 1);
  const std::vector<std::int64_t> ids = ids_of({first, event.end});
  const std::int64_t skip = event.start - first;
  if (std::any_of(ids.begin() + skip, ids.end(), [](std::int64_t id) { return id < 0; })) return {};
  if (skip == 1 && ids.front() < 0) return tokenizer.decode({ids.begin() + 1, ids.end()});
  return text_of(tokenizer, ids, {skip, static_cast<std::int64_t>(ids.size())});
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

std::string layers_text(const std::vector<std::int64_t>& layers, std::int64_t of) {
  if (of > 1 && static_cast<std::int64_t>(layers.size()) == of)
    return fmt::format("all {} layers", of);
  constexpr std::size_t kNamed = 4;
  if (layers.size() > kNamed) return fmt::format("{} of {} layers", layers.size(), of);
  return fmt::format("layer{} {}", layers.size() == 1 ? "" : "s", fmt::join(layers, ", "));
}

std::string recalled_table(const std::vector<RecalledEvent>& events, const EpisodicMemory& memory,
                           const Tokenizer& tokenizer) {
  return recalled_table(events, memory,
                        [&](TokenRange event) { return event_text(memory, tokenizer, event); });
}

std::string recalled_table(const std::vector<RecalledEvent>& events, const SequenceMemory& memory,
                           const EventText& text) {
  constexpr std::size_t kShown = 12, kText = 80;
  if (events.empty()) return "nothing was recalled: all that was read is in the window\n";
  const double total = attention_of(events);
  std::string out = fmt::format("{:>9}  {:>4}  {:>7}  {:>13}  {:<15}  {}\n", "attention", "rank",
                                "event", "tokens", "recalled in", "text");
  for (std::size_t i = 0; i < std::min(kShown, events.size()); ++i) {
    const RecalledEvent& e = events[i];
    out += fmt::format(
        "{:>9}  {:>4}  {:>7}  {:>13}  {:<15}  {}\n",
        total > 0 ? fmt::format("{:.1f}%", 100 * e.attention / total) : std::string("-"), e.rank,
        e.event, fmt::format("{}:{}", e.tokens.start, e.tokens.end),
        layers_text(e.layers, memory.shape().n_layers), excerpt_of(text(e.tokens), kText));
  }
  if (events.size() > kShown)
    out += fmt::format("and {} more; --json lists all\n", events.size() - kShown);
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
