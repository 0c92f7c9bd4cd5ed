// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Facts hidden in a book and asked for in the text's words, in others, or without one shared word.

#include <span>
#include <string>
#include <string_view>

#include "make/row_maker.hpp"

namespace episodic::suites {

/// same_words, other_words, no_shared_word.
std::span<const std::string_view> needle_tasks();

/// Whether two sentences share a word that says something: by its first five letters, so that
/// "baker" and "bakery" are one. Articles, pronouns, prepositions and the like do not count.
bool share_a_word(std::string_view a, std::string_view b);

/// Rows {id, kind, said, context, question, answers, depth, tokens}, one fact of `source` each, in
/// an order drawn from the seed. `tokens` bounds the context. \throws ConfigError, FileError
void make_needle_rows(const MakeOptions& options, const TokenCounter& count, const RowSink& emit);

}  // namespace episodic::suites
