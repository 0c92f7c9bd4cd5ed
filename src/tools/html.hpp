// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pages that the programs write: one self-contained HTML file, no script, nothing from elsewhere.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/timeline/event_table.hpp"
#include "reading.hpp"

namespace episodic::tools {

/// Text as HTML: markup escaped, what is not UTF-8 replaced by U+FFFD, newlines kept visible.
std::string escape_html(std::string_view text);

/// The page around a body.
std::string html_page(std::string_view title, std::string_view body);

/// CSS class s0 .. s8 of a surprise in nats: the more surprising, the warmer.
int surprise_class(double nats);

/// Line that explains the colours.
std::string surprise_legend();

/// Tokens of a range, coloured by surprise: one <i> a run of equal colour.
std::string coloured_tokens(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                            const Reading& reading, TokenRange range);

/// One or several neighbouring events drawn as one.
struct EventBlock {
  TokenRange tokens;
  std::int64_t first = 0, last = 0;  ///< event numbers, both included
  double surprise = 0;               ///< mean nats, or what else the colours stand for
  bool grey = false;                 ///< drawn without a colour: forgotten
  std::string note;                  ///< said of it instead of the nats
};

/// Joins neighbours until no more than `most` blocks are left.
std::vector<EventBlock> event_blocks(const std::vector<TokenRange>& events, const Reading& reading,
                                     std::int64_t most);

/// A marked range of tokens of a map.
struct MapMark {
  TokenRange tokens;
  std::string label, title;
};

/// SVG of the whole text as rows of blocks shaded by surprise, marks on top; what is in no block is
/// drawn too, and says so. In a box of its own that scrolls where the page is narrow, as every
/// table is to be (class "wide").
std::string event_map(const std::vector<EventBlock>& blocks, std::int64_t n_tokens,
                      const std::vector<MapMark>& marks);

}  // namespace episodic::tools
