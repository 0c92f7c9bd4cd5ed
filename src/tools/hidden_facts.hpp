// SPDX-License-Identifier: Apache-2.0
#pragma once
// A real book with facts hidden in it, and the asking for them: what the demo shows and
// bench_recall counts.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "episodic/session/session.hpp"
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
  std::string said;      ///< how the text says it; empty: as the demo does
};

/// Sentences of plain English about nothing in particular, drawn from a seed: what is there
/// wherever the program is. Neither names nor things of facts are in it.
Book plain_book(std::int64_t sentences, std::uint64_t seed);

/// The text as it is fed.
struct HiddenFacts {
  std::vector<std::int64_t> ids;
  std::vector<Fact> facts;
  std::string end;              ///< mark that ends the last sentence: a question begins with it
  std::int64_t times_read = 1;  ///< more than once if the book is shorter than what was asked for
};

/// The demo's facts: kinds, names and values depend on the seed alone; depths from 0.02 to 0.98.
/// \throws ConfigError if there are not as many
std::vector<Fact> draw_facts(std::int64_t n, std::uint64_t seed);

/// At least n_tokens of the book with the facts between its sentences, each at its `depth`; fills
/// in `tokens`, the depth as it came out, and `question` where `said` is empty. \param facts by
/// increasing depth \param first_piece where in the book to begin \throws ConfigError if the facts
/// do not fit
HiddenFacts hide_facts(const Book& book, const Tokenizer& tokenizer, std::int64_t n_tokens,
                       std::vector<Fact> facts, std::size_t first_piece = 0);

struct Answer {
  std::string text;   ///< what the model wrote, to the end of the line
  std::string value;  ///< first number in it, empty if there is none
  bool right = false;
  double seconds = 0;  ///< reading the question and writing the answer
};

/// Most tokens that reading the text and asking for one of its facts comes to.
std::int64_t tokens_to_ask(const HiddenFacts& text, const Tokenizer& tokenizer);

/// Asks for a fact of what the session has read, the question being a step of its own.
/// \param at_first_token called when the question has been read and nothing of the answer fed back
Answer ask_for(const Fact& fact, Session& session, const Tokenizer& tokenizer,
               const std::function<void()>& at_first_token = {});

}  // namespace episodic::tools
