// SPDX-License-Identifier: Apache-2.0
#include "html.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common.hpp"

namespace episodic::tools {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1c1e;--soft:#6b6b70;--line:#d8d8dc;--card:#f5f5f7;
--good:#1a7f37;--bad:#c0262d;--mark:#0b62d6;--shade:45%}
@media (prefers-color-scheme:dark){:root{--bg:#161618;--fg:#e8e8ea;--soft:#9a9aa0;--line:#38383c;
--card:#212124;--good:#4cc16b;--bad:#ff6b6b;--mark:#6cb0ff;--shade:34%}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1100px;padding:24px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:18px;margin:32px 0 8px}
p.soft,.soft{color:var(--soft)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:5px 8px;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:14px}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad)}
.cards{display:flex;flex-wrap:wrap;gap:10px;margin:14px 0}
.card{background:var(--card);border-radius:8px;padding:10px 14px;min-width:130px}
.card b{display:block;font-size:20px;font-variant-numeric:tabular-nums}
.text{font:14px/1.7 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.event{border-left:2px solid var(--mark);padding-left:2px;margin-left:1px}
.event.gold{outline:2px solid var(--mark);outline-offset:1px}
.grey{color:var(--soft)}
i{font-style:normal;color:var(--fg)}
/* A drawing has 1000 units. Narrower windows scroll it, for its letters would be too small. */
svg{width:100%;min-width:1000px;height:auto;display:block}
svg text{fill:var(--fg);font:14px system-ui,sans-serif}
svg text.onblock{fill:#111;stroke:#fff;stroke-width:3px;stroke-linejoin:round;paint-order:stroke}
.frame{fill:none;stroke:var(--line)}
.arc{fill:none;stroke:var(--soft);stroke-width:.6;opacity:.25}
.arc.gold{stroke:var(--good);stroke-width:1.8;opacity:.9}
.arc.gold.wrong{stroke:var(--bad)}
g.fact:hover .arc{opacity:1;stroke-width:1.6}
.markbox{fill:none;stroke:var(--mark);stroke-width:1.6}
details{border-bottom:1px solid var(--line);padding:6px 0}
summary{cursor:pointer}
code{font:14px/1.6 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.wide{overflow-x:auto}
.open{fill:var(--card);stroke:var(--line);stroke-dasharray:3 2;background:var(--card)}
.gone{fill:var(--line);background:var(--line)}
.pinned{outline:2px solid var(--mark);outline-offset:-1px}
/* On a phone what is wide scrolls in its own box: cells that are squeezed make rows of one word a line.
Fingers need 40 pixels. */
@media (max-width:700px){body{padding:14px}th,td{padding:4px 6px;white-space:nowrap;vertical-align:baseline}
table{width:max-content;min-width:100%}
td.text{white-space:pre-wrap;min-width:60vw;max-width:75vw}
.cards{gap:8px}.card{flex:1 1 40%;min-width:0;padding:8px 10px}
summary{padding:9px 0}td a{display:inline-block;padding:9px 0}}
)";

/// Hue from calm blue to hot red, for SVG blocks and token backgrounds alike.
constexpr const char* kShades[] = {"#4575b4", "#6f9bc8", "#9dbfd9", "#c9dbe0", "#f0dfb8",
                                   "#f7bf7d", "#f08f55", "#dd5c3f", "#b8232f"};
constexpr int kLastShade = 8;

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = utf8_length(text, i);
    if (n == 0) {
      out += "&#xFFFD;";
      ++i;
      continue;
    }
    const char c = text[i];
    if (n > 1)
      out += text.substr(i, n);
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if (c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20)
      out += c;
    else
      out += "&#xFFFD;";  // other control characters are not allowed in HTML
    i += n;
  }
  return out;
}

std::string html_page(std::string_view title, std::string_view body) {
  std::string shades;
  for (int i = 0; i <= kLastShade; ++i)
    shades += fmt::format(
        ".b{0}{{fill:{1}}}.s{0}{{background:color-mix(in srgb,{1} var(--shade),transparent)}}\n", i,
        kShades[i]);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}{}</style></head>\n<body>\n{}</body></html>\n",
      escape_html(title), kStyle, shades, body);
}

int surprise_class(double nats) {
  return static_cast<int>(std::clamp(std::floor(nats), 0.0, static_cast<double>(kLastShade)));
}

std::string surprise_legend() {
  std::string out = "<p class=\"soft\">Surprise in nats:";
  for (int i = 0; i <= kLastShade; ++i)
    out += fmt::format(" <i class=\"s{0}\">&nbsp;{0}{1}&nbsp;</i>", i, i == kLastShade ? "+" : "");
  return out + "</p>\n";
}

std::string coloured_tokens(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                            const Reading& reading, TokenRange range) {
  const std::vector<std::string> texts = texts_of(tokenizer, ids, range);
  std::string out, run;
  int shade = -1;
  const auto flush = [&] {
    if (!run.empty()) out += fmt::format("<i class=\"s{}\">{}</i>", shade, escape_html(run));
    run.clear();
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const double nats =
        static_cast<double>(reading.surprise[static_cast<std::size_t>(range.start) + i]);
    if (const int s = surprise_class(nats); s != shade) {
      flush();
      shade = s;
    }
    run += texts[i];
  }
  flush();
  return out;
}

std::vector<EventBlock> event_blocks(const std::vector<TokenRange>& events, const Reading& reading,
                                     std::int64_t most) {
  std::vector<EventBlock> blocks;
  if (events.empty()) return blocks;
  const std::int64_t tokens = events.back().end - events.front().start;
  const std::int64_t shortest =
      static_cast<std::int64_t>(events.size()) <= most ? 0 : (tokens + most - 1) / most;
  for (std::size_t e = 0; e < events.size(); ++e) {
    const auto id = static_cast<std::int64_t>(e);
    if (!blocks.empty() && blocks.back().tokens.size() < shortest) {
      blocks.back().tokens.end = events[e].end;
      blocks.back().last = id;
    } else {
      blocks.push_back({events[e], id, id, 0, false, ""});
    }
  }
  for (EventBlock& b : blocks) b.surprise = reading.mean_surprise(b.tokens);
  return blocks;
}

std::string event_map(const std::vector<EventBlock>& blocks, std::int64_t n_tokens,
                      const std::vector<MapMark>& marks) {
  constexpr double kWidth = 1000, kRow = 14, kGap = 3, kLeft = 62;
  // Rows as long as still show a block of a few tokens, but not more of them than a page can take.
  const std::int64_t per_row = std::max<std::int64_t>({500, 100 * ((n_tokens / 50 + 99) / 100)});
  const std::int64_t rows = std::max<std::int64_t>(1, (n_tokens + per_row - 1) / per_row);
  const double scale = (kWidth - kLeft) / static_cast<double>(per_row);
  std::string out =
      fmt::format("<div class=\"wide\"><svg viewBox=\"0 0 {} {:.0f}\" role=\"img\">\n", kWidth,
                  static_cast<double>(rows) * (kRow + kGap));
  const auto pieces = [&](TokenRange r, auto&& draw) {
    for (std::int64_t at = r.start; at < r.end;) {
      const std::int64_t row = at / per_row, end = std::min(r.end, (row + 1) * per_row);
      draw(kLeft + static_cast<double>(at - row * per_row) * scale,
           static_cast<double>(row) * (kRow + kGap), static_cast<double>(end - at) * scale,
           end == r.end);
      at = end;
    }
  };
  for (std::int64_t row = 0; row < rows; ++row)
    out += fmt::format("<text x=\"{}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6,
                       static_cast<double>(row) * (kRow + kGap) + kRow - 3, row * per_row);
  // What no closed event holds: the sinks before the first, the window behind the last.
  const auto open = [&](std::int64_t start, std::int64_t end) {
    if (start >= end) return;
    pieces({start, end}, [&](double x, double y, double w, bool) {
      out += fmt::format(
          "<rect class=\"open\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{}\">"
          "<title>tokens {} to {}: in no closed event</title></rect>\n",
          x, y, std::max(0.3, w - 0.4), kRow, start, end);
    });
  };
  open(0, blocks.empty() ? n_tokens : blocks.front().tokens.start);
  if (!blocks.empty()) open(blocks.back().tokens.end, n_tokens);
  for (const EventBlock& b : blocks) {
    const std::string name = b.first == b.last ? fmt::format("event {}", b.first)
                                               : fmt::format("events {} to {}", b.first, b.last);
    pieces(b.tokens, [&](double x, double y, double w, bool) {
      out += fmt::format(
          "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{}\"><title>{}: "
          "tokens {} to {}, {}</title></rect>\n",
          b.grey ? std::string("gone") : fmt::format("b{}", surprise_class(b.surprise)), x, y,
          std::max(0.3, w - 0.4), kRow, name, b.tokens.start, b.tokens.end,
          b.note.empty() ? fmt::format("{:.2f} nats", b.surprise) : escape_html(b.note));
    });
  }
  for (const MapMark& m : marks) {
    pieces(m.tokens, [&](double x, double y, double w, bool last) {
      out += fmt::format(
          "<g><title>{}</title><rect class=\"markbox\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" "
          "height=\"{}\"/>",
          escape_html(m.title), x - 1, y, w + 2, kRow);
      if (last)
        out += fmt::format(
            "<text class=\"onblock\" x=\"{:.1f}\" y=\"{:.0f}\" font-weight=\"700\">{}</text>",
            x + w + 3, y + kRow - 3, escape_html(m.label));
      out += "</g>\n";
    });
  }
  return out + "</svg></div>\n";
}

}  // namespace episodic::tools
