// SPDX-License-Identifier: Apache-2.0
// The demo's page: answers, the text as a strip of events with the recalls as arcs, their text.

#include <fmt/format.h>

#include <algorithm>

#include "demo_result.hpp"
#include "html.hpp"

namespace episodic::tools {
namespace {

constexpr double kWidth = 1000, kArcs = 190, kStrip = 26;
constexpr std::int64_t kStripBlocks = 600, kMapBlocks = 8000;
constexpr std::int64_t kAround = 24;  // tokens shown before and after a fact
constexpr std::size_t kListed = 12;   // recalled events written out per fact

std::string card(std::string_view name, std::string_view value) {
  return fmt::format("<div class=\"card\"><b>{}</b>{}</div>\n", escape_html(value),
                     escape_html(name));
}

std::string answer_cell(const Answer& a) {
  return fmt::format("<td class=\"{}\" title=\"{}\">{}</td>", a.right ? "good" : "bad",
                     escape_html(a.text), escape_html(a.value.empty() ? "(no number)" : a.value));
}

std::string answers(const DemoResult& r) {
  std::string out =
      "<div class=\"wide\"><table><tr><th>#</th><th>depth</th><th>asked</th><th>truth</th><th>with "
      "the memory</th>"
      "<th>without</th><th>full attention</th><th>recalled from</th></tr>\n";
  for (std::size_t i = 0; i < r.facts.size(); ++i) {
    const FactResult& f = r.facts[i];
    std::string from = f.far ? "not recalled" : "the window";
    if (f.source)
      from = fmt::format("<a href=\"#fact{}\">event {}</a>, {}", i + 1, f.source->event,
                         ranks_text(f, f.source->event));
    out += fmt::format(
        "<tr><td class=\"n\">{}</td><td "
        "class=\"n\">{:.0f}&nbsp;%</td><td>{}{}</td><td>{}</td>{}{}{}<td>{}</td>"
        "</tr>\n",
        i + 1, 100 * f.fact.depth, escape_html(f.fact.name),
        f.far ? "" : " <span class=\"soft\">(near)</span>", f.fact.value,
        answer_cell(f.with_memory), answer_cell(f.without_memory),
        f.full ? answer_cell(*f.full) : std::string("<td class=\"soft\">not run</td>"), from);
  }
  return out + "</table></div>\n";
}

/// The whole text as one strip; from the question at its right end an arc to every recalled event
/// of the layer that answered, the one with the fact on top.
std::string timeline(const DemoResult& r) {
  const auto n = static_cast<double>(r.n_tokens());
  const double right = kWidth - 14;
  const auto x_of = [&](double token) { return token / n * right; };
  std::string out = fmt::format("<div class=\"wide\"><svg viewBox=\"0 0 {} {}\" role=\"img\">\n",
                                kWidth, kArcs + kStrip + 40);
  for (const EventBlock& b : event_blocks(r.events, r.reading, kStripBlocks)) {
    const double x = x_of(static_cast<double>(b.tokens.start));
    out += fmt::format(
        "<rect class=\"b{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>events {} "
        "to {}: "
        "tokens {} to {}, {:.2f} nats</title></rect>\n",
        surprise_class(b.surprise), x, kArcs, x_of(static_cast<double>(b.tokens.end)) - x, kStrip,
        b.first, b.last, b.tokens.start, b.tokens.end, b.surprise);
  }
  out += fmt::format("<rect class=\"frame\" x=\"0\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"/>\n",
                     kArcs, right, kStrip);
  const auto arc = [&](const Recalled& e, const char* kind) {
    const double x = x_of(static_cast<double>(e.tokens.start + e.tokens.end) / 2);
    const double height = 12 + (kArcs - 16) * (right - x) / right;
    return fmt::format(
        "<path class=\"arc{}\" d=\"M{:.1f} {} C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {}\">"
        "<title>event {}, rank {} in layer {}</title></path>\n",
        kind, right, kArcs, right, kArcs - height * 1.3, x, kArcs - height * 1.3, x, kArcs, e.event,
        e.rank, e.layer);
  };
  for (std::size_t i = 0; i < r.facts.size(); ++i) {
    const FactResult& f = r.facts[i];
    out += fmt::format("<g class=\"fact\"><title>{}: {}</title>\n", escape_html(f.fact.name),
                       f.with_memory.right ? "right" : "wrong");
    for (const Recalled& e : f.best) out += arc(e, "");
    if (f.source) out += arc(*f.source, f.with_memory.right ? " gold" : " gold wrong");
    const double x = x_of(static_cast<double>(f.fact.tokens.start));
    out += fmt::format(
        "<rect class=\"markbox\" x=\"{:.1f}\" y=\"{}\" width=\"3\" height=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"700\">{}</text></g>\n",
        x - 1, kArcs - 2, kStrip + 4, std::max(6.0, x), kArcs + kStrip + 15, i + 1);
  }
  out += fmt::format(
      "<text x=\"0\" y=\"{0}\">token 0</text><text x=\"{1:.1f}\" y=\"{0}\" text-anchor=\"end\">"
      "the questions, at token {2}</text>\n",
      kArcs + kStrip + 31, kWidth, r.n_tokens());
  return out + "</svg></div>\n";
}

/// A fact with what lies around it, cut at the events.
std::string neighbourhood(const DemoResult& r, const Tokenizer& tokenizer, const FactResult& f) {
  const TokenRange shown{std::max<std::int64_t>(0, f.fact.tokens.start - kAround),
                         std::min(r.n_tokens(), f.fact.tokens.end + kAround)};
  const auto coloured = [&](TokenRange part) {
    return coloured_tokens(tokenizer, r.text.ids, r.reading, part);
  };
  std::string out = "<div class=\"text\">";
  std::int64_t at = shown.start;
  auto e = std::upper_bound(r.events.begin(), r.events.end(), shown.start,
                            [](std::int64_t t, const TokenRange& x) { return t < x.end; });
  for (; e != r.events.end() && e->start < shown.end; ++e) {
    if (at < e->start) out += coloured({at, e->start});
    const TokenRange part{std::max(e->start, shown.start), std::min(e->end, shown.end)};
    const auto id = static_cast<EventId>(e - r.events.begin());
    const std::string ranks = ranks_text(f, id);
    out += fmt::format(
        "<span class=\"event{}\" title=\"event {}: tokens {} to {}, {:.2f} nats{}{}\">{}</span>",
        ranks.empty() ? "" : " gold", id, e->start, e->end, r.reading.mean_surprise(*e),
        ranks.empty() ? "" : ", recalled: ", ranks, coloured(part));
    at = part.end;
  }
  if (at < shown.end) out += coloured({at, shown.end});
  return out + "</div>\n";
}

std::string recalled(const DemoResult& r, const Tokenizer& tokenizer, const FactResult& f) {
  std::string out = "<div class=\"wide\"><table>\n";
  std::size_t listed = 0;
  for (const Recalled& e : f.best) {
    const bool gold = e.tokens.start < f.fact.tokens.end && f.fact.tokens.start < e.tokens.end;
    if (listed >= kListed && !gold) continue;
    ++listed;
    out += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"n {}\">event&nbsp;{}</td><td class=\"n\">{}</td>"
        "<td class=\"text\">{}</td></tr>\n",
        e.rank, gold ? "good" : "", e.event, e.tokens.start,
        coloured_tokens(tokenizer, r.text.ids, r.reading,
                        {e.tokens.start, std::min(e.tokens.end, r.n_tokens())}));
  }
  out += "</table></div>\n";
  if (listed < f.best.size())
    out += fmt::format("<p class=\"soft\">and {} more</p>\n", f.best.size() - listed);
  return out;
}

}  // namespace

std::string demo_page(const DemoResult& r, const Tokenizer& tokenizer) {
  const auto n = static_cast<std::int64_t>(r.facts.size());
  const auto with = [](const FactResult& f) -> const Answer& { return f.with_memory; };
  const auto without = [](const FactResult& f) -> const Answer& { return f.without_memory; };
  std::string body = fmt::format(
      "<h1>{} facts in {} tokens</h1>\n<p class=\"soft\">{} read {}, with a window of {} tokens "
      "and an "
      "episodic memory behind it, then was asked for each fact from the same point.</p>\n",
      n, r.n_tokens(), escape_html(r.model), escape_html(r.book), r.config.n_local);
  body += "<div class=\"cards\">\n";
  body += card("right with the memory", fmt::format("{} of {}", r.right(with), n));
  body += card("right without it", fmt::format("{} of {}", r.right(without), n));
  body += card("tokens a second", fmt::format("{:.0f}", r.tokens_per_second()));
  body += card("events", fmt::format("{}", r.events.size()));
  body += card("keys and values of events", bytes_text(r.bytes("store_bytes")));
  body += card("index", bytes_text(r.bytes("index_bytes")));
  body += card("the process", bytes_text(r.resident));
  body += "</div>\n<h2>Answers</h2>\n" + answers(r);
  body += fmt::format("<p class=\"soft\">Full attention: {}.</p>\n", escape_html(r.full_note));
  body +=
      "<h2>Recalls</h2>\n<p class=\"soft\">The text from left to right, shaded by surprise; "
      "numbers mark "
      "the facts. Arcs lead from the question to the events recalled for it, in the layer that "
      "ranked "
      "the fact best; strong arcs to the event that holds it. Point at a fact to see its "
      "own.</p>\n";
  body += timeline(r) + surprise_legend();
  body +=
      "<h2>What was recalled</h2>\n<p class=\"soft\">Each fact where it stands, a bar on the left "
      "where "
      "an event opens, a frame around events that were recalled; below, everything recalled in "
      "that "
      "layer by rank.</p>\n";
  for (std::size_t i = 0; i < r.facts.size(); ++i) {
    const FactResult& f = r.facts[i];
    body += fmt::format(
        "<details id=\"fact{}\"{}><summary><b>{}</b> {}: <span class=\"{}\">{}</span> <span "
        "class=\"soft\">{}"
        "</span></summary>\n",
        i + 1, i < 3 ? " open" : "", i + 1, escape_html(f.fact.name),
        f.with_memory.right ? "good" : "bad",
        escape_html(f.with_memory.value.empty() ? "(no number)" : f.with_memory.value),
        f.source ? fmt::format("event {}, {}", f.source->event, ranks_text(f, f.source->event))
                 : std::string(f.far ? "not recalled in any layer" : "in the window"));
    body += neighbourhood(r, tokenizer, f);
    if (!f.best.empty()) body += recalled(r, tokenizer, f);
    body += "</details>\n";
  }
  std::vector<MapMark> marks;
  for (std::size_t i = 0; i < r.facts.size(); ++i)
    marks.push_back({r.facts[i].fact.tokens, fmt::format("{}", i + 1),
                     fmt::format("{} is {}", r.facts[i].fact.name, r.facts[i].fact.value)});
  body +=
      "<h2>All events</h2>\n<p class=\"soft\">One block an event, one row after the other; the "
      "number on "
      "the left is the row's first token. <i class=\"open\">&nbsp;Without a colour&nbsp;</i> what "
      "is "
      "in no closed event: the first tokens, and at the end the window.</p>\n";
  body += event_map(event_blocks(r.events, r.reading, kMapBlocks), r.n_tokens(), marks);
  body +=
      fmt::format("<h2>Settings</h2>\n<p><code>{}</code></p>\n", escape_html(to_json(r.config)));
  return html_page(fmt::format("episodic: {} facts in {} tokens", n, r.n_tokens()), body);
}

}  // namespace episodic::tools
