// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the demo reads: a real book with facts hidden in it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic::tools {

/// A book, one sentence (or less) a piece, white space collapsed.
struct Book {
  std::string title;
  std::vector<std::string> pieces;
};

/// The file, or with an empty path the King James Bible out of the Debian package bible-kjv.
/// \throws FileError if there is no text; it names the package and --text
Book open_book(const std::filesystem::path& path);

/// Something said once in the text and asked for at its end.
struct Fact {
  std::string kind;      ///< "pass key" or "number"
  std::string name;      ///< "pass key of Rosa"
  std::string value;     ///< "60453"
  double depth = 0;      ///< where it was put: 0 the start of the text, 1 its end
  TokenRange tokens;     ///< of its sentences
  std::string question;  ///< what follows the text to ask for it
};

/// The text as it is fed.
struct HiddenFacts {
  std::vector<std::int64_t> ids;
  std::vector<Fact> facts;
  std::int64_t times_read = 1;  ///< more than once if the book is shorter than what was asked for
};

/// At least n_tokens of the book with facts between its sentences, at depths from 0.02 to 0.98.
/// Names, values and kinds depend on the seed alone. \throws ConfigError if the facts do not fit
HiddenFacts hide_facts(const Book& book, const Tokenizer& tokenizer, std::int64_t n_tokens,
                       std::int64_t n_facts, std::uint64_t seed);

}  // namespace episodic::tools
