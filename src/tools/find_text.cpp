// SPDX-License-Identifier: Apache-2.0
#include "find_text.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "reading.hpp"

namespace episodic::tools {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// A text with one space for any white space, and the piece of each byte.
class Flat {
 public:
  void add(std::string_view piece, std::size_t number) {
    for (const char c : piece) {
      if (is_space(c) && !text_.empty() && text_.back() == ' ') continue;
      text_ += is_space(c) ? ' ' : c;
      pieces_.push_back(number);
    }
  }
  const std::string& text() const { return text_; }
  std::size_t piece(std::size_t at) const { return pieces_[at]; }

 private:
  std::string text_;
  std::vector<std::size_t> pieces_;
};

}  // namespace

std::vector<TokenRange> places_of(std::span<const PlacedText> pieces, const std::string& text) {
  Flat flat_needle;
  flat_needle.add(text, 0);
  std::string needle = flat_needle.text();
  if (needle.ends_with(' ')) needle.pop_back();
  if (needle.starts_with(' ')) needle.erase(0, 1);
  std::vector<TokenRange> places;
  if (needle.empty()) return places;
  for (std::size_t first = 0; first < pieces.size();) {
    Flat flat;
    std::size_t end = first;
    do {
      flat.add(pieces[end].text, end);
      ++end;
    } while (end < pieces.size() && pieces[end].tokens.start == pieces[end - 1].tokens.end);
    for (std::size_t at = flat.text().find(needle); at != std::string::npos;
         at = flat.text().find(needle, at + needle.size()))
      places.push_back({pieces[flat.piece(at)].tokens.start,
                        pieces[flat.piece(at + needle.size() - 1)].tokens.end});
    first = end;
  }
  return places;
}

std::vector<TokenRange> places_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                  const std::string& text) {
  std::vector<PlacedText> pieces;
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::int64_t first = 0; first < n; ++first) {
    if (ids[static_cast<std::size_t>(first)] < 0) continue;
    const auto unknown =
        std::find_if(ids.begin() + first, ids.end(), [](std::int64_t id) { return id < 0; });
    const std::int64_t end = unknown - ids.begin();
    std::vector<std::string> texts = texts_of(
        tokenizer,
        ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)),
        {0, end - first});
    for (std::string& piece : texts) {
      pieces.push_back({std::move(piece), {first, first + 1}});
      ++first;
    }
    first = end;
  }
  return places_of(pieces, text);
}

}  // namespace episodic::tools
