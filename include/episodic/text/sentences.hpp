// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where a text's sentences end, and entries of whole sentences (EpMAN 3.5) as boundaries for
/// segmenter `given`.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/text/tokenizer.hpp"

namespace EPISODIC_NAMESPACE {

/// Byte behind each sentence, ascending; the last is the text's size (none for an empty text).
///
/// A sentence ends at `.`, `!`, `?` or an ellipsis with white space, or the text's end, behind it;
/// at the full stops and marks of Chinese and Japanese; and at a blank line. Quotation marks and
/// brackets that close behind a mark belong to it, as do line breaks; spaces belong to the next
/// sentence, as in the tokens of most vocabularies. No end: before a small letter, and a full stop
/// behind a single capital letter or a usual English abbreviation ("Mr.").
std::vector<std::size_t> sentence_ends(std::string_view text);

/// The tokens that begin an entry, but for the first entry's: as many whole sentences as have at
/// most `longest` tokens together. A longer sentence is entries of `longest` tokens and what is
/// left. The tokens before `first` (the memory's n_init sinks) are in no entry.
/// \throws ConfigError unless longest > 0; DataError for an id that the tokenizer does not have
std::vector<std::int64_t> entry_starts(const Tokenizer& tokenizer,
                                       std::span<const std::int64_t> ids, std::int64_t longest,
                                       std::int64_t first = 0);

}  // namespace EPISODIC_NAMESPACE
