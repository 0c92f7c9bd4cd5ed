// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/sentences.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/base/text.hpp"
#include "text/utf8.hpp"

namespace episodic {
namespace {

constexpr std::array<std::string_view, 33> kAbbreviations = {
    "mr",  "mrs", "ms",  "dr",  "prof", "st", "sr",   "jr",  "vs",  "etc", "e.g",
    "i.e", "cf",  "al",  "fig", "figs", "eq", "eqs",  "no",  "nos", "vol", "pp",
    "ed",  "eds", "rev", "gen", "col",  "lt", "capt", "sgt", "hon", "gov", "approx"};

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\f' || c == '\v';
}
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }
bool is_small(char c) { return c >= 'a' && c <= 'z'; }

enum class Mark : std::uint8_t { none, full_stop, other, wide };

/// What a character is to a sentence. Wide: Chinese and Japanese marks need no space behind them.
Mark mark_of(std::uint32_t c) {
  switch (c) {
    case '.':
      return Mark::full_stop;
    case '!':
    case '?':
    case 0x2026:  // ellipsis
      return Mark::other;
    case 0x3002:  // ideographic full stop
    case 0xFF01:  // full-width ! and ?
    case 0xFF1F:
    case 0xFF0E:
      return Mark::wide;
    default:
      return Mark::none;
  }
}

bool closes(std::uint32_t c) {
  switch (c) {
    case '"':
    case '\'':
    case ')':
    case ']':
    case '}':
    case 0xBB:    // right guillemet
    case 0x2019:  // right single quotation mark
    case 0x201D:  // right double quotation mark
    case 0x300D:  // right corner brackets
    case 0x300F:
    case 0xFF09:  // full-width )
      return true;
    default:
      return false;
  }
}

/// A text, character by character; bytes that are no character count as one each.
class Characters {
 public:
  explicit Characters(std::string_view text) : text_(text) {}

  std::size_t length(std::size_t at) const {
    return std::max<std::size_t>(1, text::utf8_length(text_, at));
  }
  std::uint32_t operator[](std::size_t at) const {
    const std::size_t length = text::utf8_length(text_, at);
    return length == 0 ? 0xFFFD : text::utf8_code_point(text_, at, length);
  }

 private:
  std::string_view text_;
};

/// Whether the full stop at `dot` belongs to the word before it.
bool is_abbreviation(std::string_view text, std::size_t dot) {
  std::size_t begin = dot;
  while (begin > 0 && (is_letter(text[begin - 1]) || text[begin - 1] == '.')) --begin;
  const std::string_view word = text.substr(begin, dot - begin);
  if (word.empty()) return false;
  // an initial: one capital letter, or several with stops between ("J. R. R.", "U.S.")
  if (is_capital(word.back()) && (word.size() == 1 || word[word.size() - 2] == '.'))
    return begin == 0 || is_space(text[begin - 1]) || text[begin - 1] == '(';
  std::string lower(word);
  for (char& c : lower)
    if (is_capital(c)) c = static_cast<char>(c - 'A' + 'a');
  return std::find(kAbbreviations.begin(), kAbbreviations.end(), lower) != kAbbreviations.end();
}

}  // namespace

std::vector<std::size_t> sentence_ends(std::string_view text) {
  std::vector<std::size_t> ends;
  const Characters characters(text);
  const auto end_at = [&](std::size_t at) {
    if (at > 0 && (ends.empty() || ends.back() < at)) ends.push_back(at);
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = characters.length(at);
    const Mark mark = mark_of(characters[at]);
    if (mark == Mark::none && text[at] != '\n') {
      at += length;
      continue;
    }
    std::size_t behind = at + length;
    if (mark != Mark::none)
      while (behind < text.size() &&
             (closes(characters[behind]) || mark_of(characters[behind]) != Mark::none))
        behind += characters.length(behind);
    // the white space that follows, and how far its line breaks reach
    std::size_t word = mark == Mark::none ? at : behind, lines = 0, last_line = behind;
    for (; word < text.size() && is_space(text[word]); ++word)
      if (text[word] == '\n') ++lines, last_line = word + 1;
    const bool blank_line = lines > 1;
    bool ends_here = blank_line || mark == Mark::wide;
    if (!ends_here && mark != Mark::none && (word > behind || word == text.size()))
      ends_here = word == text.size() ||
                  !(is_small(text[word]) ||
                    (mark == Mark::full_stop && behind == at + 1 && is_abbreviation(text, at)));
    if (ends_here) end_at(lines > 0 ? last_line : behind);
    at = std::max(word, behind);
  }
  end_at(text.size());
  return ends;
}

std::vector<std::int64_t> entry_starts(const Tokenizer& tokenizer,
                                       std::span<const std::int64_t> ids, std::int64_t longest,
                                       std::int64_t first) {
  if (longest <= 0)
    throw ConfigError(concat("entries of ", longest, " tokens: must be at least 1, as 256"));
  // where each token's text begins, from `first` on
  std::string text;
  std::vector<std::size_t> begins;
  StreamDecoder decoder(tokenizer);
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::int64_t t = std::max<std::int64_t>(0, first); t < n; ++t) {
    begins.push_back(text.size());
    text += decoder.push(ids[static_cast<std::size_t>(t)]);
  }
  text += decoder.finish();

  std::vector<std::int64_t> starts;
  const auto total = static_cast<std::int64_t>(begins.size());
  std::int64_t start = 0, end = 0;  // of the entry being filled, from `first`
  const auto begin_entry = [&](std::int64_t at) {
    start = at;
    if (at > 0 && at < total) starts.push_back(first + at);
  };
  for (const std::size_t byte : sentence_ends(text)) {
    const std::int64_t next =
        byte == text.size() ? total
                            : std::lower_bound(begins.begin(), begins.end(), byte) - begins.begin();
    if (next - start > longest && end > start) begin_entry(end);
    while (next - start > longest) begin_entry(start + longest);
    end = next;
  }
  return starts;
}

}  // namespace episodic
