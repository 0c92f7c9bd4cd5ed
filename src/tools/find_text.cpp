// SPDX-License-Identifier: Apache-2.0
#include "find_text.hpp"

#include <algorithm>
#include <cstddef>

#include "reading.hpp"

namespace episodic::tools {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// A text with one space for any white space, and the token of each byte.
class Flat {
 public:
  void add(std::string_view piece, std::int64_t token) {
    for (const char c : piece) {
      if (is_space(c) && !text_.empty() && text_.back() == ' ') continue;
      text_ += is_space(c) ? ' ' : c;
      tokens_.push_back(token);
    }
  }
  const std::string& text() const { return text_; }
  std::int64_t token(std::size_t at) const { return tokens_[at]; }

 private:
  std::string text_;
  std::vector<std::int64_t> tokens_;
};

}  // namespace

std::vector<TokenRange> places_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                  const std::string& text) {
  Flat flat_needle;
  flat_needle.add(text, 0);
  std::string needle = flat_needle.text();
  if (needle.ends_with(' ')) needle.pop_back();
  if (needle.starts_with(' ')) needle.erase(0, 1);
  std::vector<TokenRange> places;
  if (needle.empty()) return places;
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::int64_t first = 0; first < n;) {
    if (ids[static_cast<std::size_t>(first)] < 0) {
      ++first;
      continue;
    }
    const auto unknown =
        std::find_if(ids.begin() + first, ids.end(), [](std::int64_t id) { return id < 0; });
    const std::int64_t end = unknown - ids.begin();
    Flat flat;
    const std::vector<std::string> pieces = texts_of(
        tokenizer,
        ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)),
        {0, end - first});
    for (std::size_t i = 0; i < pieces.size(); ++i)
      flat.add(pieces[i], first + static_cast<std::int64_t>(i));
    for (std::size_t at = flat.text().find(needle); at != std::string::npos;
         at = flat.text().find(needle, at + needle.size()))
      places.push_back({flat.token(at), flat.token(at + needle.size() - 1) + 1});
    first = end;
  }
  return places;
}

}  // namespace episodic::tools
