// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a text stands among the tokens that were read.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic::tools {

/// Tokens with their text.
struct PlacedText {
  std::string text;
  TokenRange tokens;
};

/// The tokens of each place, in order: whole pieces, of which a place touches the first and the
/// last. White space and case as below.
/// \param pieces in order; no place reaches over tokens between two of them
std::vector<TokenRange> places_of(std::span<const PlacedText> pieces, const std::string& text);

/// The tokens of each place, in order; places do not overlap. Any white space counts as one space,
/// so that a line break in a book is none in what is looked for; letters' case counts.
/// \param ids negative where a token is not known: no place reaches over it
/// \param text of more than white space, else there is no place
std::vector<TokenRange> places_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                  const std::string& text);

}  // namespace episodic::tools
